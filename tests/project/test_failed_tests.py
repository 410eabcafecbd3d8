"""A failed test leaves nothing running for the tests after it, and one that ends its process does not hang the others."""

from pathlib import Path

import pytest
from scripts import run

TESTS_FOLDER = Path(__file__).parents[1]
SUPPORT = ":".join(map(str, sorted((TESTS_FOLDER / "support").iterdir())))
TESTS = """
import threading
import time

import psutil
import pytest
import torch

import loaderkit as lk

ENGINES = ["threads", "ring", "torch"]


def running():
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("loaderkit worker")]
    return [*threads, *psutil.Process().children(recursive=True)]


@pytest.mark.parametrize("engine", ENGINES)
def test_fails(engine):
    loader = lk.Loader(lk.RecordDataset(range(1000)), 2, num_workers=2, engine=engine)
    batches = iter(loader)
    next(batches)
    assert running()
    try:
        raise KeyError
    except KeyError:
        assert batches is None


@pytest.mark.parametrize("engine", ENGINES)
def test_comes_after(engine):
    deadline = time.monotonic() + 10
    while running() and time.monotonic() < deadline:  # a thread that was told to end takes a moment
        time.sleep(0.01)
    assert not running()
"""
ABORTS = """
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor


def test_aborts():
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        assert pool.submit(abs, -1).result() == 1
        os.abort()


def test_comes_after():
    pass
"""
MAIN = """
import sys

import pytest

sys.path += sys.argv[1].split(":")
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


@pytest.mark.slow
def test_a_failed_test_that_keeps_its_loader_ends_it(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((TESTS_FOLDER / "conftest.py").read_text())
    (tmp_path / "test_both.py").write_text(TESTS)
    (tmp_path / "main.py").write_text(MAIN)
    engines, tests = ("threads", "ring", "torch"), ("test_fails", "test_comes_after")
    names = [f"test_both.py::{test}[{engine}]" for engine in engines for test in tests]
    output = run(tmp_path, "main.py", SUPPORT, *names, code=1)
    assert "3 failed, 3 passed" in output, output


@pytest.mark.slow
def test_a_process_that_aborts_fails_its_test_although_its_children_live_on(tmp_path: Path) -> None:
    """They hold open all that they had at the fork: the pipe to pytest-xdist, which waits for its end, must not be among it."""
    (tmp_path / "conftest.py").write_text((TESTS_FOLDER / "conftest.py").read_text())
    (tmp_path / "test_aborts.py").write_text(ABORTS)
    (tmp_path / "main.py").write_text(MAIN)
    output = run(tmp_path, "main.py", SUPPORT, "-n", "1", code=1, fresh=True)
    assert "crashed while running 'test_aborts.py::test_aborts'" in output
    assert "1 failed, 1 passed" in output
