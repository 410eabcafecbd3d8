"""The batch reader: errors name the sample, a failed batch is not counted, draws belong to samples."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data
from drawing import Drawing, DrawingFrom, add_draws, drawing_collate, draws, equal, generator_states

import loaderkit as lk
from loaderkit.datasets.combine import ConcatDataset, MapDataset, SubsetDataset, ZipDataset
from loaderkit.reading.batch_reader import BatchReader
from loaderkit.sampling.batch_plan import BatchPlan
from loaderkit.sampling.cursor import Cursor
from loaderkit.system.stack import CollateError

ARRAY = lk.ArrayDataset(torch.arange(12))
LIST = list(range(12))
OTHER = lk.ArrayDataset(torch.arange(100, 111))


def as_is(samples: list[Any]) -> list[Any]:
    return samples


def sample_id(sample: Any) -> Any:
    while isinstance(sample, tuple | list):
        sample = sample[0]
    return int(sample)


def by_index(loader: lk.Loader) -> dict[int, str]:
    """Return each sample's draws by its number."""
    return {sample_id(sample): str(sample) for batch in loader for sample in batch}


DATASETS = {
    "own": Drawing(23),
    "subset": SubsetDataset(Drawing(30), range(23)),
    "torch subset": torch_data.Subset(Drawing(30), range(23)),  # type: ignore[arg-type]
    "torch subset of many": torch_data.Subset(MapDataset(ARRAY, add_draws), range(11)),  # type: ignore[arg-type]
    "torch stack": torch_data.StackDataset(DrawingFrom(LIST), DrawingFrom(LIST)),  # type: ignore[arg-type]
    "torch subset of stack": torch_data.Subset(torch_data.StackDataset(DrawingFrom(LIST)), range(5)),
    "torch concat": torch_data.ConcatDataset([DrawingFrom(LIST), DrawingFrom(OTHER)]),  # type: ignore[list-item]
    "map of many": MapDataset(ARRAY, add_draws),
    "map of one": MapDataset(LIST, add_draws),
    "map of map": MapDataset(MapDataset(ARRAY, add_draws), add_draws),
    "concat of many": ConcatDataset([MapDataset(ARRAY, add_draws), MapDataset(OTHER, add_draws)]),
    "concat of both": ConcatDataset([MapDataset(ARRAY, add_draws), DrawingFrom(OTHER)]),
    "concat of one": ConcatDataset([DrawingFrom(LIST), DrawingFrom(OTHER)]),
    "zip of many": ZipDataset([MapDataset(ARRAY, add_draws), MapDataset(ARRAY, add_draws)]),
    "zip of both": ZipDataset([MapDataset(ARRAY, add_draws), DrawingFrom(LIST)]),
    "map of concat of zip": MapDataset(
        ConcatDataset([ZipDataset([MapDataset(ARRAY, add_draws), LIST]), ZipDataset([OTHER, DrawingFrom(OTHER)])]),
        add_draws,
    ),
}


@pytest.mark.parametrize("name", DATASETS)
def test_draws_belong_to_the_sample_however_datasets_are_combined(name: str) -> None:
    """They depend neither on the batch nor on the samples read before."""
    dataset = DATASETS[name]
    size = len(dataset)
    whole = by_index(lk.Loader(dataset, 1, shuffle=True, seed=2, collate_fn=as_is))
    assert len(whole) == size > 4
    for batch_size, workers in ((3, 0), (size, 0), (4, 2)):
        assert (
            by_index(lk.Loader(dataset, batch_size, shuffle=True, seed=2, collate_fn=as_is, num_workers=workers))
            == whole
        )
    assert by_index(lk.Loader(dataset, 4, shuffle=True, seed=3, collate_fn=as_is)) != whole


@pytest.mark.parametrize("name", DATASETS)
def test_no_two_draws_are_the_same(name: str) -> None:
    """Not in two transforms of one sample, nor in the datasets of a zip."""

    def numbers(part: Any) -> list[float]:
        if isinstance(part, tuple | list):
            return [number for inner in part for number in numbers(inner)]
        return part.tolist() if isinstance(part, torch.Tensor) and part.ndim else []

    loader = lk.Loader(DATASETS[name], 4, shuffle=True, collate_fn=as_is)
    found = numbers([list(loader), list(loader)])
    assert len(found) >= 2 * 7 * len(DATASETS[name])
    assert len(set(found)) == len(found)


class Broken:
    """Fails at one sample, after drawing."""

    def __init__(self, where: int = 7, error: type[BaseException] = KeyError) -> None:
        self.where, self.error = where, error

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        draws()
        if index == self.where:
            raise self.error("no such file")
        return index


class BrokenMany(Broken):
    def __getitems__(self, indices: Sequence[int]) -> list[int]:
        return [self[index] for index in indices]


def break_at_7(sample: Any) -> Any:
    if int(sample) == 7:
        raise OSError("cannot decode")
    return sample


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("dataset", "error", "named"),
    [
        (Broken(), KeyError, "while reading sample 7 (epoch 0, position 7)"),
        (BrokenMany(), KeyError, "while reading samples 6, 7, 8 (epoch 0, position 6)"),
        (MapDataset(ARRAY, break_at_7), OSError, "while reading sample 7 (epoch 0, position 7)"),
        (MapDataset(LIST, break_at_7), OSError, "while reading sample 7 (epoch 0, position 7)"),
        (
            ConcatDataset([OTHER, MapDataset(ARRAY, break_at_7)]),
            OSError,
            "while reading sample 18 (epoch 0, position 18)",
        ),
    ],
)
def test_an_error_names_the_sample_and_the_batch_is_not_counted(
    dataset: Any, error: type[Exception], named: str, workers: int
) -> None:
    loader = lk.Loader(dataset, 3, num_workers=workers)
    before = generator_states()
    iterator = iter(loader)
    taken: list[Any] = []
    with pytest.raises(error) as caught:
        taken.extend(iterator)
    assert named in "".join(getattr(caught.value, "__notes__", [])) + str(caught.value)
    count = 6 if len(dataset) > 12 else 2
    assert loader.cursor == lk.Cursor(samples=3 * count, batches=count)
    assert generator_states() == before
    with pytest.raises(RuntimeError, match="this iterator is over"):
        next(iterator)
    state = loader.state_dict()
    again = lk.Loader(list(range(len(dataset))), 3)
    again.load_state_dict(state) if not hasattr(dataset, "fingerprint") else again.seek(epoch=0, samples=3 * count)
    assert next(iter(again)).tolist() == list(range(3 * count, 3 * count + 3))


@pytest.mark.parametrize("persistent", [False, True])
def test_after_an_error_the_loader_goes_on_with_the_next_epoch(persistent: bool) -> None:
    loader = lk.Loader(Broken(), 3, num_workers=2, persistent_workers=persistent)
    for epoch in range(2):
        batches = []
        with pytest.raises(KeyError):
            batches.extend(batch.tolist() for batch in loader)
        assert loader.cursor == lk.Cursor(epoch=epoch, samples=6, batches=2)
    loader.seek(epoch=2, samples=9)  # past the bad stretch
    assert [batch.tolist() for batch in loader] == [[9, 10, 11]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_ends_early_does_not_end_the_epoch_silently(workers: int) -> None:
    loader = lk.Loader(Broken(error=StopIteration), 3, num_workers=workers)
    with pytest.raises(
        RuntimeError, match="StopIteration in loader worker" if workers else "StopIteration 2 batches before"
    ):
        list(loader)
    assert loader.cursor.batches == 2


class Immovable:
    """A batch that fails on its way to the device, once."""

    failures = 1

    def __init__(self, samples: list[int]) -> None:
        self.samples = samples

    def to(self, device: torch.device) -> list[int]:
        if self.samples[0] == 3 and type(self).failures:
            type(self).failures -= 1
            raise MemoryError
        return self.samples


def test_a_batch_that_does_not_reach_the_device_is_not_counted() -> None:
    loader = lk.Loader(LIST, 3, collate_fn=Immovable, device="cpu")
    iterator = iter(loader)
    assert next(iterator) == [0, 1, 2]
    with pytest.raises(MemoryError):
        next(iterator)
    with pytest.raises(RuntimeError, match="this iterator is over"):
        next(iterator)
    loader.load_state_dict(loader.state_dict())
    assert list(loader) == [[3, 4, 5], [6, 7, 8], [9, 10, 11]]


class Shapes:
    """One field of one sample has another shape."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": index, "image": {"pixels": torch.zeros(4 if index == 8 else 3, 2)}}


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_do_not_fit_are_named_by_field_indices_and_shapes(workers: int) -> None:
    loader = lk.Loader(Shapes(), 4, order=lk.Subset([1, 2, 3, 5, 6, 8, 9, 10]), num_workers=workers)
    with pytest.raises(CollateError, match=r"field 'image.pixels'.*\(3, 2\) and \(4, 2\).*\(samples 6, 8\)"):
        list(loader)


def test_an_error_in_the_users_collate_names_the_samples() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(lk.Loader(LIST, 9, collate_fn=lambda samples: 1 // 0))
    assert "while collating samples 0, 1, 2, 3, 4, 5, 6, 7, ... (9 in all)" in caught.value.__notes__[0]


class Short(Broken):
    def __getitems__(self, indices: Sequence[int]) -> list[int]:
        return list(indices)[1:]


def test_a_batch_that_comes_short_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"Short\.__getitems__ returned 2 samples for 3 indices"):
        list(lk.Loader(Short(), 3))


class Reads(Broken):
    """Records how it was read."""

    def __init__(self) -> None:
        super().__init__(where=-1)
        self.calls: list[str] = []

    def __getitem__(self, index: int) -> int:
        self.calls.append("one")
        return index

    def __getitems__(self, indices: Sequence[int]) -> list[int]:
        self.calls.append("many")
        return list(indices)

    def read_batch(self, indices: np.ndarray) -> torch.Tensor:
        self.calls.append("batch")
        return torch.from_numpy(indices)


def test_the_fastest_way_to_read_is_taken() -> None:
    data = Reads()
    expected = [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert [batch.tolist() for batch in lk.Loader(data, 6)] == expected
    assert list(lk.Loader(data, 6, collate_fn=as_is)) == expected  # a collate wants samples
    assert list(lk.Loader(data, None))[:2] == [0, 1]
    assert data.calls == ["batch"] * 2 + ["many"] * 2 + ["many"] * 12


def test_interrupted_reads_leave_the_callers_generators_alone() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    wanted = draws()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    for error in (KeyboardInterrupt, SystemExit, ValueError):
        with pytest.raises(error):
            list(lk.Loader(Broken(error=error), 3))
    assert equal(draws(), wanted)


class Untrue:
    """Declares that it draws nothing, but draws: this shows whether it is seeded."""

    draws_nothing = True

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> float:
        return float(torch.rand(()))


class UntrueMany(Untrue):
    draws_nothing = True

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("dataset", [Untrue(), UntrueMany(), SubsetDataset(Untrue(), range(8))])
def test_a_dataset_that_draws_nothing_is_read_without_seeds(dataset: Any) -> None:
    key = BatchPlan(order=lk.Sequential(8), batch_size=4, world=lk.World(0, 1)).batch(Cursor(), 0)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    BatchReader(dataset, None, 0).read(key)
    assert not torch.equal(torch.get_rng_state(), before)


def test_the_laws_find_a_wrong_declaration_of_draws() -> None:
    with pytest.raises(lk.testing.LawError):
        lk.testing.assert_resumable(lambda: lk.Loader(Untrue(), 4), epochs=1, stops=[1])


class Still:
    """Samples that draw nothing and do not declare it."""

    def __init__(self, bad: int = -1) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        if index == self.bad:
            raise ValueError("bad")
        return index, torch.full((3,), index)


class StillSaid(Still):
    draws_nothing = True


class StillMany(StillSaid):
    draws_nothing = True

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("settings", [{}, {"num_workers": 2, "engine": "ring"}])
@pytest.mark.parametrize(
    ("batch_size", "collate"), [(4, None), (4, drawing_collate), (1, None), (None, None), (None, add_draws)]
)
@pytest.mark.parametrize("bad", [-1, 7])
@pytest.mark.parametrize("kind", [StillSaid, StillMany])
def test_to_say_that_nothing_is_drawn_changes_no_batch(
    kind: type, bad: int, batch_size: Any, collate: Any, settings: Any
) -> None:
    """Neither a collate's draws nor the caller's generators change."""

    def batches(dataset: Any) -> list[str]:
        loader = lk.Loader(
            dataset, batch_size, shuffle=True, collate_fn=collate, bad_samples=lk.BadSamples("replace"), **settings
        )
        return [str(batch) for batch in loader]

    before = generator_states()
    assert batches(kind(bad)) == batches(Still(bad))
    assert equal(generator_states(), before)


@pytest.mark.parametrize("dataset", [StillSaid(7), StillMany(7)])
def test_an_error_of_a_dataset_that_draws_nothing_names_the_sample(dataset: Any) -> None:
    with pytest.raises(ValueError, match="bad") as caught:
        list(lk.Loader(dataset, 4))
    found = "sample 7" if type(dataset) is StillSaid else "samples 4, 5, 6, 7"
    assert f"raised while reading {found} (epoch 0" in "".join(caught.value.__notes__)


def test_a_dataset_that_draws_nothing_gets_no_generator() -> None:
    class Asks(Still):
        draws_nothing = True

        def __getitem__(self, index: int) -> float:  # type: ignore[override]
            return lk.sample_rng().random()

    with pytest.raises(RuntimeError, match=r"the dataset \(or collate_fn\) has draws_nothing = True.*Remove"):
        list(lk.Loader(Asks(), 4))
