"""Audio by PyAV: the wanted part alone is decoded, and has as many samples as its file says."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from loaderkit.datasets.media.content import Content
from loaderkit.datasets.media.pyav_container import open_stream, seconds_of, seek, seek_to_start, start_of
from loaderkit.datasets.media.waveform import Waveform, filled
from loaderkit.datasets.remote.storage import Storage

RUN_UP_S = 0.5  # decoded and dropped before a part: lossy codecs need earlier packets for their first samples


@dataclass(frozen=True, slots=True)
class AudioHeader:
    """What a file says of its first audio stream.

    Attributes:
        index: The stream's index in its file.
        sample_rate: Samples in a second.
        channels: Channels.
        begin_s: When it starts, in seconds of its own clock.
        samples: Length of the whole in samples.

    Raises:
        ValueError: If it has no samples in a second, or no channels.
    """

    index: int
    sample_rate: int
    channels: int
    begin_s: Fraction
    samples: int

    def __post_init__(self) -> None:
        if self.sample_rate < 1 or self.channels < 1:
            raise ValueError(f"its header claims {self.sample_rate} samples a second, wanted 1 or more")


def read_audio_header(container: Any, stream: Any) -> AudioHeader:
    """Read the header of an open stream; seek before decoding."""
    context = stream.codec_context
    rate, channels = int(context.sample_rate), int(context.channels)
    samples = round(seconds_of(container, stream) * rate) if rate > 0 else 0
    return AudioHeader(stream.index, rate, channels, start_of(stream), samples)


class PyavAudio:
    """An open audio stream, an `AudioReader`."""

    def __init__(self, container: Any, stream: Any) -> None:
        self._container, self._stream = container, stream
        self._header = read_audio_header(container, stream)
        self.sample_rate, self.samples = self._header.sample_rate, self._header.samples

    def read(self, start: int, count: int) -> Waveform:
        parts = self._parts(start, count)
        if not parts:
            parts = [np.zeros((self._header.channels, 0), dtype=np.float32)]
        return filled(_floats(np.concatenate(parts, axis=1)), start, count, self.sample_rate)

    def _parts(self, start: int, count: int) -> list[Any]:
        """Return pieces (C, T) of the wanted part, in the file's own format of samples."""
        lossy = self._stream.codec_context.codec.lossy
        for run_up_s in (RUN_UP_S,) if lossy else (0.0, RUN_UP_S):
            seek_to = start - round(run_up_s * self.sample_rate)
            parts = self._parts_from(seek_to, start, count) if seek_to > 0 else None
            if parts is not None:
                return parts
        return self._parts_from(0, start, count) or []

    def _parts_from(self, seek_to: int, start: int, count: int) -> list[Any] | None:
        """Decode after a seek; None if that fails, or the first packet there is after `start`."""
        stream, begin_s = self._stream, self._header.begin_s
        if seek_to:
            place = (begin_s + Fraction(seek_to, self.sample_rate)) / stream.time_base
            if not seek(self._container, stream, int(place)):
                return None
        else:
            seek_to_start(self._container)
        parts: list[Any] = []
        at: int | None = None
        for frame in self._container.decode(stream):
            if frame.sample_rate != self.sample_rate:
                raise ValueError(f"its rate changes from {self.sample_rate} to {frame.sample_rate} samples a second")
            if at is None:
                at = 0 if frame.pts is None else round((frame.pts * stream.time_base - begin_s) * self.sample_rate)
                if seek_to and (frame.pts is None or at > start):
                    return None
            if at + frame.samples > start:
                piece = frame.to_ndarray()
                piece = piece if frame.format.is_planar else piece.reshape(frame.samples, -1).T
                if parts and len(piece) != len(parts[0]):
                    raise ValueError(f"its channels change from {len(parts[0])} to {len(piece)}")
                parts.append(piece[:, max(0, start - at) : start + count - at])
            at += frame.samples
            if at >= start + count:
                break
        return parts


@contextmanager
def open_audio(content: Content, storage: Storage | None = None) -> Iterator[PyavAudio]:
    """Open a file's first audio stream; raise as `open_stream`."""
    with open_stream(content, "audio", storage) as (container, stream):
        yield PyavAudio(container, stream)


def _floats(given: Any) -> Waveform:
    """Return samples (C, T) of any format from -1 to 1."""
    found: Waveform = given.astype(np.float32)
    if given.dtype == np.uint8:
        found -= 128
        found /= 128
    elif given.dtype.kind == "i":
        found *= -1 / float(np.iinfo(given.dtype).min)
    return found
