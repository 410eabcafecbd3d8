"""MDS datasets: the samples that mosaicml-streaming's own reader reads, with the laws of every dataset over shards."""

import functools
import http.server
import json
import pickle
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import cuts, flips, outcomes
from mds_made import shard_of, write_mds
from mds_values import plain
from servers import SlowStore, run_store
from shards import as_list, check_laws, check_reads, with_draws

import loaderkit as lk
from loaderkit import testing
from loaderkit.cli.command import main

MADE = Path(__file__).parents[1] / "fixtures" / "mds"
CODECS = ["zstd", "gz", "bz2", "br", "snappy"]
NAMES = ["plain", *CODECS, "every", "merged"]
ENTRIES = [[(0, "a"), (1, "bc")], [(2, "")], [(3, "déf"), (4, "g"), (5, "h" * 90)]]
SAMPLES = [{"n": number, "text": text} for shard in ENTRIES for number, text in shard]


def wanted(name: str) -> list[Any]:
    found = json.loads((MADE / f"{name}.json").read_text())
    assert found
    return found


def read(data: Any) -> list[Any]:
    """Return all samples as they come out of JSON."""
    return json.loads(json.dumps([plain(sample) for sample in data]))


def in_cache(folder: Path, **settings: Any) -> lk.Storage:
    return lk.Storage(cache_dir=folder / "cache", **settings)


def change_index(folder: Path, **changes: Any) -> None:
    path = folder / "index.json"
    content = json.loads(path.read_text())
    content["shards"][0] |= changes
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_samples_are_those_of_the_format_s_own_reader(name: str, cached: bool, tmp_path: Path) -> None:
    """By one index and by many; unpacked into the cache, found there, or unpacked into memory."""
    storage = in_cache(tmp_path) if cached else lk.Storage(cache_dir=None)
    for _ in range(2):
        data = lk.MDSDataset(MADE / name, storage=storage)
        assert read(data) == wanted(name)
        assert read(data.__getitems__(range(len(data)))) == wanted(name)
        data.close()


def test_arrays_are_writable_copies() -> None:
    first = lk.MDSDataset(MADE / "every")[1]
    arrays = [value for value in first.values() if isinstance(value, np.ndarray)]
    assert len(arrays) == 3
    for array in arrays:
        array += 1
    assert read(lk.MDSDataset(MADE / "every")) == wanted("every")


def test_splits_are_read_by_name() -> None:
    for split in ("train", "val"):
        assert read(lk.MDSDataset(MADE / "splits", split=split)) == wanted(f"splits-{split}")
    with pytest.raises(lk.ShardError, match=r"splits: has no index\.json, but the splits train, val.*split='train'"):
        lk.MDSDataset(MADE / "splits")
    with pytest.raises(FileNotFoundError, match=r"splits/test/index\.json is not there, wanted an MDS dataset"):
        lk.MDSDataset(MADE / "splits", split="test")


def test_streams_come_one_after_another() -> None:
    streams = [MADE / "splits" / "val", MADE / "plain" / "index.json", f"{MADE}/splits/train/"]
    assert read(lk.MDSDataset(streams)) == wanted("splits-val") + wanted("plain") + wanted("splits-train")
    with pytest.raises(ValueError, match="plain is listed more than once"):
        lk.MDSDataset([MADE / "plain", f"{MADE}/plain/index.json"])
    with pytest.raises(ValueError, match="no urls given"):
        lk.MDSDataset([])


@pytest.mark.parametrize("packed", [False, True])
def test_the_laws_hold(packed: bool, tmp_path: Path) -> None:
    write_mds(tmp_path / "it", ENTRIES, packed=packed)
    storage = in_cache(tmp_path)
    check_reads(lk.MDSDataset(tmp_path / "it", storage=storage), SAMPLES)
    check_laws(
        lambda: lk.MDSDataset(tmp_path / "it", transform=with_draws, max_open=1, storage=storage),
        lambda sample: int(sample["n"]),
    )


def test_a_run_resumes_on_other_workers_and_ranks(tmp_path: Path) -> None:
    data = lk.MDSDataset(MADE / "plain", transform=with_draws)
    loader = {"shuffle": True, "seed": 3, "collate_fn": as_list}

    def make(**settings: Any) -> lk.Loader:
        return lk.Loader(pickle.loads(pickle.dumps(data)), **{"batch_size": 2, **loader, **settings})

    def ids(batch: list[Any]) -> list[int]:
        return [sample["sample"]["n"] for sample in batch]

    settings = [{"num_workers": 2}, {"world_size": 2, "batch_size": 3}, {"world_size": 3}]
    testing.assert_elastic(make, settings, samples=range(-3, 21), stops=[1, 3], ids=ids)
    state = make().state_dict()
    assert len(json.dumps(state)) < 1000


def test_columns_and_decoders_are_chosen(tmp_path: Path) -> None:
    data = lk.MDSDataset(MADE / "every", ["png", "int"], decode={"png": lk.DECODERS["png"]})
    sample = data[2]
    assert list(sample) == ["png", "int"]
    assert isinstance(sample["png"], torch.Tensor)
    assert sample["png"].shape == (3, 3, 5)
    assert data.fingerprint() != lk.MDSDataset(MADE / "every").fingerprint()
    trusted = lk.MDSDataset(MADE / "pickled", decode={"pkl": pickle.loads})
    assert list(trusted) == [{"any": {0}, "n": 0}, {"any": {1}, "n": 1}]
    assert lk.MDSDataset(MADE / "pickled", columns=["n"])[1] == {"n": 1}
    exact = lk.MDSDataset(MADE / "every", ["fixed array"], decode={"ndarray:uint32:2,3": len})
    assert exact[0] == {"fixed array": 24}
    with pytest.raises(lk.ShardError, match=r"has no column 'x', wanted one of \['n', 'row', 'text'\]"):
        lk.MDSDataset(MADE / "plain", columns=["x"])


def test_a_drawing_decoder_is_seeded_with_its_sample() -> None:
    def drawn(data: bytes) -> float:
        return float(torch.rand(()))

    data = lk.MDSDataset(MADE / "plain", ["text"], decode={"str": drawn})
    batches = [[batch["text"].tolist() for batch in lk.Loader(data, 5, seed=1, num_workers=each)] for each in (0, 2)]
    assert batches[0] == batches[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"column_encodings": ["pkl", "str"]}, r"column 'n' is pickled.*decode=\{'pkl': pickle\.loads\}.*columns="),
        ({"column_encodings": ["int", "wav:3"]}, r"column 'text' has the encoding 'wav:3', wanted one of bytes, str"),
        ({"column_encodings": ["ndarray:object", "str"]}, "encoding 'ndarray:object', wanted ndarray"),
        ({"column_encodings": ["ndarray:int8:0", "str"]}, "encoding 'ndarray:int8:0', wanted ndarray"),
        ({"column_encodings": ["int"]}, "not the index of an MDS dataset.*differ in number"),
        ({"format": "csv"}, r"shard 0 has the format 'csv', wanted 'mds'.*lk\.CsvDataset"),
        ({"version": 3}, "shard 0 has version 3, wanted 2"),
        ({"samples": -1}, "-1 is not a size"),
        ({"raw_data": {"basename": "../a.mds", "bytes": 3}}, r"'\.\./a\.mds' is not in the folder"),
        ({"raw_data": None}, "not the index of an MDS dataset"),
        ({"samples": 9}, r"its head has 2 samples up to byte \d+, index\.json says 9|is too short"),
        ({"samples": 10**12}, "is too short for the offsets"),
        (
            {"column_sizes": [4, None]},
            r"sample 0, column 'text' can't be decoded, ValueError: its values have \d+ bytes",
        ),
        ({"column_encodings": ["str", "json"]}, "sample 0, column '(n|text)' can't be decoded"),
        ({"column_encodings": ["uint8", "str"]}, "column 'n' can't be decoded"),
    ],
    ids=repr,
)
def test_what_can_not_be_read_is_refused_by_name(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    change_index(write_mds(tmp_path, ENTRIES[:1]), **change)
    with pytest.raises(lk.ShardError, match=message):
        list(lk.MDSDataset(tmp_path))


def test_a_missing_index_or_shard_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere/index\.json is not there"):
        lk.MDSDataset(tmp_path / "nowhere")
    write_mds(tmp_path, ENTRIES)
    with pytest.raises(lk.ShardError, match="is one shard of a dataset, wanted its folder"):
        lk.MDSDataset(tmp_path / "shard.00000.mds")
    (tmp_path / "shard.00001.mds").unlink()
    with pytest.raises(FileNotFoundError, match=r"shard\.00001\.mds is not there, wanted the shards that index\.json"):
        lk.MDSDataset(tmp_path)
    (tmp_path / "index.json").write_text('{"shards": []}')
    with pytest.raises(lk.ShardError, match=r"index\.json lists no shards"):
        lk.MDSDataset(tmp_path)
    (tmp_path / "index.json").write_text('{"shards": [')
    with pytest.raises(lk.ShardError, match="not the index of an MDS dataset"):
        lk.MDSDataset(tmp_path)


@pytest.mark.parametrize("packed", [False, True])
def test_a_cut_shard_is_an_error_at_the_open(packed: bool, tmp_path: Path) -> None:
    write_mds(tmp_path, ENTRIES, packed=packed)
    shard = next(tmp_path.glob("shard.00002*"))
    content = shard.read_bytes()
    for size in range(len(content)):
        shard.write_bytes(content[:size])
        with pytest.raises(lk.ShardError, match=rf"has {size:,} bytes, index\.json says {len(content):,}"):
            lk.MDSDataset(tmp_path)


@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_shard_gives_samples_or_our_error(packed: bool, tmp_path: Path) -> None:
    write_mds(tmp_path, ENTRIES, packed=packed)
    shard = next(tmp_path.glob("shard.00002*"))
    content = shard.read_bytes()
    data = lk.MDSDataset(tmp_path, ["text"], storage=lk.Storage(cache_dir=None))

    def samples(damaged: bytes) -> list[Any]:
        shard.write_bytes(damaged)
        found = lk.MDSDataset(tmp_path, ["text"], storage=lk.Storage(cache_dir=None))
        return [sample["text"] for sample in found]

    wrong = [(name, damaged.ljust(len(content), b"\0")) for name, damaged in cuts(content, 30)]
    found = outcomes(samples, [*wrong, *flips(content, 60)], (lk.ShardError,))
    assert any("shard.00002" in str(outcome) for outcome in found.values())
    assert len(data) == 6


def test_a_plain_shard_next_to_a_packed_one_is_read_if_it_is_whole(tmp_path: Path) -> None:
    """As the library leaves them after it has read a folder, also if it was killed while it unpacked."""
    write_mds(tmp_path / "plain", ENTRIES)
    write_mds(tmp_path / "it", ENTRIES, packed=True)
    packed = lk.MDSDataset(tmp_path / "it", storage=in_cache(tmp_path))
    shutil.copy(tmp_path / "plain" / "shard.00000.mds", tmp_path / "it")
    (tmp_path / "it" / "shard.00001.mds").write_bytes(b"part")
    both = lk.MDSDataset(tmp_path / "it", storage=in_cache(tmp_path))
    suffixes = [Path(shard).suffix for shard in both.shards]
    assert suffixes == [".mds", ".gz", ".gz"]
    assert list(both) == list(packed) == SAMPLES
    assert both.fingerprint() == packed.fingerprint() == lk.MDSDataset(tmp_path / "plain").fingerprint()


def test_columns_that_differ_are_found_at_the_open(tmp_path: Path) -> None:
    with pytest.raises(lk.ShardError, match=r"has the columns.*wanted the same in all.*columns="):
        lk.MDSDataset([MADE / "plain", MADE / "pickled"], decode={"pkl": pickle.loads})
    assert len(lk.MDSDataset([MADE / "plain", MADE / "pickled"], ["n"])) == 26


def test_parts_of_a_list_are_counted(tmp_path: Path) -> None:
    picture = bytes([2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]) + b"L" + bytes([3, 4])
    value = bytes(4) + (2).to_bytes(4, "little") + 2 * len(picture).to_bytes(4, "little") + 2 * picture
    write_mds(tmp_path, [[(0, "")]])
    for cut in (0, 1):
        content = shard_of([[bytes(8), value[: len(value) - cut]]], (8, None))
        (tmp_path / "shard.00000.mds").write_bytes(content)
        raw = {"basename": "shard.00000.mds", "bytes": len(content)}
        change_index(tmp_path, column_encodings=["int", "list[pil]"], raw_data=raw)
        if cut:
            with pytest.raises(lk.ShardError, match="its parts end at byte"):
                list(lk.MDSDataset(tmp_path))
        else:
            assert [picture.size for picture in lk.MDSDataset(tmp_path)[0]["text"]] == [(2, 1), (2, 1)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowStore]:
    with run_store(tmp_path_factory.mktemp("store")) as found:
        shutil.copytree(MADE, found.root / "bucket")
        yield found


@pytest.mark.parametrize("cache_bytes", [None, 1 << 20, 900])
@pytest.mark.parametrize("name", ["plain", "zstd", "merged", "every"])
def test_a_bucket_gives_the_samples_of_the_folder(
    name: str, cache_bytes: int | None, store: SlowStore, tmp_path: Path
) -> None:
    """By ranges, from copies, and with a cache that not all shards fit into."""
    cache = None if cache_bytes is None else tmp_path
    storage = lk.Storage(store.options, cache_dir=cache, cache_bytes=cache_bytes or 1)
    data = lk.MDSDataset(f"s3://bucket/{name}", storage=storage)
    local = lk.MDSDataset(MADE / name)
    assert data.fingerprint() == local.fingerprint()
    assert read(data) == wanted(name)
    order = np.random.default_rng(0).permutation(len(data)).tolist()
    assert read(data.__getitems__(order)) == [wanted(name)[each] for each in order]
    data.close()
    if cache_bytes == 1 << 20:
        store.reset()
        assert read(data) == wanted(name)
        assert not [each for each in store.requests() if each["method"] == "GET"]


def test_a_split_in_a_bucket_is_named_and_read(store: SlowStore) -> None:
    storage = lk.Storage(store.options, cache_dir=None)
    assert read(lk.MDSDataset("s3://bucket/splits/", split="val", storage=storage)) == wanted("splits-val")
    with pytest.raises(lk.ShardError, match="but the splits train, val"):
        lk.MDSDataset("s3://bucket/splits", storage=storage)


def test_opening_a_bucket_reads_no_shard(store: SlowStore) -> None:
    store.reset()
    lk.MDSDataset("s3://bucket/plain", storage=lk.Storage(store.options, cache_dir=None))
    requests = store.requests()
    assert requests
    assert not [each for each in requests if ".mds" in each["path"]]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("name", ["plain", "gz"])
def test_a_web_server_that_lists_nothing_is_read(name: str, tmp_path: Path) -> None:
    handler = functools.partial(_Quiet, directory=str(MADE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/{name}"
        for cache in (None, tmp_path):
            data = lk.MDSDataset(url, storage=lk.Storage(cache_dir=cache))
            assert read(data) == wanted(name)
            data.close()
        server.shutdown()


def test_preview_and_the_datamodule_find_the_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["preview", str(MADE / "plain")]) == 0
    assert "MDSDataset: 24 samples in 5 shards" in capsys.readouterr().out
    assert main(["preview", str(MADE / "splits"), "--option", "split=val"]) == 0
    assert "MDSDataset: 4 samples in 1 shard" in capsys.readouterr().out
    assert main(["preview", str(MADE / "splits")]) == 1
    assert "Say which: split='train'" in capsys.readouterr().err
    assert main(["index", str(MADE / "plain")]) == 0
    module = lk.ShardDataModule(train=MADE / "splits", options={"split": "train"})
    module.prepare_data()
    module.setup("fit")
    assert len(module.train_dataloader().dataset) == 4
    with pytest.raises(lk.ShardError, match="but the splits train, val"):
        lk.ShardDataModule(train=MADE / "splits").setup("fit")
