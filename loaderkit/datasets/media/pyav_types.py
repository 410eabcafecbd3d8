"""Types for the parts of PyAV's containers, streams, packets and frames that the readers use."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Protocol

from loaderkit.system.types import Array


class Named(Protocol):
    """The format of a container."""

    name: str


class Codec(Protocol):
    """A codec of FFmpeg."""

    canonical_name: str
    lossy: bool


class CodecContext(Protocol):
    """The open decoder of a stream."""

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
    """An entry of the container's index: a keyframe or packet, with its time."""

    timestamp: int


class IndexEntries(Protocol):
    """The container's index of a stream."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> IndexEntry: ...

    def search_timestamp(self, timestamp: int, /) -> int: ...


class Stream(Protocol):
    """A stream of a container. Its times are in units of `time_base` seconds."""

    index: int
    type: str
    codec_context: CodecContext
    time_base: Fraction
    start_time: int | None
    duration: int | None
    average_rate: Fraction | None
    guessed_rate: Fraction | None
    metadata: Mapping[str, str]
    disposition: Any  # flags, such as `attached_pic`
    index_entries: IndexEntries


class Packet(Protocol):
    """A packet of a stream: one or more encoded frames."""

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
    """The layout of a frame's samples in memory."""

    is_planar: bool


class AudioFrame(Protocol):
    """A frame of decoded audio samples."""

    pts: int | Any  # None if it is not known
    samples: int
    sample_rate: int
    format: SampleFormat

    def to_ndarray(self) -> Array: ...


class VideoFrame(Protocol):
    """A decoded video frame."""

    pts: int | Any  # None if it is not known
    width: int
    height: int
    rotation: int
    is_corrupt: bool
    side_data: Mapping[str, bytes]
