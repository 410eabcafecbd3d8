"""A class that reads samples in a way of its own gets them read that way, whatever quicker ways its base has."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_tar import make

import loaderkit as lk
from loaderkit.datasets import ConcatDataset, SubsetDataset, ZipDataset
from loaderkit.datasets.base import draws_nothing, reads_batches, reads_columns, reads_many

SAMPLES = 23


class Alone:
    """Goes before a dataset: one sample at a time, with a number of its own and one that is drawn."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"is": super().__getitem__(index), "n": index, "drawn": torch.rand(())}  # type: ignore[misc]


class Many:
    """Goes before a dataset: several samples at a time."""

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        samples = super().__getitems__(indices)  # type: ignore[misc]
        drawn = np.random.random()
        return [{"is": sample, "n": index, "drawn": drawn} for sample, index in zip(samples, indices, strict=True)]


def array(own: type, folder: Path) -> Any:
    return type("Own", (own, lk.ArrayDataset), {})((torch.arange(SAMPLES),))


def jsonl(own: type, folder: Path) -> Any:
    (folder / "a.jsonl").write_text("".join(json.dumps({"a": row}) + "\n" for row in range(SAMPLES)))
    return type("Own", (own, lk.JsonlDataset), {})(str(folder / "a.jsonl"))


def tokens(own: type, folder: Path) -> Any:
    np.arange(4 * SAMPLES, dtype=np.uint16).tofile(folder / "a.bin")
    return type("Own", (own, lk.TokenDataset), {})(str(folder / "a.bin"), length=4, dtype="uint16")


def tar(own: type, folder: Path) -> Any:
    make(folder / "a.tar", [(f"{row:03}.cls", b"%d" % row) for row in range(SAMPLES)])
    return type("Own", (own, lk.TarDataset), {})(str(folder / "a.tar"))


def part(own: type, folder: Path) -> Any:
    return type("Own", (own, SubsetDataset), {})(lk.ArrayDataset((torch.arange(SAMPLES),)), range(SAMPLES))


def pair(own: type, folder: Path) -> Any:
    return type("Own", (own, ZipDataset), {})([lk.ArrayDataset((torch.arange(SAMPLES),))] * 2)


KINDS = {made.__name__: made for made in (array, jsonl, tokens, tar, part, pair)}


def rounds(dataset: Any, **settings: Any) -> list[Any]:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    found = [
        (batch["n"].tolist(), batch["drawn"].tolist())
        for batch in lk.Loader(dataset, batch_size=4, shuffle=True, **settings)
    ]
    if not settings:
        assert torch.equal(torch.get_rng_state(), before)
    return found


@pytest.mark.parametrize("own", [Alone, Many])
@pytest.mark.parametrize("kind", KINDS)
def test_no_quicker_way_of_a_base_is_taken(kind: str, own: type, tmp_path: Path) -> None:
    dataset = KINDS[kind](own, tmp_path)
    assert reads_many(dataset) == (own is Many)
    assert not reads_batches(dataset)
    assert not reads_columns(dataset)
    assert not draws_nothing(dataset)
    wanted = rounds(dataset)
    assert sorted(n for batch, _ in wanted for n in batch) == list(range(SAMPLES))
    assert len({number for _, drawn in wanted for number in drawn}) == (SAMPLES if own is Alone else len(wanted))
    for engine in ("ring", "torch"):
        assert rounds(dataset, num_workers=2, engine=engine, multiprocessing_context="fork") == wanted
    for whole in (SubsetDataset(dataset, range(SAMPLES)), ConcatDataset([dataset])):
        assert not reads_batches(whole)
        assert not reads_columns(whole)
        assert not draws_nothing(whole)
        assert sorted(n for batch, _ in rounds(whole) for n in batch) == list(range(SAMPLES))


def test_parts_of_tar_shards_come_as_columns_and_unseeded_as_the_whole_does(tmp_path: Path) -> None:
    files = [(f"{row:03}.cls", b"%d" % row) for row in range(SAMPLES)]
    make(tmp_path / "a.tar", files)
    whole = lk.TarDataset(str(tmp_path / "a.tar"))
    some = SubsetDataset(whole, np.arange(SAMPLES)[::-2])
    assert reads_columns(some)
    assert all(map(draws_nothing, (whole, some, ConcatDataset([some, whole]), ZipDataset([whole, whole]))))
    found = [int(row) for batch in lk.Loader(some, batch_size=5) for row in batch["cls"]]
    assert found == list(range(SAMPLES))[::-2]
    seeded = lk.TarDataset(str(tmp_path / "a.tar"), transform=dict)
    for parts in (SubsetDataset(seeded, [1]), ConcatDataset([whole, seeded]), ZipDataset([seeded, whole])):
        assert not draws_nothing(parts)


def test_what_an_instance_or_a_delegate_offers_counts() -> None:
    class Delegate:
        def __init__(self, dataset: Any) -> None:
            self.dataset = dataset

        def __getitem__(self, index: int) -> Any:
            return self.dataset[index]

        def __len__(self) -> int:
            return len(self.dataset)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.__dict__["dataset"], name)

    dataset = lk.ArrayDataset((torch.arange(SAMPLES),))
    assert reads_batches(Delegate(dataset))
    assert reads_many(Delegate(dataset))
    own = array(Alone, Path())
    own.read_batch = dataset.read_batch
    assert reads_batches(own)
