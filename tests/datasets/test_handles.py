"""Each thread of each process opens its own handle at first use."""

import gc
import multiprocessing
import os
import pickle
import socket
import socketserver
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
import scripts
import torch
from leftovers import free_what_threads_had

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


def test_a_pickled_handle_opens_again() -> None:
    handle = lk.Handle(Opened, "a")
    first = handle()
    copy = pickle.loads(pickle.dumps(handle))
    assert copy() is not first
    assert copy().name == "a"
    copy.close()
    assert not first.closed


def in_threads(count: int, function: Callable[[int], Any]) -> list[Any]:
    """Run a function in threads at the same time, each with its number, and return the results."""
    barrier = threading.Barrier(count)

    def run(number: int) -> Any:
        barrier.wait(60)
        found = function(number)
        barrier.wait(60)
        return found

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_each_thread_opens_its_own_and_it_is_closed_when_the_thread_ends() -> None:
    handle = lk.Handle(Opened, "a")
    mine = handle()
    found = in_threads(8, lambda number: (handle(), handle(), handle().closed))
    assert all(first is second and not closed for first, second, closed in found)
    assert len({id(opened) for opened, _, _ in found} | {id(mine)}) == 9
    assert all(opened.closed for opened, _, _ in found)
    assert not mine.closed
    assert handle() is mine


def test_a_thread_closes_its_own_alone() -> None:
    handle = lk.Handle(Opened, "a")

    def use(number: int) -> Opened:
        opened = handle()
        if number:
            handle.close()
            assert opened.closed
            assert handle() is not opened
        return opened

    mine = handle()
    in_threads(4, use)
    assert not mine.closed


def test_what_all_threads_have_open_is_closed_with_the_handle() -> None:
    handles = [lk.Handle(Opened, "a")]
    opened, ready, end = [], threading.Event(), threading.Event()

    def stay() -> None:
        opened.append(handles[0]())
        ready.set()
        end.wait(60)

    thread = threading.Thread(target=stay)
    thread.start()
    assert ready.wait(60)
    opened.append(handles[0]())
    handles.clear()
    free_what_threads_had()
    assert opened[0].closed
    assert opened[1].closed
    end.set()
    thread.join(60)


def test_threads_share_the_one_environment_of_lmdb(written: tuple[Path, Any]) -> None:
    """Lmdb refuses to open a database twice."""
    folder = str(written[0] / "a.lmdb")
    for opener in (lmdb.open, lambda path, **settings: lmdb.open(path, **settings)):
        handle = lk.Handle(opener, folder, readonly=True, lock=False)

        def read(number: int, handle: Any = handle) -> tuple[Any, list[int]]:
            with handle().begin() as reading:
                return handle(), [int(reading.get(str(row).encode())) for row in range(60)]

        found = in_threads(8, read)
        assert all(rows == list(range(60)) for _, rows in found)
        assert {id(environment) for environment, _ in found} == {id(handle())}
        handle.close()
        assert read(0)[1] == list(range(60))
        handle.close()


def fork_meanwhile(thread_has: threading.Event, handle: Any, opened: list[Any]) -> list[Any]:
    """Return what a forked child finds: is the thread's handle closed, is the child's own, are they the same."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def child() -> None:
        gc.collect()
        results.put([opened[0].closed, handle().process == os.getpid(), handle() is opened[0]])

    assert thread_has.wait(60)
    process = context.Process(target=child)
    process.start()
    found: list[Any] = results.get()
    process.join(60)
    return found


def test_a_fork_leaves_what_another_thread_has_open_alone() -> None:
    handle: Any = lk.Handle(Opened, "a")
    opened: list[Any] = []
    has, end = threading.Event(), threading.Event()

    def stay() -> None:
        opened.append(handle())
        has.set()
        end.wait(60)

    thread = threading.Thread(target=stay)
    thread.start()
    try:
        assert fork_meanwhile(has, handle, opened) == [False, True, False]
    finally:
        end.set()
        thread.join(60)
    assert opened[0].closed


def test_a_fork_may_open_while_another_thread_of_its_parent_does() -> None:
    """In the child, the other thread's lock is never released."""
    opening, end = threading.Event(), threading.Event()
    parent = os.getpid()

    def slow(name: str) -> Opened:
        if os.getpid() == parent:
            opening.set()
            end.wait(60)
        return Opened(name)

    handle: Any = lk.Handle(slow, "a")
    thread = threading.Thread(target=handle)
    thread.start()
    try:
        assert fork_meanwhile(opening, handle, [Opened("b")]) == [False, True, False]
    finally:
        end.set()
        thread.join(60)


AT_EXIT = """
import sys, threading, warnings, h5py, loaderkit as lk
warnings.simplefilter("error")
handle = lk.Handle(h5py.File, sys.argv[1], "r")
text = lk.Handle(open, sys.argv[1], "rb")
assert handle()["rows"][3][0] == 3 and text().read(1)
sys.modules["keeps"] = handle, text  # until the interpreter ends
"""


@pytest.mark.slow
def test_an_open_handle_is_silent_at_interpreter_exit(written: tuple[Path, Any], tmp_path: Path) -> None:
    assert scripts.run_code(tmp_path, AT_EXIT, written[0] / "a.h5") == ""


def test_an_error_is_raised_and_the_next_call_tries_again(tmp_path: Path) -> None:
    handle = lk.Handle(open, tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        handle()
    (tmp_path / "a").write_text("text")
    assert handle().read() == "text"
    handle.close()


class Everything:
    """The same numbers in an archive, two databases and a server: forked workers must not share these handles."""

    def __init__(self, folder: Path, address: tuple[str, int]) -> None:
        self.archive = lk.Handle(zipfile.ZipFile, folder / "a.zip")
        self.table = lk.Handle(h5py.File, folder / "a.h5", "r")
        self.store = lk.Handle(lmdb.open, str(folder / "a.lmdb"), readonly=True, lock=False)
        self.peer = lk.Handle(socket.create_connection, address)

    def handles(self) -> list[lk.Handle[Any]]:
        return [self.archive, self.table, self.store, self.peer]

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> list[int]:
        zipped = int(self.archive().read(str(index))[:8])
        row = int(self.table()["rows"][index][0])
        with self.store().begin() as reading:
            stored = int(reading.get(str(index).encode()))
        connection = self.peer()
        connection.sendall(index.to_bytes(4, "big"))
        answer = connection.recv(4, socket.MSG_WAITALL)
        return [zipped, row, stored, int.from_bytes(answer, "big")]


class Echo(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while content := self.rfile.read(4):
            self.wfile.write(content)


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True  # its end does not wait for connections that a failed test has left open


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    folder = tmp_path_factory.mktemp("handles")
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for number in range(60):
            archive.writestr(str(number), f"{number:08}" * 4000)
    with h5py.File(folder / "a.h5", "w") as table:
        table["rows"] = np.arange(60)[:, None] * np.ones((1, 500), int)
    with lmdb.open(str(folder / "a.lmdb")) as store, store.begin(write=True) as writing:
        for number in range(60):
            writing.put(str(number).encode(), str(number).encode())
    with Server(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield folder, server.server_address
        server.shutdown()
        thread.join(60)


@pytest.mark.parametrize(("method", "engine"), [("fork", "ring"), ("forkserver", "torch"), ("spawn", "ring")])
def test_workers_read_what_their_parent_has_open(method: str, engine: Any, written: tuple[Path, Any]) -> None:
    data = Everything(*written)
    assert data[7] == [7] * 4  # all are open
    mine = [handle() for handle in data.handles()]
    loader = lk.Loader(data, 4, shuffle=True, num_workers=2, multiprocessing_context=method, engine=engine)
    found = torch.cat([torch.stack(batch, 1) for batch in loader])
    assert (found == found[:, :1]).all()
    assert sorted(found[:, 0].tolist()) == list(range(60))
    assert data[8] == [8] * 4
    assert [handle() for handle in data.handles()] == mine
    for handle in data.handles():
        handle.close()
