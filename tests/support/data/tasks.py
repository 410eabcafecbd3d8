"""What a process of a pool is given to do: here, where its process imports nothing else."""


def failing(task: int) -> int:
    if task == 2:
        error = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")  # an error with arguments of its own
        error.add_note("in the third")
        raise error
    return task * 10
