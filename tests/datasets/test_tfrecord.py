"""TFRecord files: the values that their own reader gives, by random access, and an error for whatever is damaged."""

import gzip
import json
import shlex
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawing import equal
from hypothesis import given
from hypothesis import strategies as st
from plain_values import plain
from remote_made import put_in_memory, remote_settings
from shards import SIZES, check_laws, check_reads, with_draws
from tfrecord_made import delimited, example, feature, masked_crc, varint, write_records

import loaderkit as lk
from loaderkit.cli.command import main
from loaderkit.datasets.tfrecord.example import parse_example

FIXTURES = Path(__file__).parents[1] / "fixtures" / "tfrecord"
VALUES: dict[str, list[dict[str, Any]]] = json.loads((FIXTURES / "values.json").read_text())
EXAMPLES, SEQUENCES = f"{FIXTURES}/examples.tfrecord-*", FIXTURES / "sequences.tfrecord"


def listed(value: Any) -> Any:
    """Return what the own reader gives with several bytes as a list, where it has an array of them."""
    if isinstance(value, dict) and str(value.get("array")).startswith("|S"):
        return value["values"]
    return {name: listed(inner) for name, inner in value.items()} if isinstance(value, dict) else value


def test_each_record_has_the_values_that_its_own_reader_gives() -> None:
    data = lk.TFRecordDataset(EXAMPLES)
    assert len(data) == len(VALUES["examples"]) == 6
    assert [plain(sample) for sample in data] == [listed(sample) for sample in VALUES["examples"]]
    check_reads(data, list(data))
    assert data.shard_sizes.tolist() == [3, 3]
    assert [data.place(row).start for row in (0, 3)] == [12, 12]


def test_each_sequence_has_the_values_that_its_own_reader_gives() -> None:
    data = lk.TFRecordDataset(SEQUENCES, record="sequence")
    assert [plain(sample) for sample in data] == [listed(sample) for sample in VALUES["sequences"]]
    some = lk.TFRecordDataset(SEQUENCES, {"id": int, "tokens": [int]}, record="sequence")[2]
    assert equal(some["context"], {"id": 3})
    assert [step.tolist() for step in some["feature_lists"]["tokens"]] == [[0, 0], [1, -1], [2, -2]]


def test_a_folder_and_a_remote_one_are_the_same(tmp_path: Path) -> None:
    wanted = list(lk.TFRecordDataset(EXAMPLES))
    for path in FIXTURES.glob("examples*"):
        (tmp_path / "it").mkdir(exist_ok=True)
        (tmp_path / "it" / path.name).write_bytes(path.read_bytes())
    check_reads(lk.TFRecordDataset(tmp_path / "it"), wanted)
    url = put_in_memory(tmp_path / "it", "tfrecord-fixture")
    for settings in remote_settings(tmp_path):
        check_reads(lk.TFRecordDataset(url, **settings), wanted)


def test_records_are_the_bytes_between_the_checksums() -> None:
    data = lk.TFRecordDataset(SEQUENCES, record="bytes")
    content = SEQUENCES.read_bytes()
    assert all(record in content for record in data)
    assert sum(map(len, data)) == len(content) - 3 * 16


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_laws_hold(sizes: list[int], tmp_path: Path) -> None:
    start = 0
    for shard, size in enumerate(sizes):
        numbers = range(start, start + size)
        write_records(
            tmp_path / f"{shard}.tfrecord", [example(n=[number], pad=[b"x" * (number % 90)]) for number in numbers]
        )
        start += size
    check_reads(lk.TFRecordDataset(tmp_path, {"n": int}), [{"n": number} for number in range(start)])
    check_laws(lambda: lk.TFRecordDataset(tmp_path, transform=with_draws), lambda sample: int(sample["n"][0]))


INTEGERS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40)
FLOATS = st.lists(st.floats(width=32, allow_nan=False), max_size=40)


@given(INTEGERS, FLOATS, st.lists(st.binary(max_size=20), max_size=4), st.booleans())
def test_packed_and_unpacked_lists_are_the_same(
    integers: list[int], floats: list[float], texts: list[bytes], packed: bool
) -> None:
    found = parse_example(
        example(packed=packed, i=integers, f=floats, b=texts), {"i": [int], "f": [float], "b": [bytes]}
    )
    wanted = {"i": np.array(integers, np.int64), "f": np.array(floats, np.float32), "b": texts}
    assert equal(found, wanted)


def test_zeros_at_the_end_of_bytes_stay() -> None:
    """Tfrecord's own reader drops them where there are several values."""
    texts = [b"a\0", b"b\0\0"]
    assert parse_example(example(one=texts[:1], two=texts)) == {"one": texts[0], "two": texts}


def test_what_features_says_is_what_comes(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.tfrecord", [example(n=[7], x=[0.5], s=[b"s"], many=[1, 2], none=[])])
    forms = {"n": int, "x": float, "s": bytes, "many": [int], "absent": [float], "gone": [bytes], "none": [int]}
    [sample] = lk.TFRecordDataset(path, forms)
    integers, floats = np.array([1, 2]), np.empty(0, np.float32)
    assert equal(
        sample,
        {"n": 7, "x": np.float32(0.5), "s": b"s", "many": integers, "absent": floats, "gone": [], "none": integers[:0]},
    )
    assert list(lk.TFRecordDataset(path, ["x", "n"])[0]) == ["x", "n"]
    batch = next(iter(lk.Loader(lk.TFRecordDataset(path, {"n": int, "x": float, "s": bytes}), 1)))
    assert [str(batch["n"].dtype), str(batch["x"].dtype), batch["s"]] == ["torch.int64", "torch.float32", [b"s"]]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"n": float}, "feature 'n': has integers, wanted floats"),
        ({"n": [bytes]}, "feature 'n': has integers, wanted bytes"),
        ({"many": int}, r"feature 'many': has 2 values, wanted one\. For all: \[int\]"),
        ({"y": int}, r"no feature 'y', found \['many', 'n'\].*features=\{'y': \[int\]\}"),
        (["y"], "no feature 'y'"),
    ],
)
def test_a_record_of_another_form_is_named(features: Any, message: str, tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.tfrecord", [example(n=[7], many=[1, 2])])
    with pytest.raises(lk.ShardError, match=rf"a\.tfrecord: the record at byte 12 can't be read as example: {message}"):
        lk.TFRecordDataset(path, features)[0]


@pytest.mark.parametrize(
    "record",
    [
        b"\xff" * 30,
        b"text, no message",
        b"\x0a\x7f",
        b"\x0b",
        b"\x08\x07\x0a",
        b"\x0a\x03\x0a\x01\xff",
        b"\x0a\x02\x08\x01",
    ],
    ids=range(7),
)
def test_other_records_are_named(record: bytes, tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.tfrecord", [record])
    for kind in ("example", "sequence"):
        with pytest.raises(lk.ShardError, match=f"can't be read as {kind}.*record='bytes'"):
            lk.TFRecordDataset(path, record=kind)[0]  # type: ignore[arg-type]
    assert lk.TFRecordDataset(path, record="bytes")[0] == record


def test_wrong_settings_are_named() -> None:
    for features in ("n", {"n": str}, {"n": [int, int]}, {"n": []}):
        with pytest.raises(ValueError, match=r"features is .*wanted a list of names"):
            lk.TFRecordDataset(EXAMPLES, features)  # type: ignore[arg-type]
    for settings in ({"record": "text"}, {"record": "bytes", "features": ["n"]}):
        with pytest.raises(ValueError, match="wanted 'example' or 'sequence', or 'bytes' without features"):
            lk.TFRecordDataset(EXAMPLES, **settings)  # type: ignore[arg-type]


RECORDS = [bytes([number]) * size for number, size in enumerate((3, 0, 9000, 5, 70_000, 8, 9))]


@pytest.mark.parametrize("damage", ["cut", "length", "length's checksum"])
def test_damage_is_found_when_the_file_is_indexed(damage: str, tmp_path: Path) -> None:
    """At any place, after short and long records."""
    path = write_records(tmp_path / "a.tfrecord", RECORDS)
    content, at = path.read_bytes(), 0
    for record in RECORDS:
        broken = bytearray(content)
        if damage == "cut":
            broken = broken[: at + 5]
        else:
            broken[at + {"length": 1, "length's checksum": 9}[damage]] ^= 64
        if at or damage != "cut":
            path.write_bytes(broken)
            with pytest.raises(lk.ShardError, match=f"record at byte {at:,}"):
                lk.TFRecordDataset(path, record="bytes", index_dir=tmp_path)
        at += 16 + len(record)


def test_a_damaged_record_is_found_when_it_is_read(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.tfrecord", RECORDS)
    content = bytearray(path.read_bytes())
    content[12] ^= 1
    path.write_bytes(content)
    data = lk.TFRecordDataset(path, record="bytes", check=True)
    assert data[2] == RECORDS[2]
    with pytest.raises(lk.ShardError, match=r"a\.tfrecord: the record at byte 12 is damaged"):
        data.__getitems__([2, 0])
    assert lk.TFRecordDataset(path, record="bytes", check=False)[0] == b"\x01\x00\x00"


def test_without_a_library_for_checksums_records_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_records(tmp_path / "a.tfrecord", RECORDS)
    for name in ("google_crc32c", "crc32c"):
        monkeypatch.setitem(sys.modules, name, None)
    assert list(lk.TFRecordDataset(path, record="bytes")) == RECORDS
    with pytest.raises(ImportError, match="check=True needs google-crc32c"):
        lk.TFRecordDataset(path, record="bytes", check=True)


PACK: dict[str, Callable[[bytes], bytes]] = {"GZIP": gzip.compress, "ZLIB": zlib.compress}


@pytest.mark.parametrize("name", PACK)
def test_a_compressed_file_is_named_and_the_way_out_works(name: str, tmp_path: Path) -> None:
    plain_file = write_records(tmp_path / "plain", RECORDS)
    path = tmp_path / "a.tfrecord"
    path.write_bytes(PACK[name](plain_file.read_bytes()))
    with pytest.raises(lk.ShardError, match=rf"compressed with {name}.*TFRecordOptions\('{name}'\)") as caught:
        lk.TFRecordDataset(path)
    command = str(caught.value).rpartition("the new file: ")[2].replace("python", sys.executable, 1)
    new = tmp_path / "new.tfrecord"
    command = command.replace("FILE", shlex.quote(str(path))).replace("NEW", shlex.quote(str(new)))
    subprocess.run(command, shell=True, check=True)
    assert list(lk.TFRecordDataset(new, record="bytes")) == RECORDS


def test_other_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(b"some text that is no record at all")
    with pytest.raises(lk.ShardError, match="no record at byte 0: not a TFRecord file, or damaged"):
        lk.TFRecordDataset(tmp_path)
    (tmp_path / "a.tfrecord").write_bytes(b"")
    assert len(lk.TFRecordDataset(tmp_path)) == 0


def test_the_commands_read_them(capsys: pytest.CaptureFixture[str]) -> None:
    for source in (EXAMPLES, str(FIXTURES), str(SEQUENCES)):
        assert main(["index", source, "--quiet"]) == 0
        assert main(["preview", source, "--samples", "1"]) == 0
    assert "TFRecordDataset: 6 samples in 2 shards" in capsys.readouterr().out


def test_checksums_are_those_of_the_format() -> None:
    """The record's own in the fixture is what tfrecord wrote."""
    content = SEQUENCES.read_bytes()
    (size, crc) = struct.unpack_from("<QI", content)
    assert crc == masked_crc(content[:8])
    assert varint(300) == b"\xac\x02"
    assert delimited(1, b"a") == b"\x0a\x01a"
    assert len(feature([1, 2], packed=True)) < len(feature([1, 2], packed=False)) + 4
    assert struct.unpack_from("<I", content, 12 + size)[0] == masked_crc(content[12 : 12 + size])
