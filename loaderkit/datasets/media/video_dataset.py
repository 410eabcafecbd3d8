"""Video files as clips of a few frames."""

import os
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from loaderkit.datasets.base import MapStyle, Transform
from loaderkit.datasets.images.checks import check_max_pixels
from loaderkit.datasets.media.clips import CACHE_DIR, ClipDataset, Labels, start_of_clip
from loaderkit.datasets.media.content import MAX_FRAME_PIXELS, Content
from loaderkit.datasets.media.decoders import DecoderName, VideoReader, decoder_named
from loaderkit.datasets.media.pyav_container import open_stream
from loaderkit.datasets.media.pyav_video import read_video_header
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls
from loaderkit.system.arrays import Int64Array
from loaderkit.system.types import Array
from loaderkit.system.worker_info import in_worker_process

_CLIPS = ("random", "middle", "even", "all")
_ROUNDING = 1e-6  # of a frame


class VideoDataset(ClipDataset):
    """Clips of a number of frames, from video files or encoded fields.

    A sample is a dict: `"frames"` uint8 (frames, 3, H, W) RGB, rotated upright, `"times"` (frames,) float64 with the
    time at which each frame begins in seconds, and the other fields of the source, such as `"label"`. A video that is
    too short repeats its last frame, and `"length"` is the number of frames without these repeats.

    FFmpeg decodes, in one thread. It seeks to the keyframe before a frame, and converts only the wanted frames. Frames
    are chosen by time, also if the frame rate of a video changes.

    Args:
        source: A path, folder, glob or URL of files, or a list of them. Or a dataset of dicts, such as `TarDataset`, whose field
            holds the bytes of a file, its path or its URL.
        frames: Number of frames in a clip.
        fps: Frame rate of a clip, whatever the rate of the video. None: the video's rate, divided by `stride`.
        stride: Without `fps`: take every `stride`-th frame.
        field: The dataset's field with the video. By default the one whose name ends like a video file's ("mp4",
            "left.webm").
        labels: "folder": the folders in `source` are classes, numbered in sorted order. Or a list with a value for each
            file.
        clips: "random": one clip of each file, with a random start. "middle": the middle clip of each file. "even": one
            clip of frames spread evenly over the file. "all": all clips of a file, one after another. For "all" the
            headers of all files are read when the dataset is made.
        max_pixels: Most pixels (width times height) of a frame; None for no limit.
        decoder: "pyav", or "torchcodec", which is faster and needs FFmpeg on the machine. Both choose the same frames,
            but pixels may differ. A run can resume only with the same decoder.
        device: Device on which torchcodec decodes. "cuda" is the GPU's decoder (NVDEC): frames are on the GPU, and
            workers must be threads. Its speed has not been measured.
        transform: Called with each sample; its result replaces the sample.
        storage: How to reach remote files.
        cache_dir: Folder in which to store the lengths of files; None stores nothing.
        jobs: Number of processes that read the lengths of files.

    Raises:
        ImportError: If PyAV or the chosen decoder is not installed.
        FileNotFoundError: If there are no files.
        ValueError: If a setting is out of range. On reading: if a file cannot be decoded, is cut, or has too large frames.
        RuntimeError: On reading, if a worker process would decode on a GPU.

    Examples:
        >>> import av
        >>> with av.open("grey.mp4", "w") as file:
        ...     stream = file.add_stream("libx264", rate=25, options={"crf": "1"})
        ...     stream.width, stream.height = 64, 48
        ...     for level in range(50):
        ...         picture = np.full((48, 64, 3), 4 * level, dtype=np.uint8)
        ...         file.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        ...     file.mux(stream.encode())
        >>> sample = lk.VideoDataset("grey.mp4", frames=4, fps=5, clips="middle")[0]
        >>> sample["frames"].shape, sample["times"]
        (torch.Size([4, 3, 48, 64]), tensor([0.6800, 0.8800, 1.0800, 1.2800], dtype=torch.float64))
    """

    suffixes: ClassVar[tuple[str, ...]] = (
        ".mp4", ".webm", ".mkv", ".avi", ".mov", ".m4v", ".mpg", ".mpeg", ".ts", ".wmv", ".flv", ".3gp", ".ogv",
    )  # fmt: skip

    def __init__(
        self,
        source: Urls | MapStyle,
        *,
        frames: int,
        fps: float | None = None,
        stride: int = 1,
        field: str | None = None,
        labels: Labels = None,
        clips: Literal["random", "middle", "even", "all"] = "random",
        max_pixels: int | None = MAX_FRAME_PIXELS,
        decoder: DecoderName = "pyav",
        device: torch.device | str = "cpu",
        transform: Transform | None = None,
        storage: Storage | None = None,
        cache_dir: str | os.PathLike[str] | None = CACHE_DIR,
        jobs: int = 1,
    ) -> None:
        check_max_pixels("VideoDataset", max_pixels)
        if clips not in _CLIPS or frames < 1 or stride < 1 or (fps is not None and not fps > 0):
            raise ValueError(
                f"VideoDataset: clips is {clips!r}, frames {frames}, stride {stride} and fps {fps}; wanted one of {_CLIPS}, at least 1 "
                "frame, a stride of at least 1, and fps above 0."
            )
        if fps is not None and stride != 1:
            raise ValueError(f"VideoDataset: fps is {fps} and stride {stride}, wanted one of them.")
        self.frames, self.fps, self.stride, self.max_pixels = frames, fps, stride, max_pixels
        self.device = torch.device(device)
        if self.device.type != "cpu" and decoder != "torchcodec":
            raise ValueError(
                f"VideoDataset: device is {str(device)!r} and decoder {decoder!r}, wanted decoder='torchcodec'."
            )
        super().__init__(
            source,
            field=field,
            labels=labels,
            clips=clips,
            decoder=decoder,
            transform=transform,
            storage=storage,
            cache_dir=cache_dir,
            jobs=jobs,
        )

    def _measure(self, content: Content) -> tuple[float, float]:
        with open_stream(content, "video", self._storage) as (container, stream):
            header = read_video_header(container, stream, self.max_pixels)
        return header.seconds, header.fps

    def _counts(self, seconds: Array, rates: Array) -> Int64Array:
        frames = np.round(np.nan_to_num(seconds / self._step(rates)))
        counts: Int64Array = np.maximum(np.ceil(frames / self.frames), 1).astype(np.int64)
        return counts

    def _cut(self) -> str:
        pace = f"stride {self.stride}" if self.fps is None else f"{self.fps:g} fps"
        return f"clips of {self.frames} frames, {pace}"

    def _step(self, rates: Array | float) -> Any:
        """Return the seconds from one frame of a clip to the next, for videos of these frame rates."""
        return self.stride / rates if self.fps is None else 1 / self.fps

    def _read(self, content: Content, clip: int) -> dict[str, Any]:
        with self._open(content) as video:
            wanted = self._wanted(video, clip)
            pictures, times = video.read(wanted.tolist())
        length = max(1, int(np.searchsorted(wanted, video.seconds)))
        return {
            "frames": pictures,
            "times": torch.tensor(times, dtype=torch.float64),
            "length": length,
        }

    def _open(self, content: Content) -> AbstractContextManager[VideoReader]:
        settings: dict[str, object] = {"max_pixels": self.max_pixels}
        if self.device.type != "cpu":
            if in_worker_process():
                raise RuntimeError(
                    f"VideoDataset: device='{self.device}' in a worker process, where CUDA cannot be used after a fork, and frames would "
                    "be copied back. Give the Loader num_workers=0 or engine='threads'."
                )
            settings["device"] = str(self.device)
        return decoder_named(self.decoder).open_video(content, self._storage, **settings)

    def _decoded_by(self) -> str:
        return self.decoder if self.device.type == "cpu" else f"{self.decoder} on {self.device.type}"

    def _wanted(self, video: VideoReader, clip: int) -> Array:
        """Return the times at which to take a clip's frames, in seconds, (frames,)."""
        numbers = np.arange(self.frames)
        if self.clips == "even":
            times = (numbers + 0.5) * video.seconds / self.frames
        else:
            step = self._step(video.fps)
            length = self.frames * step
            if self.clips != "all":  # the clip ends with its last frame, as no other clip follows
                length += 1 / video.fps - step
            times = start_of_clip(self.clips, clip, video.seconds, length) + numbers * step
        frames = times * video.fps + _ROUNDING
        if self.fps is None and self.clips != "even":
            frames = np.floor(frames) + 0.5  # the middle of each frame, as containers round when frames begin
        return frames / video.fps
