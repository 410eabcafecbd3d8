"""Tar shards read column by column: the batches are those of the samples one by one, and so is what goes wrong."""

import io
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawing import equal
from images_made import encode, picture
from tars_made import make

import loaderkit as lk
from loaderkit import testing
from loaderkit.datasets.base import reads_columns
from loaderkit.datasets.images.decode import decode_picture, decode_pictures
from loaderkit.system.stack import stack

JPEG = [encode(picture(), "jpeg"), encode(picture().transpose(0), "jpeg")]
File = tuple[str, bytes]


class BySample(lk.TarDataset):
    """The slow, obvious way: one sample after the other."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [self[index] for index in indices]


def plain(row: int) -> list[File]:
    return [(f"d/{row:03}.cls", b"%d" % row), (f"d/{row:03}.jpg", JPEG[row % 2]), (f"d/{row:03}.txt", b"t" * row)]


def turned(row: int) -> list[File]:
    return plain(row)[::-1]


def apart(row: int) -> list[File]:
    """With what is no part of a sample between its files."""
    one, two, three = plain(row)
    return [one, ("README", bytes(9000)), two, three]


def named(row: int) -> list[File]:
    """Keys of several lengths, not all of them text."""
    key = ["ä", "\udcff", "x" * 80, "z"][row % 4] + str(row)
    return [(f"{key}.bin", bytes(range(row))), (f"{key}.png", encode(picture()))]


def turned_sometimes(row: int) -> list[File]:
    return turned(row) if row % 5 == 0 else plain(row)


def arrays(row: int) -> list[File]:
    file = io.BytesIO()
    np.save(file, np.full((2, 3), row, dtype=np.float32))
    return [(f"{row:03}.json", b'{"a": [%d, 0.5]}' % row), (f"{row:03}.npy", file.getvalue())]


LAYOUTS = {
    "plain": [plain],
    "turned in one shard": [plain, turned],
    "turned sometimes": [turned_sometimes],
    "apart": [apart],
    "keys": [named],
    "arrays": [arrays],
}
INDICES = [[0], [3, 4, 5], [7, 2, 2, 0], [11, 0, 5, 6, 1], [*range(12)], [*range(11, -1, -1)]]


def write(folder: Path, layouts: Sequence[Any], size: int = 6) -> Path:
    """Two shards, the second of the last of the layouts."""
    folder.mkdir()
    for shard in range(2):
        layout = layouts[min(shard, len(layouts) - 1)]
        rows = range(shard * size, shard * size + size)
        make(folder / f"{shard}.tar", [file for row in rows for file in layout(row)])
    return folder


@pytest.mark.parametrize("name", LAYOUTS)
def test_batches_are_those_of_the_samples(name: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "x", LAYOUTS[name])
    data, slow = lk.TarDataset(folder), BySample(folder)
    assert reads_columns(data)
    assert not reads_columns(slow)
    found = [data.read_columns(indices) for indices in INDICES]
    assert all(isinstance(one, dict) for one in found) == (name not in ("turned in one shard", "turned sometimes"))
    for indices, columns in zip(INDICES, found, strict=True):
        wanted = slow.__getitems__(indices)
        assert [entry["__key__"] for entry in wanted] == [data[index]["__key__"] for index in indices]
        assert equal(data.__getitems__(indices), wanted)
        if isinstance(columns, dict):
            assert equal(columns, {field: [entry[field] for entry in wanted] for field in wanted[0]})
        else:
            assert equal(columns, wanted)
        quick, plain = (list(lk.Loader(one, len(indices), order=lk.Subset(indices))) for one in (data, slow))
        assert equal(quick, plain)
        assert len(quick) == 1
    assert data.read_columns([]) == []


def test_the_laws_hold(tmp_path: Path) -> None:
    folder = write(tmp_path / "x", [plain], 10)

    def loader(**changes: Any) -> lk.Loader:
        settings = {"batch_size": 3, "shuffle": True, "seed": 5, **changes}
        return lk.Loader(lk.TarDataset(folder), **settings)

    def ids(batch: Any) -> list[int]:
        return [int(number) for number in batch["cls"]]

    wanted = list(lk.Loader(BySample(folder), 3, shuffle=True, seed=5))
    assert len(wanted) == 7
    assert equal(list(loader()), wanted)
    testing.assert_exactly_once(loader, samples=20, worlds=[1, 2], ids=ids)
    testing.assert_resumable(loader, epochs=1, stops=[1, 4], consumers=["trainer"], ids=ids)
    for engine in ("torch", "ring"):
        testing.assert_workers_dont_matter(
            lambda engine=engine, **changes: loader(
                **changes | ({"engine": engine} if changes.get("num_workers") else {})
            ),
            workers=[0, 2],
            start_methods=["fork"],
            persistent=[False],
            epochs=1,
            ids=ids,
        )


def test_a_read_that_comes_in_pieces_is_put_together(tmp_path: Path, monkeypatch: Any) -> None:
    """As one of more than 2 GiB does."""
    folder = write(tmp_path / "x", [plain])
    wanted = list(lk.Loader(BySample(folder), 5))
    read, pieces = os.preadv, []

    def little(number: int, buffers: Sequence[memoryview], at: int) -> int:
        pieces.append(at)
        return read(number, [buffers[0][:1000]], at)

    monkeypatch.setattr(os, "preadv", little)
    assert equal(list(lk.Loader(lk.TarDataset(folder), 5)), wanted)
    assert len(pieces) > 12


def test_files_far_apart_are_read_without_the_bytes_in_between(tmp_path: Path, monkeypatch: Any) -> None:
    data = lk.TarDataset(write(tmp_path / "x", [apart]))
    sizes: list[int] = []
    read = os.preadv

    def spy(number: int, buffers: Sequence[memoryview], at: int) -> int:
        sizes.append(len(buffers[0]))
        return read(number, buffers, at)

    monkeypatch.setattr(os, "preadv", spy)
    data.read_columns([0, 1, 2])
    assert 0 < sum(sizes) < 9000


def broken(row: int) -> list[File]:
    """One picture of each shard is cut in its header, one class is no number."""
    one, two, three = plain(row)
    return [(one[0], b"?" if row == 8 else one[1]), (two[0], JPEG[0][:40] if row % 6 == 3 else two[1]), three]


@pytest.mark.parametrize("policy", ["raise", "skip", "replace"])
@pytest.mark.parametrize("batch", [1, 4, 12])
def test_bad_samples_are_those_of_the_samples_one_by_one(policy: Any, batch: int, tmp_path: Path) -> None:
    folder = write(tmp_path / "x", [broken])

    def run(data: Any) -> Any:
        bad = lk.BadSamples(policy, max_rate=1.0)
        loader = lk.Loader(data, batch, shuffle=True, seed=1, bad_samples=bad)
        try:
            return list(loader), [(one.index, one.position, one.error, one.replacement) for one in loader.bad_samples]
        except lk.ShardError as error:
            return str(error)

    found, wanted = run(lk.TarDataset(folder)), run(BySample(folder))
    if policy == "raise":
        assert "can't be decoded" in found
        assert found.split(", offset")[0] == wanted.split(", offset")[0] or batch > 1  # which one is found first
        return
    assert equal(found, wanted)
    assert sorted(one[0] for one in found[1]) == [3, 8, 9]


def test_the_first_bad_file_is_named_after_another_shard_too(tmp_path: Path) -> None:
    data = lk.TarDataset(write(tmp_path / "x", [plain, broken]))
    with pytest.raises(lk.ShardError, match=r"1\.tar, offset [\d,]+: d/008\.cls can't be decoded, ValueError"):
        data.read_columns([0, 7, 1, 8, 2])
    with pytest.raises(lk.ShardError, match=r"1\.tar, offset [\d,]+: d/009\.jpg can't be decoded, ValueError"):
        data.read_columns([9, 0, 7])


def sizes(row: int) -> list[File]:
    return [(f"{row}.jpg", encode(picture().resize((20 + row % 2, 20)), "jpeg"))]


def test_samples_that_do_not_fit_are_an_error_whatever_the_policy(tmp_path: Path) -> None:
    data = lk.TarDataset(write(tmp_path / "x", [sizes]))
    for policy in ("raise", "skip"):
        loader = lk.Loader(data, 4, bad_samples=lk.BadSamples(policy))
        with pytest.raises(lk.CollateError, match=r"field 'jpg' has shapes .*\(samples 0, 1\)"):
            next(iter(loader))
    mixed = lk.TarDataset(write(tmp_path / "y", [plain, sizes]))
    with pytest.raises(lk.CollateError, match=r"the sample has keys .*\(samples 0, 6\)"):
        list(lk.Loader(mixed, 12))


def test_a_read_that_succeeds_on_a_retry_is_logged(
    tmp_path: Path, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write(tmp_path / "x", [plain])
    wanted = list(lk.Loader(BySample(folder), 4))
    fail = [ConnectionResetError("for once")]
    read = os.preadv

    def flaky(*arguments: Any) -> int:
        if fail:
            raise fail.pop()
        return read(*arguments)

    monkeypatch.setattr(os, "preadv", flaky)
    with caplog.at_level(logging.INFO, "loaderkit"):
        assert equal(list(lk.Loader(lk.TarDataset(folder), 4)), wanted)
    assert "for once" in caplog.text


def test_columns_are_read_only_if_nothing_is_drawn(tmp_path: Path, monkeypatch: Any) -> None:
    folder = write(tmp_path / "x", [plain])
    calls: list[int] = []
    whole = lk.TarDataset.read_columns

    def spy(self: Any, indices: Any) -> Any:
        calls.append(len(indices))
        return whole(self, indices)

    monkeypatch.setattr(lk.TarDataset, "read_columns", spy)
    assert len(list(lk.Loader(lk.TarDataset(folder), 5))) == 3
    assert calls == [5, 5, 2]
    for data, settings in (
        (lk.TarDataset(folder, transform=dict), {}),
        (lk.TarDataset(folder, decode=lk.DECODERS | {"txt": len}), {}),
        (lk.TarDataset(folder), {"collate_fn": stack}),
        (BySample(folder), {}),
    ):
        assert equal(next(iter(lk.Loader(data, 12, **settings)))["cls"], torch.arange(12))
    assert len(list(lk.Loader(lk.TarDataset(folder), None))) == 12
    assert calls == [5, 5, 2]


@pytest.mark.parametrize("bad", [None, b"\xff\xd8\xff", b"", b"no picture"])
@pytest.mark.parametrize("others", [JPEG, [JPEG[0], encode(picture())]])
def test_pictures_are_decoded_together_as_one_by_one(bad: bytes | None, others: list[bytes]) -> None:
    files = [*others, *([] if bad is None else [bad])]
    views = [memoryview(bytearray(file)) for file in files]
    if bad is not None:
        with pytest.raises(ValueError, match="not a picture that can be decoded"):
            decode_pictures(views)
    else:
        assert equal(decode_pictures(views), list(map(decode_picture, files)))
    assert list(map(bytes, views)) == files  # as they were
