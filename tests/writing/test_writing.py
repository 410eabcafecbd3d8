"""Shards give back what was written, and their bytes do not depend on the number of jobs."""

import json
import math
import shutil
import tempfile
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import webdataset
from drawing import draws, equal
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from shards_written import contents, hidden, manifest, side
from tars_made import read_by_webdataset

import loaderkit as lk
from loaderkit.datasets.shards.folder_index import FOLDER_INDEX
from loaderkit.system.stack import stack
from loaderkit.writing.manifest import MANIFEST, read_records

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
DTYPES = [
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
]


@st.composite
def arrays(draw: Any, axes: tuple[int, ...] = ()) -> Any:
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.integers(0, 4)) for _ in range(draw(st.integers(0, 3))))
    return np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)


SAMPLES = st.fixed_dictionaries(
    {"txt": TEXT, "cls": st.integers(-(2**63), 2**63), "json": JSON, "npy": arrays(), "bin": st.binary(max_size=1100)}
)
# A few samples, repeated with other labels: the sizes of datasets and shards matter here.
GRID = st.tuples(st.integers(1, 40), st.integers(1, 45), st.sampled_from([1, 1, 2]))


def repeated(samples: list[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    return [samples[row % len(samples)] | {"cls": row} for row in range(size)]


@settings(max_examples=25)
@given(st.lists(SAMPLES, min_size=1, max_size=4), GRID)
def test_tar_gives_back_what_was_written(samples: list[dict[str, Any]], grid: tuple[int, int, int]) -> None:
    size, per_shard, jobs = grid
    data = repeated(samples, size)
    with tempfile.TemporaryDirectory() as name:
        lk.write_shards(data, name, samples_per_shard=per_shard, jobs=jobs)
        found = lk.TarDataset(name)
        assert len(found) == size > 0
        assert found.shard_sizes.tolist() == [min(per_shard, size - start) for start in range(0, size, per_shard)]
        for row, sample in enumerate(data):
            assert equal(found[row], {"__key__": f"{row:09d}"} | sample)
        by_others = [entry for path in sorted(Path(name).glob("*.tar")) for entry in read_by_webdataset(path)]
        raw = lk.TarDataset(name, decode=None)
        assert by_others == [raw[row] for row in range(size)]
        assert hidden(Path(name)) == []


ROWS = st.fixed_dictionaries(
    {"text": TEXT, "ids": st.lists(st.integers(-5, 5), max_size=4), "raw": st.binary(max_size=9)}
)
PLACES = st.tuples(
    st.sampled_from(DTYPES), st.lists(st.integers(1, 3), max_size=2), st.lists(st.integers(0, 4), min_size=1)
)


@settings(max_examples=25)
@given(st.lists(ROWS, min_size=1, max_size=4), PLACES, GRID, st.integers(1, 20))
def test_parquet_gives_back_what_was_written(
    rows: list[dict[str, Any]], places: tuple[str, list[int], list[int]], grid: tuple[int, int, int], group: int
) -> None:
    size, per_shard, jobs = grid
    dtype, inner, lengths = places
    data = repeated(rows, size)
    for row, sample in enumerate(data):
        length = lengths[row % len(lengths)]
        sample["array"] = (np.arange(length * int(np.prod(inner))) + row).astype(dtype).reshape(length, *inner)
        sample["nested"] = {"a": [{"b": float(row)}], "c": str(row)}
    with tempfile.TemporaryDirectory() as name:
        form = lk.ParquetFormat(row_group_size=group, schema=None)
        some = any(sample["ids"] for sample in data)  # else nothing says what the empty lists hold
        lk.write_shards(data, name, format=form, samples_per_shard=per_shard, jobs=jobs)
        found = lk.ParquetDataset(name)
        assert len(found) == size > 0
        for row, sample in enumerate(data):
            wanted = sample | ({"ids": np.array(sample["ids"], dtype=np.int64)} if some else {})
            read = found[row]
            assert read.keys() == wanted.keys()
            assert equal({name: read[name] for name in wanted}, wanted)  # the columns are in the order of the first
        assert hidden(Path(name)) == []


def values_of_a_dtype(dtype: str) -> dict[str, list[Any]]:
    """Two samples' values of each shape."""
    array = np.arange(24).astype(dtype)
    inner = [(), (3,), (2, 3)]
    return {
        "scalars": [array[0], array[1]],
        "of no axes": [np.array(array[0]), np.array(array[1])],
        "tensors of no axes": [torch.from_numpy(array)[0], torch.from_numpy(array)[1]],
        "tensors": [torch.from_numpy(array[:6]), torch.from_numpy(array[6:12])],
        **{f"of shape (2, *{shape})": [array[: 2 * math.prod(shape)].reshape(2, *shape)] * 2 for shape in inner},
        **{f"empty (0, *{shape})": [array[:0].reshape(0, *shape)] * 2 for shape in inner},
        **{
            f"ragged (n, *{shape})": [array[: n * math.prod(shape)].reshape(n, *shape) for n in (0, 3)]
            for shape in inner
        },
        "other strides": [array[:6].reshape(2, 3).T, array[6:12].reshape(3, 2)],
    }


@pytest.mark.parametrize("form", ["parquet", "tar"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape_comes_back_as_it_was(dtype: str, form: str, tmp_path: Path) -> None:
    """Its batch is that of the samples in memory. In tar archives, whole numbers by themselves are texts, without a dtype."""
    kinds = values_of_a_dtype(dtype)
    if form == "tar" and "int" in dtype:
        del kinds["scalars"]
    adapter: Any = lk.ParquetDataset if form == "parquet" else lk.TarDataset
    lk.write_shards([{name: kinds[name][row] for name in kinds} for row in range(2)], tmp_path, format=form, jobs=1)
    found = adapter(tmp_path)
    assert len(found) == 2
    for name, values in kinds.items():
        files = {key.removesuffix(".npy"): key for key in found[0]}
        read = [found[row][files[name]] for row in range(2)]
        for value, wanted in zip(read, values, strict=True):
            np.testing.assert_array_equal(np.asarray(value), np.asarray(wanted))
            assert np.asarray(value).dtype == dtype
            assert np.shape(value) == tuple(np.shape(wanted))
        if not name.startswith("ragged"):
            batch = next(iter(lk.Loader(adapter(tmp_path, transform=itemgetter(files[name])), 2)))
            assert equal(batch, stack(values))


@settings(max_examples=25)
@given(
    st.lists(st.lists(st.integers(0, 2**16 - 2), max_size=9), min_size=1, max_size=4),
    GRID,
    st.sampled_from(["uint16", "uint32"]),
    st.booleans(),
)
def test_tokens_give_back_what_was_written(
    documents: list[list[int]], grid: tuple[int, int, int], dtype: Any, ended: bool
) -> None:
    size, per_shard, jobs = grid
    data = [documents[row % len(documents)] + [row] for row in range(size)]
    with tempfile.TemporaryDirectory() as name:
        form = lk.TokenFormat(dtype=dtype, end_token=2**16 - 1 if ended else None)
        lk.write_shards(data, name, format=form, samples_per_shard=per_shard, jobs=jobs)
        stream = [token for document in data for token in [*document, *[2**16 - 1] * ended]]
        found = lk.TokenDataset(name, length=1, dtype=dtype)
        assert [int(window[0]) for window in found] == stream
        assert len(stream) >= size > 0
        read = lk.DocumentDataset(f"{name}/*.bin", dtype=dtype)
        assert [read[row].tolist() for row in range(size)] == [[*document, *[2**16 - 1] * ended] for document in data]
        assert hidden(Path(name)) == []


class Drawn:
    """Samples with random parts."""

    def __len__(self) -> int:
        return 150

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"cls": index, "json": draws().tolist()}


@pytest.mark.parametrize("form", ["tar", "parquet", "tokens"])
def test_the_bytes_do_not_depend_on_jobs_or_how_they_are_started(form: str, tmp_path: Path) -> None:
    data: Any = [[row] * (row % 7) for row in range(150)] if form == "tokens" else Drawn()
    results = []
    for number, (jobs, method) in enumerate([(1, "fork"), (2, "fork"), (3, "fork"), (2, "spawn")]):
        if method == "spawn" and form != "tar":
            continue
        folder = tmp_path / str(number)
        lk.write_shards(data, folder, format=form, samples_per_shard=20, jobs=jobs, multiprocessing_context=method)  # type: ignore[arg-type]
        results.append(contents(folder))
    assert len(results) >= 3
    assert len(results[0]) >= 9  # eight shards and a manifest
    assert all(result == results[0] for result in results)


def test_random_parts_belong_to_the_sample(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    for name, size in (("a", 20), ("b", 33)):
        lk.write_shards(Drawn(), tmp_path / name, samples_per_shard=size)
    first, second = lk.TarDataset(tmp_path / "a"), lk.TarDataset(tmp_path / "b")
    assert [first[row] for row in range(150)] == [second[row] for row in range(150)]
    assert len({json.dumps(first[row]["json"]) for row in range(150)}) == 150
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("jobs", [1, 2])
def test_shuffled_shards_have_each_sample_once_in_the_order_of_the_seed(jobs: int, tmp_path: Path) -> None:
    data = [{"cls": row} for row in range(100)]
    lk.write_shards(data, tmp_path / "a", samples_per_shard=30, shuffle=True, seed=3, jobs=jobs)
    found = lk.TarDataset(tmp_path / "a")
    order = [found[row]["cls"] for row in range(100)]
    assert order == lk.Shuffled(100, seed=3).indices(0, 0, 100).tolist()
    assert sorted(order) == list(range(100)) != order
    assert found[0]["__key__"] == f"{order[0]:09d}"


@pytest.mark.parametrize("form", ["tar", "parquet", "tokens"])
def test_shards_have_about_the_size_that_was_asked_for(form: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    data = [draw.integers(0, 255, 1000 + row % 500).tolist() for row in range(400)]
    samples: Any = data if form == "tokens" else [{"npy": np.array(sample)} for sample in data]
    wanted = 40_000 if form == "parquet" else 100_000
    lk.write_shards(samples, tmp_path, format=form, shard_bytes=wanted)
    sizes = [record.file.size_bytes for record in read_records(manifest(tmp_path))]
    assert len(sizes) > 3
    assert all(0.6 * wanted < size < 1.3 * wanted for size in sizes[:-1])


def test_index_files_save_the_scan_and_are_what_it_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = [{"cls": row, "txt": "é" * row} for row in range(50)]
    for form, adapter in (("tar", lk.TarDataset), ("parquet", lk.ParquetDataset)):
        lk.write_shards(data, tmp_path / form, format=form, samples_per_shard=20)
        without = shutil.copytree(tmp_path / form, tmp_path / "without" / form)
        anew: Any = adapter(without)
        with monkeypatch.context() as patch:
            patch.delattr(adapter, "scan")
            patch.setattr(adapter, "__abstractmethods__", frozenset())
            kept: Any = adapter(tmp_path / form)
        indexes = [[data.proven_index(part).offsets.tolist() for part in range(3)] for data in (kept, anew)]
        assert indexes[0] == indexes[1]
        assert equal(list(map(kept.__getitem__, range(50))), list(map(anew.__getitem__, range(50))))


def test_webdataset_decodes_what_is_written(tmp_path: Path) -> None:
    data = [{"cls": row, "txt": f"ü{row}", "json": {"a": row}, "npy": np.full((2, 3), row)} for row in range(5)]
    lk.write_shards(data, tmp_path, samples_per_shard=5)
    decode = webdataset.autodecode.Decoder([])
    found = [decode(entry) for entry in read_by_webdataset(tmp_path / "shard-000000.tar")]
    assert len(found) == 5
    for entry, wanted in zip(found, data, strict=True):
        assert equal({name: entry[name] for name in wanted}, wanted)


def test_pictures_are_encoded_on_request(tmp_path: Path) -> None:
    pixels = torch.arange(3 * 20 * 30).reshape(3, 20, 30).to(torch.uint8)
    grey, wide = np.arange(64, dtype=np.uint8).reshape(8, 8), pixels.permute(1, 2, 0)
    pil = Image.fromarray(wide.numpy())
    data = [{"png": pixels, "a.png": grey, "b.png": wide, "jpg": pil, "c": pil, "npy": pixels}] * 2
    lk.write_shards(data, tmp_path)
    found = lk.TarDataset(tmp_path)[1]
    assert sorted(found) == ["__key__", "a.png", "b.png", "c.png", "jpg", "npy", "png"]
    for name in ("png", "b.png", "c.png", "npy"):
        assert equal(torch.as_tensor(found[name]), pixels), name
    assert torch.equal(found["a.png"], torch.from_numpy(grey).expand(3, 8, 8))
    raw = lk.TarDataset(tmp_path, decode=None)[1]
    assert raw["jpg"][:3] == b"\xff\xd8\xff"
    assert raw["png"][:4] == b"\x89PNG"


def test_fields_get_the_extension_of_their_type(tmp_path: Path) -> None:
    data = [("text", 3, {"a": [1]}, b"raw", np.float32(2), True, None, torch.arange(3), 1.5, [1, 2])] * 2
    lk.write_shards(data, tmp_path)
    found = lk.TarDataset(tmp_path)[0]
    names = ["0.txt", "1.cls", "2.json", "3", "4.npy", "5.json", "6.json", "7.npy", "8.json", "9.json"]
    assert sorted(found) == sorted([*names, "__key__"])
    assert equal(
        [found[name] for name in names],
        ["text", 3, {"a": [1]}, b"raw", np.array(2, np.float32), True, None, np.arange(3), 1.5, [1, 2]],
    )
    lk.write_shards([("a", 1)], tmp_path / "b", format=lk.TarFormat(fields=["txt", "Label"]))
    assert lk.TarDataset(tmp_path / "b")[0] == {"__key__": "000000000", "txt": "a", "label.cls": 1}
    lk.write_shards(["one", "two"], tmp_path / "c", format=lk.ParquetFormat(fields=["text"]))
    assert lk.ParquetDataset(tmp_path / "c")[1] == {"text": "two"}
    lk.write_shards(
        [{"__key__": "a/b", "cls": 1}, {"__key__": "a/c", "txt": ""}],
        tmp_path / "d",
        format=lk.TarFormat(same_fields=False),
    )
    assert list(lk.TarDataset(tmp_path / "d")) == [{"__key__": "a/b", "cls": 1}, {"__key__": "a/c", "txt": ""}]


def test_text_becomes_the_tokens_of_the_tokenizer(tmp_path: Path) -> None:
    lk.write_shards(
        [{"text": "aé", "id": 1}, {"text": b"b", "id": 2}],
        tmp_path / "a",
        format=lk.TokenFormat(field="text", end_token=256),
    )
    assert np.fromfile(tmp_path / "a" / "shard-000000.bin", "<u2").tolist() == [97, 195, 169, 256, 98, 256]
    lk.write_shards(["a b"], tmp_path / "b", format=lk.TokenFormat(tokenizer=words, dtype="uint32"))
    assert np.fromfile(tmp_path / "b" / "shard-000000.bin", "<u4").tolist() == [1, 1]


def words(text: str) -> list[int]:
    return [len(word) for word in text.split()]


class Failing:
    def __init__(self, many: bool) -> None:
        if many:
            self.__getitems__ = lambda indices: [self[index] for index in indices]

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> list[int]:
        if index == 133:
            raise KeyError("gone")
        return [index]


def mixed(good: Any, bad: Any, place: int = 71, size: int = 100) -> list[Any]:
    """Samples with a bad one that is not read ahead of the others."""
    found = [good] * size
    found[place] = bad
    assert place not in {row * (size - 1) // 63 for row in range(64)}
    return found


NPY = np.zeros((2, 3))
NOON = datetime(2020, 1, 1, 12)
WRONG: dict[str, tuple[Any, Any, str]] = {
    "empty": ([], "tar", "the dataset has no samples"),
    "tar, other fields": (
        mixed({"cls": 1}, {"cls": 1, "txt": ""}),
        "tar",
        "sample 71: also has txt; the others have cls",
    ),
    "tar, other type": (mixed({"x": 1}, {"x": "1"}), "tar", "sample 71: lacks x.cls and also has x.txt"),
    "tar, no fields": ([{}], "tar", "sample 0: has no fields"),
    "tar, objects": ([{"x": object()}], "tar", "sample 0, field 'x': holds object, wanted bytes"),
    "tar, object array": ([{"x": np.array([object()])}], "tar", "sample 0, field 'x': Object arrays"),
    "tar, keys of JSON": ([{"x": {1: 2}}], "tar", "sample 0, field 'x': JSON would turn the key 1"),
    "tar, slash": ([{"a/b": 1}], "tar", "sample 0, field 'a/b': a name that can't be an extension"),
    "tar, names alike": ([{"A": 1, "a": 2}], "tar", "sample 0, field 'a': a second file 'a.cls'"),
    "tar, surrogates": ([{"x": "\udc80"}], "tar", "sample 0, field 'x': .*surrogates not allowed"),
    "tar, pixels": (
        [{"png": np.zeros((2, 5, 5))}],
        "tar",
        "sample 0, field 'png': float64 of shape \\(2, 5, 5\\) is no pict",
    ),
    "tar, key twice": ([{"__key__": "a", "cls": 1}] * 2, "tar", "sample 1: its key 'a' is in this shard already"),
    "tar, key with dot": ([{"__key__": "a.b", "cls": 1}], "tar", "sample 0: its __key__ is 'a.b'"),
    "tar, key outside": ([{"__key__": "../b", "cls": 1}], "tar", "sample 0: its __key__ is"),
    "tar, absolute": ([{"__key__": "/b", "cls": 1}], "tar", "sample 0: its __key__ is"),
    "tar, metadata": ([{"__key__": "__a__/b", "cls": 1}], "tar", "sample 0: its __key__ is"),
    "tar, bfloat16": ([{"x": torch.zeros(2, dtype=torch.bfloat16)}], "tar", "sample 0, field 'x': .*BFloat16"),
    "names": ([(1, 2)], lk.TarFormat(fields=["a"]), "sample 0: has 2 fields, wanted 1: a"),
    "no string": ([{1: 2}], "parquet", "sample 0: a field is named 1"),
    "parquet, other fields": (
        mixed({"a": 1}, {"b": 1}),
        "parquet",
        "sample 71: lacks a and also has b; the others have a",
    ),
    "tar, masked": ([{"x": np.ma.masked_equal([1, 2], 1)}], "tar", "sample 0, field 'x': a masked array, whose mask"),
    "parquet, masked": (
        [{"x": np.ma.masked_equal([1, 2], 1)}],
        "parquet",
        "sample 0, field 'x': a masked array, whose mask",
    ),
    "parquet, a wider float": (
        mixed({"a": np.float32(0.5)}, {"a": np.float64(0.1)}),
        "parquet",
        "sample 71, field 'a': the number .*0.1.*; wanted float",
    ),
    "parquet, other type": (mixed({"a": 1}, {"a": "x"}), "parquet", "sample 71, field 'a': .*wanted int64"),
    "parquet, a fraction": (mixed({"a": 1}, {"a": 1.5}), "parquet", "sample 71, field 'a': .*1.5.*wanted int64"),
    "parquet, text": (mixed({"a": b"x"}, {"a": "x"}), "parquet", "sample 71, field 'a': str 'x'; wanted binary"),
    "parquet, bytes": (mixed({"a": "x"}, {"a": b"x"}), "parquet", "sample 71, field 'a': bytes b'x'; wanted string"),
    "parquet, a truth": (mixed({"a": 0.5}, {"a": True}), "parquet", "sample 71, field 'a': bool True; wanted double"),
    "parquet, a time": (mixed({"a": NOON.date()}, {"a": NOON}), "parquet", "sample 71, field 'a': the time .*T12:00"),
    "parquet, a zone": (mixed({"a": NOON}, {"a": NOON.astimezone()}), "parquet", "sample 71, field 'a': the time .*"),
    "parquet, text at first": ([{"a": "x"}, {"a": b"x"}], "parquet", "sample 0, field 'a': str 'x'; wanted binary"),
    "parquet, too large": (mixed({"a": 1}, {"a": 2**64}), "parquet", "sample 71, field 'a'"),
    "parquet, inner key": (
        mixed({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}),
        "parquet",
        "sample 71, field 'a': a dict with",
    ),
    "parquet, shape": (mixed({"a": NPY}, {"a": NPY.T}), "parquet", "sample 71, field 'a': float64 of shape \\(3, 2\\)"),
    "parquet, dtype": (mixed({"a": NPY}, {"a": NPY.astype("f4")}), "parquet", "sample 71, field 'a': float32"),
    "parquet, shape found at once": (
        [{"a": NPY}, {"a": NPY.T}],
        "parquet",
        "sample 1, field 'a': .*each axis but the first",
    ),
    "parquet, type found at once": ([{"a": 1}, {"a": "x"}], "parquet", "sample 1, field 'a'"),
    "tokens, too large": (mixed([1], [2**16]), "tokens", "sample 71: the token 65,536 does not fit uint16.*uint32"),
    "tokens, negative": (mixed([1], [-1]), "tokens", "sample 71: the token -1 does not fit"),
    "tokens, fractions": (mixed([1], [0.5]), "tokens", "sample 71: float64 of shape"),
    "tokens, axes": (mixed([1], np.zeros((2, 2), int)), "tokens", "sample 71: int64 of shape"),
    "tokens, fields": ([{"a": "", "b": ""}], "tokens", "sample 0: has the fields a, b, wanted one"),
    "tokens, bytes": ([b"\xff"], "tokens", "sample 0: 'utf-8' codec can't decode"),
    "tokens, tokenizer": (["a"], lk.TokenFormat(tokenizer=int), "sample 0: the tokenizer raised ValueError"),  # type: ignore[arg-type]
    "source": (Failing(many=False), "tokens", "sample 133 of the source can't be read: KeyError: 'gone'"),
    "source, many at once": (Failing(many=True), "tokens", "sample 133 of the source can't be read: KeyError: 'gone'"),
}


IN_PROCESSES = ["tar, other fields", "parquet, shape", "tokens, tokenizer", "source, many at once"]


@pytest.mark.parametrize(("case", "jobs"), [*((case, 1) for case in WRONG), *((case, 2) for case in IN_PROCESSES)])
def test_what_does_not_fit_names_the_sample_and_field(case: str, jobs: int, tmp_path: Path) -> None:
    data, form, message = WRONG[case]
    with pytest.raises(lk.WriteError, match=f"(?s){message}"):
        lk.write_shards(data, tmp_path / "x", format=form, samples_per_shard=40, jobs=jobs)
    assert not list(tmp_path.glob("x/.*.part"))
    assert not manifest(tmp_path / "x").exists()


SCHEMA = pa.schema([("a", pa.int8()), ("b", pa.string())])


def test_a_given_schema_allows_nulls_and_is_part_of_the_settings(tmp_path: Path) -> None:
    data = [{"a": 1}, {"a": 2, "b": "x"}, {"b": None}]
    lk.write_shards(data, tmp_path, format=lk.ParquetFormat(schema=SCHEMA))
    assert list(lk.ParquetDataset(tmp_path)) == [{"a": 1, "b": None}, {"a": 2, "b": "x"}, {"a": None, "b": None}]
    with pytest.raises(lk.WriteError, match=r"schema is '.*' there, None here"):
        lk.write_shards([{"a": 1, "b": ""}] * 3, tmp_path, format="parquet")
    with pytest.raises(lk.WriteError, match="sample 0: also has c"):
        lk.write_shards([{"c": 1}], tmp_path / "x", format=lk.ParquetFormat(schema=SCHEMA))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "zip"}, "format is 'zip', wanted one of tar, parquet, tokens"),
        ({"samples_per_shard": 0}, "samples_per_shard is 0"),
        ({"samples_per_shard": 1, "shard_bytes": 1}, "both samples_per_shard and shard_bytes"),
        ({"jobs": 0}, "jobs is 0"),
        ({"dest": "s3://bucket/x"}, "is a URL, wanted a local folder"),
    ],
)
def test_mistakes_in_settings_are_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        lk.write_shards(**({"dataset": [1], "dest": tmp_path} | changes))
    for make in (
        lambda: lk.TarFormat(jpeg_quality=0),
        lambda: lk.ParquetFormat(row_group_size=0),
        lambda: lk.TokenFormat(end_token=70_000),
    ):
        with pytest.raises(ValueError, match="Format: "):
            make()


def test_another_source_or_other_settings_are_refused(tmp_path: Path) -> None:
    data = [{"cls": row} for row in range(100)]
    lk.write_shards(data, tmp_path, samples_per_shard=30)
    before = contents(tmp_path)
    others: list[tuple[Any, dict[str, Any], str]] = [
        (data[:99], {}, "fingerprint is '100 samples' there, '99 samples' here"),
        ([{"cls": row + 1} for row in range(100)], {}, "probe is"),
        (data, {"samples_per_shard": 31}, "samples_per_shard is 30 there, 31 here"),
        (data, {"shuffle": True}, "shuffle is False there, True here"),
        (data, {"format": "parquet"}, "format is 'tar' there, 'parquet' here"),
        (data, {"format": lk.TarFormat(jpeg_quality=3)}, "jpeg_quality is 95 there, 3 here"),
    ]
    for source, changes, message in others:
        with pytest.raises(lk.WriteError, match=message):
            lk.write_shards(source, tmp_path, **({"samples_per_shard": 30} | changes))
        assert contents(tmp_path) == before
        assert hidden(tmp_path) == []
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "a.txt").write_text("")
    with pytest.raises(lk.WriteError, match=r"files that are not shards, such as a\.txt"):
        lk.write_shards(data, tmp_path / "foreign")
    assert [path.name for path in (tmp_path / "foreign").iterdir()] == ["a.txt"]
    manifest(tmp_path).write_text("{}")
    with pytest.raises(lk.WriteError, match="not a manifest"):
        lk.write_shards(data, tmp_path, samples_per_shard=30)


def test_a_second_call_writes_nothing_and_a_lost_shard_is_made_again(tmp_path: Path) -> None:
    data = [{"cls": row} for row in range(100)]
    calls: list[tuple[int, int]] = []
    lk.write_shards(data, tmp_path, samples_per_shard=30, on_shard=lambda *step: calls.append(step))
    assert calls == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
    before, times = contents(tmp_path), times_of(tmp_path)
    lk.write_shards(data, tmp_path, samples_per_shard=30, on_shard=lambda *step: calls.append(step))
    assert calls[5:] == [(4, 4)]
    assert times_of(tmp_path) == times
    (tmp_path / "shard-000001.tar").unlink()
    lk.write_shards(data, tmp_path, samples_per_shard=30, on_shard=lambda *step: calls.append(step))
    assert calls[6:] == [(3, 4), (4, 4)]
    assert contents(tmp_path) == before
    after = times_of(tmp_path)
    assert {name for name in after if after[name] != times[name]} == {"shard-000001.tar", FOLDER_INDEX}
    assert after.keys() == times.keys()


def times_of(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (*folder.iterdir(), *side(folder).iterdir())}


def test_a_written_folder_holds_nothing_but_shards(tmp_path: Path) -> None:
    """Golden: the manifest and one index for all shards lie next to the folder."""
    for form in ("tar", "parquet"):
        lk.write_shards([{"cls": row} for row in range(5)], tmp_path / form, format=form, samples_per_shard=2)
        shards = [f"shard-00000{number}.{form}" for number in range(3)]
        assert sorted(path.name for path in (tmp_path / form).iterdir()) == shards
        assert sorted(path.name for path in (tmp_path / f".{form}.loaderkit").iterdir()) == [FOLDER_INDEX, MANIFEST]
    lk.write_shards([[1], [2]], tmp_path / "tokens", format="tokens")
    names = sorted(path.name for path in (tmp_path / "tokens").iterdir())
    assert names == ["shard-000000.bin", "shard-000000.bin.index"]
    assert sorted(path.name for path in (tmp_path / ".tokens.loaderkit").iterdir()) == [MANIFEST]
