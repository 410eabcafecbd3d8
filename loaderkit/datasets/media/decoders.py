"""The decoders of audio and video: one interface, the same clips, times and errors, but not the same bits."""

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
        sample_rate: Samples in a second.
        samples: Length of the whole in samples, as the file says.
        most: The largest number of samples that it may have: more if its header rounds times.
    """

    sample_rate: int
    samples: int
    most: int

    def read(self, start: int, count: int) -> Waveform:
        """Return samples (C, count) from `start` on, from -1 to 1.

        Up to a quarter of a second that the file lacks at its end is silence. If its header rounds times, the waveform ends where
        the file does.

        Raises:
            ValueError: If the file ends earlier, or its rate or channels change.
        """
        ...


class VideoReader(Protocol):
    """An open video stream.

    Attributes:
        seconds: Length of the whole, as the file says.
        fps: Mean number of frames in a second.
    """

    seconds: float
    fps: float

    def read(self, times: Sequence[float]) -> tuple[Tensor, list[float]]:
        """Return the frames (N, 3, H, W) uint8 that are shown at these times, and when each begins, in seconds.

        Args:
            times: N increasing numbers of seconds since the start. After the end of the video its last frame is shown.

        Raises:
            ValueError: If the file ends earlier than it says, or a frame is damaged, too large, or of another size.
        """
        ...


class Decoder(NamedTuple):
    """How a decoder opens a file's first stream of audio or video.

    Attributes:
        version: Returns its name and version; raises an ImportError if it is missing.
        open_audio: Called with a content and a storage.
        open_video: Called with a content and a storage, `max_pixels=`, and for torchcodec `device=`.
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
    """Return a decoder.

    Raises:
        ValueError: If there is none of this name.
    """
    if name not in _DECODERS:
        raise ValueError(f"decoder is {name!r}, wanted one of {get_args(DecoderName)}.")
    return _DECODERS[name]
