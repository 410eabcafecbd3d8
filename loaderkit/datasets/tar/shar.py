"""lhotse's Shar folders: cuts as JSON lines, and their fields in tar or JSON Lines files in the same order."""

import gzip
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from loaderkit.datasets.base import Transform
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.datasets.tar.dataset import TarDataset
from loaderkit.datasets.tar.headers import read_headers, shard_error
from loaderkit.datasets.tar.index import TarTable
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls, is_remote, shard_name
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import listed

_CUTS = "cuts"
_LINES = (".jsonl", ".jsonl.gz")


class _Lines(ShardedDataset[str]):
    """JSON lines in plain or gzip files. The index holds all lines, because a compressed file has no random access."""

    kind = "shar-lines-1"
    suffixes: ClassVar[tuple[str, ...]] = _LINES

    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        with self.files.open(shard) as file:
            content = file.read()
        try:
            text = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
        except (OSError, EOFError, zlib.error) as error:
            raise ShardError(f"{shard}: not a whole gzip file: {error}. Copy it again.") from error
        lines = [line for line in text.split(b"\n") if line.strip()]
        ends = np.cumsum([len(line) for line in lines], dtype=np.int64)
        joined = b"".join(lines)
        words = np.frombuffer(joined + bytes(-len(joined) % 8), "<i8").astype(np.int64)
        return len(lines), np.concatenate([ends, words])

    @staticmethod
    def has_offsets(index: ShardIndex) -> bool:
        words = index.offsets
        if words is None or words.ndim != 1 or len(words) < index.count:
            return False
        ends = words[: index.count]
        return bool((np.diff(ends, prepend=0) > 0).all()) and (
            not index.count or ends[-1] <= 8 * (len(words) - len(ends))
        )

    def open(self, shard: str, index: ShardIndex) -> str:
        return shard

    def read(self, handle: str, rows: Int64Array, index: ShardIndex) -> Sequence[object]:
        words = index.spans(handle)
        content = words[index.count :].astype("<i8", copy=False).view(np.uint8).data
        found = []
        for row in rows.tolist():
            line = bytes(content[words[row - 1] if row else 0 : words[row]])
            try:
                found.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise ShardError(f"{handle}: line {row + 1} is not JSON: {error}.") from error
        return found


class _Files(TarDataset):
    """Tar shards with pairs of files of one name: data and manifest. The extension is what follows the last dot."""

    kind = "shar-files-1"

    def scan(self, shard: str) -> tuple[int, Int64Array]:
        members: list[int] = []
        ids: list[bytes] = []
        extensions: dict[str, int] = {}
        with self.files.open(shard) as file:
            for number, (name, offset, size) in enumerate(read_headers(file, self.files.stat(shard).size_bytes, shard)):
                key, _, extension = name.rpartition(b".")
                if number % 2 and key != ids[-1]:
                    what = f"{name.decode(errors='replace')!r} after a file of {ids[-1].decode(errors='replace')!r}"
                    raise shard_error(
                        shard, offset, f"{what}, wanted pairs of data and manifest, as lhotse writes them"
                    )
                if not number % 2:
                    ids.append(key)
                kind = extensions.setdefault(extension.decode(errors="surrogateescape"), len(extensions))
                members += (offset, size, kind)
        if len(members) != 6 * len(ids):
            raise ShardError(f"{shard}: the last file has no manifest after it, wanted pairs, as lhotse writes them.")
        ends = np.empty((len(ids), 2), dtype=np.int64)
        ends[:, 0] = 2 * np.arange(1, len(ids) + 1)
        ends[:, 1] = np.cumsum([len(key) for key in ids])
        table = TarTable(np.array(members, dtype=np.int64).reshape(-1, 3), ends, b"".join(ids), list(extensions))
        return len(ids), table.pack()


class SharDataset(_Lines):
    """The cuts of a lhotse Shar folder with the data of their fields.

    Cuts and fields are joined by position. A sample is a dict: `cut` has the cut's manifest as plain values. A field
    from a tar file is `{"manifest": ..., "format": "flac", "data": bytes}`, or None for a cut without it. A field from
    a JSON Lines file is its value, or None. With `as_cuts=True` a sample is a lhotse cut with all of them, as
    `CutSet.from_shar` gives it.

    The manifests of all cuts are read once, at the first opening, and kept in the index. Nothing is written into the folder.

    Args:
        folder: The folder or its URL, or a dict of paths, globs or URLs by field, of which one is `cuts`.
        fields: Names of the fields to read; None for all.
        as_cuts: Return lhotse's cuts; lhotse must be installed.
        transform: Called with each sample; its result replaces the sample.
        index_dir: Folder of the index files. None: LOADERKIT_INDEX_DIR, else `~/.cache/loaderkit/index`.
        max_open: Files of each field that a process keeps open, with all its threads.
        storage: How to reach remote files, and where to keep copies.

    Raises:
        FileNotFoundError: If there are no cuts.
        ShardError: If a field is missing, its files have other numbers of samples than those of the cuts, or a file is
            damaged. On reading: if a field's data belongs to another cut.
        ImportError: If `as_cuts` is set and lhotse is not installed.

    Examples:
        >>> dataset = lk.SharDataset("shar", fields=["recording"])  # doctest: +SKIP
        >>> dataset[0]["cut"]["supervisions"][0]["text"], dataset[0]["recording"]["format"]  # doctest: +SKIP
        ('a text', 'flac')
    """

    kind = "shar-lines-1"

    def __init__(
        self,
        folder: str | os.PathLike[str] | Mapping[str, Urls],
        fields: Sequence[str] | None = None,
        *,
        as_cuts: bool = False,
        transform: Transform | None = None,
        index_dir: str | os.PathLike[str] | None = None,
        max_open: int = 256,
        storage: Storage | None = None,
    ) -> None:
        storage = storage or Storage()
        places = dict(folder) if isinstance(folder, Mapping) else _find_fields(os.fspath(folder), storage)
        if _CUTS not in places:
            raise FileNotFoundError(
                f"no cuts in {folder!r}, wanted files such as cuts.000000.jsonl.gz, as lhotse writes them."
            )
        given = listed("SharDataset", "fields", fields)
        names = [name for name in places if name != _CUTS] if given is None else given
        if absent := [name for name in names if name not in places]:
            raise ShardError(f"{folder}: has no field {absent[0]!r}, wanted some of {sorted({*places} - {_CUTS})}.")
        settings: dict[str, Any] = {"index_dir": index_dir, "max_open": max_open, "storage": storage}
        super().__init__(places[_CUTS], transform=transform, **settings)
        self.fields = {name: _open_field(places[name], settings) for name in names}
        self._as_cuts = as_cuts
        if as_cuts:
            _lhotse()
        for name, field in self.fields.items():
            if field.shard_sizes.tolist() != self.shard_sizes.tolist():
                raise ShardError(_uneven(name, field, self))

    def _gather(self, indices: Sequence[int]) -> list[object]:
        cuts = super()._gather(indices)
        columns = {name: field.__getitems__(indices) for name, field in self.fields.items()}
        samples: list[object] = []
        for row, cut in enumerate(cuts):
            found = {name: self._value(cut["id"], name, values[row]) for name, values in columns.items()}
            samples.append(_as_cut(cut, found) if self._as_cuts else {"cut": cut, **found})
        return samples

    def _value(self, cut: str, name: str, sample: Mapping[str, Any]) -> object:
        """Return the value of a cut's field; None if the folder has only a placeholder."""
        is_line = "cut_id" in sample
        key = sample["cut_id" if is_line else "__key__"]
        if key != cut:
            raise ShardError(
                f"the data of {name!r} is of the cut {key!r}, wanted {cut!r}: the files of the field and of the cuts are not of one export. "
                "Write the folder again, or leave the field out: fields=[...]."
            )
        if is_line:
            return sample.get(name)
        _, (form, data), (_, manifest) = sample.items()
        return None if form == "nodata" else {"manifest": json.loads(manifest), "format": form, "data": data}

    def fingerprint(self) -> str:
        """Return the names and numbers of samples of the cuts' and the fields' shards."""
        return f"shar cuts={self._as_cuts} " + " ".join(
            [super().fingerprint(), *(f"{name}: {field.fingerprint()}" for name, field in self.fields.items())]
        )

    def close(self) -> None:
        """Close this thread's open shards; the next read opens them again."""
        super().close()
        for field in self.fields.values():
            field.close()


def _find_fields(folder: str, storage: Storage) -> dict[str, Urls]:
    """Return a glob for each field's files in a folder. A file name up to its first dot is the field's name."""
    if is_remote(folder):
        names = [shard_name(url) for url in storage.find(folder.rstrip("/") + "/", (*_LINES, ".tar"))]
    else:
        names = [path.name for path in Path(folder).iterdir()] if Path(folder).is_dir() else []
    kinds = {(name.partition(".")[0], ".tar" if name.endswith(".tar") else ".jsonl*") for name in names}
    return {name: f"{folder.rstrip('/')}/{name}.*{kind}" for name, kind in sorted(kinds) if name}


def _open_field(urls: Urls, settings: Mapping[str, Any]) -> ShardedDataset:
    first = urls if isinstance(urls, str | os.PathLike) else next(iter(urls))
    return _Files(urls, decode=None, **settings) if os.fspath(first).endswith(".tar") else _Lines(urls, **settings)


def _uneven(name: str, field: ShardedDataset, cuts: ShardedDataset) -> str:
    if len(field.shards) != len(cuts.shards):
        return f"{field.shards[0]}: {name!r} has {len(field.shards)} files, wanted {len(cuts.shards)}, as many as the cuts have."
    pairs = zip(field.shards, field.shard_sizes.tolist(), cuts.shards, cuts.shard_sizes.tolist(), strict=True)
    shard, found, other, wanted = next(pair for pair in pairs if pair[1] != pair[3])
    return f"{shard}: has {found:,} samples, wanted {wanted:,}, as {other} has. Write the folder again, or leave the field out: fields=[...]."


def _lhotse() -> Any:
    try:
        from lhotse.serialization import deserialize_item
        from lhotse.shar.utils import fill_shar_placeholder
    except ImportError as error:
        raise ImportError("SharDataset: as_cuts=True needs lhotse: pip install lhotse.") from error
    return deserialize_item, fill_shar_placeholder


def _as_cut(cut: object, found: Mapping[str, object]) -> object:
    """Return a lhotse cut with the data of its fields."""
    deserialize_item, fill_shar_placeholder = _lhotse()
    made = deserialize_item(cut)
    for name, value in found.items():
        if value is None:
            continue
        if isinstance(value, dict) and value.keys() == {"manifest", "format", "data"}:
            manifest = deserialize_item(value["manifest"])
            fill_shar_placeholder(manifest=manifest, data=value["data"], tarpath=f"{made.id}.{value['format']}")
            value = manifest
        setattr(made, name, value)
    return made
