"""ArrayRecord: the records that the format's own reader gives, with workers that are not forked."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
from shards import SIZES, check_laws, check_reads, with_draws

import loaderkit as lk
from loaderkit.cli.command import main

if importlib.util.find_spec("array_record") is None:
    pytest.skip("needs array_record", allow_module_level=True)

ROOT = Path(__file__).parents[1] / "fixtures" / "array_record"
VALUES = {
    name: [text.encode() for text in texts] for name, texts in json.loads((ROOT / "values.json").read_text()).items()
}
ALL = [record for name in sorted(VALUES) for record in VALUES[name]]


def write(path: Path, records: list[bytes], group: int = 1) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), f"group_size:{group}")
    for record in records:
        writer.write(record)
    writer.close()


def test_records_are_those_of_the_formats_own_reader() -> None:
    for urls in (ROOT, str(ROOT / "*.array_record"), [ROOT / name for name in VALUES]):
        check_reads(lk.ArrayRecordDataset(urls), ALL)
    for name, records in VALUES.items():
        check_reads(lk.ArrayRecordDataset(ROOT / name), records)
    assert lk.ArrayRecordDataset(ROOT).shard_sizes.tolist() == [7, 11]
    assert lk.ArrayRecordDataset(ROOT, transform=len)[2] == 6
    assert lk.ArrayRecordDataset(ROOT).place(8) == (str(ROOT / "a-1.array_record"), 1, None, None)


@pytest.mark.parametrize("group", [1, 2, 100])
@pytest.mark.parametrize("sizes", SIZES)
def test_files_of_any_size_and_group_are_read(sizes: list[int], group: int, tmp_path: Path) -> None:
    """Also empty files and empty records."""
    wanted: list[bytes] = []
    for number, size in enumerate(sizes):
        records = [b"%d" % row * (row % 3) for row in range(len(wanted), len(wanted) + size)]
        write(tmp_path / f"{number}.array_record", records, group)
        wanted += records
    check_reads(lk.ArrayRecordDataset(tmp_path), wanted)


def test_the_laws_hold_with_workers_that_are_not_forked() -> None:
    check_laws(lambda: lk.ArrayRecordDataset(ROOT, transform=with_draws), ALL.index, start_method=None)
    assert "started by spawn" in str(lk.Loader(lk.ArrayRecordDataset(ROOT), 2, num_workers=1).describe())


def test_remote_files_are_read_from_copies(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    for name in VALUES:
        fsspec.filesystem("memory").pipe_file(f"/{tmp_path.name}/{name}", (ROOT / name).read_bytes())
    url, index = f"memory://{tmp_path.name}", tmp_path / "index"
    for cache_bytes in (1 << 20, 140_000):  # also if there is room for one copy alone
        storage = lk.Storage(cache_dir=tmp_path / f"{cache_bytes}", cache_bytes=cache_bytes)
        check_reads(lk.ArrayRecordDataset(url, storage=storage, index_dir=index), ALL)
    with pytest.raises(lk.ShardError, match=r"a remote file, wanted a local one.*cache_dir"):
        lk.ArrayRecordDataset(url, storage=lk.Storage(cache_dir=None), index_dir=tmp_path / "other")


def test_names_and_numbers_are_in_the_fingerprint(tmp_path: Path) -> None:
    shutil.copytree(ROOT, tmp_path / "moved")
    write(tmp_path / "a-0.array_record", [b"0"])
    found = [
        lk.ArrayRecordDataset(place).fingerprint()
        for place in (ROOT, tmp_path / "moved", tmp_path / "a-0.array_record")
    ]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with b'', wanted an ArrayRecord file. Its writer was not closed."),
        (b"text" * 50_000, "starts with b'texttext', wanted an ArrayRecord file"),
        (None, "not a whole ArrayRecord file: "),
    ],
)
def test_what_is_no_whole_file_is_named(content: bytes | None, message: str, tmp_path: Path) -> None:
    whole = (ROOT / "a-0.array_record").read_bytes()
    for cut in [0] if content is not None else [64, 1000, 65_536, 70_000, len(whole) - 1]:
        (tmp_path / "a.array_record").write_bytes(whole[:cut] if content is None else content)
        with pytest.raises(lk.ShardError, match=f"a.array_record: {message}"):
            lk.ArrayRecordDataset(tmp_path)


def test_a_damaged_record_is_named_and_others_are_still_read(tmp_path: Path) -> None:
    """The library's reader fails for good, and then gives empty records without an error."""
    path = tmp_path / "b.array_record"
    write(path, [bytes(row * 7 % 256 for row in range(seed, seed + 40_000)) for seed in range(20)])
    content = bytearray(path.read_bytes())
    data = lk.ArrayRecordDataset(path)
    good = [data[row] for row in range(20)]
    assert len(set(good)) == 20
    middle = len(content) // 20
    for place in range(middle, middle + 40):
        content[place] ^= 0xFF
    (tmp_path / "a.array_record").write_bytes(bytes(content))
    data = lk.ArrayRecordDataset(tmp_path / "a.array_record")
    bad: dict[int, str] = {}
    for row in range(20):
        try:
            assert data[row] == good[row]
        except lk.ShardError as error:
            bad[row] = str(error)
    assert 0 < len(bad) < 10
    assert all(f"a.array_record: records {row} to {row} can't be read: " in said for row, said in bad.items())


def test_preview_shows_the_first_records(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preview", str(ROOT), "--samples", "2"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("ArrayRecordDataset: 18 samples in 2 shards\n")
    assert "b'1:xx'" in said


def test_its_index_is_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lk.index_shards(ROOT / "*.array_record", index_dir=tmp_path) == 18
    assert main(["index", str(ROOT), "--check", "--index-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith("2 shards: 2 fresh; 18 samples\n")
