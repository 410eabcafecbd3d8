"""JSON lines: the samples are those of json.loads on each line that is not blank."""

import json
from pathlib import Path
from typing import Any

import pytest
from shards import SIZES, check_laws, check_reads, with_draws

import loaderkit as lk


def write(folder: Path, sizes: list[int]) -> list[dict[str, Any]]:
    """Shards with blank lines, both line ends, and with or without a last line feed."""
    samples: list[dict[str, Any]] = []
    for shard, size in enumerate(sizes):
        mine = [{"id": len(samples) + row, "text": "é\u2028" * (row % 5), "none": None} for row in range(size)]
        samples += mine
        rows = [json.dumps(sample, ensure_ascii=bool(row % 2)).encode() for row, sample in enumerate(mine)]
        end = b"\r\n" if shard % 2 else b"\n"
        content = (end + b" \t" + end).join(rows) + (end if shard % 3 else b"")
        (folder / f"{shard:03}.jsonl").write_bytes(content)
    return samples


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_samples_are_the_lines(sizes: list[int], tmp_path: Path) -> None:
    wanted = write(tmp_path, sizes)
    check_reads(lk.JsonlDataset(tmp_path), wanted)
    check_reads(lk.JsonlDataset(tmp_path), wanted)  # with the indexes that the first left
    assert lk.JsonlDataset(tmp_path).shard_sizes.tolist() == sizes


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_laws(sizes: list[int], tmp_path: Path) -> None:
    write(tmp_path, sizes)
    check_laws(
        lambda: lk.JsonlDataset(tmp_path, transform=with_draws, max_open=2),
        lambda row: row["id"],
    )


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (b'{"id": 1', r"000\.jsonl: line 3 \(byte 12\) is not JSON: Expecting"),
        (b"\xff\xfe", r"line 3 \(byte 12\) is not JSON: 'utf-8' codec"),
        (b"\0\0\0", r"line 3 \(byte 12\) is not JSON"),
        (b"[" * 200_000, r"line 3 \(byte 12\) is not JSON"),
    ],
)
def test_a_broken_line_is_named(broken: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "000.jsonl").write_bytes(b'{"id": 0}\n \n' + broken + b'\n{"id": 2}\n')
    data = lk.JsonlDataset(tmp_path)
    assert len(data) == 3
    assert data.__getitems__([0, 2]) == [{"id": 0}, {"id": 2}]
    with pytest.raises(lk.ShardError, match=message):
        data[1]
    for workers in (0, 1):
        with pytest.raises(lk.ShardError, match=message):
            list(lk.Loader(data, 3, num_workers=workers))


def test_compressed_and_utf16_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"\x1f\x8b\x08\x00")
    with pytest.raises(lk.ShardError, match=r"a\.jsonl: compressed with gzip"):
        lk.JsonlDataset(file)
    file.write_text('{"id": 0}\n', encoding="utf-16")
    with pytest.raises(lk.ShardError, match=r"a\.jsonl: UTF-16 text, wanted UTF-8"):
        lk.JsonlDataset(file)


def test_a_file_cut_while_it_is_in_use_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, [50])
    data = lk.JsonlDataset(tmp_path)
    data[0]  # opens it
    file = tmp_path / "000.jsonl"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(lk.ShardError, match=r"000\.jsonl: ends at byte 200"):
        data[40]


def test_a_file_that_changed_before_it_was_opened_is_an_error(tmp_path: Path) -> None:
    """The bytes at the old offsets may also be JSON."""
    file = tmp_path / "a.jsonl"
    file.write_text("111\n222\n")
    data = lk.JsonlDataset(file)
    file.write_text("1234567890\n")
    with pytest.raises(lk.ShardError, match=r"a\.jsonl: changed since it was indexed"):
        data[1]
