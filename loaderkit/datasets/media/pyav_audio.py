"""Audio by PyAV: the wanted part alone is decoded, and it is that part of a decode of the whole file."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain, islice
from math import ceil

import numpy as np

from loaderkit.datasets.media.clock import Clock, MostAgree, Rounded
from loaderkit.datasets.media.content import TOLERANCE_S, Content
from loaderkit.datasets.media.pyav_container import open_stream, pyav, start_of
from loaderkit.datasets.media.pyav_length import Samples, is_rough, samples_of
from loaderkit.datasets.media.pyav_packets import is_speech, opus_kept_back, packets_from, packets_from_start
from loaderkit.datasets.media.pyav_types import AudioFrame, Container, Packet, Stream
from loaderkit.datasets.media.waveform import Waveform, check_reaches, filled
from loaderkit.files.storage import Storage
from loaderkit.system.types import Array

RUN_UP_S = 0.5  # decoded and dropped before a part: lossy codecs need earlier packets for their first samples
_SPEECH_S = (
    10.0  # the same for speech in Opus: its decoder forgets a tone in seconds, and what it said before a pause at once
)
_PAGES_S = 4.0  # two pages of Ogg and more
_FIRST_FRAMES = 8  # they tell the clock of a stream
_FEW_FRAMES = 4  # they tell where a run begins
_IN_PAGES = {"ogg", "mpeg", "mpegts"}  # after a seek into a page or pack, its first frames have the times of others
_PRE_SKIP = slice(10, 12)  # bytes of the header of Opus: how many samples are not heard
_END_S = 1.0  # decoded to find the end


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
    samples: Samples

    def __post_init__(self) -> None:
        if self.sample_rate < 1 or self.channels < 1:
            raise ValueError(
                f"its header claims {self.channels} channels and {self.sample_rate} samples a second, wanted 1 or more of both"
            )

    @property
    def most(self) -> int:
        """Return the largest number of samples that the file may have."""
        return self.samples.count + (0 if self.samples.is_exact else round(TOLERANCE_S * self.sample_rate))


def read_audio_header(container: Container, stream: Stream) -> AudioHeader:
    """Read the header of an open stream; seek before decoding."""
    context = stream.codec_context
    rate, channels = int(context.sample_rate), int(context.channels)
    samples = samples_of(container, stream, rate) if rate > 0 else Samples(0)
    return AudioHeader(stream.index, rate, channels, start_of(stream), samples)


class PyavAudio:
    """An open audio stream, an `AudioReader`."""

    def __init__(self, container: Container, stream: Stream) -> None:
        self._container, self._stream, self.format = container, stream, container.format.name
        self._header = header = read_audio_header(container, stream)
        self.sample_rate, self.samples, self.most = header.sample_rate, header.samples.count, header.most
        self._is_rough, tick = is_rough(stream, header.sample_rate), stream.time_base
        self._tick = header.sample_rate * tick.numerator / tick.denominator  # a product of fractions takes longer
        self._begin = header.sample_rate * header.begin_s.numerator / header.begin_s.denominator
        # Times of ADPCM in WAV are of its mean number of bytes in a second, so they drift after a seek.
        self._can_seek = not stream.codec_context.name.startswith("adpcm_")
        self._is_opus = stream.codec_context.name == "opus"  # FFmpeg's own decoder

    def read(self, start: int, count: int) -> Waveform:
        parts = self._parts(start, count) or [np.zeros((self._header.channels, 0), dtype=np.float32)]
        wave = _floats(np.concatenate(parts, axis=1))
        if self._header.samples.is_exact:
            return filled(wave, start, count, self.sample_rate)
        check_reaches(start + wave.shape[1], min(start + count, self.samples), self.sample_rate)
        return np.ascontiguousarray(wave)

    def end(self) -> int:
        """Return the number of samples of the whole. If the file does not say it to the sample, its end is decoded."""
        if self._header.samples.is_exact:
            return self.samples
        start = max(0, self.samples - round(_END_S * self.sample_rate))
        try:
            found: int = self.read(start, self.most - start).shape[1]
        except (ValueError, pyav().FFmpegError):  # the clip there raises it
            return self.samples
        return start + found

    def clocked_header(self) -> AudioHeader:
        """Return the header with the time of the first sample as its beginning. Where times are rounded it is that of the first frames."""
        if not isinstance(self._clock, Rounded):
            return self._header
        low, high = self._clock.zero
        return replace(self._header, begin_s=self._header.begin_s + Fraction((low + high) / 2 / self.sample_rate))

    def _parts(self, start: int, count: int) -> list[Array]:
        """Return pieces (C, T) of the wanted part, in the file's own format of samples."""
        lossy = self._stream.codec_context.codec.lossy
        longer_s = _SPEECH_S if self._is_opus else _PAGES_S
        for run_up_s in (RUN_UP_S, longer_s) if lossy else (0.0, RUN_UP_S, longer_s):
            seek_to = start - round(run_up_s * self.sample_rate)
            if seek_to > 0 and self._can_seek:
                try:
                    at, frames = self._run_from(seek_to, start, start + count)
                    if at is not None and at <= start:
                        return self._cut(at, frames, start, count)
                except pyav().FFmpegError:  # an earlier seek may reach it, or the file is damaged
                    pass
        return self._cut(None, self._frames(packets_from_start(self._container, self._stream)), start, count)

    def _cut(self, at: int | None, frames: Iterator[tuple[AudioFrame, int]], start: int, count: int) -> list[Array]:
        """Return the wanted part of frames. `at` is the sample at which the first one begins; None means the first of the file."""
        parts: list[Array] = []
        for frame, _ in frames:
            if at is None:  # what comes before the stream's start is not heard
                at = self._first_at(self._time(frame) or 0.0)
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

    def _first_at(self, time: float) -> int:
        """Return the sample with which the first frame begins, by its time. Opus drops what is not heard the first time alone."""
        if not self._is_rough:
            return min(0, round(time))
        head = self._stream.codec_context.extradata or b""
        return -int.from_bytes(head[_PRE_SKIP], "little") if self._is_opus and time < -self._tick else 0

    def _run_from(self, seek_to: int, start: int, until: int) -> tuple[int | None, Iterator[tuple[AudioFrame, int]]]:
        """Seek to a sample or before it, and return the frames from there on, and the sample with which they begin, if that is known.

        If that is after `start`, the frames may be none.
        """
        stamp = (self._header.begin_s + Fraction(seek_to, self.sample_rate)) / self._stream.time_base
        clock = self._clock
        packets = packets_from(self._container, self._stream, int(stamp))
        if self._is_opus and packets is not None and start - seek_to < round(_SPEECH_S * self.sample_rate):
            head = list(islice(packets, 1))
            if any(map(is_speech, head)):
                return None, iter(())
            packets = chain(head, packets)
        frames = self._frames(packets, sought=True)
        if clock is None:
            first = next(frames, None)
            at = None if first is None else self._time(first[0])
            if first is None or at is None:
                return None, frames
            return self._header.samples.before.get(first[0].pts, round(at)), chain([first], frames)
        until += ceil(2 * self._tick)
        found: list[tuple[AudioFrame, int]] = []
        run: list[tuple[float | None, int]] = []
        timed = 0
        for frame, samples in frames:
            time = (
                self._time(frame) if samples else None
            )  # what a decoder kept to the end has the time of another frame
            found.append((frame, samples))
            run.append((time, samples))
            if time is None:
                continue
            timed += 1
            if timed == _FEW_FRAMES and (at := clock.begin_of(run)) is not None and at > start:
                return at, iter(())  # it saves decoding what is of no use
            if time + samples >= until and len(run) >= _FEW_FRAMES and timed > 1:  # one alone does not tell
                break
        return clock.begin_of(run), chain(found, frames)

    @cached_property
    def _clock(self) -> Clock | None:
        """What tells which sample a run of frames begins with; None if the time of its first frame does."""
        if self.format in _IN_PAGES:
            return MostAgree()
        if not self._is_rough:
            return None
        first = islice(self._frames(packets_from_start(self._container, self._stream)), _FIRST_FRAMES)
        return Rounded.of([(self._time(frame), samples) for frame, samples in first], self._tick)

    def _frames(self, packets: Iterator[Packet] | None, *, sought: bool = False) -> Iterator[tuple[AudioFrame, int]]:
        """Decode packets to frames, each with the samples from its time to that of the next one.

        Args:
            packets: One after another.
            sought: Whether the first ones may be pieces: a seek may go into the middle of one.
        """
        pieces, kept = _FEW_FRAMES if sought else 0, 0
        for packet in packets or ():
            try:
                frames = packet.decode()
            except pyav().FFmpegError:
                if pieces <= 0:
                    raise
                continue
            before, kept = kept, opus_kept_back(packet) if self._is_opus else 0
            for frame in frames:
                if frame.sample_rate == self.sample_rate:
                    yield frame, frame.samples + kept - before
                elif pieces <= 0:
                    raise ValueError(
                        f"its rate changes from {self.sample_rate} to {frame.sample_rate} samples a second"
                    )
                pieces -= 1

    def _time(self, frame: AudioFrame) -> float | None:
        """Return when a frame begins, in samples since the stream's start, if that is known."""
        if frame.pts is None:
            return None
        return float(frame.pts * self._tick - self._begin)


@contextmanager
def open_audio(content: Content, storage: Storage | None = None) -> Iterator[PyavAudio]:
    """Open a file's first audio stream; raise as `open_stream`."""
    with open_stream(content, "audio", storage) as (container, stream):
        yield PyavAudio(container, stream)


def _floats(given: Array) -> Waveform:
    """Return samples (C, T) of any format from -1 to 1."""
    found: Waveform = given.astype(np.float32)
    if given.dtype == np.uint8:
        found -= 128
        found /= 128
    elif given.dtype.kind == "i":
        found *= -1 / float(np.iinfo(given.dtype).min)
    return found
