"""What data, transforms and collates say of their draws, and what follows from it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets_made import KINDS, csv, tar
from drawing import equal
from torch.utils.data import TensorDataset

import loaderkit as lk
from loaderkit.datasets.combine import ConcatDataset, MapDataset, SubsetDataset, ZipDataset
from loaderkit.datasets.tar.dataset import DECODERS
from loaderkit.seeding.draws import Draws, draws

THREADS: dict[str, Any] = {"num_workers": 3, "engine": "threads"}


class Keep:
    """Keeps samples as they are."""

    draws_nothing = True

    def __call__(self, samples: list[Any]) -> list[Any]:
        return samples


class Quiet:
    """A transform that draws nothing."""

    draws_nothing = True

    def __call__(self, sample: Any) -> Any:
        return "made", sample


class Own(Quiet):
    """One that draws from `lk.sample_rng()` alone."""

    draws_nothing = False
    draws_only_sample_rng = True

    def __call__(self, sample: Any) -> Any:
        return lk.sample_rng().random(), sample


class Louder(Own):
    """A class of someone's own that says nothing."""

    def __call__(self, sample: Any) -> Any:
        return torch.rand(()), sample


def unsaid(sample: Any) -> Any:
    return "made", sample


def said(sample: Any) -> Any:
    return "made", sample


said.draws_nothing = True  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:Loader. about .* shards are in use")  # "by copies": a cache that is too small
@pytest.mark.parametrize("kind", KINDS)
def test_each_dataset_may_be_read_by_threads(kind: str, tmp_path: Path) -> None:
    dataset = KINDS[kind](tmp_path)
    if draws(dataset) is Draws.ANYTHING:
        assert kind in ("Handle", "MapDataset", "share")  # those of the test's own
        return
    loaders = [lk.Loader(dataset, 5, shuffle=True, collate_fn=Keep(), **more) for more in ({}, THREADS)]
    found = [[list(loader) for _ in range(2)] for loader in loaders]
    assert sum(map(len, found[0][0])) == len(dataset)
    assert equal(found[1], found[0])


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (None, Draws.NOTHING),
        (Quiet(), Draws.NOTHING),
        (said, Draws.NOTHING),
        (Own(), Draws.SAMPLE_RNG),
        (unsaid, Draws.ANYTHING),
        (Louder(), Draws.ANYTHING),
    ],
)
def test_an_adapter_draws_what_its_transform_does(transform: Any, says: Draws, tmp_path: Path) -> None:
    """And what it wraps; whatever is said, the samples are the same, and go through the transform."""
    whole = tar(tmp_path, "txt", transform=transform)
    rows = lk.ArrayDataset(torch.arange(96), transform=transform)
    texts = lk.RecordDataset(range(96), transform=transform)
    for dataset in (whole, rows, texts, SubsetDataset(whole, range(9)), MapDataset(texts, Quiet())):
        assert draws(dataset) is says
    assert draws(ConcatDataset([texts, lk.RecordDataset(range(3))])) is says
    assert draws(ZipDataset([lk.RecordDataset(range(96)), rows])) is says
    for dataset in (whole, rows, texts):
        plain = type(dataset).__new__(type(dataset))
        plain.__dict__.update(dataset.__dict__)
        plain.transform = None if transform is None else Hidden(transform)
        settings: dict[str, Any] = {"batch_size": 4, "shuffle": True, "collate_fn": Keep()}
        expected = list(lk.Loader(plain, **settings))
        assert equal(list(lk.Loader(dataset, **settings)), expected)
        if says is not Draws.ANYTHING:
            assert equal(list(lk.Loader(dataset, **settings, **THREADS)), expected)


class Hidden:
    """A transform that does the same, and does not say what it draws."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, sample: Any) -> Any:
        return self.inner(sample)


def test_columns_of_pictures_go_through_a_transform_that_draws_nothing(tmp_path: Path) -> None:
    dataset = tar(tmp_path, "png", transform=Quiet())
    made = next(iter(lk.Loader(dataset, 4, collate_fn=Keep())))
    assert [first for first, _ in made] == ["made"] * 4
    stacked: Any = next(iter(lk.Loader(dataset, 4)))
    assert stacked[0] == ["made"] * 4


def test_decoders_and_parsers_count_too(tmp_path: Path) -> None:
    for decoder, says in ((bytes, Draws.ANYTHING), (Quiet(), Draws.NOTHING), (Own(), Draws.SAMPLE_RNG)):
        (tmp_path / str(says)).mkdir()
        assert draws(tar(tmp_path / str(says), "txt", decode=DECODERS | {"txt": decoder})) is says
    (tmp_path / "csv").mkdir()
    dataset = csv(tmp_path / "csv")
    assert draws(dataset) is Draws.NOTHING
    dataset.types = {name: Own() for name in dataset.types or dataset.columns}
    assert draws(dataset) is Draws.SAMPLE_RNG


def test_plain_sequences_draw_nothing_and_classes_made_of_them_may() -> None:
    class Mine(list[int]):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index) + torch.rand(())

    for plain in ([1, 2], (1, 2), range(2), np.arange(2), torch.arange(2), TensorDataset(torch.arange(2))):
        assert draws(plain) is Draws.NOTHING
    assert draws(Mine([1, 2])) is Draws.ANYTHING


@pytest.mark.parametrize("says", [True, False])
def test_the_global_generators_are_seeded_only_if_they_may_be_drawn_from(says: bool) -> None:
    found = []

    class Asks(Own):
        draws_only_sample_rng = says

        def __call__(self, sample: Any) -> Any:
            found.append(torch.initial_seed())
            return super().__call__(sample)

    assert len(list(lk.Loader(MapDataset(range(12), Asks()), 4, collate_fn=Keep()))) == 3
    assert len(found) == 12
    assert set(found) == {torch.initial_seed()} if says else len(set(found)) == 12


class Empty:
    """A collate that is false, as an empty torch.nn.Sequential is."""

    def __len__(self) -> int:
        return 0

    def __call__(self, samples: Sequence[Any]) -> Any:
        return "collated", len(samples)


def test_a_collate_that_is_falsy_is_still_called() -> None:
    assert list(lk.Loader(range(5), 2, collate_fn=Empty())) == [("collated", 2), ("collated", 2), ("collated", 1)]
