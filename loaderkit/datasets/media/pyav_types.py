"""What is used of PyAV's containers, streams, packets and frames."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Protocol

from loaderkit.system.types import Array


class Named(Protocol):
    """A format of containers."""

    name: str


class Codec(Protocol):
    """What FFmpeg has for a kind of stream."""

    canonical_name: str
    lossy: bool


class CodecContext(Protocol):
    """An open decoder."""

    name: str
    codec: Codec
    width: int
    height: int
    has_b_frames: bool
    sample_rate: int
    channels: int
    extradata: bytes | None
    thread_count: int


class IndexEntry(Protocol):
    """A place that the container lists."""

    timestamp: int


class IndexEntries(Protocol):
    """The places that the container lists of a stream."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> IndexEntry: ...

    def search_timestamp(self, timestamp: int, /) -> int: ...


class Stream(Protocol):
    """A stream of a container. Times are in its own clock, whose unit is `time_base` seconds."""

    index: int
    type: str
    codec_context: CodecContext
    time_base: Fraction
    start_time: int | None
    duration: int | None
    average_rate: Fraction | None
    guessed_rate: Fraction | None
    metadata: Mapping[str, str]
    disposition: Any  # flags
    index_entries: IndexEntries


class Packet(Protocol):
    """Encoded frames of a stream."""

    pts: int | None
    dts: int | None
    duration: int | None
    size: int
    pos: int | None
    is_keyframe: bool

    def __buffer__(self, flags: int, /) -> memoryview: ...

    def decode(self) -> Sequence[Any]: ...  # frames of the stream's kind

    def has_sidedata(self, name: str, /) -> bool: ...

    def get_sidedata(self, name: str, /) -> bytes: ...


class Container(Protocol):
    """An open file."""

    format: Named
    streams: Sequence[Stream]
    duration: int | None

    def demux(self, stream: Stream, /) -> Iterator[Packet]: ...

    def decode(self, stream: Stream, /) -> Iterator[Any]: ...  # frames of the stream's kind

    def seek(self, offset: int, /, *, stream: Stream | None = None, unsupported_byte_offset: bool = False) -> None: ...


class SampleFormat(Protocol):
    """How the samples of a frame lie in memory."""

    is_planar: bool


class AudioFrame(Protocol):
    """Decoded samples."""

    pts: int | Any  # None if it is not known
    samples: int
    sample_rate: int
    format: SampleFormat

    def to_ndarray(self) -> Array: ...


class VideoFrame(Protocol):
    """A decoded picture."""

    pts: int | Any  # None if it is not known
    width: int
    height: int
    rotation: int
    is_corrupt: bool
    side_data: Mapping[str, bytes]
