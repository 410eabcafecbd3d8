"""A corpus of small files: each container and codec that PyAV writes, with a decode of the whole file without a seek."""

import io
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

SECONDS = 6.0
FRAMES = 88


@dataclass(frozen=True)
class Sound:
    """How a file of sound is written.

    Attributes:
        error: The largest difference of a clip from the whole. Some decoders add noise, which depends on what they decoded before.
        torchcodec: "exact", "ms" if times that the file rounds tell torchcodec where a clip is, or "refused".
    """

    container: str
    codec: str
    kind: str = "s16"
    rate: int = 44100
    channels: int = 2
    options: dict[str, str] = field(default_factory=dict)
    error: float = 1e-6
    torchcodec: str = "exact"
    seconds: float = SECONDS


_AAC = {"aac_pns": "0"}  # PNS is noise that the decoder makes
SOUNDS = {
    "PCM in WAV": Sound("wav", "pcm_s16le"),
    "24 bit in WAV": Sound("wav", "pcm_s24le", "s32"),
    "floats in WAV": Sound("wav", "pcm_f32le", "flt"),
    "A-law in WAV": Sound("wav", "pcm_alaw", rate=8000, channels=1),
    "IMA ADPCM in WAV": Sound("wav", "adpcm_ima_wav", "s16p", torchcodec="refused"),
    "IMA ADPCM in WAV, mono": Sound("wav", "adpcm_ima_wav", "s16p", channels=1, torchcodec="refused"),
    "MS ADPCM in WAV": Sound("wav", "adpcm_ms", torchcodec="refused"),
    "AIFF": Sound("aiff", "pcm_s16be"),
    "AU": Sound("au", "pcm_s16be"),
    "CAF": Sound("caf", "pcm_s16le"),
    "PCM in MOV": Sound("mov", "pcm_s16le"),
    "PCM in Matroska": Sound("matroska", "pcm_s16le", torchcodec="ms"),
    "FLAC": Sound("flac", "flac"),
    "FLAC in Ogg": Sound("ogg", "flac"),
    "FLAC in MP4": Sound("mp4", "flac"),
    "FLAC in Matroska": Sound("matroska", "flac", torchcodec="ms"),
    "WavPack": Sound("wv", "wavpack", "s16p"),
    "TTA": Sound("tta", "tta"),
    "ALAC in M4A": Sound("ipod", "alac", "s16p"),
    "MP3": Sound("mp3", "libmp3lame", "fltp"),
    "MP3 without a header": Sound("mp3", "libmp3lame", "fltp", options={"write_xing": "0"}),
    "MP3 in MP4": Sound("mp4", "libmp3lame", "fltp"),
    "MP3 in AVI": Sound("avi", "libmp3lame", "fltp"),
    "MP3 in Matroska": Sound("matroska", "libmp3lame", "fltp", torchcodec="ms"),
    "MP2": Sound("mp2", "mp2", error=1e-4),
    "MP2 in MPEG": Sound("mpeg", "mp2", error=1e-4, torchcodec="refused"),
    "bare AAC": Sound("adts", "aac", "fltp", options=_AAC),
    "AAC in M4A": Sound("ipod", "aac", "fltp", options=_AAC),
    "AAC in MP4, fragments": Sound("mp4", "aac", "fltp", options=_AAC | {"movflags": "frag_every_frame+empty_moov"}),
    "AAC in Matroska": Sound("matroska", "aac", "fltp", options=_AAC, torchcodec="ms"),
    "AAC in MPEG-TS": Sound("mpegts", "aac", "fltp", options=_AAC),
    "AAC in FLV": Sound("flv", "aac", "fltp", options=_AAC, torchcodec="ms"),
    "Opus in Ogg": Sound("ogg", "libopus", "flt", 48000),
    "Opus in WebM": Sound("webm", "libopus", "flt", 48000),
    "Opus in MP4": Sound("mp4", "libopus", "flt", 48000),
    **{
        f"Opus of {rate} kbit/s in {name}": Sound(
            name.lower(), "libopus", "flt", 48000, channels, {"b": f"{rate}k"} | options
        )
        for name, options in (("Ogg", {}), ("WebM", {"application": "voip"}), ("MP4", {}))
        for rate, channels in ((6, 1), (12, 2), (16, 1), (24, 2))
    },
    **{  # longer than what is decoded before a clip, and never silent: the decoder keeps some of what it said long before
        f"16 s of Opus of 6 kbit/s in {name}": Sound(
            name.lower(), "libopus", "flt", 48000, 1, {"b": "6k"}, error=3e-5, seconds=16.0
        )
        for name in ("Ogg", "WebM", "MP4")
    },
    "Vorbis in Ogg": Sound("ogg", "vorbis", "fltp", options={"strict": "-2"}),
    "Vorbis in WebM": Sound("webm", "vorbis", "fltp", options={"strict": "-2"}, torchcodec="ms"),
    "WMA": Sound("asf", "wmav2", "fltp", options={"b": "128k"}, torchcodec="ms"),
    "AC-3": Sound("ac3", "ac3", "fltp", error=0.02),
    "E-AC-3": Sound("eac3", "eac3", "fltp", error=0.02),
    "AC-3 in Matroska": Sound("matroska", "ac3", "fltp", error=0.02, torchcodec="ms"),
    "AMR": Sound("amr", "libopencore_amrnb", rate=8000, channels=1, error=0.06),
}


@cache
def sound(name: str) -> bytes:
    """A file with sweeps, so that each place sounds differently."""
    av, made, file = pytest.importorskip("av"), SOUNDS[name], io.BytesIO()
    layout = {1: "mono", 2: "stereo"}[made.channels]
    time = np.arange(round(made.seconds * made.rate)) / made.rate
    high = made.rate / 16
    waves = [
        np.sin(2 * np.pi * (200 * time + high / 12 * time**2)),
        np.sin(2 * np.pi * (high * time - high / 14 * time**2)),
    ]
    wave = av.AudioFrame.from_ndarray(0.5 * np.stack(waves[: made.channels]).astype(np.float32), "fltp", layout)
    wave.sample_rate, wave.pts, wave.time_base = made.rate, 0, Fraction(1, made.rate)
    options = {key: made.options[key] for key in made.options if key in ("movflags", "write_xing")}
    with av.open(file, "w", format=made.container, options=options) as container:
        try:
            settings = {key: value for key, value in made.options.items() if key not in options}
            stream = container.add_stream(made.codec, rate=made.rate, layout=layout, options=settings)
            context = stream.codec_context
            context.format = made.kind
            if "b" in settings:
                context.bit_rate = 1000 * int(settings["b"].rstrip("k"))
            context.open()
        except (ValueError, av.FFmpegError) as error:
            pytest.skip(f"this PyAV does not write {name}: {error}")
        pieces, convert = av.AudioFifo(), av.AudioResampler(format=made.kind, layout=layout, rate=made.rate)
        for piece in convert.resample(wave):
            pieces.write(piece)
        for samples, partial in ((context.frame_size or 4096, False), (0, True)):
            while (piece := pieces.read(samples, partial)) is not None:
                container.mux(stream.encode(piece))
        container.mux(stream.encode())
    return file.getvalue()


@cache
def whole_sound(name: str) -> Any:
    """The waveform (C, T) of a file, decoded from its start."""
    av = pytest.importorskip("av")
    with av.open(io.BytesIO(sound(name))) as container:
        convert, parts = av.AudioResampler(format="fltp"), []
        for frame in container.decode(audio=0):
            parts += [piece.to_ndarray() for piece in convert.resample(frame)]
    return np.concatenate(parts, axis=1)


@dataclass(frozen=True)
class Film:
    """How a video is written. `torchcodec`: "exact", or "refused" if some frames are for PyAV alone. `frames`: at most 256."""

    container: str
    codec: str
    pixels: str = "yuv420p"
    options: dict[str, str] = field(default_factory=dict)
    rate: Fraction = Fraction(25)
    starts: tuple[int, ...] | None = None  # in 60ths of a second
    frames: int = FRAMES
    torchcodec: str = "exact"
    rounds: bool = False  # times, so that a frame of a 60th of a second may not be the one at a 60th


_GOP = {"g": "12"}
_OPEN = {"g": "12", "x264-params": "open-gop=1:bframes=3"}
_CHANGING = tuple(np.cumsum([0, *np.random.default_rng(0).choice([1, 2, 3, 7], FRAMES - 1)]).tolist())
_SLOWER = (*range(70), *range(70, 70 + 15 * (FRAMES - 70), 15))
FILMS = {
    "H.264 in MP4": Film("mp4", "libx264", options=_GOP),
    "H.264 at 29.97 a second in MP4": Film("mp4", "libx264", options=_GOP | {"bf": "3"}, rate=Fraction(30000, 1001)),
    "H.264, open GOP in MP4": Film("mp4", "libx264", options=_OPEN, torchcodec="refused"),
    "H.264, fragments in MP4": Film("mp4", "libx264", options=_GOP | {"movflags": "frag_keyframe+empty_moov"}),
    "H.264, changing rate in MP4": Film("mp4", "libx264", options=_GOP, starts=_CHANGING),
    "H.264, slower at the end in MP4": Film("mp4", "libx264", options=_GOP, starts=_SLOWER),
    "H.264, changing rate in Matroska": Film("matroska", "libx264", options=_GOP, starts=_CHANGING, rounds=True),
    "H.264 in MOV": Film("mov", "libx264", options=_GOP),
    "H.264 in Matroska": Film("matroska", "libx264", options=_GOP),
    "H.264 in MPEG-TS": Film("mpegts", "libx264", options=_GOP, torchcodec="refused"),
    "H.264 in FLV": Film("flv", "libx264", options=_GOP, torchcodec="refused"),
    "FLV1 in FLV": Film("flv", "flv", options=_GOP),
    "MPEG-4 in AVI": Film("avi", "mpeg4", options=_GOP),
    "MPEG-4, B-frames in AVI": Film("avi", "mpeg4", options=_GOP | {"bf": "2"}, torchcodec="refused"),
    "MPEG-4 in MPEG-TS": Film("mpegts", "mpeg4", options=_GOP, torchcodec="refused"),
    "MPEG-2 in MPEG": Film("mpeg", "mpeg2video", options=_GOP | {"bf": "2"}, torchcodec="refused"),
    "MPEG-1 in MPEG": Film("mpeg", "mpeg1video", options=_GOP, torchcodec="refused"),
    # Packs of 2,048 bytes hold many of these frames, and say the time of one.
    "MPEG-2, long in MPEG": Film("mpeg", "mpeg2video", options=_GOP | {"bf": "2"}, frames=250, torchcodec="refused"),
    "MJPEG in MOV": Film("mov", "mjpeg", "yuvj420p"),
    "MJPEG in AVI": Film("avi", "mjpeg", "yuvj420p"),
    "ProRes in MOV": Film("mov", "prores_ks", "yuv422p10le"),
    "FFV1 in Matroska": Film("matroska", "ffv1"),
    "VP8 in WebM": Film("webm", "libvpx", options=_GOP),
    "VP9 in WebM": Film("webm", "libvpx-vp9", options=_GOP | {"deadline": "realtime", "cpu-used": "8"}),
    "WMV": Film("asf", "wmv2", options=_GOP),
    "GIF": Film("gif", "gif", "rgb8"),
}


def picture(number: int) -> Any:
    """A picture (48, 64, 3) whose eight bars are the bits of a number."""
    bits = np.array([number >> bit & 1 for bit in range(8)], dtype=np.uint8)
    return np.repeat(np.repeat(30 + 180 * bits, 8)[None, :, None], 48, 0).repeat(3, 2)


def number_of(pixels: Any) -> int:
    """The number of a picture (3, 48, 64)."""
    bars = pixels.float().mean((0, 1)).reshape(8, 8)[:, 2:6].mean(1)
    return sum(int(bar > 120) << bit for bit, bar in enumerate(bars.tolist()))


@cache
def film(name: str) -> bytes:
    """A video that shows the pictures of the numbers from 0 on."""
    av, made, file = pytest.importorskip("av"), FILMS[name], io.BytesIO()
    options = {key: value for key, value in made.options.items() if key == "movflags"}
    with av.open(file, "w", format=made.container, options=options) as container:
        settings = {key: value for key, value in made.options.items() if key not in options}
        stream = container.add_stream(made.codec, rate=made.rate if made.starts is None else 30, options=settings)
        stream.width, stream.height, stream.pix_fmt, stream.codec_context.thread_count = 64, 48, made.pixels, 1
        if made.starts is not None:
            stream.codec_context.time_base = Fraction(1, 60)
        for number in range(made.frames):
            frame = av.VideoFrame.from_ndarray(picture(number)).reformat(format=made.pixels)
            if made.starts is not None:
                frame.pts, frame.time_base = made.starts[number], Fraction(1, 60)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


@cache
def whole_film(name: str) -> list[tuple[float, Any]]:
    """When each frame begins, in seconds since the first one, and its pixels (3, H, W), decoded from the start."""
    av = pytest.importorskip("av")
    kinds = av.video.reformatter.Interpolation
    exact, convert = kinds.BILINEAR | kinds.ACCURATE_RND | kinds.BITEXACT, av.video.reformatter.VideoReformatter()
    with av.open(io.BytesIO(film(name))) as container:
        container.streams.video[0].thread_count = 1
        frames = [
            (frame.time, convert.reformat(frame, format="rgb24", interpolation=exact).to_ndarray().transpose(2, 0, 1))
            for frame in container.decode(video=0)
        ]
    return [(time - frames[0][0], pixels) for time, pixels in frames]
