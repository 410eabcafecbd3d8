"""How long streams are: what the header says where it counts, else what the packets say."""

import struct
from bisect import bisect_right
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice

from loaderkit.datasets.media.pyav_container import pyav, seek, seek_to_start, start_of
from loaderkit.datasets.media.pyav_types import Container, Stream

# These formats have no index. They do not say how long they are, and FFmpeg guesses it from the size of the file.
WITHOUT_INDEX = {"mp3", "aac", "ac3", "eac3", "dts", "amr", "h264", "hevc", "mpeg", "mpegts"}
_REORDERED = 4  # the first frame is in one of so many packets


@dataclass(frozen=True, slots=True)
class Samples:
    """How many samples a stream of audio has.

    Attributes:
        count: Their number; if it is not exact, by the rounded times of the header.
        is_exact: Whether the number is exact. Else what is decoded counts.
        before: Samples before the packet of a time, in the order of packets. Empty if times do not round.
        tick_s: The unit of these times.
    """

    count: int
    is_exact: bool = True
    before: dict[int, int] = field(default_factory=dict)
    tick_s: Fraction = Fraction(1)

    def late_s(self, sample: int, rate: int) -> Fraction:
        """Return by how many seconds the time of a sample's packet is later than that of the sample; it adds up rounded times."""
        stamps = list(self.before)
        if not stamps:
            return Fraction(0)
        stamp = stamps[max(0, bisect_right(list(self.before.values()), sample) - 1)]
        return (stamp - stamps[0]) * self.tick_s - Fraction(self.before[stamp], rate)


def seconds_of(container: Container, stream: Stream) -> Fraction:
    """Return how long a stream of video is, as its file says; if the file does not say it, by the times of its packets.

    Seek before reading: afterwards the container may be at its end.

    Raises:
        ValueError: If it has no packets with times.
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
    """Return the time at which the first frame of a stream of video begins, in the stream's clock."""
    start: int = stream.start_time or 0
    if container.format.name != "avi" or not stream.codec_context.has_b_frames:
        return start
    seek_to_start(container, stream)  # the header of AVI says when the first frame is decoded
    first = islice((packet.pts for packet in container.demux(stream) if packet.pts is not None), _REORDERED)
    return min(first, default=start)


def samples_of(container: Container, stream: Stream, rate: int) -> Samples:
    """Return how many samples a stream of audio has; read and raise as `seconds_of`."""
    if container.format.name in WITHOUT_INDEX:
        return _counted(container, stream, rate)
    rough, said = is_rough(stream, rate), _said(container, stream)
    if said is None:
        return Samples(round(_between_packets(container, stream, Fraction(0)) * rate), is_exact=not rough)
    if rough or (container.format.name == "ogg" and stream.codec_context.codec.canonical_name == "opus"):
        said -= _unheard(container, stream)  # these count from the first packet
    return Samples(round(said * rate), is_exact=not rough)


def is_rough(stream: Stream, rate: int) -> bool:
    """Return whether a stream's clock is too rough to tell samples: Matroska and WebM round times to a millisecond."""
    tick = stream.time_base
    return bool(rate > tick.denominator and tick.numerator == 1)  # a tick of AVI is a packet


def _said(container: Container, stream: Stream) -> Fraction | None:
    if stream.duration:
        found: Fraction = stream.duration * stream.time_base
        return found
    hours, _, rest = stream.metadata.get("DURATION", "").partition(":")  # of Matroska; its end, not its length
    minutes, _, seconds = rest.partition(":")
    try:
        end = 3600 * int(hours) + 60 * int(minutes) + Fraction(seconds)
    except ValueError:
        if not container.duration or len(container.streams) > 1:
            return None
        end = Fraction(container.duration, pyav().time_base)
    return max(end - start_of(stream), Fraction(0)) or None


def _unheard(container: Container, stream: Stream) -> Fraction:
    """Return the seconds before a stream's start that its first packet has, if nothing was read: what the encoder added."""
    first = next((packet.pts for packet in container.demux(stream) if packet.pts is not None), None)
    return max(start_of(stream) - first * stream.time_base, Fraction(0)) if first is not None else Fraction(0)


def _between_packets(container: Container, stream: Stream, each: Fraction) -> Fraction:
    """Return the time from a stream's first packet to the end of its last one; `each`: the length of one that does not say it."""
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
    """Count the samples of all packets, less those that the packets say to drop."""
    count, tick = 0, rate * stream.time_base
    before: dict[int, int] = {}
    lasts: dict[
        int, tuple[int, bool]
    ] = {}  # samples of a packet that lasts so many ticks, and whether ticks round them
    first, last = None, None
    for packet in container.demux(stream):
        stamp, ticks = packet.pts, packet.duration or 0
        if stamp is None:  # the end
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
