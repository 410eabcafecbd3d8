"""Recognise formats of other tools that loaderkit does not read, and say what to do instead."""

import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from loaderkit.files.regular_file import open_regular

Read = Callable[[str], bytes]  # from a path relative to a folder to the file's content
HEAD = 32  # first bytes of a file that tell its format
_TABLES = (".parquet", ".pq", ".arrow", ".feather", ".ipc", ".jsonl", ".ndjson", ".jsonlines", ".csv", ".tsv")
_MDS = tuple(f".mds{packed}" for packed in ("", ".bz2", ".gz", ".br", ".snappy", ".zstd"))
# Suffixes of formats that loaderkit reads. If a folder has such files, other files next to them do not decide its
# format. Formats that are recognised by their first bytes are left out: the dataset that opens such a file reports it.
OURS = (*_TABLES, *_MDS, ".tar", ".npy", ".bin", ".tokens", ".ds")
_FILES = 1000  # of a folder whose names are looked at, at most
_HEADS = 20  # of these files that are opened, at most


class Format(NamedTuple):
    """A format of another tool.

    Args:
        name: Its name in errors, with the article.
        way_out: What to do instead, as sentences.
        mark: Regular expression for the end of a path that only this format has (its mark); empty for formats of single
            files.
        needs: A key that the mark, a JSON file, must have; empty for none.
        misread: Suffixes of files in such a folder that other datasets must not read.
        why: What would be wrong with reading them.
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
# Offset, first bytes ("magic") and key; the longest first. TFRecord and safetensors have no magic: `format_of_head`
# checks their first numbers.
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
    """Return the paths, out of those relative to a folder, that may be marks of a format."""
    return [name for name in names if name.endswith(_ENDS) and _MARKS.search(name)]


class Found(NamedTuple):
    """A format that was recognised.

    Args:
        key: The format's key in `FORMATS`.
        root: Folder of the data, relative to the folder that was searched, with a slash at the end; empty if it is that
            folder.
        mark: Path of the mark, relative to the folder that was searched.
        content: The mark's parsed JSON if `Format.needs` is set, else None.
    """

    key: str
    root: str
    mark: str
    content: object = None


def formats_at(marks: Iterable[str], read: Read) -> Iterator[Found]:
    """Yield the formats that marks show. `read` returns the content of a mark whose format has `needs`."""
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
    """Return sentences on a local path's format and what to do with it; None if it has no format of `FORMATS`."""
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
    """Return whether a mark of the format `key` lies directly in a local folder."""
    marks = find_marks(path.name for path in Path(folder).iterdir() if path.is_file())
    return any(found.key == key for found in formats_at(marks, local_reader(os.fspath(folder))))


def format_of_folder(folder: str | os.PathLike[str]) -> str | None:
    """Return the key of a local folder's format. Return None if there is no mark, or the marks belong to subfolders."""
    path = os.fspath(folder)
    if not Path(path).is_dir():
        return None
    marks = find_marks(islice(_files(path), _FILES))
    return next((found.key for found in formats_at(marks, local_reader(path)) if not found.root), None)


def format_of_head(head: bytes, size_bytes: int) -> str | None:
    """Return the key of a file's format by its first `HEAD` bytes; None if it is not in `FORMATS`."""
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
    """Return sentences on a file's format by its first bytes, to append to an error; empty if the format is unknown."""
    key = format_of_head(head, size_bytes)
    return "" if key is None else f" It is {FORMATS[key].name}. {FORMATS[key].way_out}"


def read_head(path: str) -> bytes:
    """Return the first `HEAD` bytes of a local file; empty if it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read(HEAD)
    except (OSError, ValueError):
        return b""


def _masked_crc32c(data: bytes) -> int:
    """Return the masked CRC-32C of bytes, as TFRecord stores it for a record's length."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def join(folder: str, root: str) -> str:
    """Return the path of a subfolder `root` of a folder, without a slash at the end."""
    return f"{folder.rstrip('/')}/{root}".rstrip("/") if root else folder


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _files(folder: str) -> Iterator[str]:
    """Yield the relative paths of all files in a folder and its subfolders."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        inner = Path(place).relative_to(folder).as_posix()
        yield from (name if inner == "." else f"{inner}/{name}" for name in sorted(names))


def local_reader(folder: str) -> Read:
    """Return a function that reads files of a local folder by their relative paths."""
    return lambda name: Path(folder, name).read_bytes()


def _json(read: Read, name: str) -> object:
    try:
        return json.loads(read(name))
    except (ValueError, OSError, RecursionError):
        return None
