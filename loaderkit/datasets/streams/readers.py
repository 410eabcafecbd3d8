"""Readers of what has no index: compressed lines and archives, paged services, logs that grow."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, ClassVar, Self

from loaderkit.datasets.remote.urls import open_file
from loaderkit.datasets.streams.dataset import check_skipped
from loaderkit.datasets.tar.dataset import DECODERS, Decoder

_UNPACK: dict[bytes, Callable[[Any], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
_POLL_S = 0.05


@dataclass(frozen=True)
class LineReader:
    """Reads lines, JSON ones by default, of plain files and those packed with gzip, bzip2 or xz.

    Blank lines are no samples. Skipping unpacks what lies before, and does not parse it.

    Args:
        parse: From a line's bytes, without its end, to a sample.
    """

    skips: ClassVar[bool] = False

    parse: Callable[[bytes], Any] = json.loads

    def __call__(self, shard: str, start: int) -> Iterator[Any]:
        with open_file(shard) as file, _unpacked(file) as lines:
            number = 0
            for number, line in enumerate((line for line in lines if line.strip()), 1):
                if number > start:
                    yield _parsed(self.parse, line)
            check_skipped(shard, number, start)


@dataclass(frozen=True)
class TarReader:
    """Reads samples of tar archives, packed or not, in the layout of `TarDataset`: the files of one key, in sequence.

    Skipping unpacks what lies before, and does not decode it.

    Args:
        decode: From an extension to a function of a file's bytes, as for `TarDataset`.

    Raises:
        ValueError: When read, if a file is neither regular nor a directory, its name
            leads out of the archive, a sample has an extension twice, or its files are not in sequence:
            its first ones have come as a sample by then.
        tarfile.ReadError: When read, if the archive is damaged, or cut before its end mark.
    """

    skips: ClassVar[bool] = False

    decode: Mapping[str, Decoder] | None = field(default_factory=lambda: DECODERS)

    def __call__(self, shard: str, start: int) -> Iterator[dict[str, Any]]:
        decode, found = self.decode or {}, 0
        for found, (key, files) in enumerate(_samples(shard), 1):
            if found <= start:
                continue
            sample: dict[str, Any] = {"__key__": key}
            for extension, content in files.items():
                decoder = decode.get(extension) or decode.get(extension.rpartition(".")[2])
                sample[extension] = content if decoder is None else decoder(content)
            yield sample
        check_skipped(shard, found, start)


class _Member(tarfile.TarInfo):
    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the end mark
            raise
        except tarfile.HeaderError as error:
            # Which tarfile takes for the archive's end where it is not the first header.
            raise tarfile.ReadError(f"a damaged archive, or one that is cut: {error}") from error


def _parsed(parse: Callable[[bytes], Any], line: bytes) -> Any:
    try:
        return parse(line.rstrip(b"\r\n"))
    except json.JSONDecodeError as error:
        error.add_note(
            f"loaderkit: the line is {line[:40]!r}, wanted JSON. Of other lines: parse=, such as bytes.decode."
        )
        raise


def _samples(shard: str) -> Iterator[tuple[str, dict[str, bytes]]]:
    current, files, seen = "", dict[str, bytes](), set[str]()
    with (
        open_file(shard) as file,
        _unpacked(file) as plain,
        tarfile.open(fileobj=plain, mode="r|", tarinfo=_Member) as archive,
    ):
        for member in archive:
            archive.members.clear()  # type: ignore[attr-defined]  # or it would keep them, a kilobyte each
            if member.isdir():
                continue
            name = member.name
            if not member.isreg() or name.startswith("/") or ".." in name.split("/"):
                raise ValueError(
                    f"{shard}: {name!r} is a link, a device, or a name that leads out of the archive; wanted regular "
                    "files with relative names."
                )
            folder, slash, base = name.rpartition("/")
            stem, _, extension = base.partition(".")
            if not stem or not extension or (name.startswith("__") and name.split("/")[0].endswith("__")):
                continue  # as in TarDataset: hidden, without an extension, or metadata
            key, extension = folder + slash + stem, extension.lower()
            if key != current:
                if files:
                    yield current, files
                if key in seen:
                    raise ValueError(
                        f"{shard}: {name!r}: its key came before, with others between; wanted a sample's files in "
                        "sequence: tar --sort=name."
                    )
                seen.add(key)
                current, files = key, {}
            if extension in files:
                raise ValueError(f"{shard}: {name!r}: its key has a file with this extension already.")
            content = archive.extractfile(member)
            files[extension] = content.read() if content is not None else b""
        if files:
            yield current, files


@dataclass(frozen=True)
class PageReader:
    """Reads a service that gives samples by pages of one size. It skips: a page is asked for by its number.

    Args:
        fetch: Called with a shard's name and a page's number, from 0; returns the
            page's samples. A page that is not full is the last.
        size: Samples in a full page.

    Raises:
        ValueError: When read, if a page has more samples.
    """

    fetch: Callable[[str, int], Sequence[Any]]
    size: int

    def __call__(self, shard: str, start: int) -> Iterator[Any]:
        page, skipped = divmod(start, self.size)
        while True:
            samples = self.fetch(shard, page)
            if len(samples) > self.size:
                raise ValueError(
                    f"page {page} of {shard!r} has {len(samples):,} samples, wanted at most size={self.size}. "
                    "Give the size that the service uses."
                )
            yield from samples[skipped:]
            if len(samples) < self.size:
                return
            page, skipped = page + 1, 0


@dataclass(frozen=True)
class LogReader:
    """Reads whole lines of files that others append to; a line without its end is not taken, but waited for.

    A resume goes on behind what was consumed, with what has come since. The streams can't be shuffled.

    Args:
        parse: From a line's bytes, without its end, to a sample.
        idle_s: End when so many seconds have brought no whole line. None: end at what
            is there when the file is opened.
    """

    skips: ClassVar[bool] = False
    grows: ClassVar[bool] = True

    parse: Callable[[bytes], Any] = json.loads
    idle_s: float | None = None

    def __call__(self, shard: str, start: int) -> Iterator[Any]:
        number = 0
        with open_file(shard) as file:
            for line in self._lines(file):
                if not line.strip():
                    continue
                number += 1
                if number > start:
                    yield _parsed(self.parse, line)
        check_skipped(shard, number, start)

    def _lines(self, file: BinaryIO) -> Iterator[bytes]:
        end = file.seek(0, io.SEEK_END) if self.idle_s is None else None
        file.seek(0)
        begun, last = b"", time.monotonic()
        while end is None or file.tell() < end:
            line = file.readline() if end is None else file.readline(end - file.tell())
            begun += line
            if begun.endswith(b"\n"):
                yield begun
                begun, last = b"", time.monotonic()  # the consumer's time is not the log's
            elif end is None:
                if time.monotonic() - last > (self.idle_s or 0):
                    return
                time.sleep(_POLL_S)


def _unpacked(file: BinaryIO) -> Any:
    start = file.read(6)
    file.seek(0)
    for magic, unpack in _UNPACK.items():
        if start.startswith(magic):
            return unpack(file)
    return file
