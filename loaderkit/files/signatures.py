"""Formats of other tools that loaderkit does not read, known by the files that only they have, and what to do instead."""

import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from loaderkit.files.regular_file import open_regular

Read = Callable[[str], bytes]  # a file's content, by its path relative to the folder
HEAD = 32  # first bytes of a file that tell its format
_TABLES = (".parquet", ".pq", ".arrow", ".feather", ".ipc", ".jsonl", ".ndjson", ".jsonlines", ".csv", ".tsv")
_MDS = tuple(f".mds{packed}" for packed in ("", ".bz2", ".gz", ".br", ".snappy", ".zstd"))
# Suffixes of the formats that loaderkit reads: a folder with such files is not named after others next to them. Files that their
# magic tells are not among them: any other dataset names them.
OURS = (*_TABLES, *_MDS, ".tar", ".npy", ".bin", ".tokens", ".ds")
_FILES = 1000  # of a folder that are looked at to find out what it is
_HEADS = 20  # of them that are opened


class Format(NamedTuple):
    """A format of another tool.

    Args:
        name: What an error calls it, with the article.
        way_out: What to do instead, as sentences.
        mark: Pattern for the end of a path that only this format has; empty for single files.
        needs: A key that the marked JSON file must have.
        misread: Suffixes of files in such a folder that a dataset must not read on their own.
        why: What would be wrong then.
    """

    name: str
    way_out: str
    mark: str = ""
    needs: str = ""
    misread: tuple[str, ...] = ()
    why: str = ""


_CONVERT = "Read it with {}, and write it again: lk.write_shards(samples, folder)."
FORMATS: dict[str, Format] = {
    "delta": Format(
        "a Delta table",
        "Open it with lk.DeltaDataset(table), or give the files of a version: lk.ParquetDataset(sorted(DeltaTable(table).file_uris())).",
        r"_delta_log/\d{20}\.(?:json|checkpoint\b.*parquet)",
        misread=(".parquet",),
        why="its folder also holds files of deleted and replaced rows",
    ),
    "iceberg": Format(
        "an Iceberg table",
        "Write the rows of a snapshot to files of their own: pq.write_table(table.scan().to_arrow(), 'rows.parquet') with pyiceberg.",
        r"metadata/[^/]+\.metadata\.json(?:\.gz)?",
        misread=(".parquet",),
        why="its folder also holds files of deleted and replaced rows",
    ),
    "dataset_dict": Format(
        "a DatasetDict of Hugging Face",
        "Say which split: lk.ParquetDataset(folder, split='train'), or lk.HFDataset(datasets.load_from_disk(folder)['train']).",
        r"dataset_dict\.json",
        needs="splits",
        misread=(".arrow",),
        why="its splits would be mixed",
    ),
    "energon": Format(
        "a prepared folder of Megatron Energon",
        "Say which split: lk.TarDataset(folder, split='train'), or give a list of its tar files.",
        r"\.nv-meta/split\.yaml",
        misread=(".tar",),
        why="its splits would be mixed, with the samples that it excludes",
    ),
    "shar": Format(
        "a Shar folder of lhotse",
        "Open it with lk.SharDataset(folder), or read the files of one field alone with a glob: "
        "lk.TarDataset('folder/recording.*.tar').",
        r"cuts\.\d+\.jsonl(?:\.gz)?",
        misread=(".tar",),
        why="its fields belong to the same samples and would come one after another",
    ),
    "lerobot": Format(
        "a LeRobot dataset",
        "Open it with lk.LeRobotDataset(folder), or read the numbers alone: lk.ParquetDataset(folder + '/data').",
        r"meta/info\.json",
        needs="codebase_version",
        misread=(".parquet",),
        why="its data, episodes and tasks would be mixed",
    ),
    "mds": Format(
        "an MDS dataset of mosaicml-streaming",
        "Open it with lk.MDSDataset(folder).",
        r"index\.json",
        needs="shards",
    ),
    "litdata": Format(
        "a dataset of litdata",
        "Open it with lk.LitDataset(folder), or chunks of tokens with lk.DocumentDataset(folder).",
        r"index\.json",
        needs="chunks",
    ),
    "lance": Format(
        "a Lance dataset",
        "Open it with lk.LanceDataset(folder).",
        r"_versions/[^/]+\.manifest",
    ),
    "zarr": Format(
        "a Zarr store",
        "Open it with lk.ZarrDataset(store).",
        r"(?:zarr\.json|\.zarray|\.zgroup|\.zmetadata)",
    ),
    "hdf5": Format("an HDF5 file", "Open it with lk.Hdf5Dataset(path)."),
    "vortex": Format("a Vortex file", _CONVERT.format("vortex.open(path).scan().read_all()")),
    "tfrecord": Format("a TFRecord file", "Open it with lk.TFRecordDataset(path)."),
    "arrayrecord": Format(
        "an ArrayRecord file",
        "Open it with lk.ArrayRecordDataset(path).",
    ),
    "sqlite": Format(
        "an SQLite database", "Write a dataset of your own whose connection is an lk.Handle(sqlite3.connect, path)."
    ),
    "duckdb": Format("a DuckDB database", "Export the table: COPY name TO 'rows.parquet' (FORMAT parquet)."),
    "safetensors": Format("a safetensors file", "Open it with lk.SafetensorsDataset(path)."),
}
# Longest magics first. TFRecord and safetensors have none: their first numbers are checked.
_MAGICS = (
    (0, bytes.fromhex("83af70d10d884a3f00000000000000004000000000000000"), "arrayrecord"),  # Riegeli's first chunk
    (0, b"SQLite format 3\0", "sqlite"),
    (0, b"\x89HDF\r\n\x1a\n", "hdf5"),
    (0, b"VTXF", "vortex"),
    (8, b"DUCK", "duckdb"),
)
_ENDS = (".json", ".parquet", ".gz", ".yaml", ".jsonl", ".manifest", ".zarray", ".zgroup", ".zmetadata")
_MARKS = re.compile(r"(?:^|/)(?:" + "|".join(sorted({each.mark for each in FORMATS.values() if each.mark})) + r")$")
_BY_MARK = [(key, re.compile(rf"(?P<root>^|.*/){one.mark}")) for key, one in FORMATS.items() if one.mark]


def find_marks(names: Iterable[str]) -> list[str]:
    """Return the paths, relative to a folder, that may be marks of a format."""
    return [name for name in names if name.endswith(_ENDS) and _MARKS.search(name)]


class Found(NamedTuple):
    """A format that was found.

    Args:
        key: Its key in `FORMATS`.
        root: Its folder, relative to the one that was looked at, with a slash at its end; empty for this one.
        mark: The path of the file that shows it, relative as well.
        content: The mark's JSON if the format needs it.
    """

    key: str
    root: str
    mark: str
    content: object = None


def formats_at(marks: Iterable[str], read: Read) -> Iterator[Found]:
    """Yield the formats that marked paths show; `read` gives the content of a mark that must be looked into."""
    for mark in sorted(marks, key=lambda name: (name.count("/"), name)):
        content: object = None
        for key, pattern in _BY_MARK:
            if (match := pattern.fullmatch(mark)) is None:
                continue
            if needs := FORMATS[key].needs:
                content = _json(read, mark) if content is None else content
                if not (isinstance(content, dict) and needs in content):
                    continue
            yield Found(key, match["root"], mark, content)


def describe(path: str | os.PathLike[str]) -> str | None:
    """Return what a local file or folder is, and what to do with it, in words; None if it is of no format in the table."""
    path = os.fspath(path)
    if Path(path).is_file():
        key = format_of_head(read_head(path), Path(path).stat().st_size)
        return None if key is None else f"{path}: is {FORMATS[key].name}. {FORMATS[key].way_out}"
    if not Path(path).is_dir():
        return None
    names = list(islice(_files(path), _FILES))
    ours = [name for name in names if name.endswith(OURS)]
    for found in formats_at(find_marks(names), local_reader(path)):
        if not all(name.startswith(found.root) for name in ours):
            continue
        one = FORMATS[found.key]
        return f"{join(path, found.root)}: is {one.name}, as {found.mark} shows. {one.way_out}"
    for name in islice((name for name in sorted(names) if not ours and not _is_hidden(name)), _HEADS):
        if (key := format_of_head(read_head(f"{path}/{name}"), Path(path, name).stat().st_size)) is not None:
            return f"{path}: {name} is {FORMATS[key].name}. {FORMATS[key].way_out}"
    return None


def is_of(folder: str | os.PathLike[str], key: str) -> bool:
    """Return whether a local folder itself, not one within it, has a mark of a format."""
    marks = find_marks(path.name for path in Path(folder).iterdir() if path.is_file())
    return any(found.key == key for found in formats_at(marks, local_reader(os.fspath(folder))))


def format_of_folder(folder: str | os.PathLike[str]) -> str | None:
    """Return the key of the format that a local folder is of as a whole; None if its marks are of folders in it, or there are none."""
    path = os.fspath(folder)
    if not Path(path).is_dir():
        return None
    marks = find_marks(islice(_files(path), _FILES))
    return next((found.key for found in formats_at(marks, local_reader(path)) if not found.root), None)


def format_of_head(head: bytes, size_bytes: int) -> str | None:
    """Return the key of the format of a file by its first `HEAD` bytes; None if it is none of the table."""
    for at, magic, key in _MAGICS:
        if head[at:].startswith(magic):
            return key
    if len(head) < 12:
        return None
    (length, checksum) = struct.unpack_from("<QI", head)
    if length + 16 <= size_bytes and checksum == _masked_crc32c(head[:8]):
        return "tfrecord"
    if 2 <= length <= size_bytes - 8 and head[8:9] == b"{" and head[9:].lstrip()[:1] in (b'"', b"}"):
        return "safetensors"
    return None


def what_head(head: bytes, size_bytes: int) -> str:
    """Return a sentence that names the format of a file by its head, to end an error with; empty if it has no name."""
    key = format_of_head(head, size_bytes)
    return "" if key is None else f" It is {FORMATS[key].name}. {FORMATS[key].way_out}"


def read_head(path: str) -> bytes:
    """Return the first bytes of a local file; empty if they can't be read."""
    try:
        with open_regular(path) as file:
            return file.read(HEAD)
    except (OSError, ValueError):
        return b""


def _masked_crc32c(data: bytes) -> int:
    """Return the checksum that TFRecord has of a record's length."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def join(folder: str, root: str) -> str:
    """Return the path of a folder within another."""
    return f"{folder.rstrip('/')}/{root}".rstrip("/") if root else folder


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _files(folder: str) -> Iterator[str]:
    """Yield the files in a folder and in its folders, relative to it."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        inner = Path(place).relative_to(folder).as_posix()
        yield from (name if inner == "." else f"{inner}/{name}" for name in sorted(names))


def local_reader(folder: str) -> Read:
    """Return a function that reads the files of a local folder."""
    return lambda name: Path(folder, name).read_bytes()


def _json(read: Read, name: str) -> object:
    try:
        return json.loads(read(name))
    except (ValueError, OSError, RecursionError):
        return None
