"""Samplers of keys that are no integers: read as the plain definition says, by every engine, and resumed as other samplers are."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data

import loaderkit as lk
from loaderkit.sampling.samplers import as_order

ENGINES: list[dict[str, Any]] = [
    {},
    {"num_workers": 2, "engine": "ring"},
    {"num_workers": 2, "engine": "torch"},
    {"num_workers": 2, "engine": "threads"},
]


@dataclass(frozen=True)
class Region:
    left: int
    top: int


class Seen:
    """Gives each key back as text, next to a number that belongs to the position."""

    draws_only_sample_rng = True

    def __len__(self) -> int:
        return 1

    def __getitem__(self, key: Any) -> tuple[str, float]:
        return repr(key), float(lk.sample_rng().random())


class Together(Seen):
    def __getitems__(self, keys: list[Any]) -> list[tuple[str, float]]:
        return [(repr(key), 0.0) for key in keys]


class WithoutLength:
    def __getitem__(self, key: Any) -> str:
        return repr(key)


class Pairs(torch_data.Sampler[tuple[int, int]]):
    """(index, size) pairs, drawn from the global generators."""

    def __init__(self, count: int = 24) -> None:
        self.count = count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        sizes = np.random.randint(32, 512, self.count)
        return iter([(index, int(sizes[index])) for index in torch.randperm(self.count).tolist()])

    def __len__(self) -> int:
        return self.count


class Regions:
    """Without a length."""

    def __iter__(self) -> Iterator[Region]:
        for _ in range(24):
            yield Region(random.randrange(1000), random.randrange(1000))


class PairsInBatches:
    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        pairs = list(Pairs())
        return iter([pairs[start : start + 2] for start in range(0, 24, 2)])

    def __len__(self) -> int:
        return 12


class KeyOrder(lk.Order):
    """A user's own order may give keys too, with random access."""

    reach = 0

    def size(self, epoch: int) -> int:
        return 24

    def at(self, epoch: int, positions: Any) -> Any:
        return np.array([f"{epoch}-{position}" for position in positions.tolist()], dtype=object)

    def key(self, epoch: int) -> str:
        return "keys-1"


KEYS = {
    "slices": [(slice(n, n + 2), slice(0, n)) for n in range(24)],
    "texts": [f"scan-{n}" for n in range(24)],
    "tuples of any length": [tuple(range(n)) for n in range(24)],
    "tuples of one length": [(n, 2 * n) for n in range(24)],
    "bytes": [bytes([n]) for n in range(24)],
    "enums of classes": [int, str] * 12,
    "regions": [Region(n, 0) for n in range(24)],
}
SAMPLERS: dict[str, Any] = {
    **{name: (lambda keys=keys: keys) for name, keys in KEYS.items()},
    "pairs": Pairs,
    "drawn regions": Regions,
    "an order": KeyOrder,
}


def texts(loader: Any) -> list[list[str]]:
    return [list(batch[0]) for batch in loader]


@pytest.mark.each_value
@pytest.mark.parametrize("engine", ENGINES, ids=lambda each: each.get("engine", "inline"))
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_engine_reads_the_samples_of_the_keys(sampler: str, engine: dict[str, Any]) -> None:
    make = SAMPLERS[sampler]
    keys = as_order(make(), seed=0).indices(0, 0, 24).tolist()
    assert len(keys) == 24
    for data in (Seen(), Together()) if engine.get("engine") != "threads" else (Seen(),):
        loader = lk.Loader(data, 5, order=make(), **engine)
        assert texts(loader) == [list(map(repr, keys[start : start + 5])) for start in range(0, 24, 5)]
        assert loader.indices(0, 1).tolist() == keys[5:10]


@pytest.mark.parametrize("settings", [{"batch_size": 2}, {"batch_size": None}, {"batch_sampler": True}])
@pytest.mark.parametrize("engine", ENGINES[:3], ids=lambda each: each.get("engine", "inline"))
def test_batches_are_those_of_a_dataloader(engine: dict[str, Any], settings: dict[str, Any]) -> None:
    class Map:
        image = torch.arange(64.0).reshape(8, 8)

        def __len__(self) -> int:
            return 1

        def __getitem__(self, query: Any) -> torch.Tensor:
            return self.image[query]

    queries = [(slice(n, n + 2), slice(0, 2)) for n in range(6)]
    batches = [queries[:2], queries[2:3], queries[3:]]
    if "batch_sampler" in settings:
        theirs, ours = {"batch_sampler": batches}, {"batch_sampler": batches}
    else:
        theirs, ours = {**settings, "sampler": queries}, {**settings, "order": queries}
    wanted = list(torch_data.DataLoader(Map(), **theirs))  # type: ignore[arg-type]
    found = list(lk.Loader(Map(), **ours, **engine))
    assert len(found) == len(wanted) > 2
    assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("sampler", ["slices", "pairs", "drawn regions", "an order"])
def test_a_sampler_of_keys_resumes_anywhere_with_other_workers(sampler: str) -> None:
    def make(**settings: Any) -> lk.Loader:
        return lk.Loader(Seen(), 5, order=SAMPLERS[sampler](), seed=3, **settings)

    lk.testing.assert_resumable(make, ids=lambda batch: batch[0])
    whole = list(make())
    epochs = [texts(make()), texts(whole_epoch(make(), 1))]
    assert (epochs[0] == epochs[1]) == (sampler == "slices")
    first = make(num_workers=2)
    iterator = iter(first)
    for _ in range(2):
        next(iterator)
    again = make()
    again.load_state_dict(first.state_dict())
    left = list(again)
    assert [list(batch[0]) for batch in left] == [list(batch[0]) for batch in whole[2:]]
    assert all(torch.equal(a[1], b[1]) for a, b in zip(left, whole[2:], strict=True))  # the draws too


def whole_epoch(loader: lk.Loader, epoch: int) -> lk.Loader:
    loader.seek(epoch=epoch)
    return loader


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_each_key_comes_once_on_other_ranks_and_with_another_batch_size(batch_size: int, ranks: int) -> None:
    keys = [repr(key) for key in as_order(Pairs(), seed=0).indices(0, 0, 24).tolist()]
    first = lk.Loader(Seen(), 3, order=Pairs(), world=lk.World(0, 2))
    next(iter(first))
    found = []
    for rank in range(ranks):
        again = lk.Loader(Seen(), batch_size, order=Pairs(), world=lk.World(rank, ranks))
        again.load_state_dict(first.state_dict())
        found += [key for batch in texts(again) for key in batch]
    assert sorted(found) == sorted(keys[6:])


def test_a_batch_sampler_of_keys_resumes_on_other_ranks() -> None:
    whole = texts(lk.Loader(Seen(), batch_sampler=PairsInBatches()))
    assert len(whole) == 12
    first = lk.Loader(Seen(), batch_sampler=PairsInBatches(), world=lk.World(0, 2))
    next(iter(first))
    again = lk.Loader(Seen(), batch_sampler=PairsInBatches())
    again.load_state_dict(first.state_dict())
    assert texts(again) == whole[2:]


def test_other_keys_and_a_generator_of_the_samplers_own_are_refused_at_a_resume() -> None:
    first = lk.Loader(Seen(), 2, order=KEYS["slices"])
    next(iter(first))
    with pytest.raises(lk.StateError, match="the state is for order 'sampler-1"):
        lk.Loader(Seen(), 2, order=KEYS["slices"][::-1]).load_state_dict(first.state_dict())
    generator = random.Random(3)
    with pytest.warns(UserWarning, match="the sampler gives another order each time"):
        next(iter(lk.Loader(Seen(), 2, order=Shuffles(generator))))


class Shuffles:
    def __init__(self, generator: random.Random) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[str]:
        return iter(self.generator.sample(KEYS["texts"], 24))


def test_equal_keys_have_one_digest_whichever_objects_they_share() -> None:
    text = "".join(["a", "b"])
    shared, apart = [(text, text)], [("ab", "".join(["a", "b"]))]
    assert as_order(shared, seed=0).key(0) == as_order(apart, seed=0).key(0)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_bad_samples_of_keys_are_skipped_or_replaced(policy: str, many: bool) -> None:
    class Fails:
        def __len__(self) -> int:
            return 1

        def __getitem__(self, key: Any) -> str:
            if key == ("bad", 7):
                raise ValueError("cannot be read")
            return repr(key)

    class FailsTogether(Fails):
        def __getitems__(self, keys: list[Any]) -> list[str]:
            return [self[key] for key in keys]

    keys = [("good", n) if n != 7 else ("bad", 7) for n in range(12)]
    loader = lk.Loader(
        FailsTogether() if many else Fails(), 4, order=keys, bad_samples=lk.BadSamples(policy, max_rate=1)
    )  # type: ignore[arg-type]
    found = [len(batch) for batch in loader]
    assert found == ([4, 3, 4] if policy == "skip" else [4, 4, 4])
    (bad,) = loader.bad_samples
    assert bad.index == ("bad", 7)
    assert (bad.replacement in keys) == (policy == "replace")


def test_data_without_a_length_is_read_by_an_order_alone() -> None:
    assert list(lk.Loader(WithoutLength(), 2, order=["a", "b", "c"])) == [["'a'", "'b'"], ["'c'"]]
    assert list(lk.Loader(WithoutLength(), batch_sampler=[[0, 1]])) == [["0", "1"]]
    lk.testing.assert_resumable(lambda: lk.Loader(WithoutLength(), 1, order=["a", "b", "c"]))
    with pytest.raises(TypeError, match="WithoutLength has no __len__"):
        lk.Loader(WithoutLength())


def test_keys_that_do_not_pickle_are_named() -> None:
    with pytest.raises(TypeError, match=r"the key <function .*, which does not pickle.*Give keys of plain values"):
        next(iter(lk.Loader(Seen(), 2, order=[lambda: 1, lambda: 2])))


MASK = [False, True, True, False]
WRONG: dict[str, Any] = {
    "list mask": MASK,
    "numpy mask": np.array(MASK),
    "torch mask": torch.tensor(MASK),
    "floats": [0.0, 1.0],
    "numpy floats": np.array([0, 2.9], np.float32),
    "torch floats": torch.tensor([0, 2.9]),
    "an integer and a float": [0, 2.9],
    "an integer and a bool": [2, True],
    "two axes": np.array([[0, 1], [2, 3]]),
    "two axes of torch": torch.tensor([[0, 1], [2, 3]]),
    "a column": np.array([[0], [1]]),
    "lists": [[0, 1], [2, 3]],
    "None": [None],
}
RIGHT: dict[str, Any] = {
    "list": [3, 1],
    "tuple": (3, 1),
    "range": range(3, 0, -2),
    **{dtype: np.array([3, 1], dtype) for dtype in ("int8", "int32", "int64", "uint8", "uint16", "uint64")},
    "torch int64": torch.tensor([3, 1]),
    "torch uint8": torch.tensor([3, 1], dtype=torch.uint8),
    "torch int32": torch.tensor([3, 1], dtype=torch.int32),
    "numpy integers": [np.int64(3), np.int8(1)],
    "tensors": [torch.tensor(3), torch.tensor(1)],
}
DATA = [10, 11, 12, 13]


class Gives(torch_data.Sampler[Any]):
    def __init__(self, values: Any) -> None:
        self.values = values

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)


# Every way in which indices enter.
ENTRIES: dict[str, Any] = {
    "order": lambda values: lk.Loader(DATA, 2, order=values),
    "sampler": lambda values: lk.Loader(DATA, 2, order=Gives(values)),
    "batch_sampler": lambda values: lk.Loader(DATA, batch_sampler=[values]),
    "sampler of batches": lambda values: lk.Loader(DATA, batch_sampler=Gives([values])),
    "lk.Subset": lambda values: lk.Loader(DATA, 2, order=lk.Subset(values)),
    "lk.SubsetDataset": lambda values: lk.Loader(lk.SubsetDataset(DATA, values), 2),
    "__getitems__": lambda values: [lk.RecordDataset(DATA).__getitems__(values)],
    "__getitems__ of columns": lambda values: [lk.ArrayDataset(np.array(DATA)).__getitems__(values)],
    "__getitems__ of a subset": lambda values: [
        lk.SubsetDataset(lk.RecordDataset(DATA), range(4)).__getitems__(values)
    ],
    "__getitems__ of a concat": lambda values: [lk.ConcatDataset([lk.RecordDataset(DATA)]).__getitems__(values)],
}


# The Loader makes the lists of __getitems__ itself; they are not looked through one by one.
@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        (kind, entry)
        for kind in WRONG
        for entry in ENTRIES
        if not (kind == "an integer and a bool" and entry.startswith("__getitems__"))
    ],
)
def test_masks_floats_and_tables_are_no_indices(kind: str, entry: str) -> None:
    with pytest.raises(
        (TypeError, ValueError), match=r"wanted (one axis of|a list of one or more)? ?integers.*np\.flatnonzero\(mask\)"
    ):
        list(ENTRIES[entry](WRONG[kind]))


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("kind", RIGHT)
def test_integers_of_any_kind_are_indices(kind: str, entry: str) -> None:
    (batch,) = ENTRIES[entry](RIGHT[kind])
    assert [int(value) for value in batch] == [13, 11]


def test_what_else_is_no_index_is_refused() -> None:
    with pytest.raises(ValueError, match=r"SubsetDataset: some indices are masked.*indices\.compressed\(\)"):
        lk.SubsetDataset(DATA, np.ma.masked_array([0, 1], [True, False]))
    with pytest.raises(IndexError, match="found index -"):
        lk.SubsetDataset(DATA, np.array([2**63 + 1], np.uint64))  # type: ignore[arg-type]
    for mixed in ([1, (1, 2)], [(1, 2), 1]):
        with pytest.raises(TypeError, match="keys that are all of another kind"):
            lk.Loader(DATA, order=mixed)
    with pytest.raises(TypeError, match="order is str, wanted a loaderkit order or a sampler"):
        lk.Loader(DATA, order="random")
    with pytest.raises(TypeError, match=r"the batch sampler gives .*, wanted a list of one or more integers"):
        lk.Loader(DATA, batch_sampler=["random"])
    for empty in ([], np.zeros(0, bool), range(0)):
        assert len(lk.SubsetDataset(DATA, empty)) == 0


class Halves(lk.Order):
    reach = 4

    def size(self, epoch: int) -> int:
        return 4

    def at(self, epoch: int, positions: Any) -> Any:
        return positions / 2

    def key(self, epoch: int) -> str:
        return "halves-1"


def test_an_order_of_the_users_own_gives_integers() -> None:
    with pytest.raises(
        ValueError, match=r"Halves: indices have shape .* and dtype float64, wanted one axis of integers"
    ):
        next(iter(lk.Loader(DATA, 2, order=Halves())))


@pytest.mark.parametrize("error", [ValueError, TypeError, NotImplementedError, RuntimeError, AttributeError])
def test_a_sampler_whose_length_is_undefined_is_drawn_to_its_end(error: type[Exception]) -> None:
    class Undefined(Gives):
        def __len__(self) -> int:
            raise error("the length is undefined")

    assert [batch.tolist() for batch in lk.Loader(DATA, batch_sampler=Undefined([[0, 1], [2]]))] == [[10, 11], [12]]
    assert [batch.tolist() for batch in lk.Loader(DATA, 2, order=Undefined([3, 2, 1]))] == [[13, 12], [11]]
