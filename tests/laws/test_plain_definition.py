"""A batch is the collate of its samples, whatever the data, its wrappers, its containers and the engine are."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from containers_made import KINDS, Mine, alike, make_sample, picture, tagged
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Subset, get_worker_info

import loaderkit as lk

pytestmark = pytest.mark.filterwarnings("ignore:Loader. 2 workers for .* are idle")  # of small data
SIZE = 7
# The value of a row; the type of a batch's field, None for a list.
LEAVES: dict[str, tuple[Callable[[int], Any], torch.dtype | None]] = {
    "tensor": (lambda row: torch.full((2, 3), row, dtype=torch.float32), torch.float32),
    "half": (lambda row: torch.full((), row, dtype=torch.float16), torch.float16),
    "subclass": (lambda row: tagged(torch.full((2,), row).as_subclass(Mine)), torch.int64),
    "array": (lambda row: np.full((2,), row, dtype=np.int16), torch.int16),
    "float32": (lambda row: np.float32(row), torch.float32),
    "uint8": (lambda row: np.uint8(row), torch.uint8),
    "bool": (lambda row: row % 2 == 0, torch.bool),
    "int": (lambda row: row, torch.int64),
    "float": (lambda row: row / 2, torch.float64),
    "text": (lambda row: f"row {row}", None),
    "bytes": (lambda row: b"%d" % row, None),
    "none": (lambda row: None, None),
}
NUMBERS = ("bool", "float", "float32", "int", "uint8")


def plain(values: Sequence[Any], dtype: torch.dtype | None) -> Any:
    """The definition, written out: numbers are stacked in their own type, other values listed."""
    if dtype is None:
        return list(values)
    first = values[0]
    stacked = torch.stack([torch.as_tensor(value) for value in values]).to(dtype)
    return tagged(stacked.as_subclass(Mine)) if isinstance(first, Mine) else stacked


class Own:
    """A user's dataset: a list of samples."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class Numbering:
    """A wrapper with samples of its own that forwards all other names."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return {"sample": self.inner[index], "index": index, "drawn": float(torch.rand(()))}

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or (name.startswith("__") and name != "__getitems__"):
            raise AttributeError(name)
        return getattr(self.inner, name)


class Forwarding:
    """A collate function that adds to what another one makes, and forwards all other names."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, samples: list[Any]) -> Any:
        return {"inner": self.inner(samples), "size": len(samples)}

    def __getattr__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)


def shuffled(values: list[Any]) -> Any:
    """A Series whose labels are not its positions."""
    return pd.Series(values, index=[(3 * row + 1) % SIZE for row in range(SIZE)])


INDICES: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "numpy": np.array,
    "uint8": lambda rows: np.array(rows, dtype=np.uint8),
    "numpy numbers": lambda rows: list(np.array(rows, dtype=np.int32)),
    "tensor": torch.tensor,
    "int16 tensor": lambda rows: torch.tensor(rows, dtype=torch.int16),
    "Series": lambda rows: pd.Series(rows, index=range(len(rows), 0, -1)),
}
NO_INDICES: dict[str, Callable[[list[int]], Any]] = {
    "mask": lambda rows: [row in rows for row in range(SIZE)],
    "numpy mask": lambda rows: np.isin(range(SIZE), rows),
    "tensor mask": lambda rows: torch.tensor([row in rows for row in range(SIZE)]),
    "floats": lambda rows: [row + 0.9 for row in rows],
    "float array": lambda rows: np.array(rows) + 0.9,
    "two axes": lambda rows: np.array([rows, rows]),
    "texts": lambda rows: list(map(str, rows)),
}
ENGINES: dict[str, dict[str, Any]] = {
    "inline": {},
    "ring": {"num_workers": 2, "engine": "ring", "multiprocessing_context": "fork"},
    "torch": {"num_workers": 2, "engine": "torch", "multiprocessing_context": "fork"},
    "threads": {"num_workers": 2, "engine": "threads"},
}


def check_batches(loader: Any, rows: list[int], check: Callable[[Any, list[int]], None]) -> None:
    """Check each batch against the rows that it must hold."""
    seen = []
    for number, batch in enumerate(loader):
        wanted = [rows[index] for index in loader.indices(0, number)]
        check(batch, wanted)
        seen += wanted
    assert sorted(seen) == sorted(rows)


@settings(max_examples=100)  # also in the fast tier: fewer would miss a container or a leaf
@given(
    kind=st.sampled_from(sorted(KINDS)),
    leaf=st.sampled_from(sorted(LEAVES)),
    wrappers=st.lists(
        st.sampled_from(["numbering", "subset", "torch's subset", "concat", "torch's", "pipeline"]),
        max_size=2,
        unique=True,
    ),
    way=st.sampled_from(sorted(INDICES)),
    rows=st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=9),
    records=st.booleans(),
    engine=st.sampled_from(["inline"] * 6 + ["ring", "torch"]),
    forwards=st.booleans(),
)
def test_a_batch_of_any_container_is_made_of_its_samples(
    kind: str, leaf: str, wrappers: list[str], way: str, rows: list[int], records: bool, engine: str, forwards: bool
) -> None:
    """The container's type and attributes, the leaves' types and values; no sample changes."""
    make, dtype = LEAVES[leaf]
    _, parts, other, attributes = KINDS[kind]
    samples = [make_sample(kind, torch.full((2,), row), make(row)) for row in range(SIZE)]
    before, state = list(map(picture, samples)), torch.get_rng_state()
    data: Any = Own(samples) if records else samples
    chosen, numbered = list(range(SIZE)), False
    for wrapper in wrappers:
        if wrapper == "numbering":
            data, numbered, chosen_then = Numbering(data), True, chosen
        elif wrapper == "subset":
            chosen = [chosen[row % len(chosen)] for row in rows]
            data = lk.SubsetDataset(data, INDICES[way]([row % len(data) for row in rows]))
        elif wrapper == "torch's subset":
            data, chosen = (
                Subset(data, [row % len(chosen) for row in rows]),
                [chosen[row % len(chosen)] for row in rows],
            )
        elif wrapper == "pipeline":
            data = lk.Pipeline(data)
        else:
            data, chosen = (lk.ConcatDataset if wrapper == "concat" else ConcatDataset)([data, data]), chosen + chosen

    def check(batch: Any, wanted: list[int]) -> None:
        if forwards:
            assert batch["size"] == len(wanted)
            batch = batch["inner"]
        if numbered:
            drawn.extend(batch["drawn"].tolist())
            assert [chosen_then[index] for index in batch["index"].tolist()] == wanted
            batch = batch["sample"]
        assert type(batch) is (other or type(samples[0]))
        assert {name: getattr(batch, name) for name in attributes} == attributes
        x, y = parts(batch)
        assert alike(x, plain([torch.full((2,), row) for row in wanted], torch.int64))
        assert alike(y, plain([make(row) for row in wanted], dtype))

    collate = Forwarding(lk.Loader(data).collate_fn) if forwards else None
    loader = lk.Loader(data, 3, shuffle=True, collate_fn=collate, **ENGINES[engine])
    runs: list[list[float]] = []
    for _ in range(2):
        drawn: list[float] = []
        check_batches(lk.Loader.from_config(data, loader.config), chosen, check)
        runs.append(drawn)
    assert runs[0] == runs[1]
    assert len(runs[0]) == (len(chosen) if numbered else 0)
    assert list(map(picture, samples)) == before
    assert torch.equal(torch.get_rng_state(), state)


@settings(max_examples=100)  # also in the fast tier: fewer would miss a container or a leaf
@given(
    leaves=st.lists(st.sampled_from(sorted(set(LEAVES) - {"subclass"})), min_size=1, max_size=3),
    form=st.sampled_from(["dict", "tuple", "nested"]),
    labelled=st.booleans(),
    whole=st.booleans(),
    way=st.sampled_from(sorted(INDICES)),
    rows=st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=9),
    wrapper=st.sampled_from(["none", "subset", "zip", "numbering", "map", "cached"]),
    engine=st.sampled_from(["inline"] * 6 + ["ring", "torch", "threads"]),
)
def test_a_batch_of_columns_is_made_of_its_samples(
    leaves: list[str], form: str, labelled: bool, whole: bool, way: str, rows: list[int], wrapper: str, engine: str
) -> None:
    """Whether a column is a list, an array or a Series by label, and whatever reads it."""
    columns = []
    for leaf in leaves:
        values = [LEAVES[leaf][0](row) for row in range(SIZE)]
        if leaf in NUMBERS and labelled:
            values = shuffled(values)
        elif isinstance(values[0], torch.Tensor | np.ndarray) or (whole and LEAVES[leaf][1] is not None):
            values = torch.stack(values) if isinstance(values[0], torch.Tensor) else np.array(values)
        columns.append(values)
    names = [f"c{number}" for number in range(len(columns))]
    tree: Any = dict(zip(names, columns, strict=True)) if form == "dict" else tuple(columns)
    if form == "nested":
        tree = {"in": (dict(zip(names, columns, strict=True)), range(SIZE))}
    data: Any = lk.ArrayDataset(tree)
    chosen = list(range(SIZE))
    if wrapper == "subset":
        data, chosen = lk.SubsetDataset(data, INDICES[way](rows)), rows
    elif wrapper == "zip":
        data = lk.ZipDataset({"data": data, "n": range(SIZE)})
    elif wrapper == "numbering" and engine != "threads":  # it draws from torch's global generator
        data = Numbering(data)
    elif wrapper == "map":
        data = lk.MapDataset(data, _same)
    elif wrapper == "cached":
        data = lk.CachedDataset(data, max_bytes=1 << 20)

    def check(batch: Any, wanted: list[int]) -> None:
        if wrapper == "zip":
            assert batch["n"].tolist() == wanted
            batch = batch["data"]
        if wrapper == "numbering" and engine != "threads":
            assert batch["index"].tolist() == wanted
            batch = batch["sample"]
        if form == "nested":
            batch, numbers = batch["in"]
            assert numbers.tolist() == wanted
        found = batch if form == "tuple" else [batch[name] for name in names]
        for leaf, field in zip(leaves, found, strict=True):
            make, dtype = LEAVES[leaf]
            assert alike(field, plain([make(row) for row in wanted], dtype)), leaf

    check_batches(lk.Loader(data, 3, shuffle=True, **ENGINES[engine]), chosen, check)


def _same(sample: Any) -> Any:
    return sample


_same.draws_nothing = True  # type: ignore[attr-defined]  # a function may have attributes


@pytest.mark.parametrize("way", NO_INDICES)
@pytest.mark.parametrize("engine", ["inline", "ring"])
def test_what_is_no_list_of_indices_is_refused_wherever_it_enters(way: str, engine: str) -> None:
    """A mask is not the samples 0 and 1, and 2.9 is not 2."""
    wrong = NO_INDICES[way]([1, 2, 4])
    data = lk.ArrayDataset(np.arange(SIZE))
    for entry in (
        lambda: lk.SubsetDataset(data, wrong),
        lambda: lk.Subset(wrong),
        lambda: list(lk.Loader(data, 2, order=wrong, **ENGINES[engine])),
        lambda: list(lk.Loader(data, batch_sampler=[wrong], **ENGINES[engine])),
    ):
        with pytest.raises((TypeError, ValueError, IndexError), match="wanted"):
            entry()


TYPED = [name for name, (_, dtype) in LEAVES.items() if dtype not in (None, torch.float16)] + ["text", "bytes"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of each format with one field for each kind of leaf."""
    folder = tmp_path_factory.mktemp("written")
    rows = [{leaf: LEAVES[leaf][0](row) for leaf in TYPED if leaf != "subclass"} for row in range(SIZE)]
    lk.write_shards(rows, folder / "parquet", format="parquet", jobs=1, samples_per_shard=4)
    return folder


@settings(max_examples=100)  # also in the fast tier: fewer would miss a container or a leaf
@given(
    leaves=st.lists(
        st.sampled_from([leaf for leaf in TYPED if leaf != "subclass"]), min_size=1, max_size=4, unique=True
    ),
    source=st.sampled_from(["parquet", "datasets", "raw datasets", "arrow"]),
    wrapper=st.sampled_from(["none", "subset", "numbering"]),
    engine=st.sampled_from(["inline"] * 6 + ["ring", "torch"]),
)
def test_a_batch_of_a_typed_format_has_the_columns_types(
    leaves: list[str], source: str, wrapper: str, engine: str, written: Path
) -> None:
    paths = sorted(map(str, (written / "parquet").glob("*.parquet")))
    if source == "parquet":
        data: Any = lk.ParquetDataset(paths, columns=leaves)
    elif source == "arrow":
        table = pytest.importorskip("pyarrow.parquet").ParquetDataset(paths).read(columns=leaves)
        data = lk.ArrayDataset({leaf: table[leaf] for leaf in leaves})
    else:
        data = pytest.importorskip("datasets").Dataset.from_parquet(paths, columns=leaves, cache_dir=str(written))
        data = lk.HFDataset(data) if source == "datasets" else data
    if wrapper == "subset":
        data = lk.SubsetDataset(data, range(SIZE))
    if wrapper == "numbering" and source != "raw datasets":  # whose rows are Python's numbers for a user's own code
        data = Numbering(data)

    def check(batch: Any, wanted: list[int]) -> None:
        batch = batch.get("sample", batch)
        for leaf in leaves:
            make, dtype = LEAVES[leaf]
            assert alike(batch[leaf], plain([make(row) for row in wanted], dtype)), leaf

    check_batches(lk.Loader(data, 3, shuffle=True, **ENGINES[engine]), list(range(SIZE)), check)


class Noisy(Own):
    """Draws from a generator that `worker_init_fn` seeds, as many projects do."""

    rng: Any = None

    def __getitem__(self, index: int) -> float:
        return float(self.rng.random())


@pytest.mark.each_value
@pytest.mark.parametrize("engine", ["ring", "torch"])
@pytest.mark.parametrize("what", ["info", "torch", "numpy"])
def test_numbers_that_a_worker_init_fn_seeds_differ_between_epochs_and_ranks(engine: str, what: str) -> None:
    def init(worker: int) -> None:
        info: Any = get_worker_info()
        seeds = {"info": lambda: info.seed, "torch": torch.initial_seed, "numpy": lambda: np.random.randint(2**31)}
        info.dataset.rng = np.random.default_rng(seeds[what]())

    seen = []
    for rank in range(2):
        world = lk.World(rank, 2)
        loader = lk.Loader(Noisy([0] * 8), 2, world=world, worker_init_fn=init, **ENGINES[engine])
        seen += [value for _ in range(3) for batch in loader for value in batch.tolist()]
    assert len(set(seen)) == len(seen) == 24
