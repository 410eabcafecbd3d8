"""Data that other libraries address by regions or cuts has an index here, and lengths that plans can use."""

import pickle
import random
import sys
import types
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import loaderkit as lk


class Box(NamedTuple):
    """Stands for the BoundingBox of an older torchgeo."""

    minx: float
    maxx: float
    miny: float
    maxy: float
    mint: float
    maxt: float


class Map:
    """Stands for a GeoDataset: it has a resolution, a length in files, and samples by region."""

    image = torch.arange(64.0 * 48).reshape(1, 64, 48)
    res = (10.0, 5.0)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, region: Any) -> dict[str, Any]:
        x, y = (
            (slice(region.minx, region.maxx), slice(region.miny, region.maxy))
            if isinstance(region, Box)
            else region[:2]
        )
        across, down = (
            slice(int(part.start / size), int(part.stop / size)) for part, size in zip((x, y), self.res, strict=True)
        )
        return {"image": self.image[:, down, across], "corner": torch.tensor([x.start, y.start])}


class Regions:
    """Stands for a random GeoSampler: regions (x, y, t) of many sizes, drawn from the global generators."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.count):
            left, top = 10.0 * random.randrange(20), 5.0 * int(torch.randint(20, ()))
            width, height = 10.0 * (1 + int(np.random.randint(20))), 5.0 * random.randrange(1, 20)
            yield slice(left, left + width), slice(top, top + height), slice(0, 9)


class CutSet:
    """Stands for lhotse's."""

    def __init__(self, cuts: Sequence[Any]) -> None:
        self.cuts = list(cuts)

    from_cuts = classmethod(lambda cls, cuts: cls(cuts))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.cuts)


class Speech:
    """Stands for a K2SpeechRecognitionDataset: a batch for a whole CutSet, with random draws."""

    def __getitem__(self, cuts: CutSet) -> dict[str, Any]:
        return {"ids": [cut.id for cut in cuts], "noise": torch.rand(2), "longest": max(cut.duration for cut in cuts)}


@pytest.fixture(autouse=True)
def lhotse(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("lhotse")
    module.CutSet = CutSet  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lhotse", module)


def cuts_made(count: int = 60) -> CutSet:
    lengths = np.random.default_rng(0).integers(1, 200, size=count)
    return CutSet(
        [SimpleNamespace(id=f"cut {row}", duration=length / 10) for row, length in enumerate(lengths.tolist())]
    )


def test_a_chip_is_what_the_map_gives_for_its_region() -> None:
    regions = [*Regions(20), (slice(0.0, 30.0), slice(5.0, 10.0)), Box(0, 20, 10, 30, 0, 1)]
    chips = lk.GeoChips(Map(), regions)
    assert len(chips) == 22
    for index, region in enumerate(regions):
        assert chips.region(index) == region
        assert torch.equal(chips[index]["image"], Map()[region]["image"])
        assert chips.lengths()[index] == chips[index]["image"].numel()
    assert torch.equal(chips[-1]["image"], chips[21]["image"])
    assert lk.GeoChips(Map(), regions, transform=len)[3] == 2
    with pytest.raises(IndexError, match="index 22 in a dataset of 22"):
        chips[22]


def test_a_random_sampler_is_drawn_once_and_alike_in_each_process() -> None:
    chips, again = (lk.GeoChips(Map(), Regions(30)) for _ in range(2))
    assert [chips.region(row) for row in range(30)] == [again.region(row) for row in range(30)]
    assert chips.fingerprint() == again.fingerprint() == pickle.loads(pickle.dumps(chips)).fingerprint()
    others = [lk.GeoChips(Map(), Regions(30), seed=1), lk.GeoChips(Map(), [chips.region(row) for row in range(29)])]
    assert len({chips.fingerprint(), *(other.fingerprint() for other in others)}) == 3


def ids(batch: Any) -> list[Any]:
    return batch["ids"] if isinstance(batch, dict) else [tuple(sample["corner"].tolist()) for sample in batch]


@pytest.mark.parametrize("kind", ["chips", "cuts"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_plans_by_length_keep_the_budget_and_resume_with_other_workers(kind: str, ranks: int) -> None:
    chips, cuts = lk.GeoChips(Map(), Regions(60)), lk.CutDataset(cuts_made(), unit_s=0.1)
    data: Any = chips if kind == "chips" else cuts
    collate: Any = list if kind == "chips" else lk.CutCollate(Speech())
    budget = int(data.lengths().max()) * 2

    def loader(rank: int, **settings: Any) -> Any:
        plan = lk.TokenBudget(data.lengths(), max_tokens=budget, window=30)
        return lk.Loader(data, plan=plan, collate_fn=collate, world=lk.World(rank, ranks), **settings)

    def content(batch: Any) -> Any:
        return (ids(batch), batch["noise"].tolist()) if kind == "cuts" else ids(batch)

    whole = [[content(batch) for batch in loader(rank)] for rank in range(ranks)]
    indices = [
        loader(0).indices(0, step) if rank == 0 else loader(rank).indices(0, step)
        for rank in range(ranks)
        for step in range(len(whole[0]))
    ]
    assert sorted(np.concatenate(indices)) == list(range(60))
    assert all(data.lengths()[rows].max() * len(rows) <= budget for rows in indices)
    assert len(indices) < 40
    for stop in (1, len(whole[0]) // 2):
        for rank in range(ranks):
            first = loader(rank)
            batches = iter(first)
            done = [content(next(batches)) for _ in range(stop)]
            second = loader(rank, num_workers=2)
            second.load_state_dict(first.state_dict())
            assert done + [content(batch) for batch in second] == whole[rank]


def test_cuts_keep_their_order_and_durations_are_rounded_up() -> None:
    cuts = [
        SimpleNamespace(id=str(row), duration=duration) for row, duration in enumerate((0, 0.01, 0.011, 0.3, 1.7, 2))
    ]
    data = lk.CutDataset(iter(cuts))
    assert [data[row] for row in range(6)] == cuts
    assert data.__getitems__([5, 0]) == [cuts[5], cuts[0]]
    assert data.lengths().tolist() == [0, 1, 2, 30, 170, 200]
    assert data.lengths().dtype == np.int64
    assert lk.CutDataset(cuts, unit_s=1).lengths().tolist() == [0, 1, 1, 1, 2, 2]
    assert lk.CutDataset(cuts, transform=lambda cut: cut.id)[2] == "2"
    assert data.fingerprint() == lk.CutDataset(cuts).fingerprint() != lk.CutDataset(cuts[:5]).fingerprint()
    assert data.draws_nothing


def test_a_batch_of_cuts_is_a_cut_set_or_what_its_dataset_makes_of_it() -> None:
    data = lk.CutDataset(cuts_made())
    whole = next(iter(lk.Loader(data, 4, collate_fn=lk.CutCollate())))
    assert type(whole) is CutSet
    assert [cut.id for cut in whole] == [f"cut {row}" for row in range(4)]
    assert lk.CutCollate().draws_nothing
    assert not lk.CutCollate(Speech()).draws_nothing
    loaders = [lk.Loader(data, 4, collate_fn=lk.CutCollate(Speech()), num_workers=workers) for workers in (0, 2)]
    first, second = ([batch["noise"].tolist() for batch in loader] for loader in loaders)
    assert first == second
    assert len({tuple(noise) for noise in first}) == len(first) == 15


@pytest.mark.parametrize(
    ("regions", "settings", "error", "message"),
    [
        ([5], {}, TypeError, r"region 0 is 5, wanted slices \(x, y\)"),
        ([(slice(0, 1), slice(0, 1)), (1, 2)], {}, TypeError, r"region 1 is \(1, 2\), wanted slices"),
        ([(slice(0, 1), slice(None, 1))], {}, ValueError, "wanted slices with a start and a later stop"),
        ([(slice(2, 1), slice(0, 1))], {}, ValueError, "wanted slices with a start and a later stop"),
        ([], {"resolution": 0}, ValueError, "the resolution is 0, wanted the size of a pixel, above 0"),
    ],
)
def test_regions_without_an_area_are_named(regions: Any, settings: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"GeoChips: .*{message}"):
        lk.GeoChips(Map(), regions, **settings)


def test_what_is_no_cut_is_named() -> None:
    cut = SimpleNamespace(id="a", duration=1.0)
    with pytest.raises(TypeError, match=r"GeoChips: region 1 .*wanted slices"):
        lk.GeoChips([0], [(slice(0, 1), slice(0, 1)), 3], resolution=1)
    with pytest.raises(ValueError, match="the resolution is None, wanted the size of a pixel"):
        lk.GeoChips([0], [])
    for wrong in (SimpleNamespace(id="b"), "text", SimpleNamespace(id="b", duration=float("inf"))):
        with pytest.raises(TypeError, match=r"cut 1 is a \w+ with the id .*wanted a lhotse cut"):
            lk.CutDataset([cut, wrong])
    with pytest.raises(ValueError, match="two cuts have the id 'a'"):
        lk.CutDataset([cut, cut])
    with pytest.raises(ValueError, match="unit_s is 0, wanted seconds, above 0"):
        lk.CutDataset([cut], unit_s=0)
