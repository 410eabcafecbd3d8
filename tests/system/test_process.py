"""A process knows its id however it was started, and a daemon may not start workers."""

import multiprocessing
import os
from typing import Any

import pytest

import loaderkit as lk
from loaderkit.system import process_id


def tell(answers: Any) -> None:
    answers.send((process_id(), os.getpid()))


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_started_process_knows_its_id(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    answers, theirs = context.Pipe(duplex=False)
    process = context.Process(target=tell, args=(theirs,))
    process.start()
    found, own = answers.recv()
    process.join()
    assert found == own == process.pid != process_id() == os.getpid()


def test_a_fork_of_a_fork_knows_its_id() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        os.write(writing, bytes([process_id() == os.getpid()]))
        if grandchild:
            os.waitpid(grandchild, 0)
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 10) == b"\x01\x01"
    os.close(reading)
    os.close(writing)


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
