"""Open encoded audio and video as binary files, and check the limits that hold for every decoder."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Literal

from loaderkit.files.storage import Storage
from loaderkit.files.urls import open_file

Kind = Literal["audio", "video"]
Content = bytes | bytearray | memoryview | str | os.PathLike[str]

# How much shorter than its header says a file may decode, in seconds: encoders add up to a few frames at both ends.
TOLERANCE_S = 0.25
MAX_FRAME_PIXELS = 35_389_440  # 8192 x 4320
_RIFF_STREAMED = (0, 0xFFFFFFFF)


@contextmanager
def open_content(content: Content, storage: Storage | None = None) -> Iterator[BinaryIO]:
    """Open `content`, which is a file's bytes or its path or URL, as a binary file at its start.

    Raises:
        ValueError: If it is a RIFF file (WAV, AVI) that is shorter than its header says.
    """
    is_place = isinstance(content, str | os.PathLike)
    file = open_file(os.fspath(content), storage) if is_place else io.BytesIO(content)  # type: ignore[arg-type]  # `is_place` says which it is
    with file:
        _check_riff(file)
        yield file


def check_frame(width: int, height: int, max_pixels: int | None) -> None:
    """Check the size of a video's frames.

    Raises:
        ValueError: If a frame has more than `max_pixels` pixels.
    """
    if max_pixels is not None and width * height > max_pixels:
        raise ValueError(
            f"its frames have {width:,} x {height:,} pixels, wanted at most max_pixels={max_pixels:,}. If the video is "
            "right, give a larger max_pixels=."
        )


def _check_riff(file: BinaryIO) -> None:
    """Raise a ValueError if a RIFF file (WAV, AVI) is shorter than its header says, which FFmpeg does not report."""
    head = file.read(8)
    size = int.from_bytes(head[4:8], "little")
    if head[:4] == b"RIFF" and size not in _RIFF_STREAMED:
        found = file.seek(0, os.SEEK_END)
        if found < size + 8 - (size % 2):  # some writers leave out the padding byte at the end
            raise ValueError(f"it has {found:,} bytes, its header says {size + 8:,}: it is cut")
    file.seek(0)
