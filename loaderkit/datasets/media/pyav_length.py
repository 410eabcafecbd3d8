"""Find the length of streams: from the header if that is reliable, else from the packets."""

import struct
from bisect import bisect_right
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice

from loaderkit.datasets.media.pyav_container import pyav, seek, seek_to_start, start_of
from loaderkit.datasets.media.pyav_types import Container, Stream

# Formats without an index and without a length in the header: FFmpeg guesses the length from the size of the file.
WITHOUT_INDEX = {"mp3", "aac", "ac3", "eac3", "dts", "amr", "h264", "hevc", "mpeg", "mpegts"}
_REORDERED = 4  # the first frame to show is in one of the first packets, of which there are this many


@dataclass(frozen=True, slots=True)
class Samples:
    """The number of samples in an audio stream.

    Attributes:
        count: The number. If it is not exact, it comes from the rounded times in the header.
        is_exact: Whether the number is exact. If not, the file has as many samples as are decoded.
        before: For the time of each packet, the number of samples before the packet, in order. Empty if times are not
            rounded.
        tick_s: The unit of these times, in seconds.
    """

    count: int
    is_exact: bool = True
    before: dict[int, int] = field(default_factory=dict)
    tick_s: Fraction = Fraction(1)

    def late_s(self, sample: int, rate: int) -> Fraction:
        """Return by how many seconds the time of a sample's packet is too late, as it is a sum of rounded durations."""
        stamps = list(self.before)
        if not stamps:
            return Fraction(0)
        stamp = stamps[max(0, bisect_right(list(self.before.values()), sample) - 1)]
        return (stamp - stamps[0]) * self.tick_s - Fraction(self.before[stamp], rate)


def seconds_of(container: Container, stream: Stream) -> Fraction:
    """Return the duration of a video stream in seconds: from the header, or if it has none, from the times of packets.

    The container may be at its end afterwards, so seek before reading.

    Raises:
        ValueError: If packets are needed, and none has a time.
    """
    frame = 1 / (stream.average_rate * stream.time_base) if stream.average_rate else Fraction(0)
    said = None if container.format.name in WITHOUT_INDEX else _said(container, stream)
    if said is None:
        return _between_packets(container, stream, frame)
    if stream.average_rate == stream.guessed_rate or not stream.duration:
        return said
    # With a changing rate and B-frames, MP4 says when the last frame is decoded, which may be before it is shown.
    seek(container, stream, (stream.start_time or 0) + stream.duration)
    ends = [packet.pts + (packet.duration or frame) for packet in container.demux(stream) if packet.pts is not None]
    return max(said, (max(ends) - (stream.start_time or 0)) * stream.time_base) if ends else said


def first_shown(container: Container, stream: Stream) -> int:
    """Return the time at which the first frame of a video stream is shown, in units of the stream's clock."""
    start: int = stream.start_time or 0
    if container.format.name != "avi" or not stream.codec_context.has_b_frames:
        return start
    seek_to_start(container, stream)  # the header of AVI gives the time at which the first frame is decoded
    first = islice((packet.pts for packet in container.demux(stream) if packet.pts is not None), _REORDERED)
    return min(first, default=start)


def samples_of(container: Container, stream: Stream, rate: int) -> Samples:
    """Return the number of samples in an audio stream.

    `rate` is its sample rate in Hz. Reads and raises as `seconds_of`.
    """
    if container.format.name in WITHOUT_INDEX:
        return _counted(container, stream, rate)
    rough, said = is_rough(stream, rate), _said(container, stream)
    if said is None:
        return Samples(round(_between_packets(container, stream, Fraction(0)) * rate), is_exact=not rough)
    if rough or (container.format.name == "ogg" and stream.codec_context.codec.canonical_name == "opus"):
        said -= _unheard(container, stream)  # in these formats the length is counted from the first packet
    return Samples(round(said * rate), is_exact=not rough)


def is_rough(stream: Stream, rate: int) -> bool:
    """Return whether a stream's times are too coarse to tell samples apart, as in Matroska and WebM (milliseconds)."""
    tick = stream.time_base
    return bool(rate > tick.denominator and tick.numerator == 1)  # in AVI a tick is a packet


def _said(container: Container, stream: Stream) -> Fraction | None:
    if stream.duration:
        found: Fraction = stream.duration * stream.time_base
        return found
    hours, _, rest = stream.metadata.get("DURATION", "").partition(":")  # in Matroska: when it ends, not its length
    minutes, _, seconds = rest.partition(":")
    try:
        end = 3600 * int(hours) + 60 * int(minutes) + Fraction(seconds)
    except ValueError:
        if not container.duration or len(container.streams) > 1:
            return None
        end = Fraction(container.duration, pyav().time_base)
    return max(end - start_of(stream), Fraction(0)) or None


def _unheard(container: Container, stream: Stream) -> Fraction:
    """Return by how many seconds the first packet is before the stream's start: padding by the encoder.

    Call it before anything is read.
    """
    first = next((packet.pts for packet in container.demux(stream) if packet.pts is not None), None)
    return max(start_of(stream) - first * stream.time_base, Fraction(0)) if first is not None else Fraction(0)


def _between_packets(container: Container, stream: Stream, each: Fraction) -> Fraction:
    """Return the time from a stream's first packet to the end of its last one, in seconds.

    `each` is the duration of a packet that does not give it, in units of the stream's clock.
    """
    first, last = None, None
    for packet in container.demux(stream):
        if packet.pts is not None:
            first = packet.pts if first is None else min(first, packet.pts)
            end = packet.pts + (packet.duration or each)
            last = end if last is None else max(last, end)
    if first is None or last is None:
        raise ValueError("it ends before its first packet")
    found: Fraction = (last - first) * stream.time_base
    return found


def _counted(container: Container, stream: Stream, rate: int) -> Samples:
    """Count the samples of all packets, without those that the packets mark as to be dropped."""
    count, tick = 0, rate * stream.time_base
    before: dict[int, int] = {}
    # For a packet's duration in ticks, its number of samples, and whether that is rounded.
    lasts: dict[int, tuple[int, bool]] = {}
    first, last = None, None
    for packet in container.demux(stream):
        stamp, ticks = packet.pts, packet.duration or 0
        if stamp is None:  # the empty packet at the end
            continue
        if ticks not in lasts:
            lasts[ticks] = round(ticks * tick), (ticks * tick).denominator > 1
        samples, is_rounded = lasts[ticks]
        if is_rounded:
            before[stamp] = count
        count += samples
        first, last = first or packet, packet
    for edge in (first, last) if first is not last else (first,):
        if edge is not None and edge.has_sidedata("skip_samples"):  # how many to drop at its start, and at its end
            count -= sum(struct.unpack_from("<II", bytes(edge.get_sidedata("skip_samples"))))
    if not count:
        raise ValueError("it ends before its first packet")
    return Samples(max(count, 0), before=before, tick_s=stream.time_base)
