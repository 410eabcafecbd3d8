"""A subclass that overrides how samples are read is honoured, whatever faster methods its base class has."""

import contextlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets_made import KINDS, public_datasets

import loaderkit as lk
from loaderkit.datasets.base import knows_lengths, reads_batches, reads_columns, reads_many
from loaderkit.reading.batch_reader import takes_batches
from loaderkit.seeding.draws import draws_nothing

FASTER = {
    "read_batch": reads_batches,
    "read_columns": reads_columns,
    "lengths": knows_lengths,
    "draws_nothing": draws_nothing,
}
PUBLIC = sorted(public_datasets() - {"ParquetDataset"} | {"ParquetDataset ragged", "TokenDataset with rests"})
# The methods that a class may override, and which argument says how many samples.
HOOKS = {"__getitem__": 0, "__getitems__": 0, "read": 1, "gather": 1}


def overriding(dataset: Any, **methods: Any) -> Any:
    """Give a dataset a subclass of its own class, with these methods."""
    dataset.__class__ = type("Own", (type(dataset),), methods)
    return dataset


def counting(dataset: Any, hook: str) -> Any:
    """Override one method, to count the samples that go through it."""
    base = type(dataset)

    def override(self: Any, *given: Any) -> Any:
        self.seen += 1 if hook == "__getitem__" else len(given[HOOKS[hook]])
        return getattr(base, hook)(self, *given)

    dataset.seen = 0
    return overriding(dataset, **{hook: override})


class Whole:
    """A collate that takes samples, and batches as a dataset reads them."""

    def __call__(self, samples: Any) -> int:
        return len(samples)

    def collate_batch(self, batch: Any) -> Any:
        return batch


def hooks() -> Iterator[Any]:
    for kind in PUBLIC:
        for hook in HOOKS:
            if hasattr(getattr(lk, kind.split()[0]), hook):
                yield kind, hook


@pytest.mark.parametrize(("kind", "hook"), list(hooks()))
def test_each_sample_goes_through_an_override(kind: str, hook: str, tmp_path: Path) -> None:
    """With any collate, and also in datasets made of this one."""
    own = counting(KINDS[kind](tmp_path), hook)
    numbers = lk.RecordDataset(range(len(own)))
    wholes = own, lk.SubsetDataset(own, range(6)), lk.ConcatDataset([own]), lk.ZipDataset([own, numbers])
    for collate in (None, Whole(), list):
        for whole in wholes:
            own.seen = 0
            loader = lk.Loader(whole, batch_size=4, collate_fn=collate)
            with contextlib.suppress(lk.CollateError):  # samples of different lengths; they were read
                next(iter(loader))
            assert own.seen == 4, (collate, whole)
    if hook != "gather":  # it reads a batch, too
        assert not any(has(whole) for has in FASTER.values() for whole in wholes[:3])


def test_faster_methods_count_if_nothing_is_overridden(tmp_path: Path) -> None:
    """Otherwise the law above would hold for nothing."""
    found: dict[str, set[str]] = {name: set() for name in FASTER}
    for kind in PUBLIC:
        (tmp_path / kind).mkdir()
        dataset = overriding(KINDS[kind](tmp_path / kind), more=1)
        for name, has in FASTER.items():
            found[name] |= {kind} if has(dataset) else set()
    assert found["read_batch"] == {
        "DocumentDataset",
        "NpyDataset",
        "ParquetDataset ragged",
        "PieceDataset",
        "TokenDataset",
        "WindowDataset",
    }
    assert found["read_columns"] == {
        "ArrayDataset",
        "Hdf5Dataset",
        "SafetensorsDataset",
        "SubsetDataset",
        "TarDataset",
        "ZarrDataset",
    }
    assert found["lengths"] == {"AudioDataset", "CutDataset", "DocumentDataset", "GeoChips", "PieceDataset"}
    assert found["draws_nothing"] == {*PUBLIC} - {"MapDataset"}
    array, documents = lk.ArrayDataset((torch.arange(9),)), KINDS["DocumentDataset"](tmp_path / "DocumentDataset")
    assert reads_batches(lk.SubsetDataset(array, [1]))
    assert reads_batches(lk.ZipDataset([array] * 2))
    assert knows_lengths(lk.SubsetDataset(documents, [1]))
    assert knows_lengths(lk.ConcatDataset([documents]))


class Alone:
    """Reads one sample at a time, with its index and a random number."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"is": super().__getitem__(index), "n": index, "drawn": torch.rand(())}  # type: ignore[misc]


class Many:
    """Reads several samples at a time, with their indices and a random number."""

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        samples = super().__getitems__(indices)  # type: ignore[misc]
        drawn = np.random.random()
        return [{"is": sample, "n": index, "drawn": drawn} for sample, index in zip(samples, indices, strict=True)]


def numbers_of(dataset: Any, **settings: Any) -> list[Any]:
    loader = lk.Loader(dataset, batch_size=16, shuffle=True, **settings)
    return [(batch["n"].tolist(), batch["drawn"].tolist()) for batch in loader]


@pytest.mark.each_value
@pytest.mark.parametrize("own", [Alone, Many])
@pytest.mark.parametrize("kind", ["ArrayDataset", "TarDataset", "SubsetDataset"])
def test_an_override_is_seeded(kind: str, own: type, tmp_path: Path) -> None:
    """Its draws are the same with workers, and leave the caller's generators alone."""
    dataset = KINDS[kind](tmp_path)
    dataset.__class__ = type("Own", (own, type(dataset)), {})
    assert reads_many(dataset) == (own is Many)
    before = torch.get_rng_state()
    wanted = numbers_of(dataset)
    assert torch.equal(torch.get_rng_state(), before)
    assert sorted(n for batch, _ in wanted for n in batch) == list(range(len(dataset)))
    assert len({x for _, drawn in wanted for x in drawn}) == (len(dataset) if own is Alone else len(wanted))
    for engine in ("ring", "torch"):
        assert numbers_of(dataset, num_workers=2, engine=engine, multiprocessing_context="fork") == wanted


class Noise(Sequence[float]):
    """A column that draws its values."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: Any) -> Any:
        return random.random()


class Noisy:
    """A dataset that draws its samples."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> Any:
        return {"a": random.random()}


def noisy(row: dict[str, Any]) -> dict[str, Any]:
    return {"a": row["a"] + random.random()}


def test_what_may_draw_is_seeded(tmp_path: Path) -> None:
    rows = pytest.importorskip("datasets").Dataset.from_list([{"a": row} for row in range(23)])
    drawn = rows.with_transform(lambda batch: {"a": [random.random() for _ in batch["a"]]})
    (tmp_path / "a.csv").write_text("a\n" + "".join(f"{row}\n" for row in range(23)))
    assert draws_nothing(lk.HFDataset(rows.with_format("numpy")))
    for dataset in (
        lk.HFDataset(drawn),
        lk.HFDataset(Noisy()),
        lk.HFDataset(rows, transform=noisy),
        lk.ArrayDataset({"a": Noise()}),
        lk.ArrayDataset({"a": range(23)}, transform=noisy),
        lk.RecordDataset(({"a": row} for row in range(23)), transform=noisy),
        lk.CsvDataset(tmp_path, types={"a": lambda text: int(text) + random.random()}),
    ):
        assert not draws_nothing(dataset)
        assert not draws_nothing(lk.SubsetDataset(dataset, [0]))
        first, second = (
            [row["a"] for batch in lk.Loader(dataset, batch_size=4, collate_fn=list) for row in batch] for _ in range(2)
        )
        assert first == second
        assert len(set(first)) == 23


def test_an_override_may_be_an_instances_own(tmp_path: Path) -> None:
    dataset = KINDS["TokenDataset"](tmp_path)
    before = next(iter(lk.Loader(dataset, batch_size=2)))
    read = dataset.read
    dataset.read = lambda *given: [window + 1 for window in read(*given)]
    assert torch.equal(next(iter(lk.Loader(dataset, batch_size=2))).long(), before.long() + 1)


def test_a_method_of_the_same_name_is_no_override() -> None:
    class Mine(lk.ArrayDataset):
        def read(self, path: str) -> str:
            return path

    assert reads_batches(Mine((torch.arange(9),)))


def test_a_subclass_may_bring_a_faster_method_again(tmp_path: Path) -> None:
    dataset = counting(KINDS["DocumentDataset"](tmp_path), "read")
    assert not reads_batches(dataset)
    overriding(dataset, read_batch=lk.DocumentDataset.read_batch, draws_nothing=True)
    assert reads_batches(dataset)
    assert draws_nothing(dataset)
    assert not reads_batches(counting(dataset, "read"))


@pytest.mark.parametrize(
    "kind", ["ArrayDataset", "DocumentDataset", "NpyDataset", "ParquetDataset ragged", "TokenDataset"]
)
def test_a_transform_may_be_set_later(kind: str, tmp_path: Path) -> None:
    dataset = KINDS[kind](tmp_path)
    assert reads_batches(dataset) or reads_columns(dataset)
    dataset.transform = str
    assert all(isinstance(text, str) for batch in lk.Loader(dataset, batch_size=40) for text in batch)


def test_lengths_are_those_that_a_subclass_reads(tmp_path: Path) -> None:
    whole = KINDS["DocumentDataset"](tmp_path)
    longer = np.concatenate([whole.lengths(), whole.lengths() + 1])
    own = overriding(
        lk.DocumentDataset(tmp_path),
        read=lambda self, *given: [np.append(part, 0) for part in lk.DocumentDataset.read(self, *given)],
    )
    assert np.array_equal(lk.measure_lengths(lk.ConcatDataset([whole, own])), longer)
    part = lk.SubsetDataset(whole, [3, 1])
    overriding(part, __getitem__=lambda self, index: np.zeros(4))
    assert lk.measure_lengths(part).tolist() == [4, 4]


@pytest.mark.parametrize("kind", [lk.PadCollate, lk.RaggedCollate, lk.PackCollate])
def test_a_collates_own_call_is_honoured(kind: Any, tmp_path: Path) -> None:
    """The inherited `collate_batch` is not called."""
    own = type("Own", (kind,), {"__call__": lambda self, samples: [len(sample) for sample in samples]})
    assert takes_batches(kind())
    assert not takes_batches(own())
    dataset = KINDS["DocumentDataset"](tmp_path)
    assert next(iter(lk.Loader(dataset, batch_size=3, collate_fn=own()))) == dataset.lengths()[:3].tolist()


def test_a_device_transforms_own_call_is_seeded() -> None:
    class Random(lk.Normalize):
        def __call__(self, batch: Any) -> Any:
            return torch.rand(())

    batches = [torch.zeros(1, 3, 2, 2, dtype=torch.uint8)]
    found = {float(next(lk.prefetch(batches, "cpu", transform=Random([0.5] * 3, [0.5] * 3)))) for _ in range(3)}
    assert len(found) == 1


def test_a_method_of_an_instance_counts() -> None:
    dataset = lk.ArrayDataset((torch.arange(9),))
    own = counting(lk.ArrayDataset((torch.arange(9),)), "__getitem__")
    own.read_batch = dataset.read_batch
    assert reads_batches(own)
