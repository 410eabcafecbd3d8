"""Shar folders of lhotse: cuts with the data that its own reader gives, joined by position."""

import gzip
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawing import equal
from plain_values import plain
from remote_made import put_in_memory, remote_settings
from shards import check_laws, check_reads, with_draws
from tars_made import make

import loaderkit as lk
from loaderkit.cli.command import main

FIXTURES = Path(__file__).parents[2] / "fixtures" / "shar"
FOLDER = FIXTURES / "data"
VALUES: list[dict[str, Any]] = json.loads((FIXTURES / "values.json").read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "it"))


def as_its_reader(sample: dict[str, Any]) -> dict[str, Any]:
    """Return what the fixture has of a cut; a WAV file's 16-bit samples begin after 44 bytes."""
    cut, recording, vector = sample["cut"], sample["recording"], sample["vector"]
    assert (recording["format"], recording["data"][:4]) == ("wav", b"RIFF")
    audio = np.frombuffer(recording["data"], "<i2", offset=44).astype(np.float32) / 32768
    texts = [[part["start"], part["text"]] for part in cut["supervisions"]]
    return {
        "id": cut["id"],
        "duration": cut["duration"],
        "start": cut["start"],
        "texts": texts,
        "audio": plain(audio),
        "vector": None if vector is None else plain(np.load(io.BytesIO(vector["data"]))),
        "score": sample["score"],
    }


def test_each_cut_has_the_values_that_its_own_reader_gives() -> None:
    data = lk.SharDataset(FOLDER)
    assert len(data) == len(VALUES) == 7
    assert data.shard_sizes.tolist() == [3, 3, 1]
    assert list(map(as_its_reader, data)) == VALUES
    check_reads(data, list(data))


def test_placeholders_keep_the_position() -> None:
    data = lk.SharDataset(FOLDER)
    assert [number for number in range(7) if data[number]["vector"] is None] == [2]
    assert [number for number in range(7) if data[number]["score"] is None] == [3]


def test_the_laws_hold() -> None:
    ids = [value["id"] for value in VALUES]
    check_laws(lambda: lk.SharDataset(FOLDER, transform=with_draws), lambda sample: ids.index(sample["cut"]["id"]))


def test_a_remote_folder_is_the_same(tmp_path: Path) -> None:
    wanted = list(lk.SharDataset(FOLDER))
    url = put_in_memory(FOLDER, "shar-fixture")
    for settings in remote_settings(tmp_path):
        check_reads(lk.SharDataset(url, **settings), wanted)


def test_chosen_fields_and_places(folder: Path) -> None:
    wanted = list(lk.SharDataset(FOLDER))
    some = lk.SharDataset(folder, ["score"])
    assert equal(list(some), [{"cut": one["cut"], "score": one["score"]} for one in wanted])
    assert len(some[0]) == 2
    (folder.parent / "moved").mkdir()
    for path in folder.glob("vector*"):
        path.rename(folder.parent / "moved" / path.name)
    places = {"cuts": f"{folder}/cuts.*", "vector": sorted((folder.parent / "moved").glob("*.tar"))}
    both = lk.SharDataset(places)
    assert equal(list(both), [{"cut": one["cut"], "vector": one["vector"]} for one in wanted])
    assert len({data.fingerprint() for data in (some, both, lk.SharDataset(FOLDER))}) == 3


def test_plain_lines_are_those_of_packed_ones(folder: Path) -> None:
    wanted = list(lk.SharDataset(FOLDER))
    for path in folder.glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    check_reads(lk.SharDataset(folder), wanted)


@pytest.mark.filterwarnings("ignore")  # files that it leaves open
def test_cuts_are_those_of_lhotse() -> None:
    lhotse = pytest.importorskip("lhotse")
    theirs = list(lhotse.CutSet.from_shar(in_dir=FOLDER))
    data = lk.SharDataset(FOLDER, as_cuts=True)
    for row, (cut, other) in enumerate(zip(data, theirs, strict=True)):
        assert np.array_equal(cut.load_audio(), other.load_audio())
        if row != 2:
            assert np.array_equal(cut.load_vector(), other.load_vector())
        for name in ("shard_origin", "shar_epoch"):
            other.custom.pop(name)
        assert cut == other


def without_lhotse(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lhotse", "lhotse.serialization", "lhotse.shar", "lhotse.shar.utils"):
        monkeypatch.setitem(__import__("sys").modules, name, None)


def test_cuts_without_lhotse_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    without_lhotse(monkeypatch)
    assert len(list(lk.SharDataset(FOLDER))) == 7
    with pytest.raises(ImportError, match="as_cuts=True needs lhotse"):
        lk.SharDataset(FOLDER, as_cuts=True)


def test_preview_shows_the_cuts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preview", str(FOLDER), "--samples", "1"]) == 0
    assert "SharDataset: 7 samples in 3 shards" in capsys.readouterr().out


def drop_shard(folder: Path) -> None:
    (folder / "vector.000002.tar").unlink()


def swap(folder: Path) -> None:
    (folder / "vector.000000.tar").replace(folder / "vector.000001.tar")
    shutil.copy(FOLDER / "vector.000001.tar", folder / "vector.000000.tar")


def shorten(folder: Path) -> None:
    path = folder / "cuts.000001.jsonl.gz"
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(gzip.compress(b"".join(lines[:2])))


def cut_off(folder: Path) -> None:
    path = folder / "cuts.000001.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-20])


def no_pairs(folder: Path) -> None:
    make(folder / "vector.000001.tar", [("a.npy", b""), ("b.json", b"{}")])


def odd(folder: Path) -> None:
    make(folder / "vector.000001.tar", [("a.npy", b"")])


def no_json(folder: Path) -> None:
    path = folder / "score.000000.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}\n{\n{}\n"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop_shard, r"'vector' has 2 files, wanted 3, as many as the cuts have"),
        (swap, r"the data of 'vector' is of the cut 'cut-3\.5', wanted 'cut-0\.5'"),
        (shorten, r"recording\.000001\.tar: has 3 samples, wanted 2, as .*cuts\.000001\.jsonl\.gz has"),
        (cut_off, r"cuts\.000001\.jsonl\.gz: not a whole gzip file"),
        (no_pairs, r"vector\.000001\.tar, offset 1,024: 'b\.json' after a file of 'a', wanted pairs"),
        (odd, r"vector\.000001\.tar: the last file has no manifest"),
        (no_json, r"score\.000000\.jsonl\.gz: line 2 is not JSON"),
    ],
    ids=["no shard", "other order", "other size", "cut", "no pairs", "odd", "no JSON"],
)
def test_what_does_not_fit_is_named(damage: Callable[[Path], None], message: str, folder: Path) -> None:
    damage(folder)
    with pytest.raises(lk.ShardError, match=message):
        lk.SharDataset(folder).__getitems__([0, 1])


def test_what_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(
        lk.ShardError, match=r"has no field 'features', wanted some of \['recording', 'score', 'vector'\]"
    ):
        lk.SharDataset(folder, ["features"])
    for path in folder.glob("cuts*"):
        path.unlink()
    for place in (folder, folder / "nowhere"):
        with pytest.raises(FileNotFoundError, match=r"no cuts in .*wanted files such as cuts\.000000\.jsonl\.gz"):
            lk.SharDataset(place)


def test_the_folder_is_named_by_other_datasets(folder: Path) -> None:
    with pytest.raises(
        lk.ShardError, match=r"a Shar folder of lhotse.*Its fields: recording, vector.*lk\.SharDataset\(folder\)"
    ):
        lk.TarDataset(folder)
