"""Encoded audio to float32 waveforms: the wanted part alone, with as many samples as its file says."""

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderkit.datasets.media.container import (
    TOLERANCE_S,
    Content,
    open_stream,
    pyav,
    seconds_of,
    seek,
    seek_to_start,
    start_of,
)
from loaderkit.datasets.remote.storage import Storage

Waveform = npt.NDArray[np.float32]
_RUN_UP_S = 0.5  # decoded and dropped before a part: lossy codecs need earlier packets for their first samples


class AudioReader:
    """An open audio stream.

    Attributes:
        sample_rate: Samples in a second.
        samples: Length of the whole in samples, as the file says.
    """

    def __init__(self, container: Any, stream: Any) -> None:
        self._container, self._stream = container, stream
        self.sample_rate = int(stream.codec_context.sample_rate)
        if self.sample_rate < 1 or stream.codec_context.channels < 1:
            raise ValueError(f"its header claims {self.sample_rate} samples a second, wanted 1 or more")
        self.samples = round(seconds_of(container, stream) * self.sample_rate)

    def read(self, start: int, count: int) -> Waveform:
        """Return samples (C, count) from `start` on, from -1 to 1.

        Up to a quarter of a second that the file lacks at its end is silence.

        Raises:
            ValueError: If the file ends earlier, or its rate or channels change.
        """
        parts = self._parts(start, count)
        found = sum(part.shape[1] for part in parts)
        if found < count - TOLERANCE_S * self.sample_rate or not found + start:
            ends_s = (start + found) / self.sample_rate
            raise ValueError(
                f"it ends at {ends_s:.3f} s, wanted {(start + count) / self.sample_rate:.3f} s: it is cut or damaged"
            )
        channels = len(parts[0]) if parts else self._stream.codec_context.channels
        wave = np.zeros((channels, count), dtype=np.float32)
        if parts:
            wave[:, :found] = _floats(np.concatenate(parts, axis=1))
        return wave

    def _parts(self, start: int, count: int) -> list[Any]:
        """Return pieces (C, T) of the wanted part, in the file's own format of samples."""
        lossy = self._stream.codec_context.codec.lossy
        for run_up_s in (_RUN_UP_S,) if lossy else (0.0, _RUN_UP_S):
            seek_to = start - round(run_up_s * self.sample_rate)
            parts = self._parts_from(seek_to, start, count) if seek_to > 0 else None
            if parts is not None:
                return parts
        return self._parts_from(0, start, count) or []

    def _parts_from(self, seek_to: int, start: int, count: int) -> list[Any] | None:
        """Decode after a seek; None if that fails, or the first packet there is after `start`."""
        stream, begin = self._stream, start_of(self._stream)
        if seek_to:
            place = (begin + Fraction(seek_to, self.sample_rate)) / stream.time_base
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
                at = 0 if frame.pts is None else round((frame.pts * stream.time_base - begin) * self.sample_rate)
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
def open_audio(content: Content, storage: Storage | None = None) -> Iterator[AudioReader]:
    """Open a file's first audio stream; raise as `open_stream`."""
    with open_stream(content, "audio", storage) as (container, stream):
        yield AudioReader(container, stream)


def resample(wave: Waveform, rate: int, new_rate: int, count: int) -> Waveform:
    """Return a waveform (C, T) at another rate, as (C, count), by FFmpeg's resampler."""
    if rate == new_rate:
        return wave
    av = pyav()
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(wave), format="fltp", layout=_layout(len(wave)))
    frame.sample_rate = rate
    convert = av.AudioResampler(format="fltp", layout=frame.layout, rate=new_rate)
    pieces = [piece.to_ndarray() for given in (frame, None) for piece in convert.resample(given)]
    found = np.concatenate([*pieces, np.zeros((len(wave), count), dtype=np.float32)], axis=1)
    return np.ascontiguousarray(found[:, :count])


def _floats(given: Any) -> Waveform:
    """Return samples (C, T) of any format from -1 to 1."""
    found: Waveform = given.astype(np.float32)
    if given.dtype == np.uint8:
        found -= 128
        found /= 128
    elif given.dtype.kind == "i":
        found *= -1 / float(np.iinfo(given.dtype).min)
    return found


def _layout(channels: int) -> str:
    return {1: "mono", 2: "stereo"}.get(channels, f"{channels}C")
