"""Each process has a handle of its own, opened when it is needed."""

import multiprocessing
import os
import pickle
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import loaderkit as lk


class Opened:
    """Knows who opened it, and that it is closed."""

    def __init__(self, name: str, *, mode: str = "r") -> None:
        self.name, self.mode, self.process, self.closed = name, mode, os.getpid(), False

    def close(self) -> None:
        self.closed = True


def test_it_opens_once_when_it_is_called() -> None:
    handle = lk.Handle(Opened, "a", mode="w")
    assert repr(handle) == "Handle(Opened, 'a', mode='w')"
    first = handle()
    assert handle() is first
    assert (first.name, first.mode) == ("a", "w")
    handle.close()
    assert first.closed
    assert handle() is not first
    assert not handle().closed


def test_a_pickled_handle_opens_anew() -> None:
    handle = lk.Handle(Opened, "a")
    first = handle()
    copy = pickle.loads(pickle.dumps(handle))
    assert copy() is not first
    assert copy().name == "a"
    copy.close()
    assert not first.closed


def test_one_thread_opens_it() -> None:
    opened = []
    barrier = threading.Barrier(8)

    def slow(name: str) -> Opened:
        opened.append(Opened(name))
        return opened[-1]

    handle = lk.Handle(slow, "a")

    def use() -> None:
        barrier.wait(10)
        handle()

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(opened) == 1


def test_an_error_is_raised_and_the_next_call_tries_again(tmp_path: Path) -> None:
    handle = lk.Handle(open, tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        handle()
    (tmp_path / "a").write_text("text")
    assert handle().read() == "text"
    handle.close()


def in_child(handle: Any, found: Any) -> None:
    before = handle._handle
    opened = handle()
    found.put((opened is before, opened.process == os.getpid(), before is not None and before.closed))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_opens_its_own_and_leaves_its_parents_alone(method: str) -> None:
    handle = lk.Handle(Opened, "a")
    mine = handle()
    context = multiprocessing.get_context(method)
    found = context.SimpleQueue()
    process = context.Process(target=in_child, args=(handle, found))
    process.start()
    same, own, closed = found.get()
    process.join(60)
    assert (same, own, closed) == (False, True, False)
    assert handle() is mine


class Zipped:
    """Pictures in a zip archive: its one file offset would be shared by forked workers."""

    def __init__(self, path: Path) -> None:
        self.file = lk.Handle(zipfile.ZipFile, path)
        self.names = self.file().namelist()

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> int:
        return int(self.file().read(self.names[index])[:8])


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_read_an_archive_that_their_parent_has_open(method: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for number in range(60):
            archive.writestr(str(number), f"{number:08}" * 4000)
    loader = lk.Loader(
        Zipped(tmp_path / "a.zip"), 4, shuffle=True, num_workers=2, multiprocessing_context=method, engine="torch"
    )
    assert sorted(torch.cat(list(loader)).tolist()) == list(range(60))
    loader.dataset.file.close()
