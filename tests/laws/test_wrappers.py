"""A wrapper that forwards attributes is read through its own methods: what it forwards promises nothing about them."""

import functools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets_made import KINDS, public_datasets
from hypothesis import given
from hypothesis import strategies as st

import loaderkit as lk
from loaderkit.datasets.base import knows_lengths, reads_batches, reads_columns, reads_many
from loaderkit.reading.batch_reader import takes_batches
from loaderkit.sampling.cursor import unpack_state
from loaderkit.seeding.draws import draws_nothing

PUBLIC = sorted(public_datasets() - {"ParquetDataset"} | {"ParquetDataset ragged", "TokenDataset with rests"})
ABILITIES = [  # all that a Loader, a plan or a wrapper of ours asks a dataset for
    "__getitems__",
    "counted",
    "default_collate",
    "draws_nothing",
    "draws_only_sample_rng",
    "epoch_order",
    "fingerprint",
    "lengths",
    "place",
    "read_batch",
    "read_columns",
    "read_pieces",
    "shard_sizes",
    "stride",
]


class Plain:
    """A wrapper with samples of its own: a number, and random numbers of each generator."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.inner[index]
        return {"n": index * 100, "drawn": (float(torch.rand(())), np.random.random(), random.random())}


class Forwarding(Plain):
    """The same, and it forwards what it lacks."""

    names: Sequence[str] | None = None  # None: all

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or (name.startswith("__") and name != "__getitems__"):
            raise AttributeError(name)
        if self.names is not None and name not in self.names:
            raise AttributeError(name)
        return getattr(self.inner, name)


def epoch(dataset: Any, **settings: Any) -> list[Any]:
    loader = lk.Loader(dataset, batch_size=16, shuffle=True, **settings)
    return [(batch["n"].tolist(), [drawn.tolist() for drawn in batch["drawn"]]) for batch in loader]


@pytest.mark.parametrize("kind", PUBLIC)
def test_a_forwarding_wrapper_is_read_as_one_that_does_not_forward(kind: str, tmp_path: Path) -> None:
    """Samples, draws and order are those of the wrapper, also through datasets made of it."""
    inner = KINDS[kind](tmp_path)
    plain, forwarding = Plain(inner), Forwarding(inner)
    before = torch.get_rng_state(), random.getstate()
    wanted = epoch(plain)
    assert sorted(n for batch, _ in wanted for n in batch) == [100 * index for index in range(len(inner))]
    assert len({value for _, drawn in wanted for values in drawn for value in values}) == 3 * len(inner)
    assert epoch(forwarding) == wanted
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    rows = range(len(inner))
    for whole in (
        lk.SubsetDataset(forwarding, rows),
        lk.ConcatDataset([forwarding]),
        lk.MapDataset(forwarding, lambda sample: sample),
        lk.Pipeline(forwarding),
    ):
        assert epoch(whole) == epoch(type(whole)(*_arguments(whole, plain))), type(whole).__name__
    zipped = lk.Loader(lk.ZipDataset([forwarding, rows]), batch_size=len(inner))
    assert next(iter(zipped))[0]["n"].tolist() == [100 * index for index in rows]
    states = [unpack_state(lk.Loader(each, 4, shuffle=True).state_dict()).identity for each in (plain, forwarding)]
    assert states[0].order == states[1].order


def _arguments(whole: Any, inner: Any) -> list[Any]:
    if isinstance(whole, lk.ConcatDataset):
        return [[inner]]
    if isinstance(whole, lk.SubsetDataset):
        return [inner, range(len(inner))]
    return [inner, whole.transform] if isinstance(whole, lk.MapDataset) else [inner]


@pytest.mark.parametrize("kind", PUBLIC)
def test_a_wrapper_has_no_ability_by_forwarding(kind: str, tmp_path: Path) -> None:
    """Whatever it forwards; as an attribute of the wrapper's class the same ability counts."""
    inner = KINDS[kind](tmp_path)
    forwarding = Forwarding(inner)
    found = [reads_batches, reads_columns, reads_many, knows_lengths, draws_nothing]
    assert not any(has(forwarding) for has in found)

    class Saying(Forwarding):
        draws_nothing = True

        def __getitems__(self, indices: Sequence[int]) -> list[Any]:
            return [self[index] for index in indices]

    assert draws_nothing(Saying(inner))
    assert reads_many(Saying(inner))
    assert not reads_batches(Saying(inner))


@given(
    kind=st.sampled_from(["arrays", "tokens", "documents", "records", "subset", "pipeline"]),
    names=st.sets(st.sampled_from(ABILITIES)),
    engine=st.sampled_from(["inline", "inline", "inline", "ring", "torch"]),
)
def test_each_set_of_forwarded_abilities_gives_the_wrappers_samples(
    kind: str, names: set[str], engine: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp(kind)
    inner: Any = {
        "arrays": lambda: KINDS["ArrayDataset"](folder),
        "tokens": lambda: KINDS["TokenDataset"](folder),
        "documents": lambda: KINDS["DocumentDataset"](folder),
        "records": lambda: KINDS["RecordDataset"](folder),
        "subset": lambda: lk.SubsetDataset(KINDS["TokenDataset"](folder), range(40)),
        "pipeline": lambda: lk.Pipeline(KINDS["DocumentDataset"](folder)).pack(80),
    }[kind]()
    forwarding = type("Some", (Forwarding,), {"names": names})(inner)
    workers = {} if engine == "inline" else {"num_workers": 2, "engine": engine, "multiprocessing_context": "fork"}
    assert epoch(forwarding, **workers) == epoch(Plain(inner))


def test_lengths_are_measured_of_the_wrappers_samples(tmp_path: Path) -> None:
    class Cropped(Forwarding):
        def __getitem__(self, index: int) -> Any:
            return self.inner[index][:4]

    inner = KINDS["DocumentDataset"](tmp_path)
    assert inner.lengths().max() > 4
    assert lk.measure_lengths(Cropped(inner)).tolist() == np.minimum(inner.lengths(), 4).tolist()
    with pytest.raises(TypeError, match="does not know its lengths"):
        lk.PieceDataset(Cropped(inner), 2)


def test_a_filtering_wrapper_is_shuffled_by_its_own_size(tmp_path: Path) -> None:
    """The forwarded `shard_sizes` add up to more samples than it has."""

    class Even(Forwarding):
        def __len__(self) -> int:
            return len(self.inner) // 2

        def __getitem__(self, index: int) -> Any:
            return {"n": self.inner[2 * index]["n"]}

    inner = KINDS["JsonlDataset"](tmp_path)
    for dataset in (Even(inner), lk.MapDataset(Even(inner), dict), lk.CachedDataset(Even(inner), max_bytes=1 << 20)):
        seen = [n for batch in lk.Loader(dataset, 5, shuffle=True) for n in batch["n"].tolist()]
        assert sorted(seen) == list(range(0, len(inner), 2))


def test_a_resume_continues_a_forwarding_wrapper_bit_for_bit(tmp_path: Path) -> None:
    make = functools.partial(lk.Loader, Forwarding(KINDS["RecordDataset"](tmp_path)), batch_size=5, shuffle=True)
    lk.testing.assert_resumable(make)


class AroundCollate:
    """A collate function that forwards to one of loaderkit's."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, samples: list[Any]) -> Any:
        return {"mine": self.inner(samples), "noise": torch.rand(())}

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)


@pytest.mark.parametrize("kind", [lk.PadCollate, lk.RaggedCollate, lk.PackCollate])
@pytest.mark.parametrize("data", ["DocumentDataset", "TokenDataset"])
def test_a_collate_that_forwards_is_called_and_seeded(kind: Any, data: str, tmp_path: Path) -> None:
    dataset, collate = KINDS[data](tmp_path), AroundCollate(kind())
    assert takes_batches(kind())
    assert not takes_batches(collate)
    before = torch.get_rng_state()
    first, second = ([batch["noise"].item() for batch in lk.Loader(dataset, 8, collate_fn=collate)] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first) > 1
    assert torch.equal(torch.get_rng_state(), before)


def test_a_collate_that_forwards_may_join_the_rows_of_a_pack_plan() -> None:
    class Rows(AroundCollate):
        def __call__(self, samples: list[Any]) -> Any:
            return [len(row) for row in samples]

    plan = lk.PackPlan([2, 3, 4, 1], row_length=5)
    found = [sum(batch) for batch in lk.Loader([[0]] * 4, plan=plan, collate_fn=Rows(lk.PadCollate()))]
    assert sum(found) == 4


def test_a_declaration_that_functools_wraps_copied_does_not_count() -> None:
    def scale(sample: float) -> float:
        return sample * 2

    scale.draws_nothing = True  # type: ignore[attr-defined]

    @functools.wraps(scale)
    def noisy(sample: float) -> float:
        return scale(sample) + random.random()

    assert draws_nothing(scale)
    assert not draws_nothing(noisy)
    noisy.draws_nothing = False  # type: ignore[attr-defined]
    assert not draws_nothing(noisy)
    data = lk.MapDataset(lk.RecordDataset([0.0] * 8), noisy)
    before = random.getstate()
    first, second = ([x for batch in lk.Loader(data, 4) for x in batch.tolist()] for _ in range(2))
    assert first == second
    assert len(set(first)) == 8
    assert random.getstate() == before


class Answering:
    """Samples by index, and an answer to every name."""

    iloc, columns = None, ("a",)

    def __init__(self, answer: Any) -> None:
        self.__dict__["answer"] = answer

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < 4:
            pytest.fail(f"index {index} was read of 4 samples, which never ends where no IndexError is raised")
        return index

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if self.answer == "itself" else self.answer


@pytest.mark.parametrize("answer", [None, True, 0, "itself", "text", len, torch.zeros(3)], ids=repr)
def test_a_dataset_that_answers_every_name_is_read_by_its_samples(answer: Any) -> None:
    data = Answering(answer)
    for whole in (
        data,
        lk.SubsetDataset(data, range(4)),
        lk.ConcatDataset([data]),
        lk.MapDataset(data, int),
        lk.Pipeline(data),
        lk.HFDataset(data),
        lk.CachedDataset(data, max_bytes=1 << 16),
        lk.ArrayDataset(data),
    ):
        loader = lk.Loader(whole, 2, shuffle=True)
        assert sorted(n for batch in loader for n in batch.tolist()) == [0, 1, 2, 3], type(whole).__name__
        assert "4 samples" in repr(loader)
        lk.Loader(whole, 2, shuffle=True).load_state_dict(loader.state_dict())
    assert lk.measure_lengths(data, lambda sample: sample + 1).tolist() == [1, 2, 3, 4]
    module = lk.DataModule(data, val=data, loader=lk.LoaderConfig(batch_size=2))
    module.setup("fit")
    assert [batch.tolist() for batch in module.val_dataloader()] == [[0, 1], [2, 3]]
