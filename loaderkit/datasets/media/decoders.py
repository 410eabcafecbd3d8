"""The decoders of audio and video. They have one interface and give the same clips and times, but values may differ."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, Protocol, get_args

from torch import Tensor

from loaderkit.datasets.media import pyav_audio, pyav_video, torchcodec_readers
from loaderkit.datasets.media.pyav_container import pyav_version
from loaderkit.datasets.media.waveform import Waveform

DecoderName = Literal["pyav", "torchcodec"]


class AudioReader(Protocol):
    """An open audio stream.

    Attributes:
        sample_rate: Sample rate in Hz.
        samples: Number of samples in the stream, by the file's header or packets.
        most: Most samples that the stream may have: greater than `samples` if the header rounds times.
    """

    sample_rate: int
    samples: int
    most: int

    def read(self, start: int, count: int) -> Waveform:
        """Return the waveform (C, count) float32 from sample `start` on, with values from -1 to 1.

        If the file ends up to 0.25 s too early, the rest is silence. If the header rounds times, the waveform may be
        shorter, and ends where the file ends.

        Raises:
            ValueError: If the file ends more than 0.25 s too early, or its sample rate or channels change.
        """
        ...


class VideoReader(Protocol):
    """An open video stream.

    Attributes:
        seconds: Duration of the stream in seconds, by the file's header or packets.
        fps: Mean frame rate in frames per second.
    """

    seconds: float
    fps: float

    def read(self, times: Sequence[float]) -> tuple[Tensor, list[float]]:
        """Return the frames (N, 3, H, W) uint8 shown at N times, and the time at which each frame begins, in seconds.

        Args:
            times: N increasing times in seconds since the start. After the end of the video its last frame is returned.

        Raises:
            ValueError: If the file ends earlier than its header says, or a frame is damaged, too large, or of another
                size than the first.
        """
        ...


class Decoder(NamedTuple):
    """How a decoder opens a file's first stream of audio or video.

    Attributes:
        version: Returns the decoder's name and version; raises an ImportError if it is not installed.
        open_audio: Opens audio. Takes a `Content` and a `Storage`.
        open_video: Opens video. Takes a `Content` and a `Storage`, `max_pixels=`, and for torchcodec `device=`.
    """

    version: Callable[[], str]
    open_audio: Callable[..., AbstractContextManager[AudioReader]]
    open_video: Callable[..., AbstractContextManager[VideoReader]]


_DECODERS: dict[str, Decoder] = {
    "pyav": Decoder(pyav_version, pyav_audio.open_audio, pyav_video.open_video),
    "torchcodec": Decoder(
        torchcodec_readers.torchcodec_version, torchcodec_readers.open_audio, torchcodec_readers.open_video
    ),
}


def decoder_named(name: DecoderName) -> Decoder:
    """Return the decoder of a name.

    Raises:
        ValueError: If no decoder has this name.
    """
    if name not in _DECODERS:
        raise ValueError(f"decoder is {name!r}, wanted one of {get_args(DecoderName)}.")
    return _DECODERS[name]
