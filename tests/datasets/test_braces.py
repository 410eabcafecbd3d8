"""Braces stand for the names that WebDataset's own library gives, for every dataset of files."""

from pathlib import Path
from typing import Any

import fsspec
import pytest
from datasets_made import KINDS
from hypothesis import given
from hypothesis import strategies as st

import loaderkit as lk
from loaderkit.datasets.braces import expand_braces
from loaderkit.datasets.find_shards import expand
from loaderkit.datasets.shards.sharded import ShardedDataset

NUMBER = st.integers(-12, 120).map(lambda number: f"{number:0{number % 4}}")
STEP = st.sampled_from(["", "..1", "..2", "..-3", "..0", "..7"])
RANGE = st.one_of(
    st.builds("{{{}..{}{}}}".format, NUMBER, NUMBER, STEP),
    *(
        st.builds("{{{}..{}{}}}".format, letters, letters, STEP)
        for letters in (st.sampled_from("adxz"), st.sampled_from("ADXZ"))
    ),
)
TEXT = st.text("ab.-*/", max_size=4)


def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    listed = st.lists(inner, min_size=1, max_size=3).map(lambda parts: "{" + ",".join(parts) + "}")
    return st.lists(st.one_of(inner, listed), max_size=2).map("".join)


@given(st.recursive(st.one_of(TEXT, RANGE), nested, max_leaves=5))
def test_names_are_those_of_braceexpand(pattern: str) -> None:
    braceexpand = pytest.importorskip("braceexpand")
    assert expand_braces(pattern) == list(braceexpand.braceexpand(pattern, escape=False))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a", ["a"]),
        ("a{0..2}", ["a0", "a1", "a2"]),
        ("a{08..11}b", ["a08b", "a09b", "a10b", "a11b"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{a,b}{0..1}", ["a0", "a1", "b0", "b1"]),
        ("{a,b{0..1}}", ["a", "b0", "b1"]),
        ("{a}", ["{a}"]),
        ("{a}{0..1}", ["{a}0", "{a}1"]),
        ("}{{a,b}", ["}{a", "}{b"]),
        ("{,}", ["", ""]),
    ],
)
def test_braces_stand_for_names(pattern: str, names: list[str]) -> None:
    assert expand_braces(pattern) == names


@pytest.mark.parametrize("pattern", ["{0..1000000}", "a{b,{0..99999999999}}"])
def test_too_many_names_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"stands for more than 1,000,000 names"):
        expand_braces(pattern)


FILES = [
    "CsvDataset",
    "DocumentDataset",
    "JsonlDataset",
    "NpyDataset",
    "ParquetDataset",
    "SafetensorsDataset",
    "TarDataset",
    "TFRecordDataset",
    "TokenDataset",
]


def reopened(data: Any, urls: Any) -> Any:
    settings = {"TokenDataset": {"length": 16, "dtype": "uint16"}, "CsvDataset": {"types": {"n": int}}}
    return type(data)(urls, **settings.get(type(data).__name__, {}))


@pytest.mark.parametrize("kind", FILES)
def test_every_dataset_of_files_takes_them(kind: str, tmp_path: Path) -> None:
    data = KINDS[kind](tmp_path)
    assert isinstance(data, ShardedDataset)
    suffix = Path(data.shards[0]).suffix
    again = reopened(data, tmp_path / f"{{0..{len(data.shards) - 1}}}{suffix}")
    assert (again.shards, again.fingerprint()) == (data.shards, data.fingerprint())
    assert reopened(data, [f"{tmp_path}/{{2,0}}{suffix}"]).shards == [data.shards[2], data.shards[0]]


def test_sounds_take_them(tmp_path: Path) -> None:
    whole = KINDS["AudioDataset"](tmp_path)
    assert len(lk.AudioDataset(tmp_path / "{0..5}.wav", clips="all", clip_s=0.25, cache_dir=None)) == len(whole)


def test_a_file_whose_name_has_braces_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "{0..1}.x").write_bytes(b"")
    assert expand(tmp_path / "{0..1}.x", [".x"]) == [str(tmp_path / "{0..1}.x")]


def test_folders_and_globs_may_be_in_them(tmp_path: Path) -> None:
    for name in ("a/0.x", "b/0.x", "b/1.x", "c/0.x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    for urls in ("{b,a}", "{b,a}/*.x"):
        found = expand(tmp_path / urls, [".x"])
        assert [str(Path(shard).relative_to(tmp_path)) for shard in found] == ["b/0.x", "b/1.x", "a/0.x"]


def test_remote_files_are_not_listed_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = fsspec.filesystem("memory")
    for number in range(12):
        files.pipe_file(f"/braces/{number:02}.jsonl", b'{"n": %d}\n' % number)
    listed: list[str] = []
    find = lk.Storage.find
    monkeypatch.setattr(lk.Storage, "find", lambda self, url, *rest: listed.append(url) or find(self, url, *rest))
    data = lk.JsonlDataset("memory://braces/{00..11}.jsonl", index_dir=tmp_path)
    assert [row["n"] for row in data] == list(range(12))
    assert listed == []
    with pytest.raises(FileNotFoundError, match=r"braces/12\.jsonl"):
        lk.JsonlDataset("memory://braces/{00..12}.jsonl", index_dir=tmp_path)
    assert [row["n"] for row in lk.JsonlDataset("memory://braces/0{3..4}*", index_dir=tmp_path)] == [3, 4]
