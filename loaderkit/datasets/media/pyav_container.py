"""Open audio and video files by PyAV.

One stream is decoded, in one thread. FFmpeg opens no other files, and its errors become ValueErrors.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from importlib import import_module
from types import ModuleType

from loaderkit.datasets.media.content import Content, Kind, open_content
from loaderkit.datasets.media.pyav_types import Container, Stream
from loaderkit.files.storage import Storage

_FAR_S = 3600  # seconds; no packet is so long before a stream's start
_ALONE = {"protocol_whitelist": "none"}  # a file that is a playlist can open no other file and no URL


@cache
def pyav() -> ModuleType:
    """Import PyAV.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        return import_module("av")
    except ImportError as error:
        raise ImportError(
            "decoding audio and video needs PyAV: pip install '.[media]' in a checkout of loaderkit."
        ) from error


@cache
def is_pyav_19() -> bool:
    """Return whether PyAV is 19 or later: its resampler starts threads, and metadata need not be UTF-8."""
    return int(pyav().__version__.partition(".")[0]) >= 19


@contextmanager
def open_stream(content: Content, kind: Kind, storage: Storage | None = None) -> Iterator[tuple[Container, Stream]]:
    """Open a file, and yield PyAV's container and its first stream of a kind. A cover picture does not count as video.

    Args:
        content: The bytes of a file, or its path or URL.
        kind: "audio" or "video".
        storage: How to reach a URL.

    Raises:
        ValueError: If the file has no such stream or cannot be decoded. FFmpeg's errors inside the `with` block become
            ValueErrors, too.
    """
    av = pyav()
    texts = {} if is_pyav_19() else {"metadata_errors": "replace"}
    with open_content(content, storage) as file:
        try:
            with av.open(file, mode="r", options=_ALONE, **texts) as container:
                yield container, _stream(container, kind)
        except av.FFmpegError as error:
            raise ValueError(f"not {kind} that can be decoded: {error.strerror or error}") from error
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: a seek, by what the file says, to before its first byte
                raise
            raise ValueError(f"not {kind} that can be decoded: it refers to what it does not have") from error


def pyav_version() -> str:
    """Return the decoder's name and version. Errors are those of `pyav`."""
    return f"pyav {pyav().__version__}"


def start_of(stream: Stream) -> Fraction:
    """Return the time at which a stream starts, in seconds of the stream's clock."""
    start: Fraction = (stream.start_time or 0) * stream.time_base
    return start


def seek(container: Container, stream: Stream, stamp: int) -> bool:
    """Seek to the last keyframe at or before `stamp`, in units of the stream's clock; return whether that was possible.

    In formats without an index, such as FLAC, FFmpeg refuses some seeks near the end.
    """
    try:
        container.seek(stamp, stream=stream)
    except pyav().FFmpegError:
        return False
    return True


def seek_to_start(container: Container, stream: Stream) -> None:
    """Seek to the first packet of a stream, as in a newly opened file.

    A seek to time 0 would skip packets that only prepare the decoder: AAC in MP4 and Opus in WebM begin with one.
    """
    first = stream.start_time or 0
    if not seek(container, stream, first - int(_FAR_S / stream.time_base)) and not seek(
        container, stream, min(0, first)
    ):
        container.seek(0, unsupported_byte_offset=True)  # FLV without an index


def _stream(container: Container, kind: Kind) -> Stream:
    found = [each for each in container.streams if each.type == kind]
    found = [each for each in found if not each.disposition & type(each.disposition).attached_pic]
    if not found:
        others = sorted({each.type for each in container.streams})
        raise ValueError(f"it has no {kind}, only {' and '.join(others) or 'nothing'}")
    if found[0].codec_context is None:
        raise ValueError(f"its {kind} needs a decoder that FFmpeg does not have")
    found[0].codec_context.thread_count = 1  # else each worker would start a thread for each core
    return found[0]
