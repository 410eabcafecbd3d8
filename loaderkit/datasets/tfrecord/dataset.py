"""TFRecord files: one sample for each record, found by an index and read by random access."""

import os
from collections.abc import Sequence
from typing import ClassVar, Literal

from loaderkit.datasets.base import Transform
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.shards.lines import LineFile
from loaderkit.datasets.shards.spanned import SpannedDataset
from loaderkit.datasets.tfrecord.example import Features, check_features, parse_example, parse_sequence_example
from loaderkit.datasets.tfrecord.records import FOOT, find_checksum, scan_records
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls
from loaderkit.system.arrays import Int64Array

_PARSERS = {"example": parse_example, "sequence": parse_sequence_example}


class TFRecordDataset(SpannedDataset):
    """The records of TFRecord files, read without TensorFlow or protobuf.

    A `tf.train.Example` becomes a dict of its features. Numbers become an array (n,) int64 or float32, even if there is
    only one. Bytes become `bytes` if there is one value, else a list. Give types in `features` for other forms:
    `{"image": bytes, "label": int, "ids": [int]}`. A type means exactly one value; a list of a type means all of them,
    and none if a record lacks the feature.

    The first opening reads the header of each record, checks the checksum of its length, and saves an index.

    Args:
        urls: A path, folder, glob or URL, or a list of them. Names may end in `-00000-of-00010`.
        features: Names of the features to read, or a dict with their types; None for all that a record has.
        record: "example", "sequence" (`tf.train.SequenceExample`: a dict with `context`, and `feature_lists` with one value a step), or
            "bytes" for records as they are.
        check: Whether to check each record's checksum when the record is read. None: if google-crc32c or crc32c is
            installed (extra `tfrecord`).
        transform: Called with each sample; its result replaces the sample.
        index_dir: Folder of the index files. None: LOADERKIT_INDEX_DIR, else `~/.cache/loaderkit/index`.
        max_open: Files that a process keeps open, with all its threads.
        storage: How to reach remote files, and where to keep copies.

    Raises:
        FileNotFoundError: If there are no shards.
        ShardError: If a file is compressed, cut, damaged or of another format. On reading: if a record is damaged, not of the wanted
            format, or lacks a feature.
        ImportError: If `check` is true and neither package is installed.

    Examples:
        >>> dataset = lk.TFRecordDataset("train.tfrecord-*", {"image": bytes, "label": int})  # doctest: +SKIP
        >>> dataset[0]  # doctest: +SKIP
        {'image': b'...', 'label': 7}
    """

    kind = "tfrecord-1"
    suffixes: ClassVar[tuple[str, ...]] = (".tfrecord", ".tfrecords", ".tfrec")

    def __init__(
        self,
        urls: Urls,
        features: Features = None,
        *,
        record: Literal["example", "sequence", "bytes"] = "example",
        check: bool | None = None,
        transform: Transform | None = None,
        index_dir: str | os.PathLike[str] | None = None,
        max_open: int = 256,
        storage: Storage | None = None,
    ) -> None:
        check_features("TFRecordDataset", features)
        if record not in (*_PARSERS, "bytes") or (record == "bytes" and features is not None):
            raise ValueError(
                f"TFRecordDataset: record is {record!r}, features {features!r}; wanted 'example' or 'sequence', or 'bytes' without features."
            )
        self._features, self._record, self._check = features, record, check is not False
        if check and find_checksum() is None:
            raise ImportError("TFRecordDataset: check=True needs google-crc32c: pip install google-crc32c.")
        super().__init__(urls, transform=transform, index_dir=index_dir, max_open=max_open, storage=storage)

    def scan(self, shard: str) -> tuple[int, Int64Array | None]:
        with self.files.open(shard) as file:
            spans = scan_records(file, self.files.stat(shard).size_bytes, shard)
        return len(spans), spans

    def read(self, handle: LineFile, rows: Int64Array, index: ShardIndex) -> Sequence[object]:
        starts, ends = index.spans(handle.shard)[rows].T.tolist()
        checksum = find_checksum() if self._check else None
        if checksum is None:
            records = handle.read(starts, ends)
        else:
            both = handle.read(starts, [end + FOOT for end in ends])
            records = [one[:-FOOT] for one in both]
            for record, one, start in zip(records, both, starts, strict=True):
                if checksum(record) != int.from_bytes(one[-FOOT:], "little"):
                    raise ShardError(f"{handle.shard}: the record at byte {start:,} is damaged: its checksum is wrong.")
        return [self._parse(record, handle.shard, start) for record, start in zip(records, starts, strict=True)]

    def _parse(self, record: bytes, shard: str, start: int) -> object:
        parse = _PARSERS.get(self._record)
        if parse is None:
            return record
        try:
            return parse(record, self._features)
        except ValueError as error:
            raise ShardError(
                f"{shard}: the record at byte {start:,} can't be read as {self._record}: {error}. For the bytes as they are: "
                "record='bytes'."
            ) from error
