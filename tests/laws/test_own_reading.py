"""A class that reads samples in a way of its own gets them read that way, whatever quicker ways its base has."""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images_made import encode, picture
from is_dataset import is_dataset
from tars_made import make

import loaderkit as lk
from loaderkit.datasets import (
    ConcatDataset,
    SubsetDataset,
    ZipDataset,
    knows_lengths,
    reads_batches,
    reads_columns,
    reads_many,
)
from loaderkit.device.prefetch import prefetch
from loaderkit.engine.batch_reader import takes_batches
from loaderkit.seeding.draws import draws_nothing

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


# How each public dataset is made of SAMPLES samples, as one that has the quick ways which it can have.
def rows_of_numpy(folder: Path) -> Any:
    np.save(folder / "a.npy", np.arange(2 * SAMPLES).reshape(SAMPLES, 2))
    return (str(folder / "a.npy"),), {}


def flat_tokens(folder: Path) -> Any:
    np.arange(4 * SAMPLES, dtype=np.uint16).tofile(folder / "a.bin")
    return (str(folder / "a.bin"),), {"length": 4, "dtype": "uint16"}


def uneven_tokens(folder: Path) -> Any:
    np.arange(4 * SAMPLES - 1, dtype=np.uint16).tofile(folder / "a.bin")
    return (str(folder / "a.bin"),), {"length": 4, "dtype": "uint16", "remainder": "keep"}


def documents(folder: Path) -> Any:
    np.arange(2 * SAMPLES, dtype=np.uint16).tofile(folder / "a.ds")
    np.arange(2, 2 * SAMPLES + 1, 2, dtype="<u8").tofile(folder / "a.ds.index")
    return (str(folder / "a.ds"),), {}


def parquet(folder: Path) -> Any:
    pq = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    pq.write_table(pa.table({"a": list(range(SAMPLES))}), folder / "a.parquet", row_group_size=6)
    return (str(folder / "a.parquet"),), {}


def json_lines(folder: Path) -> Any:
    (folder / "a.jsonl").write_text("".join(json.dumps({"a": row}) + "\n" for row in range(SAMPLES)))
    return (str(folder / "a.jsonl"),), {}


def csv_lines(folder: Path) -> Any:
    (folder / "a.csv").write_text("a\n" + "".join(f"{row}\n" for row in range(SAMPLES)))
    return (str(folder / "a.csv"),), {"types": {"a": int}}


def tar_files(folder: Path) -> Any:
    make(folder / "a.tar", [(f"{row:03}.cls", b"%d" % row) for row in range(SAMPLES)])
    return (str(folder / "a.tar"),), {}


def hugging_face(folder: Path) -> Any:
    rows = [{"a": row} for row in range(SAMPLES)]
    return (pytest.importorskip("datasets").Dataset.from_list(rows),), {}


def picture_folder(folder: Path) -> Any:
    (folder / "a").mkdir()
    for row in range(SAMPLES):
        (folder / f"a/{row:03}.png").write_bytes(PNG)
    return (folder,), {}


PNG = encode(picture(), "png")
COLUMN = lk.ArrayDataset((torch.arange(SAMPLES),))
PUBLIC: dict[str, list[Any]] = {
    "ArrayDataset": [lambda folder: (((torch.arange(SAMPLES),),), {})],
    "ConcatDataset": [lambda folder: (([COLUMN],), {})],
    "CsvDataset": [csv_lines],
    "DocumentDataset": [documents],
    "HFDataset": [hugging_face],
    "ImageFolder": [picture_folder],
    "JsonlDataset": [json_lines],
    "MapDataset": [lambda folder: ((COLUMN, list), {})],
    "NpyDataset": [rows_of_numpy],
    "ParquetDataset": [parquet],
    "RecordDataset": [lambda folder: ((range(SAMPLES),), {})],
    "SubsetDataset": [lambda folder: ((COLUMN, range(SAMPLES)), {})],
    "TarDataset": [tar_files],
    "TokenDataset": [flat_tokens, uneven_tokens],
    "ZipDataset": [lambda folder: (([COLUMN] * 2,), {})],
}
# What a class may override, and where the call says which samples; what goes past it has another way to the same samples.
HOOKS = {"__getitem__": 0, "__getitems__": 0, "read": 1, "gather": 1}
QUICK = ("read_batch", "read_columns", "lengths", "draws_nothing")


def test_every_public_dataset_is_tried() -> None:
    public = [
        name for name in lk.__all__ if getattr(getattr(lk, name), "__module__", "").startswith("loaderkit.datasets")
    ]
    assert {name for name in public if is_dataset(getattr(lk, name))} == set(PUBLIC)


def hooks() -> Iterator[Any]:
    for name, makers in PUBLIC.items():
        kind = getattr(lk, name)
        for hook in HOOKS:
            if hasattr(kind, hook):
                yield from (pytest.param(kind, maker, hook, id=f"{name}-{maker.__name__}-{hook}") for maker in makers)


def counted(kind: type, hook: str) -> type:
    """Make a class that overrides one method, to count the samples that go through it."""

    def override(self: Any, *given: Any) -> Any:
        wanted = given[HOOKS[hook]]
        count = 1 if hook == "__getitem__" else len(wanted)
        self.__dict__["seen"] = self.__dict__.get("seen", 0) + count
        return getattr(super(own, self), hook)(*given)

    own: Any = type("Own", (kind,), {hook: override})
    return own  # type: ignore[no-any-return]


class Whole:
    """A collate that could take batches as a dataset reads them."""

    def __call__(self, samples: Any) -> int:
        return len(samples)

    def collate_batch(self, batch: Any) -> Any:
        return batch


@pytest.mark.parametrize(("kind", "maker", "hook"), list(hooks()))
def test_each_sample_goes_through_what_a_class_overrides(kind: Any, maker: Any, hook: str, tmp_path: Path) -> None:
    """Whatever quicker ways the class inherits, in parts and combinations of it as well."""
    given, settings = maker(tmp_path)
    own = counted(kind, hook)(*given, **settings)
    short = maker is uneven_tokens and hook == "gather"  # the window at the end is none of those that are gathered
    collates = [Whole(), list] if maker is uneven_tokens else [None, Whole(), list]

    def seen_by(dataset: Any, collate: Any) -> Any:
        own.__dict__["seen"] = 0
        batches = list(lk.Loader(dataset, batch_size=4, shuffle=True, collate_fn=collate))
        assert len(batches) == -(-SAMPLES // 4)
        return own.__dict__["seen"]

    for collate in collates:
        for whole in (own, SubsetDataset(own, range(SAMPLES)), ConcatDataset([own]), ZipDataset([own, COLUMN])):
            assert seen_by(whole, collate) == SAMPLES - short, (collate, whole)
    if hook != "gather":
        assert not reads_batches(own)
        assert not reads_columns(own)
        assert not draws_nothing(own)
        assert not knows_lengths(own)


def test_the_quick_ways_are_there_where_nothing_is_overridden(tmp_path: Path) -> None:
    """Else the law above would hold of nothing."""
    found: dict[str, set[str]] = {name: set() for name in QUICK}
    for name, makers in PUBLIC.items():
        for number, maker in enumerate(makers):
            folder = tmp_path / f"{name}{number}"
            folder.mkdir()
            given, settings = maker(folder)
            dataset = type("Own", (getattr(lk, name),), {"more": 1})(*given, **settings)
            for quick, has in zip(QUICK, (reads_batches, reads_columns, knows_lengths, draws_nothing), strict=True):
                found[quick] |= {maker.__name__ if number else name} if has(dataset) else set()
    assert found["read_batch"] == {
        *(
            "ArrayDataset",
            "DocumentDataset",
            "NpyDataset",
            "ParquetDataset",
            "SubsetDataset",
            "TokenDataset",
            "ZipDataset",
        )
    }
    assert found["read_columns"] == {"TarDataset"}
    assert found["lengths"] == {"DocumentDataset"}
    assert found["draws_nothing"] == {*PUBLIC, "uneven_tokens"} - {"MapDataset"}


class Noise(Sequence[float]):
    """A column that draws what it has."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: Any) -> Any:
        return random.random()


class Noisy:
    """A dataset that is none of Hugging Face's."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return {"a": random.random()}


def test_what_may_draw_is_seeded(tmp_path: Path) -> None:
    (rows,), _ = hugging_face(tmp_path)
    (folder,), _ = picture_folder(tmp_path)
    plain = [lk.HFDataset(rows), lk.HFDataset(rows.with_format("numpy")), lk.ArrayDataset({"a": list(range(3))})]
    assert all(map(draws_nothing, [*plain, lk.RecordDataset("ab"), lk.ImageFolder(folder), ZipDataset([COLUMN])]))
    drawn = rows.with_transform(lambda batch: {"a": [random.random() for _ in batch["a"]]})
    for dataset in (
        lk.HFDataset(drawn),
        lk.HFDataset(Noisy()),
        lk.ArrayDataset({"a": Noise()}),
        lk.RecordDataset(range(SAMPLES), transform=lambda row: {"a": row + random.random()}),
        lk.HFDataset(rows, transform=lambda row: {"a": row["a"] + random.random()}),
        lk.ArrayDataset({"a": range(SAMPLES)}, transform=lambda row: {"a": row["a"] + random.random()}),
    ):
        assert not draws_nothing(dataset)
        assert not draws_nothing(SubsetDataset(dataset, [0]))
        first, second = (
            [row["a"] for batch in lk.Loader(dataset, batch_size=4, collate_fn=list) for row in batch] for _ in range(2)
        )
        assert first == second
        assert len(set(first)) == SAMPLES
    assert not draws_nothing(lk.ImageFolder(folder, transform=torch.flip))


def test_an_object_may_override_too(tmp_path: Path) -> None:
    given, settings = flat_tokens(tmp_path)
    dataset = lk.TokenDataset(*given, **settings)
    read = dataset.read
    dataset.read = lambda *given: [window + 1 for window in read(*given)]  # type: ignore[method-assign]
    assert next(iter(lk.Loader(dataset, batch_size=2))).tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_a_read_that_is_no_override_hides_nothing(tmp_path: Path) -> None:
    class Mine(lk.ArrayDataset):
        def read(self, path: str) -> str:
            return path

    assert reads_batches(Mine((torch.arange(SAMPLES),)))


def test_a_class_below_may_bring_a_quick_way_again(tmp_path: Path) -> None:
    class Again(counted(lk.DocumentDataset, "read")):  # type: ignore[misc]
        read_batch = lk.DocumentDataset.read_batch
        draws_nothing = True

    given, _ = documents(tmp_path)
    assert reads_batches(Again(*given))
    assert draws_nothing(Again(*given))
    assert not reads_batches(counted(Again, "read")(*given))


@pytest.mark.parametrize("maker", [documents, parquet, flat_tokens, rows_of_numpy, None])
def test_a_transform_that_is_set_later_is_not_passed_over(maker: Any, tmp_path: Path) -> None:
    kind = {documents: lk.DocumentDataset, parquet: lk.ParquetDataset, flat_tokens: lk.TokenDataset}.get(
        maker, lk.NpyDataset if maker else lk.ArrayDataset
    )
    given, settings = maker(tmp_path) if maker else ((torch.arange(SAMPLES),), {})
    dataset: Any = kind(*given, **settings)
    dataset.transform = str
    assert all(isinstance(text, str) for batch in lk.Loader(dataset, batch_size=4) for text in batch)


def test_a_length_is_that_of_what_a_class_reads(tmp_path: Path) -> None:
    class Short(lk.DocumentDataset):
        def read(self, *given: Any) -> list[Any]:
            return [document[:1] for document in super().read(*given)]

    class Twice(SubsetDataset):
        def __getitem__(self, index: int) -> Any:
            return np.concatenate([super().__getitem__(index)] * 2)

    given, settings = documents(tmp_path)
    whole = lk.DocumentDataset(*given, **settings)
    assert lk.measure_lengths(Short(*given, **settings)).tolist() == [1] * SAMPLES
    assert lk.measure_lengths(Twice(whole, [3, 1])).tolist() == [4, 4]
    assert lk.measure_lengths(ConcatDataset([Short(*given), whole])).tolist() == [1] * SAMPLES + [2] * SAMPLES


@pytest.mark.parametrize("kind", [lk.PadCollate, lk.RaggedCollate, lk.PackCollate])
def test_a_collate_of_ones_own_is_called(kind: Any, tmp_path: Path) -> None:
    """By `__call__`, not by the `collate_batch` that it inherits."""
    given, settings = documents(tmp_path)
    dataset = lk.DocumentDataset(*given, **settings)
    own = type("Own", (kind,), {"__call__": lambda self, samples: [len(sample) for sample in samples]})
    assert takes_batches(kind())
    assert not takes_batches(own())
    assert next(iter(lk.Loader(dataset, batch_size=3, collate_fn=own()))) == [2, 2, 2]


def test_a_device_transform_of_ones_own_is_seeded() -> None:
    class Noise(lk.Normalize):
        def __call__(self, batch: Any) -> Any:
            return torch.rand(())

    batches = [torch.zeros(1, 3, 2, 2, dtype=torch.uint8)]
    found = {float(next(prefetch(batches, "cpu", transform=Noise([0.5] * 3, [0.5] * 3)))) for _ in range(3)}
    assert len(found) == 1


def test_a_column_that_a_csv_parser_draws_for_is_seeded(tmp_path: Path) -> None:
    given, _ = csv_lines(tmp_path)
    dataset = lk.CsvDataset(*given, types={"a": lambda text: int(text) + random.random()})
    assert not draws_nothing(dataset)
    first, second = ([batch["a"].tolist() for batch in lk.Loader(dataset, batch_size=4)] for _ in range(2))
    assert first == second


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
