"""A file that a dataset opened before its workers fork is named in a warning."""

import re
import sqlite3
import time
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch.utils.data as torch_data

import loaderkit as lk


class Holds:
    """A dataset with an open file, or whatever else."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


class Stream(torch_data.IterableDataset[int]):
    def __init__(self, held: Any) -> None:
        self.held = held

    def __iter__(self) -> Iterator[int]:
        return iter(range(2))


def said(data: Any, **settings: Any) -> list[str]:
    """Return the warnings of two epochs, without Python's of a fork while threads run."""
    loader = lk.Loader(data, 2, num_workers=1, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert list(loader)
    loader.close()
    others = re.compile("is multi-threaded|lance is not fork-safe")  # what is said at each fork
    return [str(one.message) for one in caught if not others.search(str(one.message))]


@pytest.mark.parametrize("engine", ["ring", "torch"])
def test_an_open_file_is_named_once(engine: Any, tmp_path: Path) -> None:
    path = tmp_path / f"{engine}.bin"
    path.write_bytes(b"a")
    with path.open("rb") as file:
        data = torch_data.Subset(Holds({"files": [file]}), [0, 1])  # type: ignore[arg-type]
        found = said(data, engine=engine, multiprocessing_context="fork")
        assert len(found) == 1
        assert "dataset.dataset.held['files'][0] (file" in found[0]
        assert "lk.Handle" in found[0]


@pytest.mark.parametrize("kind", ["text", "zip", "h5py", "sqlite"])
def test_kinds_of_open_files(kind: str, tmp_path: Path) -> None:
    path = tmp_path / kind
    if kind == "text":
        path.write_text("a")
        held: Any = path.open()
    elif kind == "zip":
        zipfile.ZipFile(path, "w").close()
        held = zipfile.ZipFile(path)
    elif kind == "h5py":
        held = h5py.File(path, "w")
    else:
        held = sqlite3.connect(path)
    try:
        (found,) = said(Stream(held), multiprocessing_context="fork")
        assert "dataset.held" in found
        assert str(path) in found
    finally:
        held.close()


def test_no_false_alarm(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("1\n2\n")
    np.save(tmp_path / "a.npy", np.arange(4))
    mine = lk.JsonlDataset(path)
    assert mine[0] == 1
    tokens = lk.TokenDataset(tmp_path / "a.npy", length=2)
    assert len(tokens[0]) == 2
    handle = lk.Handle(open, path)
    assert handle().readline() == "1\n"
    with (tmp_path / "log").open("w") as log, path.open() as file:
        pass
    with (tmp_path / "log").open("w") as log:
        harmless = [
            mine,
            tokens,
            handle,
            np.load(tmp_path / "a.npy", mmap_mode="r"),
            file,
            log,
            sqlite3.connect(":memory:"),
        ]
        assert said(Holds(harmless), multiprocessing_context="fork") == []
    handle.close()
    harmless[-1].close()


def test_other_start_methods_share_nothing(tmp_path: Path) -> None:
    """There such a file does not pickle, which is an error."""
    path = tmp_path / "a"
    path.write_text("a")
    with path.open() as file, pytest.raises(TypeError):
        said(Holds(file), multiprocessing_context="spawn")


def test_looking_is_quick() -> None:
    from loaderkit.system.open_before_fork import find_open_files

    data = Holds([{"path": str(n), "box": [n, (n, [n])]} for n in range(100_000)])
    times = []
    for _ in range(20):
        start = time.perf_counter()
        assert find_open_files(data) == {}
        times.append(time.perf_counter() - start)
    assert min(times) < 0.002
