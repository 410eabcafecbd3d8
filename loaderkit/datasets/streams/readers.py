"""Readers for `StreamDataset`: compressed lines and archives, paged services, logs that grow."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, ClassVar, Self

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.images.checks import MAX_PIXELS, check_max_pixels
from loaderkit.datasets.images.decode import decode_picture
from loaderkit.datasets.images.decoders import PictureDecoder, check_decoder, decoder_fingerprint
from loaderkit.datasets.streams.dataset import check_skipped
from loaderkit.datasets.tar.dataset import DECODERS, Decoder
from loaderkit.files.storage import Storage
from loaderkit.files.urls import open_file

_UNPACK: dict[bytes, Callable[[Any], object]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
_POLL_S = 0.05


@dataclass(frozen=True)
class LineReader:
    r"""Reads the lines of files, plain or compressed; a line is JSON by default.

    Compression may be gzip, bzip2 or xz. Blank lines are skipped. To start at a later line, the reader decompresses the
    lines before it without parsing them.

    Args:
        parse: Makes a sample of a line's bytes, without the line end.
        storage: How to reach remote files.

    Examples:
        >>> import pathlib
        >>> _ = pathlib.Path("a.jsonl").write_text('{"x": 1}\n{"x": 2}\n{"x": 3}\n')
        >>> stream = lk.StreamDataset(["a.jsonl"], lk.LineReader())
        >>> [batch["x"].tolist() for batch in lk.Loader(stream, batch_size=2)]
        [[1, 2], [3]]
    """

    skips: ClassVar[bool] = False

    parse: Callable[[bytes], object] = json.loads
    storage: Storage | None = field(default=None, repr=False, compare=False)

    def __call__(self, shard: str, start: int) -> Iterator[object]:
        with open_file(shard, self.storage) as file, _unpacked(file) as lines:
            number = 0
            for number, line in enumerate((line for line in lines if line.strip()), 1):
                if number > start:
                    yield _parsed(self.parse, line)
            check_skipped(shard, number, start)


@dataclass(frozen=True)
class TarReader:
    """Reads samples of tar archives, plain or compressed.

    They have the layout of `TarDataset`. The files of one key follow each other and form one sample: a dict with
    `__key__` and one entry for each extension. To start at a later sample, the reader decompresses the files before it
    without decoding them.

    Args:
        decode: Maps an extension to a function that decodes a file's bytes, as for `TarDataset`.
        max_pixels: The largest picture that `DECODERS` decode, width times height; None for any.
        decoder: What decodes JPEG in `DECODERS`, as for `TarDataset`.
        storage: How to reach remote files.

    Raises:
        ValueError: While reading, if a member is neither a regular file nor a directory, or its name leads out of the
            archive. Also if a sample has an extension twice, or its files are not consecutive; the first of these files
            have then been read as a sample.
        ShardError: While reading, if a file cannot be decoded.
        tarfile.ReadError: While reading, if the archive is damaged, or is cut before its end mark.

    Examples:
        >>> import io, tarfile
        >>> with tarfile.open("a.tar.gz", "w:gz") as archive:
        ...     for name, content in [("1.txt", b"cat"), ("1.cls", b"7"), ("2.txt", b"dog"), ("2.cls", b"9")]:
        ...         info = tarfile.TarInfo(name)
        ...         info.size = len(content)
        ...         archive.addfile(info, io.BytesIO(content))
        >>> stream = lk.StreamDataset(["a.tar.gz"], lk.TarReader())
        >>> batch = next(iter(lk.Loader(stream, batch_size=2)))
        >>> batch["__key__"], batch["txt"], batch["cls"]
        (['1', '2'], ['cat', 'dog'], tensor([7, 9]))
    """

    skips: ClassVar[bool] = False

    decode: Mapping[str, Decoder] | None = field(default_factory=lambda: DECODERS)
    max_pixels: int | None = MAX_PIXELS
    storage: Storage | None = field(default=None, repr=False, compare=False)
    decoder: PictureDecoder | None = None

    def __post_init__(self) -> None:
        check_max_pixels("TarReader", self.max_pixels)
        check_decoder("TarReader", self.decoder)

    def fingerprint(self) -> str | None:
        """Return the picture decoder's name if its pixels may differ from the default's; else None."""
        return decoder_fingerprint(self.decoder).strip() or None

    def __call__(self, shard: str, start: int) -> Iterator[dict[str, object]]:
        decode, found = self.decode or {}, 0
        for found, (key, files) in enumerate(_samples(shard, self.storage), 1):
            if found <= start:
                continue
            sample: dict[str, object] = {"__key__": key}
            for extension, content in files.items():
                decoder = decode.get(extension) or decode.get(extension.rpartition(".")[2])
                try:
                    sample[extension] = content if decoder is None else self._decode(decoder, content)
                except (ImportError, MemoryError):  # not a fault of the file
                    raise
                except Exception as error:
                    what = f"{key}.{extension} can't be decoded, {type(error).__name__}: {error}"
                    raise ShardError(f"{shard}: {what}") from error
            yield sample
        check_skipped(shard, found, start)

    def _decode(self, decoder: Decoder, content: bytes) -> object:
        is_picture = decoder is decode_picture
        return (
            decode_picture(content, max_pixels=self.max_pixels, decoder=self.decoder)
            if is_picture
            else decoder(content)
        )


class _Member(tarfile.TarInfo):
    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the end mark
            raise
        except tarfile.HeaderError as error:
            # tarfile takes a bad header for the archive's end, unless it is the first.
            raise tarfile.ReadError(f"the archive is damaged or cut: {error}") from error


def _parsed(parse: Callable[[bytes], object], line: bytes) -> object:
    try:
        return parse(line.rstrip(b"\r\n"))
    except json.JSONDecodeError as error:
        error.add_note(
            f"loaderkit: the line is {line[:40]!r}, wanted JSON. For other lines give parse=, such as bytes.decode."
        )
        raise


def _samples(shard: str, storage: Storage | None) -> Iterator[tuple[str, dict[str, bytes]]]:
    current, files, seen = "", dict[str, bytes](), set[str]()
    with (
        open_file(shard, storage) as file,
        _unpacked(file) as plain,
        tarfile.open(fileobj=plain, mode="r|", tarinfo=_Member) as archive,
    ):
        for member in archive:
            archive.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all members, a kilobyte each
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
                continue  # skip hidden files, files without an extension, and metadata, as TarDataset does
            key, extension = folder + slash + stem, extension.lower()
            if key != current:
                if files:
                    yield current, files
                if key in seen:
                    raise ValueError(
                        f"{shard}: {name!r}: its key came before, and other keys between; wanted a sample's files in "
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
    """Reads a service that gives samples in pages of one size.

    The reader starts at any page without reading the pages before it.

    Args:
        fetch: Called with a shard's name and a page's number, from 0; returns the page's samples. A page that is not full is
            the last.
        size: Samples in a full page.

    Raises:
        ValueError: While reading, if a page has more samples.

    Examples:
        >>> def fetch(user, page):
        ...     return [f"{user}{number}" for number in range(5)][2 * page : 2 * page + 2]
        >>> stream = lk.StreamDataset(["ann"], lk.PageReader(fetch, size=2))
        >>> list(lk.Loader(stream, batch_size=3))
        [['ann0', 'ann1', 'ann2'], ['ann3', 'ann4']]
    """

    fetch: Callable[[str, int], Sequence[object]]
    size: int

    def __call__(self, shard: str, start: int) -> Iterator[object]:
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
    r"""Reads the lines of files that grow.

    With `idle_s`, the reader waits for the rest of a line that has no line end yet. A line that gets none is left out,
    and a warning says so. A resume continues after the last line that was used, with the lines that have been added.
    Such streams cannot be shuffled.

    Args:
        parse: Makes a sample of a line's bytes, without the line end.
        idle_s: End when no complete line has come for this many seconds. None ends at the end that the file had when it
            was opened.

    Examples:
        >>> import pathlib
        >>> log = pathlib.Path("events.log")
        >>> _ = log.write_bytes(b'1\n2\n')
        >>> loader = lk.Loader(lk.StreamDataset(["events.log"], lk.LogReader()), batch_size=4)
        >>> next(iter(loader))
        tensor([1, 2])
    """

    skips: ClassVar[bool] = False
    grows: ClassVar[bool] = True

    parse: Callable[[bytes], object] = json.loads
    idle_s: float | None = None

    def __call__(self, shard: str, start: int) -> Iterator[object]:
        number = 0
        with open_file(shard) as file:
            for line in self._lines(file):
                if not line.strip():
                    continue
                if not line.endswith(b"\n"):
                    warnings.warn(
                        f"LogReader: {shard} ends in {len(line):,} bytes without a line end, which are left out: they may be half a "
                        "line. If they are whole, end them by a line end. A resume reads them when their line is complete.",
                        stacklevel=2,
                    )
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
                begun, last = b"", time.monotonic()  # time that the user spends does not count
            elif end is None:
                if time.monotonic() - last > (self.idle_s or 0):
                    break
                time.sleep(_POLL_S)
        if begun:
            yield begun


def _unpacked(file: BinaryIO) -> Any:
    start = file.read(6)
    file.seek(0)
    for magic, unpack in _UNPACK.items():
        if start.startswith(magic):
            return unpack(file)
    return file
