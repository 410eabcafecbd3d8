"""A process knows its own id, however it came about."""

import multiprocessing
import os
from typing import Any

import pytest

from loaderkit.process import process_id


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
