"""Tables of pandas, polars, Arrow and xarray are taken where columns have roles, and refused with the way out elsewhere."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import loaderkit as lk

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
ROWS = 6
COLUMNS = {
    "small": np.array([3, 1, 4, 1, 5, 9], np.int8),
    "half": np.arange(ROWS, dtype=np.float32) / 2,
    "flag": np.array([True, False] * 3),
    "text": ["a", "b", "a", "c", "b", "a"],
    "label": np.array([0, 1, 1, 0, 1, 0]),
}
LABELS = [3, 1, 5, 0, 2, 4]
TABLES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "pandas": lambda columns: pd.DataFrame(columns, index=LABELS),
    "Arrow": pa.table,
    "Arrow in chunks": lambda columns: pa.concat_tables([pa.table(columns).slice(0, 2), pa.table(columns).slice(2)]),
    "Arrow batch": lambda columns: pa.table(columns).combine_chunks().to_batches()[0],
    "Arrow with codes": lambda columns: pa.table(
        {name: pa.array(values).dictionary_encode() if name == "text" else values for name, values in columns.items()}
    ),
    "polars": lambda columns: pytest.importorskip("polars").DataFrame(columns),
    "polars with codes": lambda columns: pytest.importorskip("polars").DataFrame(
        columns, schema_overrides={"text": pytest.importorskip("polars").Categorical}
    ),
    "xarray": lambda columns: pytest.importorskip("xarray").Dataset(
        {name: ("t", values) for name, values in columns.items()}
    ),
}
UNREAD: dict[str, Callable[[dict[str, Any]], Any]] = {
    "polars": lambda columns: pytest.importorskip("polars").LazyFrame(columns),
    "Arrow": lambda columns: pytest.importorskip("pyarrow.dataset").dataset(pa.table(columns)),
}
EVERY = {**TABLES, **{f"{name}, not read yet": make for name, make in UNREAD.items()}}
ENTRIES: dict[str, Callable[[Any], Any]] = {
    "Loader": lambda table: lk.Loader(table, 2),
    "ArrayDataset": lk.ArrayDataset,
    "ArrayDataset in a dict": lambda table: lk.ArrayDataset({"a": table}),
    "RecordDataset": lk.RecordDataset,
    "Pipeline": lk.Pipeline,
    "SubsetDataset": lambda table: lk.SubsetDataset(table, [0]),
    "ConcatDataset": lambda table: lk.ConcatDataset([table]),
    "ZipDataset": lambda table: lk.ZipDataset([table]),
    "MapDataset": lambda table: lk.MapDataset(table, len),
    "CachedDataset": lambda table: lk.CachedDataset(table, max_bytes=1000),
    "HFDataset": lk.HFDataset,
    "split": lambda table: lk.split(table, {"a": 1.0}),
    "DataModule": lambda table: lk.DataModule(table),
    "DataModule's val": lambda table: lk.DataModule(val=table),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("kind", EVERY)
def test_a_table_is_no_dataset_of_samples(kind: str, entry: str) -> None:
    table = EVERY[kind](COLUMNS)
    with pytest.raises(TypeError, match=rf"{type(table).__name__}|is a data frame.*wanted"):
        ENTRIES[entry](table)


@pytest.mark.parametrize("kind", EVERY)
def test_the_way_out_of_the_message_works(kind: str) -> None:
    """What it says to write gives the rows in their order, with the columns' dtypes."""
    table = EVERY[kind](COLUMNS)
    with pytest.raises(TypeError, match=r"For its rows use loaderkit\.ArrayDataset") as caught:
        lk.Loader(table, 2)
    code = str(caught.value).partition("For its rows use ")[2].removesuffix(".").replace("loaderkit.", "lk.")
    data = eval(code, {"lk": lk} | dict.fromkeys(("frame", "table", "batch", "dataset"), table))
    loader = lk.Loader(data, 4, shuffle=True)
    assert len(loader) == 2
    for number, batch in enumerate(loader):
        rows = loader.indices(0, number)
        for name, values in COLUMNS.items():
            wanted = [values[row] for row in rows]
            found = batch[name]
            assert found == wanted if name == "text" else torch.equal(found, torch.from_numpy(np.array(wanted)))
            assert name == "text" or found.dtype == torch.from_numpy(np.asarray(values)).dtype


def loaders_of(data: Any, **settings: Any) -> list[dict[str, Any]]:
    return list(
        lk.TableDataModule(
            data, columns=lk.TableColumns(**settings), loader=lk.LoaderConfig(batch_size=4)
        ).train_dataloader()
    )


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_module_takes_any_table(kind: str) -> None:
    wanted = loaders_of(COLUMNS, target="label")
    found = loaders_of(TABLES[kind](COLUMNS), target="label")
    assert len(wanted) == 2
    for one, other in zip(wanted, found, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    several = lk.TableDataModule(
        val={"a": TABLES[kind](COLUMNS), "b": COLUMNS}, train=COLUMNS, columns=lk.TableColumns(target="label")
    )
    assert len(several.val_dataloader()) == 2


HOLES = {
    "x": [1.5, None, 2.5, 3.5, 0.5, 4.5],
    "n": [1, 2, None, 4, 5, 6],
    "text": ["a", None, "b", "a", "b", "b"],
    "y": [0, 1] * 3,
}


@pytest.mark.parametrize("kind", sorted(set(TABLES) - {"xarray"}))
def test_missing_values_of_any_table_are_missing(kind: str) -> None:
    """Filled in if that is asked for, and otherwise refused with the column's name."""
    settings = {"target": "y", "missing": "mean"}
    for one, other in zip(loaders_of(HOLES, **settings), loaders_of(TABLES[kind](HOLES), **settings), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    with pytest.raises(ValueError, match=r"column '(x|n|text)'.*missing"):
        loaders_of(TABLES[kind](HOLES), target="y")


@pytest.mark.parametrize("kind", TABLES)
def test_a_text_module_takes_any_table(kind: str) -> None:
    def batch_of(data: Any) -> Any:
        loader = lk.LoaderConfig(batch_size=ROWS)
        module = lk.TextDataModule(data, label="label", splits={"train": 1}, loader=loader)
        module.setup("fit")
        return next(iter(module.train_dataloader()))

    wanted, found = batch_of(COLUMNS), batch_of(TABLES[kind](COLUMNS))
    assert all(torch.equal(wanted[name], found[name]) for name in ("tokens", "label"))


@pytest.mark.parametrize("kind", UNREAD)
def test_a_table_that_is_not_in_memory_is_refused_with_the_way_out(kind: str) -> None:
    table = UNREAD[kind](COLUMNS)
    message = r"is a \w*(LazyFrame|Dataset), which is not in memory; wanted a table that is: frame\.collect\(\)"
    with pytest.raises(TypeError, match=message):
        loaders_of(table, target="label")
    with pytest.raises(TypeError, match=message):
        lk.TextDataModule(table, splits={"train": 1}).setup("fit")
