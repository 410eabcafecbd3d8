"""Packets of a stream by PyAV, from a place on, with times that hold also after a seek."""

from collections.abc import Iterator
from itertools import chain

from loaderkit.datasets.media.pyav_container import seek, seek_to_start
from loaderkit.datasets.media.pyav_types import Container, Packet, Stream

_KEPT_BACK = 24
_MODES = 3  # bits of the first byte of a packet of Opus that are not its mode
_LOW, _MUSIC = (
    4,
    16,
)  # modes before the first have 8,000 Hz; those from the second on are coded without a model of speech


def packets_from_start(container: Container, stream: Stream) -> Iterator[Packet]:
    """Return all packets, as if nothing was read."""
    seek_to_start(container, stream)
    packets: Iterator[Packet] = container.demux(stream)
    return packets


def packets_from(container: Container, stream: Stream, stamp: int) -> Iterator[Packet] | None:
    """Return the packets from a time of the stream's clock on, or from before it; None if FFmpeg does not seek there."""
    if not seek(container, stream, stamp):
        return None
    packets: Iterator[Packet] = container.demux(stream)
    return _in_pages(packets) if container.format.name == "ogg" else packets


def packets_walked(container: Container, stream: Stream, stamp: int) -> Iterator[Packet]:
    """Return the packets from the last keyframe before a time on, without a seek: those before are read, and not decoded."""
    packets = packets_from_start(container, stream)
    kept: list[Packet] = []
    for packet in packets:
        if packet.is_keyframe and packet.pts is not None:
            if packet.pts > stamp and kept:
                return chain(kept, [packet], packets)
            kept = []
        kept.append(packet)
    return iter(kept)


def opus_kept_back(packet: Packet) -> int:
    """Return how many samples FFmpeg's decoder keeps back after a packet of Opus, which it gives with the next one.

    It does so with speech of 8,000 Hz, as at 6,000 bits a second. The times of its frames do not tell it.
    """
    return _KEPT_BACK if packet.size and memoryview(packet)[0] >> _MODES < _LOW else 0


def is_speech(packet: Packet) -> bool:
    """Return whether a packet of Opus is coded as speech, at least its lower band. One that is not makes the decoder forget speech."""
    return bool(packet.size) and memoryview(packet)[0] >> _MODES < _MUSIC


def _in_pages(packets: Iterator[Packet]) -> Iterator[Packet]:
    """Return packets of Ogg, those of the first page without times.

    A page says when it ends. After a seek FFmpeg gives times to the packets of the first page that may be those of another page.
    """
    first: list[Packet] = []
    for packet in packets:
        if first and packet.pos != first[0].pos:
            return chain(first, [packet], packets)
        packet.pts = packet.dts = None
        first.append(packet)
    return iter(first)
