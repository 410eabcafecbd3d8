"""A daemon may not start workers."""

import multiprocessing
from typing import Any

import pytest

import loaderkit as lk


def read(answers: Any, engine: str, workers: int) -> None:
    stream: Any = lk.StreamDataset(["a"], read=lambda shard, start: iter(range(start, 4)))
    data: Any = stream if engine == "stream" else range(4)
    try:
        list(lk.Loader(data, 2, num_workers=workers, engine="auto" if engine == "stream" else engine))  # type: ignore[arg-type]
        answers.send("read")
    except Exception as error:
        answers.send(f"{type(error).__name__}: {error}")


@pytest.mark.parametrize("engine", ["ring", "torch", "stream"])
def test_a_daemon_may_have_no_workers(engine: str) -> None:
    context: Any = multiprocessing.get_context("fork")
    for workers in (1, 0):
        answers, theirs = context.Pipe(duplex=False)
        asked = engine if workers or engine == "stream" else "inline"
        process = context.Process(target=read, args=(theirs, asked, workers), daemon=True)
        process.start()
        found = answers.recv()
        process.join()
        if workers:
            assert found.startswith(
                f"RuntimeError: loader: num_workers is 1, but this process ({process.name}) is a daemon"
            )
            assert found.endswith("Use num_workers=0 here, or daemon=False.")
        else:
            assert found == "read"
