"""Read the packets of a stream by PyAV from a time on. Times that may be wrong after a seek are removed."""

from collections.abc import Iterator
from itertools import chain

from loaderkit.datasets.media.pyav_container import seek, seek_to_start
from loaderkit.datasets.media.pyav_types import Container, Packet, Stream

_KEPT_BACK = 24  # samples
_MODES = 3  # number of low bits in an Opus packet's first byte that are not its mode
# Opus modes below the first are speech at 8,000 Hz; modes from the second on are coded without a model of speech.
_LOW, _MUSIC = 4, 16


def packets_from_start(container: Container, stream: Stream) -> Iterator[Packet]:
    """Return all packets of a stream, from the first one on."""
    seek_to_start(container, stream)
    packets: Iterator[Packet] = container.demux(stream)
    return packets


def packets_from(container: Container, stream: Stream, stamp: int) -> Iterator[Packet] | None:
    """Return the packets from `stamp` on, in units of the stream's clock, or from before it.

    Return None if FFmpeg can't seek there.
    """
    if not seek(container, stream, stamp):
        return None
    packets: Iterator[Packet] = container.demux(stream)
    return _in_pages(packets) if container.format.name == "ogg" else packets


def packets_walked(container: Container, stream: Stream, stamp: int) -> Iterator[Packet]:
    """Return the packets from the last keyframe at or before `stamp` on, without a seek.

    Earlier packets are read and dropped, without decoding them.
    """
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
    """Return how many samples of an Opus packet FFmpeg's decoder returns only with the next packet.

    It does so with speech at 8,000 Hz, such as at 6,000 bits per second. The times of frames do not show it.
    """
    return _KEPT_BACK if packet.size and memoryview(packet)[0] >> _MODES < _LOW else 0


def is_speech(packet: Packet) -> bool:
    """Return whether an Opus packet is coded as speech, at least in its lower band.

    After a packet that is not, the decoder has no memory of earlier speech.
    """
    return bool(packet.size) and memoryview(packet)[0] >> _MODES < _MUSIC


def _in_pages(packets: Iterator[Packet]) -> Iterator[Packet]:
    """Return the packets of Ogg, with the times of the first page's packets removed.

    A page has only the time of its end. After a seek, FFmpeg may give the first page's packets times of another page.
    """
    first: list[Packet] = []
    for packet in packets:
        if first and packet.pos != first[0].pos:
            return chain(first, [packet], packets)
        packet.pts = packet.dts = None
        first.append(packet)
    return iter(first)
