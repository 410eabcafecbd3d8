"""Each process has a handle of its own, opened when it is needed."""

import multiprocessing
import os
import pickle
import socket
import socketserver
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
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


class Everything:
    """The same numbers in an archive, two kinds of databases, and behind a connection: forked workers must not share these."""

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
        thread.join(10)


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
