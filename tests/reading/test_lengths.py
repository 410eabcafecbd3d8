"""Lengths are those of the samples, however they are read; a cache is of this data, and whole."""

import functools
import io
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scripts
import torch
from scripts import run

import loaderkit as lk
from loaderkit import ConcatDataset, MapDataset, SubsetDataset

SIZES = np.random.default_rng(0).integers(0, 50, 300)


class Sentences:
    """Counts how many samples it was asked for."""

    def __init__(self, sizes: Any = SIZES) -> None:
        self.sizes, self.read = sizes, 0

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.read += 1
        return {"tokens": torch.zeros(int(self.sizes[index])), "size": int(self.sizes[index])}


def twice(sample: dict[str, Any]) -> int:
    return 2 * len(sample["tokens"])


def times(sample: dict[str, Any], factor: int) -> int:
    return factor * len(sample["tokens"])


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("how", ["tokens", "size", twice, functools.partial(times, factor=3)])
def test_lengths_are_those_of_the_samples(how: Any, workers: int) -> None:
    factor = {"tokens": 1, "size": 1, twice: 2}.get(how, 3)
    found = lk.measure_lengths(Sentences(), how, num_workers=workers)
    assert found.dtype == np.int64
    assert found.tolist() == (factor * SIZES).tolist()


@pytest.mark.slow
def test_processes_may_be_spawned() -> None:
    found = lk.measure_lengths(Sentences(), "tokens", num_workers=2, multiprocessing_context="spawn")
    assert found.tolist() == SIZES.tolist()


def test_samples_may_be_sequences_or_lengths_themselves() -> None:
    texts = ["a", "", "abc"]
    assert lk.measure_lengths(texts).tolist() == [1, 0, 3]
    assert lk.measure_lengths([(text, 0) for text in texts], 0).tolist() == [1, 0, 3]
    assert lk.measure_lengths(lk.ArrayDataset(np.array([5, 0, 7]))).tolist() == [5, 0, 7]
    assert lk.measure_lengths(lk.ArrayDataset(torch.tensor([5, 0, 7]))).tolist() == [5, 0, 7]
    assert lk.measure_lengths([]).tolist() == []


class Documents:
    """Knows its lengths, and can't be read."""

    transform: Any = None

    def __len__(self) -> int:
        return len(SIZES)

    def __getitem__(self, index: int) -> Any:
        raise RuntimeError("read")

    def lengths(self) -> Any:
        return SIZES


def test_a_dataset_that_knows_its_lengths_is_not_read() -> None:
    whole = Documents()
    assert lk.measure_lengths(whole).tolist() == SIZES.tolist()
    joined = ConcatDataset([SubsetDataset(whole, [5, 3]), whole])
    assert lk.measure_lengths(joined).tolist() == [SIZES[5], SIZES[3], *SIZES]
    whole.transform = list
    for dataset in (whole, joined, MapDataset(Documents(), list)):
        with pytest.raises(RuntimeError, match="read"):
            lk.measure_lengths(dataset)  # type: ignore[arg-type]


def draws(sample: dict[str, Any]) -> int:
    return int(np.random.randint(1000))


def test_what_a_sample_draws_is_its_own(tmp_path: Path) -> None:
    before = np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    found = [lk.measure_lengths(Sentences(), draws, num_workers=workers).tolist() for workers in (0, 2)]
    assert found[0] == found[1]
    assert len(set(found[0])) > 100
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index, union-attr]


def test_a_cache_is_read_instead_of_the_data(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lengths.npz"
    first, again = Sentences(), Sentences()
    assert lk.measure_lengths(first, "tokens", cache=path).tolist() == SIZES.tolist()
    assert lk.measure_lengths(again, "tokens", cache=path).tolist() == SIZES.tolist()
    assert first.read == len(SIZES)
    assert again.read == 16
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("dataset", "how", "message"),
    [
        (Sentences(SIZES[:-1]), "tokens", "samples is 299, was 300"),
        (Sentences(SIZES + 1), "tokens", r"sample 0 has length \d+, had \d+"),
        (Sentences([*SIZES[:-1], 77]), "tokens", r"sample 299 has length 77, had \d+"),
        (Sentences(), twice, "length is .*twice, was len of 'tokens'"),
        (lk.ArrayDataset({"tokens": SIZES}), "tokens", r"data is 300 samples \([0-9a-f]+\), was 300 samples"),
    ],
)
def test_a_cache_of_other_data_is_made_again_with_a_warning(
    tmp_path: Path, dataset: Any, how: Any, message: str
) -> None:
    path = tmp_path / "lengths"
    lk.measure_lengths(Sentences(), "tokens", cache=path)
    with pytest.warns(UserWarning, match=message):
        found = lk.measure_lengths(dataset, how, cache=path)
    assert found.tolist() == lk.measure_lengths(dataset, how).tolist()
    assert lk.measure_lengths(dataset, how, cache=path).tolist() == found.tolist()  # without a warning


@pytest.mark.parametrize("content", [b"", b"mine", None])
def test_a_file_of_something_else_is_not_overwritten(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "file.npz"
    if content is None:
        np.savez(path, x=np.arange(3))
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not a file of lengths"):
        lk.measure_lengths(Sentences(), "tokens", cache=path)
    assert path.read_bytes() == before


def test_damage_to_a_cache_is_found_wherever_it_is(tmp_path: Path) -> None:
    """A wrong length would break a budget without a word."""
    path, texts = tmp_path / "lengths", ["x" * (index % 50) for index in range(500)]
    wanted = lk.measure_lengths(texts, cache=path).tolist()
    whole = path.read_bytes()
    found = []
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            assert lk.measure_lengths(texts, cache=path).tolist() == wanted  # the file's own dates and the like
        except ValueError as error:
            found.append(str(error))
    assert len(found) > len(whole) // 6
    assert all("not a file of lengths" in message for message in found)
    with np.load(io.BytesIO(whole)) as file:
        about = file["about"]
    for lengths in (np.arange(10), np.zeros(500), np.zeros((500, 1), np.int64)):
        np.savez_compressed(tmp_path / "other.npz", about=about, lengths=lengths)
        with pytest.raises(ValueError, match="not a file of lengths"):
            lk.measure_lengths(texts, cache=tmp_path / "other.npz")


def test_writers_that_keep_lengths_at_once_leave_a_whole_file(tmp_path: Path) -> None:
    path, texts = tmp_path / "lengths", ["x" * (index % 50) for index in range(3000)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: lk.measure_lengths(texts, cache=path).tolist(), range(8)))
    assert found == [[len(text) for text in texts]] * 8
    assert lk.measure_lengths(texts, cache=path).tolist() == found[0]
    assert list(tmp_path.iterdir()) == [path]


SLOW = """
import sys, time
import loaderkit as lk

class Slow:
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        if index == 500:
            print("half", flush=True)
            time.sleep(60)
        return "x" * (index % 7)

lk.measure_lengths(Slow(), num_workers=int(sys.argv[2]), cache=sys.argv[1])
"""


def test_a_kill_leaves_no_part_that_is_used(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "lengths"
    with scripts.start(tmp_path, scripts.saved(tmp_path, SLOW), path, "2") as process:
        assert process.first_line() == "half"
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not path.parent.exists() or not list(path.parent.iterdir())
        for _ in range(500):  # the workers end with it
            try:
                os.killpg(process.pid, 0)
            except ProcessLookupError:
                break
            time.sleep(0.02)
        else:
            raise AssertionError("workers outlived their parent by 10 s")
    texts = ["x" * (index % 7) for index in range(1000)]
    assert lk.measure_lengths(texts, cache=path).tolist() == [index % 7 for index in range(1000)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        (None, ""),
        ("text", r"a sample is a dict of \['tokens', 'size'\], wanted one with 'text' \(length=\).*samples \d+\)"),
        (lambda sample: 1 // int(sample["size"] != SIZES[7]), r"ZeroDivisionError: .*\(samples \d+\)"),
        (lambda sample: -1 if sample["size"] == SIZES[7] else 1, "has length -1, wanted at least 0"),
        (lambda sample: "long", "gave 'long' for a sample of type dict, wanted an integer"),
    ],
)
def test_a_sample_without_a_length_is_named(how: Any, message: str, workers: int) -> None:
    if how is None:
        with pytest.raises((ValueError, RuntimeError), match="a sample is a dict, whose own length is its number of"):
            lk.measure_lengths(Sentences(), num_workers=workers)
        with pytest.raises((ValueError, RuntimeError), match="gave None for a sample of type NoneType"):
            lk.measure_lengths([None, "a"] * 100, num_workers=workers)
        return
    with pytest.raises((ValueError, RuntimeError, KeyError), match=message):
        lk.measure_lengths(Sentences(), how, num_workers=workers)


def test_settings_out_of_range_are_refused() -> None:
    for settings in ({"num_workers": -1}, {"num_workers": 2.5}, {"multiprocessing_context": "forkserver"}):
        with pytest.raises(ValueError, match="wanted an integer of at least 0, and 'fork' or 'spawn'"):
            lk.measure_lengths(["a"], **settings)  # type: ignore[arg-type]


def test_a_function_in_place_of_lengths_is_to_be_called() -> None:
    data = lk.ArrayDataset({"x": torch.arange(4)})
    with pytest.raises(TypeError, match=r"lengths are the function .*Call it: data.lengths\(\)"):
        lk.LengthBuckets(data.__len__, 2)


FULL = """
import resource
import loaderkit as lk

data = [[0] * (n * n % 1000) for n in range(5000)]
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    lk.measure_lengths(data, cache="lengths.npz")
except OSError as error:
    text = f"{error} {error.__notes__}"
raise SystemExit(0 if "lengths.npz" in text and "cache=..." in text else 1)
"""


def test_a_full_disk_names_the_cache(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FULL)
    run(tmp_path, tmp_path / "script.py")
    assert not list(tmp_path.glob("*.npz"))
    assert not list(tmp_path.glob(".*.part"))


class SomeBroken(Sentences):
    """Every seventh sample cannot be read."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index % 7 == 3:
            raise OSError("torn")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_cannot_be_read_may_have_a_length(workers: int, tmp_path: Path) -> None:
    """It is in the plan, and the loader's policy decides about it."""
    wanted = np.where(np.arange(300) % 7 == 3, 1, SIZES)
    settings: Any = {"num_workers": workers, "bad_length": 1, "cache": tmp_path / "a.npz"}
    for _ in range(2):  # the second from the cache
        assert lk.measure_lengths(SomeBroken(), "tokens", **settings).tolist() == wanted.tolist()
    with pytest.warns(
        UserWarning, match="length is len of 'tokens', 0 if unreadable, was len of 'tokens', 1 if unreadable"
    ):
        lk.measure_lengths(SomeBroken(), "tokens", **{**settings, "bad_length": 0})
    plan = lk.TokenBudget(wanted, 100)
    bad_samples = lk.BadSamples("skip", max_rate=0.2, retry=lk.Retry(attempts=1))
    loader = lk.Loader(SomeBroken(), plan=plan, collate_fn=list, bad_samples=bad_samples)
    assert sum(map(len, loader)) == 300 - len(loader.bad_samples) == 300 - 43
    with pytest.raises(RuntimeError, match="torn"):
        lk.measure_lengths(SomeBroken(), "tokens", num_workers=workers)
    with pytest.raises(RuntimeError, match="wanted one with 'words'"):  # a wrong length is no bad sample
        lk.measure_lengths(SomeBroken(), "words", num_workers=workers, bad_length=1)
    with pytest.raises(ValueError, match="bad_length is -1"):
        lk.measure_lengths(SomeBroken(), "tokens", bad_length=-1)
