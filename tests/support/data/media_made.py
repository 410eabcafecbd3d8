"""Small files of audio and video, made by FFmpeg's encoders in PyAV."""

import io
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import pytest

import loaderkit as lk

RATE = 8000
LOSSLESS = {"wav": "pcm_s16le", "flac": "flac", "aiff": "pcm_s16be", "mka": "pcm_s16le"}
LOSSY = {"mp3": "libmp3lame", "m4a": "aac", "aac": "aac", "ogg": "libopus", "webm": "libopus"}
VIDEO = {"mp4": "libx264", "mkv": "libx264", "webm": "libvpx-vp9", "avi": "mpeg4", "ts": "libx264"}
_CONTAINERS = {"m4a": "ipod", "aac": "adts", "ts": "mpegts", "mkv": "matroska", "mka": "matroska"}


def need_decoder(name: str) -> None:
    """Skip a test, with the reason, if a decoder is missing."""
    pytest.importorskip("av")
    try:
        lk.AudioDataset([{"wav": b""}], decoder=name)  # type: ignore[arg-type]
    except ImportError as error:
        pytest.skip(str(error))


def samples(seconds: float, seed: int = 0, channels: int = 1, rate: int = RATE) -> Any:
    """Noise (channels, T) int16."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(channels, round(seconds * rate))) * 3000).astype(np.int16)


@cache
def audio(kind: str = "wav", seconds: float = 2.0, seed: int = 0, channels: int = 1, rate: int = RATE) -> bytes:
    """A file of `samples(...)`; Opus takes 48,000 Hz."""
    return encode_audio(kind, samples(seconds, seed, channels, rate), rate)


def encode_audio(kind: str, wave: Any, rate: int = RATE, codec: str | None = None) -> bytes:
    av, layout = pytest.importorskip("av"), {1: "mono", 2: "stereo"}[len(wave)]
    file = io.BytesIO()
    with av.open(file, "w", format=_CONTAINERS.get(kind, kind)) as container:
        stream = container.add_stream(codec or (LOSSLESS | LOSSY)[kind], rate=rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(wave.T.reshape(1, -1).copy(), format="s16", layout=layout)
        frame.sample_rate = rate
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


def level(number: int) -> int:
    """The brightness of a frame."""
    return 20 + number * 7 % 200


@cache
def video(
    kind: str = "mp4",
    frames: int = 50,
    fps: int = 25,
    size: tuple[int, int] = (64, 48),
    gop: int = 12,
    front: bool = False,
) -> bytes:
    """A file whose frame n is grey, as bright as `level(n)`; its left half is darker by 15. `front`: an MP4 with its index first."""
    av = pytest.importorskip("av")
    options = {"movflags": "faststart"} if front else {}
    with (
        NamedTemporaryFile() as file,
        av.open(file.name, "w", format=_CONTAINERS.get(kind, kind), options=options) as container,
    ):
        stream = container.add_stream(VIDEO[kind], rate=fps, options={} if kind == "avi" else {"crf": "10"})
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = *size, "yuv420p", gop
        stream.codec_context.thread_count = 1
        for number in range(frames):
            pixels = np.full((size[1], size[0], 3), level(number), dtype=np.uint8)
            pixels[:, : size[0] // 2] -= 15
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        container.mux(stream.encode())
        container.close()
        return Path(file.name).read_bytes()


def levels(frames: Any) -> list[int]:
    """The brightness of frames (N, 3, H, W), in their right halves."""
    return [round(float(frame[:, :, frame.shape[2] // 2 :].float().mean())) for frame in frames]


def write(folder: Path, **files: bytes) -> Path:
    """Write files by their names; the last `_` of a name stands for its dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        stem, _, suffix = name.rpartition("_")
        (folder / f"{stem}.{suffix}").write_bytes(content)
    return folder
