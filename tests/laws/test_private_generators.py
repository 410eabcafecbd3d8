"""Generators that data keeps for itself draw from (seed, epoch, position): never the same twice, and exact after a resume."""

import importlib
import itertools
import pickle
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tier
import torch
from generators_kept import COUNT, KINDS, PICKLED, PLACES, Attribute, Collate, FirstCall, draw
from hypothesis import given
from hypothesis import strategies as st

import loaderkit as lk
from loaderkit.sampling.cursor import pack_state, unpack_state

# Each place with kinds in turn, so that each place meets workers and each kind does.
TURNS = [(place, kind) for place, kind in zip(sorted(PLACES), itertools.cycle(KINDS), strict=False)]

# Each kind meets workers in `test_workers_do_not_matter`; the other laws meet them with one kind of numpy's and one of Python's.
WORKERS = ("RandomState", "random.Random")


def drawn(loader: Any, epochs: int = 2) -> list[tuple[int, float]]:
    """Return (index, draw) for each sample of some epochs, in order."""
    return [sample for _ in range(epochs) for batch in loader for sample in batch]


def make(place: str, kind: str, **settings: Any) -> lk.Loader:
    settings = {"batch_size": 4, "shuffle": True, "seed": 3, "collate_fn": list} | settings
    return lk.Loader(PLACES[place](kind), **settings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_each_sample_of_each_epoch_draws_its_own_numbers(place: str, kind: str) -> None:
    found = drawn(make(place, kind))
    assert len({value for _, value in found}) == 2 * COUNT
    assert drawn(make(place, kind)) == found
    assert drawn(make(place, kind, batch_size=3)) == found
    assert {value for _, value in drawn(make(place, kind, seed=4))}.isdisjoint(value for _, value in found)


@pytest.mark.each_value
@pytest.mark.parametrize("engine", ["ring", "torch"])
@pytest.mark.parametrize(("place", "kind"), TURNS)
def test_workers_do_not_matter(place: str, kind: str, engine: str) -> None:
    whole = drawn(make(place, kind))
    assert drawn(make(place, kind, num_workers=2, engine=engine)) == whole


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_start_methods_do_not_matter(method: str) -> None:
    for place in PICKLED[:: 4 if method == "spawn" else 2]:
        made = make(place, "random.Random", num_workers=1, multiprocessing_context=method)
        assert drawn(made, 1) == drawn(make(place, "random.Random"), 1), place


@given(
    place=st.sampled_from(sorted(PLACES)),
    kind=st.sampled_from(sorted(KINDS)),
    batches=st.integers(1, 6),
    size=st.integers(1, 5),
)
def test_a_resumed_run_draws_what_the_whole_one_draws(place: str, kind: str, batches: int, size: int) -> None:
    whole = drawn(make(place, kind, batch_size=2), 3)
    loader = make(place, kind, batch_size=2)
    first = [sample for batch in itertools.islice(loader, batches) for sample in batch]
    again = make(place, kind, batch_size=size)
    again.load_state_dict(loader.state_dict())
    assert (first + drawn(again, 3))[: len(whole)] == whole


@pytest.mark.parametrize("engine", ["ring", "torch"])
def test_a_resume_with_other_workers_is_exact(engine: str) -> None:
    for place, kind in TURNS[:: 3 if engine == "torch" else 2]:
        whole = drawn(make(place, kind))
        loader = make(place, kind, num_workers=2, engine=engine)
        first = list(next(iter(loader)))
        again = make(place, kind, num_workers=1, engine=engine, batch_size=3)
        again.load_state_dict(loader.state_dict())
        assert first + drawn(again) == whole, place


@pytest.mark.parametrize("kind", KINDS)
def test_a_collates_generator_draws_for_the_batch(kind: str) -> None:
    def run(collate: Any, **settings: Any) -> list[Any]:
        return drawn(lk.Loader(range(COUNT), 4, collate_fn=collate, seed=2, **settings))

    whole = run(Collate(kind))
    assert len({value for _, value in whole}) == 2 * COUNT
    assert run(Collate(kind)) == whole
    if tier.full or kind in WORKERS:
        assert run(Collate(kind), num_workers=2) == whole
    loader = lk.Loader(range(COUNT), 4, collate_fn=Collate(kind), seed=2)
    first = next(iter(loader))
    workers = 1 if tier.full or kind in WORKERS else 0
    again = lk.Loader(range(COUNT), 4, collate_fn=Collate(kind), seed=2, num_workers=workers)
    again.load_state_dict(loader.state_dict())
    assert first + drawn(again, 2) == whole


class Steps:
    """A transform of a stream, which keeps its generator."""

    def __init__(self, kind: str) -> None:
        self.rng = KINDS[kind]()

    def __call__(self, sample: int) -> tuple[int, float]:
        return sample, draw(self.rng)


@pytest.mark.parametrize("kind", KINDS)
def test_a_streams_transform_is_exact(kind: str) -> None:
    def run(**settings: Any) -> list[Any]:
        stream = lk.StreamDataset(["a", "b"], lambda shard, start: range(start, 6), seed=3, lanes=2).map(Steps(kind))
        return drawn(lk.Loader(stream, 2, collate_fn=list, **settings))

    whole = run()
    assert len({value for _, value in whole}) == len(whole) == 24
    if tier.full or kind in WORKERS:
        assert run(num_workers=2) == whole


@pytest.mark.parametrize("kind", KINDS)
def test_the_callers_generator_is_left_as_it_was(kind: str) -> None:
    generator, untouched = KINDS[kind](), KINDS[kind]()
    for each in (generator, untouched):  # one that keeps a second normal deviate, and then one that does not
        draw(each)
    data = Attribute(kind)
    data.own = generator
    for number, _ in enumerate(lk.Loader(data, 2)):  # a collate function would be seeded last
        if number % 2:
            assert draw(generator) == draw(untouched)
    assert draw(generator) == draw(untouched)


class Carries(Attribute):
    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(self.own.integers(1 << 60))


WRAPPED: dict[str, Any] = {
    "ArrayDataset": lambda step: lk.ArrayDataset(np.arange(COUNT), transform=step),
    "Subset": lambda step: torch.utils.data.Subset(lk.ArrayDataset(np.arange(COUNT), transform=step), range(COUNT)),
    "ConcatDataset": lambda step: lk.ConcatDataset([lk.ArrayDataset(np.arange(COUNT), transform=step)]),
    "Pipeline": lambda step: lk.Pipeline(range(COUNT)).map(step),
    "Pipeline of a wrapper": lambda step: lk.Pipeline(torch.utils.data.Subset(range(COUNT), range(COUNT))).map(step),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WRAPPED)
def test_a_transform_is_exact_wherever_it_is_applied(name: str, kind: str) -> None:
    def run(**settings: Any) -> list[Any]:
        return drawn(lk.Loader(WRAPPED[name](Steps(kind)), 4, collate_fn=list, seed=2, **settings))

    whole = run()
    assert len({value for _, value in whole}) == 2 * COUNT
    if kind in WORKERS:
        assert run(num_workers=2) == whole


def test_left_generators_carry_on_and_are_named_once() -> None:
    settings: dict[str, Any] = {"collate_fn": list, "private_generators": "leave"}
    loader = lk.Loader(Carries("numpy Generator"), 4, **settings)
    with pytest.warns(UserWarning, match=r"dataset\.own: random generators that the data keeps") as said:
        found = [value for _, value in drawn(loader)]
    assert len(said) == 1
    rng = KINDS["numpy Generator"]()
    assert found == [float(rng.integers(1 << 60)) for _ in range(2 * COUNT)]


def test_a_state_says_what_happened_to_generators() -> None:
    loader = make("Attribute", "random.Random")
    next(iter(loader))
    left = make("Attribute", "random.Random", private_generators="leave")
    with pytest.raises(lk.StateError, match=r"private_generators='seed', this loader has 'leave'.*dataset\.own"):
        left.load_state_dict(loader.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        next(iter(left))
    with pytest.raises(lk.StateError, match="private_generators='leave', this loader has 'seed'"):
        make("Attribute", "random.Random").load_state_dict(left.state_dict())
    plain = lk.Loader(range(COUNT), 4)
    next(iter(plain))
    assert "private_generators" not in plain.state_dict()


def test_a_state_of_an_earlier_loaderkit_is_for_generators_that_are_left() -> None:
    left = make("Attribute", "random.Random", private_generators="leave")
    with pytest.warns(UserWarning, match="random generators"):
        next(iter(left))
    early = pack_state(unpack_state(left.state_dict())._replace(private=None))
    with pytest.raises(lk.StateError, match="private_generators='leave', this loader has 'seed'"):
        make("Attribute", "random.Random").load_state_dict(early)
    make("Attribute", "random.Random", private_generators="leave").load_state_dict(early)


def test_a_generator_made_anew_from_the_systems_numbers_is_named() -> None:
    class Anew(FirstCall):
        def rng(self) -> Any:
            self.own = np.random.default_rng()
            return self.own

    with pytest.warns(UserWarning, match=r"dataset\.own is another one for each sample") as said:
        drawn(lk.Loader(Anew("numpy Generator"), 4, collate_fn=list), 3)
    assert len(said) == 1


def test_a_generator_made_anew_from_the_index_is_exact_as_it_is() -> None:
    class OfIndex(FirstCall):
        def __getitem__(self, index: int) -> tuple[int, float]:
            self.own = np.random.default_rng(index)
            return index, draw(self.own)

    found = dict(drawn(lk.Loader(OfIndex(""), 4, shuffle=True, collate_fn=list), 1))
    assert found == {index: draw(np.random.default_rng(index)) for index in range(COUNT)}


def test_a_late_generator_is_named() -> None:
    class Late(FirstCall):
        calls = 0

        def rng(self) -> Any:
            self.calls += 1
            return super().rng() if self.calls > 20 else np.random.default_rng(self.calls)

    with pytest.warns(UserWarning, match=r"dataset\.own appeared after"):
        drawn(lk.Loader(Late("random.Random"), 1, collate_fn=list), 6)


def test_seeders_get_each_samples_own_number() -> None:
    words: list[int] = []

    class Draws:
        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, index: int) -> int:
            return words[-1]

    def run(**settings: Any) -> list[int]:
        loader = lk.Loader(Draws(), 4, seeders=[words.append], collate_fn=list, **settings)
        return [word for _ in range(2) for batch in loader for word in batch]

    whole = run()
    assert len(set(whole)) == 2 * COUNT
    assert all(0 <= word < 2**32 for word in whole)
    assert run(num_workers=2) == whole


OPENCV = """
import random

native = [random.SystemRandom()]

def setRNGSeed(seed):
    native[0] = random.Random(seed)
"""


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_opencv_that_is_imported_by_a_sample_is_exact(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lazy:
        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, index: int) -> tuple[int, float]:
            return index, importlib.import_module("cv2").native[0].gauss(0, 1)

    def run(workers: int) -> list[tuple[int, float]]:
        sys.modules.pop("cv2", None)
        return drawn(lk.Loader(Lazy(), 4, num_workers=workers, collate_fn=list))

    (tmp_path / "cv2.py").write_text(OPENCV)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "cv2", None)  # which puts back what is there now
    whole = run(workers)
    assert len({value for _, value in whole}) == 2 * COUNT
    assert run(workers) == whole == run(0)


@pytest.mark.parametrize("seeders", [3, "seed", [3], lambda word: None])
def test_seeders_are_a_list_of_functions(seeders: Any) -> None:
    with pytest.raises(ValueError, match=r"seeders is .*, wanted a list of functions"):
        lk.Loader(range(4), seeders=seeders)


def test_what_a_sampler_or_loader_keeps_is_its_own() -> None:
    generator = torch.Generator().manual_seed(1)
    data = Attribute("random.Random")
    data.sampler = torch.utils.data.RandomSampler(range(4), generator=generator)  # type: ignore[attr-defined]
    data.loader = lk.Loader(range(4))  # type: ignore[attr-defined]
    data.system = random.SystemRandom()  # type: ignore[attr-defined]
    data.numpy, data.python = np.random.mtrand._rand, random.seed.__self__  # type: ignore[attr-defined]
    assert lk.testing.find_private_generators(data) == ["dataset.own"]


def test_annotations_in_memory_are_searched_for_a_short_time() -> None:
    """A search runs in each worker, some times; the transforms come first, and a tenth of the annotations is enough."""
    touched: set[int] = set()

    class Annotation:
        def __getattribute__(self, name: str) -> Any:
            touched.add(id(self))
            return super().__getattribute__(name)

    class Scenes(Attribute):
        def __init__(self) -> None:
            super().__init__("random.Random")
            self.annotations = [{"boxes": [Annotation() for _ in range(20)]} for _ in range(1_000)]

    assert lk.testing.find_private_generators(Scenes()) == ["dataset.own"]
    assert 100 < len(touched) <= 2_000


class OfAlbumentations:
    """An object of a library, without a dict of attributes."""

    __slots__ = ("rng",)
    __module__ = "albumentations.compiled"

    def __init__(self, kind: str) -> None:
        self.rng = KINDS[kind]()


@pytest.mark.parametrize("kind", KINDS)
def test_a_librarys_objects_may_have_slots_alone(kind: str) -> None:
    def run(**settings: Any) -> list[tuple[int, float]]:
        data = Attribute(kind)
        keeps = OfAlbumentations(kind)
        data.own, data.keeps = keeps.rng, keeps  # type: ignore[attr-defined]
        return drawn(lk.Loader(data, 4, collate_fn=list, **settings))

    whole = run()
    assert len({value for _, value in whole}) == 2 * COUNT
    assert run(num_workers=2) == whole


def test_a_loader_with_generators_pickles() -> None:
    loader = make("Attribute", "RandomState")
    next(iter(loader))
    copied = pickle.loads(pickle.dumps(loader))
    again = make("Attribute", "RandomState")
    again.load_state_dict(loader.state_dict())
    assert drawn(copied, 1) == drawn(again, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_generators_of_one_kind_draw_apart(kind: str) -> None:
    class Two(Attribute):
        def __init__(self, kind: str) -> None:
            super().__init__(kind)
            self.other = KINDS[kind]()

        def __getitem__(self, index: int) -> tuple[float, float]:  # type: ignore[override]
            return draw(self.own), draw(self.other)

    found = drawn(lk.Loader(Two(kind), 4, collate_fn=list))
    assert len({value for pair in found for value in pair}) == 4 * COUNT
