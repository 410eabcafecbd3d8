"""Decode video by PyAV. Only the frames that are shown at the wanted times are converted and kept."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import dropwhile

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from loaderkit.datasets.media.content import MAX_FRAME_PIXELS, TOLERANCE_S, Content, check_frame
from loaderkit.datasets.media.pyav_container import open_stream, pyav, seek
from loaderkit.datasets.media.pyav_length import first_shown, seconds_of
from loaderkit.datasets.media.pyav_packets import packets_from_start, packets_walked
from loaderkit.datasets.media.pyav_types import Container, Stream, VideoFrame
from loaderkit.files.storage import Storage

_SEEK_FRAMES = 10  # number of frames; decoding fewer takes less time than a seek
_EARLIER_S = (0.0, 1.0, 10.0)  # seconds; seek this much earlier if the first frame after the last seek is too late

Frames = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class VideoHeader:
    """The header of a file's first video stream.

    Attributes:
        index: The stream's index in its file.
        seconds: Duration of the stream in seconds.
        fps: Mean frame rate in frames per second.
        begin: When the first frame begins, in units of the stream's clock.

    Raises:
        ValueError: If the frame rate is 0.
    """

    index: int
    seconds: float
    fps: float
    begin: int = 0

    def __post_init__(self) -> None:
        if not self.fps:
            raise ValueError("it has no frame rate")


def read_video_header(container: Container, stream: Stream, max_pixels: int | None) -> VideoHeader:
    """Read the header of an open stream. The position in the container may change, so seek before decoding.

    Raises:
        ValueError: If frames have more than `max_pixels` pixels, or the stream has no frame rate.
    """
    check_frame(stream.codec_context.width, stream.codec_context.height, max_pixels)
    seconds = float(seconds_of(container, stream))
    fps = float(stream.average_rate or stream.guessed_rate or 0)
    return VideoHeader(stream.index, seconds, fps, first_shown(container, stream))


class PyavVideo:
    """An open video stream; implements `VideoReader`."""

    def __init__(self, container: Container, stream: Stream, max_pixels: int | None) -> None:
        self._container, self._stream, self._max_pixels = container, stream, max_pixels
        reformatter = pyav().video.reformatter
        self._convert, kind = reformatter.VideoReformatter().reformat, reformatter.Interpolation
        # These flags make the pixels the same on all processors, whose vector units otherwise round differently.
        self._exact = kind.BILINEAR | kind.ACCURATE_RND | kind.BITEXACT
        header = read_video_header(container, stream, max_pixels)
        self._begin, self._tick = header.begin, float(stream.time_base)
        self.seconds, self.fps = header.seconds, header.fps

    def read(self, times: Sequence[float]) -> tuple[Tensor, list[float]]:
        shown: list[VideoFrame] = []
        while len(shown) < len(times):
            shown += self._shown(times[len(shown) :])
        first = shown[0]
        pictures = np.empty((len(times), 3, first.height, first.width), dtype=np.uint8)
        for row, frame in enumerate(shown):
            if row and frame is shown[row - 1]:
                pictures[row] = pictures[row - 1]
            else:
                pictures[row] = self._pixels(frame, first).transpose(2, 0, 1)
        starts = [self._time(frame) for frame in shown]
        return torch.from_numpy(_upright(pictures, first.rotation, is_mirrored(first))), starts

    def _shown(self, times: Sequence[float]) -> list[VideoFrame]:
        """Return the frames shown at the first of these times; stop before a time that a new seek reaches faster."""
        for earlier in _EARLIER_S:
            if times[0] - earlier > 0:
                shown = self._shown_from(times[0] - earlier, times)
                if shown:
                    return shown
        shown = self._shown_from(0.0, times)
        if not shown:
            raise ValueError("it has no frames")
        return shown

    def _shown_from(self, seek_to: float, times: Sequence[float]) -> list[VideoFrame]:
        shown: list[VideoFrame] = []
        last = None
        for frame in self._frames_from(seek_to):
            if frame.pts is None:
                continue
            begins = self._time(frame)
            if last is None and begins > times[0] and seek_to:
                return []
            while last is not None and len(shown) < len(times) and times[len(shown)] < begins:
                shown.append(last)
            last = frame
            if len(shown) == len(times) or (shown and self._seek_skips(begins, times[len(shown)])):
                return shown
        if last is None:
            return []
        missing_s = times[-1] - self._time(last) - 1 / self.fps
        if missing_s > TOLERANCE_S and self.seconds - self._time(last) > TOLERANCE_S + 1 / self.fps:
            raise ValueError(
                f"its last frame is at {self._time(last):.3f} s, its header claims {self.seconds:.3f} s: it is cut or damaged"
            )
        return shown + [last] * (len(times) - len(shown))

    def _frames_from(self, seek_to: float) -> Iterator[VideoFrame]:
        """Yield the frames from a time in seconds on, or from the keyframe before it.

        Yield none if FFmpeg can't seek there.
        """
        container, stream = self._container, self._stream
        if not seek_to:
            packets = packets_from_start(container, stream)
        elif container.format.name == "mpeg":  # after a seek, frames have wrong times up to the next pack with a time
            packets = packets_walked(container, stream, self._stamp(seek_to))
        elif seek(container, stream, self._stamp(seek_to)):
            # A seek in MPEG-TS goes to any packet, and not all decoders wait for a keyframe.
            packets = dropwhile(lambda packet: not packet.is_keyframe, container.demux(stream))
        else:
            return
        for packet in packets:
            yield from packet.decode()

    def _seek_skips(self, now: float, time: float) -> bool:
        """Return whether a keyframe is between two times (in seconds), so that a seek saves decoding frames."""
        index = self._stream.index_entries
        number = index.search_timestamp(self._stamp(time)) if len(index) else -1
        return number >= 0 and index[number].timestamp > self._stamp(now + _SEEK_FRAMES / self.fps)

    def _pixels(self, frame: VideoFrame, first: VideoFrame) -> Frames:
        check_frame(frame.width, frame.height, self._max_pixels)
        if frame.is_corrupt:
            raise ValueError(f"its frame at {self._time(frame):.3f} s is damaged")
        if (frame.width, frame.height) != (first.width, first.height):
            raise ValueError(
                f"its frames change from {first.width} x {first.height} to {frame.width} x {frame.height} pixels"
            )
        pixels: Frames = self._convert(frame, format="rgb24", interpolation=self._exact, threads=1).to_ndarray()
        return pixels

    def _time(self, frame: VideoFrame) -> float:
        return float((frame.pts - self._begin) * self._tick)

    def _stamp(self, seconds: float) -> int:
        return int(seconds / self._tick) + self._begin


@contextmanager
def open_video(
    content: Content, storage: Storage | None = None, *, max_pixels: int | None = MAX_FRAME_PIXELS
) -> Iterator[PyavVideo]:
    """Open a file's first video stream. Errors are those of `open_stream`, and for frames that are too large."""
    with open_stream(content, "video", storage) as (container, stream):
        yield PyavVideo(container, stream, max_pixels)


def is_mirrored(frame: VideoFrame) -> bool:
    """Return whether a frame must be mirrored, as in videos of front cameras.

    Its display matrix then has a negative determinant.
    """
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return False
    a, b, _, c, d = np.frombuffer(matrix, dtype=np.int32)[:5].tolist()
    return bool(a * d < b * c)


def _upright(pictures: Frames, degrees: int, mirrored: bool) -> Frames:
    """Turn frames (N, 3, H, W) counterclockwise by a multiple of 90 degrees, as the video's metadata says.

    If `mirrored`, they are first flipped top to bottom.
    """
    given = pictures[:, :, ::-1] if mirrored else pictures
    return np.ascontiguousarray(np.rot90(given, round(degrees / 90) % 4, axes=(2, 3)))
