"""Decode audio by PyAV: only the wanted part of a file, to the same samples as a decode of the whole file."""

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

RUN_UP_S = 0.5  # seconds decoded and dropped before a part: lossy codecs need earlier packets
# The same for speech in Opus, whose decoder forgets a tone within seconds, and earlier speech at a pause.
_SPEECH_S = 10.0
_PAGES_S = 4.0  # the same for other codecs at a second try: more than two pages of Ogg
_FIRST_FRAMES = 8  # number of frames from which the clock of a stream is found
_FEW_FRAMES = 4  # number of frames from which the begin of a run is found
_IN_PAGES = {"ogg", "mpeg", "mpegts"}  # formats in which the first frames after a seek have the times of other frames
_PRE_SKIP = slice(10, 12)  # bytes of the Opus header with the number of samples to drop at the start
_END_S = 1.0  # seconds decoded to find the end of a file


@dataclass(frozen=True, slots=True)
class AudioHeader:
    """The header of a file's first audio stream.

    Attributes:
        index: The stream's index in its file.
        sample_rate: Sample rate in Hz.
        channels: Number of channels.
        begin_s: When the stream starts, in seconds of the stream's clock.
        samples: Number of samples in the stream.

    Raises:
        ValueError: If the sample rate or the number of channels is below 1.
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
        """Return the most samples that the file may have."""
        return self.samples.count + (0 if self.samples.is_exact else round(TOLERANCE_S * self.sample_rate))


def read_audio_header(container: Container, stream: Stream) -> AudioHeader:
    """Read the header of an open stream. The position in the container may change, so seek before decoding."""
    context = stream.codec_context
    rate, channels = int(context.sample_rate), int(context.channels)
    samples = samples_of(container, stream, rate) if rate > 0 else Samples(0)
    return AudioHeader(stream.index, rate, channels, start_of(stream), samples)


class PyavAudio:
    """An open audio stream; implements `AudioReader`."""

    def __init__(self, container: Container, stream: Stream) -> None:
        self._container, self._stream, self.format = container, stream, container.format.name
        self._header = header = read_audio_header(container, stream)
        self.sample_rate, self.samples, self.most = header.sample_rate, header.samples.count, header.most
        self._is_rough, tick = is_rough(stream, header.sample_rate), stream.time_base
        self._tick = header.sample_rate * tick.numerator / tick.denominator  # in samples; a Fraction is slower
        self._begin = header.sample_rate * header.begin_s.numerator / header.begin_s.denominator
        # Times of ADPCM in WAV are computed from its mean byte rate, so they are wrong after a seek.
        self._can_seek = not stream.codec_context.name.startswith("adpcm_")
        self._is_opus = stream.codec_context.name == "opus"  # decoded by FFmpeg's own decoder, not libopus

    def read(self, start: int, count: int) -> Waveform:
        parts = self._parts(start, count) or [np.zeros((self._header.channels, 0), dtype=np.float32)]
        wave = _floats(np.concatenate(parts, axis=1))
        if self._header.samples.is_exact:
            return filled(wave, start, count, self.sample_rate)
        check_reaches(start + wave.shape[1], min(start + count, self.samples), self.sample_rate)
        return np.ascontiguousarray(wave)

    def end(self) -> int:
        """Return the number of samples in the stream. If the file does not give it exactly, decode the end."""
        if self._header.samples.is_exact:
            return self.samples
        start = max(0, self.samples - round(_END_S * self.sample_rate))
        try:
            found: int = self.read(start, self.most - start).shape[1]
        except (ValueError, pyav().FFmpegError):  # a damaged end: reading a clip there raises the error
            return self.samples
        return start + found

    def clocked_header(self) -> AudioHeader:
        """Return the header, with `begin_s` corrected if times are rounded: the time that fits all first frames."""
        if not isinstance(self._clock, Rounded):
            return self._header
        low, high = self._clock.zero
        return replace(self._header, begin_s=self._header.begin_s + Fraction((low + high) / 2 / self.sample_rate))

    def _parts(self, start: int, count: int) -> list[Array]:
        """Return `count` samples from `start` on as pieces (C, T), in the file's own sample format."""
        lossy = self._stream.codec_context.codec.lossy
        longer_s = _SPEECH_S if self._is_opus else _PAGES_S
        for run_up_s in (RUN_UP_S, longer_s) if lossy else (0.0, RUN_UP_S, longer_s):
            seek_to = start - round(run_up_s * self.sample_rate)
            if seek_to > 0 and self._can_seek:
                try:
                    at, frames = self._run_from(seek_to, start, start + count)
                    if at is not None and at <= start:
                        return self._cut(at, frames, start, count)
                except pyav().FFmpegError:  # the next, earlier seek may work; if not, the file is damaged
                    pass
        return self._cut(None, self._frames(packets_from_start(self._container, self._stream)), start, count)

    def _cut(self, at: int | None, frames: Iterator[tuple[AudioFrame, int]], start: int, count: int) -> list[Array]:
        """Return the wanted part of frames as pieces (C, T).

        `at` is the sample at which the first frame begins. None: the frames are the file's first ones.
        """
        parts: list[Array] = []
        for frame, _ in frames:
            if at is None:  # samples before the stream's start, which are dropped, have negative numbers
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
        """Return the sample with which the file's first frame begins, by its time in samples; at most 0.

        For Opus in a format that rounds times it comes from the header, if the decoder has not dropped these samples
        itself.
        """
        if not self._is_rough:
            return min(0, round(time))
        head = self._stream.codec_context.extradata or b""
        return -int.from_bytes(head[_PRE_SKIP], "little") if self._is_opus and time < -self._tick else 0

    def _run_from(self, seek_to: int, start: int, until: int) -> tuple[int | None, Iterator[tuple[AudioFrame, int]]]:
        """Seek to a sample or before it. Return the sample at which the frames there begin, if known, and the frames.

        If they begin after `start`, the frames may be left out. Each frame comes with its number of samples.
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
            time = self._time(frame) if samples else None  # a decoder's last frame may have another frame's time
            found.append((frame, samples))
            run.append((time, samples))
            if time is None:
                continue
            timed += 1
            if timed == _FEW_FRAMES and (at := clock.begin_of(run)) is not None and at > start:
                return at, iter(())  # the frames are of no use: do not decode more
            if time + samples >= until and len(run) >= _FEW_FRAMES and timed > 1:  # one time alone does not tell
                break
        return clock.begin_of(run), chain(found, frames)

    @cached_property
    def _clock(self) -> Clock | None:
        """The clock that finds the sample a run of frames begins with; None if the first frame's time is exact."""
        if self.format in _IN_PAGES:
            return MostAgree()
        if not self._is_rough:
            return None
        first = islice(self._frames(packets_from_start(self._container, self._stream)), _FIRST_FRAMES)
        return Rounded.of([(self._time(frame), samples) for frame, samples in first], self._tick)

    def _frames(self, packets: Iterator[Packet] | None, *, sought: bool = False) -> Iterator[tuple[AudioFrame, int]]:
        """Decode packets to frames. Yield each with the number of samples from its time to the next frame's time.

        Args:
            packets: Consecutive packets.
            sought: Whether the packets follow a seek, which may go into the middle of one: errors in the first ones are
                ignored.
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
        """Return the time of a frame in samples since the stream's start; None if the frame has no time."""
        if frame.pts is None:
            return None
        return float(frame.pts * self._tick - self._begin)


@contextmanager
def open_audio(content: Content, storage: Storage | None = None) -> Iterator[PyavAudio]:
    """Open a file's first audio stream. Errors are those of `open_stream`."""
    with open_stream(content, "audio", storage) as (container, stream):
        yield PyavAudio(container, stream)


def _floats(given: Array) -> Waveform:
    """Return samples (C, T) of any format as float32 from -1 to 1."""
    found: Waveform = given.astype(np.float32)
    if given.dtype == np.uint8:
        found -= 128
        found /= 128
    elif given.dtype.kind == "i":
        found *= -1 / float(np.iinfo(given.dtype).min)
    return found
