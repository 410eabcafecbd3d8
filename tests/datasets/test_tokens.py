"""Token files: the windows that slicing gives, shard by shard."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawing import equal
from hypothesis import given, settings
from hypothesis import strategies as st
from shards import SIZES, check_laws, check_reads, with_draws
from tier import examples

import loaderkit as lk
from loaderkit.datasets.base import reads_batches
from loaderkit.system.stack import stack


def write(folder: Path, sizes: list[int], dtype: str = "uint16") -> list[Any]:
    """Write shards with these numbers of tokens, bare and `.npy` in turn."""
    shards = []
    for shard, size in enumerate(sizes):
        start = sum(sizes[:shard])
        tokens = np.arange(start, start + size).astype(dtype)
        if shard % 2:
            np.save(folder / f"{shard:03}.npy", tokens)
        else:
            tokens.tofile(folder / f"{shard:03}.bin")
        shards.append(tokens.astype(np.dtype(dtype).newbyteorder("=")))
    return shards


def windows(shards: list[Any], length: int, stride: int, remainder: str) -> list[Any]:
    """The expected windows."""
    found = []
    for tokens in shards:
        start = covered = 0
        while start + length <= len(tokens):
            found.append(tokens[start : start + length])
            covered, start = start + length, start + stride
        if remainder == "keep" and covered < len(tokens) and start < len(tokens):
            found.append(tokens[start:])
    return found


@settings(max_examples=examples(60))
@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=4),
    st.integers(1, 6),
    st.integers(1, 8),
    st.sampled_from(["drop", "keep"]),
)
@pytest.mark.filterwarnings("ignore:TokenDataset")
def test_the_samples_are_the_slices(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], length: int, stride: int, remainder: Any
) -> None:
    folder = tmp_path_factory.mktemp("tokens")
    shards = write(folder, sizes)
    wanted = windows(shards, length, stride, remainder)
    data = lk.TokenDataset(folder, length=length, dtype="uint16", stride=stride, remainder=remainder)
    assert len(data) == len(wanted)
    if wanted:
        check_reads(data, wanted)
    if wanted and reads_batches(data):
        indices = np.arange(len(wanted))[::-1]
        assert equal(data.read_batch(indices), stack([wanted[index] for index in indices]))
    assert reads_batches(data) or remainder == "keep"
    if stride <= length:
        kept = {int(token) for window in wanted for token in window}
        assert data.left_out == sum(sizes) - len(kept)
        assert remainder == "drop" or data.left_out == 0


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "uint32", "int64", ">u2"])
def test_tokens_keep_their_dtype(dtype: str, tmp_path: Path) -> None:
    wanted = windows(write(tmp_path, [40, 23], dtype), 5, 5, "drop")
    data = lk.TokenDataset(tmp_path, length=5, dtype=dtype)
    check_reads(data, wanted)
    batch = next(iter(lk.Loader(data, 12)))
    assert equal(batch, stack(wanted))
    assert batch.dtype == torch.from_numpy(np.ones(1, np.dtype(dtype).newbyteorder("="))).dtype
    assert batch.long().tolist() == [window.tolist() for window in wanted]


@pytest.mark.each_value
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("remainder", ["drop", "keep"])
def test_the_laws(sizes: list[int], remainder: Any, tmp_path: Path) -> None:
    shards = write(tmp_path, [4 * size + (2 if remainder == "keep" else 0) for size in sizes])
    starts = [int(window[0]) for window in windows(shards, 4, 4, remainder)]

    def make() -> lk.TokenDataset:
        return lk.TokenDataset(tmp_path, length=4, dtype="uint16", remainder=remainder, transform=with_draws)

    check_laws(make, lambda window: starts.index(int(window[0])))
    if remainder == "drop":
        plain = lk.TokenDataset(tmp_path, length=4, dtype=np.uint16)
        batches = list(lk.Loader(plain, 3, shuffle=True, num_workers=1))
        assert sorted(torch.cat(batches).long()[:, 0].tolist()) == starts
    assert not list(tmp_path.glob("*.lkindex"))


def test_a_window_is_a_copy(tmp_path: Path) -> None:
    wanted = windows(write(tmp_path, [9]), 4, 2, "drop")
    data = lk.TokenDataset(tmp_path, length=4, dtype="uint16", stride=2)
    data[0][:] = 0
    data.read_batch(np.arange(2)).zero_()
    check_reads(data, wanted)


def test_shards_shorter_than_a_window_are_said_once(tmp_path: Path) -> None:
    write(tmp_path, [9, 3, 0, 2])
    with pytest.warns(UserWarning, match=r"2 of 4 shards have fewer tokens than one window of 4 .*001\.npy with 3\. "):
        data = lk.TokenDataset(tmp_path, length=4, dtype="uint16")
    assert data.left_out == 1 + 3 + 2
    assert lk.TokenDataset(tmp_path, length=4, dtype="uint16", remainder="keep").left_out == 0


def test_the_fingerprint_knows_how_it_is_cut(tmp_path: Path) -> None:
    write(tmp_path, [40])
    cuts: list[dict[str, Any]] = [{"length": 4}, {"length": 5}, {"length": 4, "stride": 2}]
    cuts += [{"length": 4, "remainder": "keep"}, {"length": 4, "dtype": "uint8"}]
    prints = {lk.TokenDataset(tmp_path, **{"dtype": "uint16", **cut}).fingerprint() for cut in cuts}
    assert len(prints) == 5
    assert lk.TokenDataset(tmp_path, length=4, dtype="uint16").fingerprint() in prints


def test_what_is_no_token_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"123")
    with pytest.raises(lk.ShardError, match=r"a\.bin: cut, its 3 bytes are not a whole number of uint16"):
        lk.TokenDataset(tmp_path / "a.bin", length=1, dtype="uint16")
    with pytest.raises(ValueError, match=r"a\.bin does not declare a dtype"):
        lk.TokenDataset(tmp_path / "a.bin", length=1)
    for array in (np.ones(3), np.ones((3, 1), np.uint16), np.ones(3, np.uint32)):
        np.save(tmp_path / "b.npy", array)
        with pytest.raises(lk.ShardError, match=r"b\.npy: holds .*, wanted tokens \(T,\) of uint16"):
            lk.TokenDataset(tmp_path / "b.npy", length=1, dtype="uint16")
    (tmp_path / "b.npy").write_bytes(b"")
    with pytest.raises(lk.ShardError, match=r"b\.npy: not a whole"):
        lk.TokenDataset(tmp_path / "b.npy", length=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 0}, "length is 0, stride 0; wanted at least 1"),
        ({"stride": 0}, "length is 2, stride 0"),
        ({"remainder": "pad"}, "remainder is 'pad', wanted 'drop' or 'keep'"),
        ({"dtype": "float32"}, "dtype is float32, wanted integers"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lk.TokenDataset("x", **{"length": 2, "dtype": "uint16", **changes})
