"""litdata's chunks: the samples that litdata's own reader reads, with the laws of every dataset over shards."""

import json
import pickle
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import cuts, flips, outcomes
from litdata_made import LEAF, chunk_of, item_of, write_litdata
from mds_values import plain
from servers import SlowStore, run_store
from shards import as_list, check_laws, check_reads, with_draws

import loaderkit as lk
from loaderkit import testing
from loaderkit.cli.command import main

MADE = Path(__file__).parents[1] / "fixtures" / "litdata"
NAMES = sorted(path.stem for path in MADE.glob("*.json"))
PACKED = ["packed-by-batch", "packed-by-sample", "packed-by-chunk", "arrow", "arrow-packed"]
CHUNKS = [[(0, "a"), (1, "bc")], [(2, "")], [(3, "déf"), (4, "g"), (5, "h" * 90)]]
SAMPLES = [{"n": number, "text": text} for chunk in CHUNKS for number, text in chunk]


def wanted(name: str) -> list[Any]:
    found = json.loads((MADE / f"{name}.json").read_text())
    assert found
    return found


def read(data: Any) -> list[Any]:
    """Return all samples as they come out of JSON."""
    return json.loads(json.dumps([plain(sample) for sample in data]))


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "index.json"
    content = json.loads(path.read_text())
    content["config"] |= changes
    path.write_text(json.dumps(content))


def change_chunk(folder: Path, **changes: Any) -> None:
    path = folder / "index.json"
    content = json.loads(path.read_text())
    content["chunks"][0] |= changes
    path.write_text(json.dumps(content))


def replace_leaf(folder: Path, form: str, leaf: bytes) -> None:
    """Write a dataset of one sample, which is one leaf."""
    content = chunk_of([item_of(leaf)])
    write_litdata(folder, [[(0, "")]])
    (folder / "chunk-0-0.bin").write_bytes(content)
    change_config(folder, data_format=[form], data_spec=json.dumps([1, LEAF]))
    change_chunk(folder, chunk_bytes=len(content))


def test_the_fixtures_have_all_kinds() -> None:
    assert {*PACKED, "dicts", "dtypes", "leaves", "numbers", "single", "texts", "trees"} == set(NAMES)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_samples_are_those_of_the_format_s_own_reader(name: str, cached: bool, tmp_path: Path) -> None:
    """By one index, by many in another order, and again from what is kept."""
    data = lk.LitDataset(MADE / name, storage=lk.Storage(cache_dir=tmp_path if cached else None))
    assert read(data) == wanted(name)
    order = np.random.default_rng(0).permutation(len(data)).tolist()
    for _ in range(2):
        assert read(data.__getitems__(order)) == [wanted(name)[index] for index in order]


def test_tensors_and_arrays_are_writable_copies() -> None:
    data = lk.LitDataset(MADE / "leaves")
    for value in data[2].values():
        if isinstance(value, torch.Tensor | np.ndarray):
            value += 1
    assert read(data) == wanted("leaves")


def test_the_laws_hold(tmp_path: Path) -> None:
    write_litdata(tmp_path, CHUNKS)
    check_reads(lk.LitDataset(tmp_path), SAMPLES)
    check_laws(lambda: lk.LitDataset(tmp_path, transform=with_draws, max_open=1), lambda sample: int(sample["n"]))


@pytest.mark.parametrize("name", PACKED)
def test_the_laws_hold_for_packed_chunks(name: str, tmp_path: Path) -> None:
    shift = min(sample["n"] for sample in lk.LitDataset(MADE / name))
    check_laws(
        lambda: lk.LitDataset(MADE / name, transform=with_draws, max_open=1, storage=lk.Storage(cache_dir=tmp_path)),
        lambda sample: int(sample["n"]) - shift,
    )


def test_a_run_resumes_on_other_workers_and_ranks() -> None:
    data = lk.LitDataset(MADE / "dicts", transform=with_draws)
    loader = {"batch_size": 2, "shuffle": True, "seed": 3, "collate_fn": as_list}

    def make(**settings: Any) -> lk.Loader:
        return lk.Loader(pickle.loads(pickle.dumps(data)), **{**loader, **settings})

    def ids(batch: list[Any]) -> list[int]:
        return [sample["sample"]["n"] for sample in batch]

    settings = [{"num_workers": 2}, {"world_size": 2, "batch_size": 3}, {"world_size": 3}]
    testing.assert_elastic(make, settings, samples=range(-3, 21), stops=[1, 3], ids=ids)
    assert len(json.dumps(make().state_dict())) < 1000


def test_folders_come_one_after_another() -> None:
    data = lk.LitDataset([MADE / "packed-by-batch", MADE / "dicts" / "index.json"])
    assert read(data) == wanted("packed-by-batch") + wanted("dicts")
    with pytest.raises(ValueError, match="dicts is listed more than once"):
        lk.LitDataset([MADE / "dicts", f"{MADE}/dicts/"])
    with pytest.raises(lk.ShardError, match=r"has samples of another structure than .*lk\.ConcatDataset"):
        lk.LitDataset([MADE / "dicts", MADE / "numbers"])


def test_decoders_are_chosen() -> None:
    data = lk.LitDataset(MADE / "leaves", decode={"jpeg": bytes, "image:png": len})
    assert data[1]["jpeg"].startswith(b"\xff\xd8\xff")
    assert data[1]["image"] > 60
    trusted = lk.LitDataset(MADE / "pickled", decode={"pickle": pickle.loads})
    assert list(trusted) == [{"n": 0, "any": {0}}, {"n": 1, "any": {1}}]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_format": ["int", "pickle"]}, r"leaves of the format 'pickle'.*decode=\{'pickle': pickle\.loads\}"),
        ({"data_format": ["int", "graph:pickle"]}, "leaves of the format 'graph:pickle', and reading them may run"),
        ({"data_format": ["int", "graph"]}, "leaves of the format 'graph', and reading them may run"),
        ({"data_format": ["int", "video:mp4"]}, r"leaves of the format 'video:mp4', wanted one of str.*decode="),
        ({"data_format": ["int", "no_header_tensor:99"]}, "leaves of the format 'no_header_tensor:99', wanted one of"),
        ({"data_format": ["int", "no_header_numpy:14"]}, "leaves of the format 'no_header_numpy:14', wanted one of"),
        ({"data_format": ["int", "str:3"]}, "leaves of the format 'str:3', wanted one of"),
        ({"data_format": ["int"]}, "not the index of a dataset of litdata.*1 formats of 2 leaves"),
        ({"data_spec": "[1, {}]"}, "not the index of a dataset of litdata"),
        ({"data_spec": json.dumps([1, {"type": "collections.deque", "context": "3"}])}, "a collections.deque, wanted"),
        ({"encryption": {"algorithm": "fernet", "level": "sample"}}, "the chunks are encrypted"),
        ({"compression": "lz4"}, "compressed with 'lz4'"),
        ({"compression": "zstd", "compression_level": "other"}, "compressed with 'zstd' by 'other'"),
        ({"item_loader": "TokensLoader"}, r"have tokens\. Read them with lk\.DocumentDataset"),
        ({"item_loader": "ParquetLoader"}, "are for ParquetLoader, wanted"),
        ({"format": "mds"}, "are for mds, wanted"),
        ({"data_format": ["float", "int"]}, r"sample 0, leaf 1 \(int\) can't be decoded"),
        ({"data_format": ["str", "json"]}, r"sample 0, leaf 1 \(json\) can't be decoded"),
    ],
    ids=repr,
)
def test_what_can_not_be_read_is_refused_by_name(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    change_config(write_litdata(tmp_path, CHUNKS), **change)
    with pytest.raises(lk.ShardError, match=message):
        list(lk.LitDataset(tmp_path))


@pytest.mark.parametrize(
    ("form", "leaf"),
    [
        ("json", b"\x0c"),
        ("json", b"\x02\x03\0\0\0" + bytes(16)),
        ("json", b"\x0b\0"),
        ("json", b"\x06\xff\xff\xff\xff\0\0\0\0"),
        ("json", b"[1,"),
        ("bool", b""),
        ("int", b"\1"),
        ("tensor", struct.pack(">III", 1, 1, 2) + bytes(4)),
        ("tensor", struct.pack(">II", 77, 0)),
        ("numpy", struct.pack("<III", 9, 1, 2) + bytes(4)),
        ("jpeg", b"\xff\xd8\xff no picture"),
        ("jpeg_array", struct.pack("<II", 1, 9) + bytes(4)),
        ("pil", struct.pack("<III", 2, 2, 1) + b"L" + bytes(3)),
    ],
    ids=repr,
)
def test_a_damaged_leaf_is_named(form: str, leaf: bytes, tmp_path: Path) -> None:
    replace_leaf(tmp_path, form, leaf)
    with pytest.raises(lk.ShardError, match=rf"chunk-0-0\.bin: sample 0, leaf 0 \({form}\) can't be decoded"):
        lk.LitDataset(tmp_path)[0]


def test_nested_values_of_older_versions_are_json(tmp_path: Path) -> None:
    replace_leaf(tmp_path, "json", b'[1, {"a": null}]')
    assert lk.LitDataset(tmp_path)[0] == [1, {"a": None}]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere/index\.json is not there, wanted a dataset of litdata"):
        lk.LitDataset(tmp_path / "nowhere")
    write_litdata(tmp_path, CHUNKS)
    with pytest.raises(lk.ShardError, match="is one shard of a dataset, wanted its folder"):
        lk.LitDataset(tmp_path / "chunk-0-0.bin")
    (tmp_path / "chunk-0-1.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"chunk-0-1\.bin is not there"):
        lk.LitDataset(tmp_path)
    change_chunk(tmp_path, filename="/etc/hosts")
    with pytest.raises(lk.ShardError, match="'/etc/hosts' is not in the folder"):
        lk.LitDataset(tmp_path)


def test_a_cut_chunk_is_an_error_at_the_open(tmp_path: Path) -> None:
    for name in ("dicts", "packed-by-batch", "packed-by-sample", "arrow"):
        folder = shutil.copytree(MADE / name, tmp_path / name)
        chunk = folder / "chunk-0-1.bin"
        content = chunk.read_bytes()
        for size in (0, 1, len(content) // 2, len(content) - 1):
            chunk.write_bytes(content[:size])
            with pytest.raises(lk.ShardError, match=rf"has {size:,} bytes, index\.json says {len(content):,}"):
                lk.LitDataset(folder)


@pytest.mark.parametrize("name", ["dicts", *PACKED])
def test_a_damaged_chunk_gives_samples_or_our_error(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(MADE / name, tmp_path / "it")
    chunk = next(folder.glob("chunk-0-1*"))
    content = chunk.read_bytes()

    def samples(damaged: bytes) -> list[Any]:
        chunk.write_bytes(damaged)
        return [str(sample) for sample in lk.LitDataset(folder, storage=lk.Storage(cache_dir=None))]

    wrong = [(case, damaged.ljust(len(content), b"\0")) for case, damaged in cuts(content, 15)]
    found = outcomes(samples, [*wrong, *flips(content, 40)], (lk.ShardError,))
    assert any("chunk-0-1" in str(outcome) for outcome in found.values())


def test_documents_are_not_read_from_samples(tmp_path: Path) -> None:
    """Each sample begins with the size of its tensor, which must not become tokens."""
    replace_leaf(tmp_path, "no_header_tensor:15", np.arange(3, dtype="i4").tobytes())
    with pytest.raises(lk.ShardError, match=r"litdata with samples, wanted tokens.*lk\.LitDataset"):
        lk.DocumentDataset(tmp_path)
    assert lk.LitDataset(tmp_path)[0].tolist() == [0, 1, 2]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowStore]:
    with run_store(tmp_path_factory.mktemp("store")) as found:
        shutil.copytree(MADE, found.root / "bucket")
        yield found


@pytest.mark.parametrize("cache_bytes", [None, 1 << 20, 700])
@pytest.mark.parametrize("name", ["dicts", *PACKED])
def test_a_bucket_gives_the_samples_of_the_folder(
    name: str, cache_bytes: int | None, store: SlowStore, tmp_path: Path
) -> None:
    """By ranges, from copies, and with a cache that not all chunks fit into."""
    storage = lk.Storage(
        store.options, cache_dir=None if cache_bytes is None else tmp_path, cache_bytes=cache_bytes or 1
    )
    data = lk.LitDataset(f"s3://bucket/{name}", storage=storage)
    assert data.fingerprint() == lk.LitDataset(MADE / name).fingerprint()
    assert read(data) == wanted(name)
    order = np.random.default_rng(0).permutation(len(data)).tolist()
    assert read(data.__getitems__(order)) == [wanted(name)[each] for each in order]
    data.close()


def test_preview_and_the_datamodule_read_chunks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, store: SlowStore
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["preview", str(MADE / "dicts")]) == 0
    assert "LitDataset: 24 samples in 5 shards" in capsys.readouterr().out
    reach = [f"--storage-option={name}={value}" for name, value in store.options.items()]
    assert main(["preview", "s3://bucket/dicts/", "--cache-dir", str(tmp_path), *reach]) == 0
    assert "LitDataset: 24 samples in 5 shards" in capsys.readouterr().out
    module = lk.ShardDataModule(train=MADE / "dicts", format="litdata")
    module.prepare_data()
    module.setup("fit")
    assert len(module.train_dataloader().dataset) == 24
