"""Decode audio and video by torchcodec, which is faster than PyAV, and uses the FFmpeg of the machine.

PyAV chooses the stream and gives its length and frame rate unless torchcodec has the same, so that both decoders give
the same clips. torchcodec gets only Python file objects: only for these does it keep FFmpeg from opening files that a
playlist names.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import cache, partial
from importlib import import_module
from itertools import islice
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from loaderkit.datasets.media import pyav_audio
from loaderkit.datasets.media.content import MAX_FRAME_PIXELS, TOLERANCE_S, Content, Kind, check_frame, open_content
from loaderkit.datasets.media.pyav_audio import RUN_UP_S, AudioHeader
from loaderkit.datasets.media.pyav_container import open_stream, pyav_version
from loaderkit.datasets.media.pyav_length import WITHOUT_INDEX, Samples
from loaderkit.datasets.media.pyav_video import VideoHeader, is_mirrored, read_video_header
from loaderkit.datasets.media.wav_header import is_plain_wav
from loaderkit.datasets.media.waveform import Waveform, filled
from loaderkit.files.listing import Stat
from loaderkit.files.storage import Storage
from loaderkit.files.urls import is_remote, stat

_OLDEST = (0, 17)  # the first release that opens no nested files: `forbid_nested_protocols`
_HOW = "pip install '.[torchcodec]' in a checkout of loaderkit, and FFmpeg's libraries (apt-get install ffmpeg, or conda install ffmpeg)"
_LOSSLESS = ("pcm_", "flac", "alac", "wavpack", "tta")  # prefixes of codec names
_ROUNDING = 1e-6  # tolerance for times in seconds, relative for frame rates, and for samples
_ENDS_EARLY = "no more frames left to decode"  # after a seek near the end, FFmpeg 5 decodes no frame of some formats
_TICK_S = 2e-3  # seconds; most that a rounded time is off
_BEFORE_S = 1.0  # seconds; from time 0 on, torchcodec drops a first packet without a duration
# First bytes of files whose header gives their length.
_SAY_LENGTH = (b"RIFF", b"fLaC", b"OggS", b"FORM", b".snd", b"caff", b"wvpk", b"TTA1")
_MOST_HEADERS = 4096  # headers to keep, about 4 MB
_headers: dict[tuple[str, Stat], AudioHeader] = {}  # headers of local files, by path and version
_HEAD = 36  # bytes of a file; in Ogg the header of Opus begins at 28


@cache
def torchcodec() -> ModuleType:
    """Import torchcodec.

    Raises:
        ImportError: If it is not installed, too old, or finds no FFmpeg.
    """
    try:
        found = import_module("torchcodec")
    except (ImportError, OSError, RuntimeError) as error:
        raise ImportError(f"decoder='torchcodec' needs torchcodec: {_HOW}.") from error
    version = str(found.__version__)
    if tuple(map(int, version.split(".")[:2])) < _OLDEST:
        raise ImportError(
            f"decoder='torchcodec' found torchcodec {version}, wanted {_OLDEST[0]}.{_OLDEST[1]} or later: {_HOW}."
        )
    if found.ffmpeg_major_version is None:
        raise ImportError(f"torchcodec {version} finds no libraries of FFmpeg on this machine: {_HOW}.")
    return found


def torchcodec_version() -> str:
    """Return the names and versions of torchcodec, FFmpeg and PyAV. Errors are those of `torchcodec` and `pyav`."""
    found = torchcodec()
    return f"torchcodec {found.__version__} ffmpeg {found.ffmpeg_major_version} {pyav_version()}"


@contextmanager
def open_audio(
    content: Content, storage: Storage | None = None
) -> Iterator["TorchcodecAudio | TorchcodecWav | pyav_audio.PyavAudio"]:
    """Open a file's first audio stream. Errors are those of `open_stream`.

    PyAV decodes Opus: torchcodec does not tell which sample its result begins with, and returns speech half a
    millisecond late.
    """
    with _opened(content, "audio", storage) as file:
        if file.is_plain_wav:
            yield TorchcodecWav(file)
            return
        audio = None if file.is_opus else TorchcodecAudio(file, content, storage)
        if audio is not None and audio.codec != "opus":
            yield audio
            return
    with pyav_audio.open_audio(content, storage) as by_pyav:
        yield by_pyav


@contextmanager
def open_video(
    content: Content,
    storage: Storage | None = None,
    *,
    max_pixels: int | None = MAX_FRAME_PIXELS,
    device: str = "cpu",
) -> Iterator["TorchcodecVideo"]:
    """Open a file's first video stream, to be decoded on a device.

    Errors are those of `open_stream`. A ValueError is also raised for formats in which torchcodec gives other frames
    than PyAV.
    """
    with _opened(content, "video", storage) as file:
        make = partial(_make, "VideoDecoder", file, num_ffmpeg_threads=1, device=device, seek_mode="exact")
        mirrored = partial(_first_is_mirrored, content, storage)
        decoder = _first_decoder(make, file.is_mp4)
        if decoder is not None and _is_steady(decoder.metadata):  # else PyAV gives another mean rate
            found = decoder.metadata
            check_frame(found.width or 0, found.height or 0, max_pixels)
            header = VideoHeader(0, found.duration_seconds_from_header, found.average_fps_from_header)
            yield TorchcodecVideo(decoder, header, mirrored)
            return
        with open_stream(content, "video", storage) as (container, stream):
            header = read_video_header(container, stream, max_pixels)
            if container.format.name in WITHOUT_INDEX:  # torchcodec 0.17 gives wrong frames after a seek in MPEG-TS
                raise ValueError(_no_index(container.format.name))
            if container.format.name == "avi" and stream.codec_context.has_b_frames:
                raise ValueError(
                    "AVI does not say when its B-frames are shown, and torchcodec gives them other times. Give decoder='pyav', or write it as MP4."
                )
        yield TorchcodecVideo(make(header.index), header, mirrored)


def _no_index(name: str) -> str:
    return (
        f"its format {name} has no index, in which torchcodec does not find frames. Give decoder='pyav', or write it as MP4 or "
        "Matroska."
    )


def _make(kind: str, file: "_File", index: int | None, **settings: Any) -> Any:
    """Return a torchcodec decoder at the start of a file, for the stream `index`; None lets FFmpeg choose a stream."""
    file.seek(0)
    return getattr(torchcodec().decoders, kind)(file, stream_index=index, **settings)


def _first_decoder(make: Callable[[int | None], Any], says_length: bool) -> Any:
    """Return a decoder if its header is enough, which saves opening the file by PyAV; else None.

    It is enough if FFmpeg chooses the file's first stream, and the header gives its length.
    """
    if not says_length:
        return None
    try:
        decoder = make(None)
    except ValueError:  # no such stream: PyAV's error says which streams there are
        return None
    known = decoder.stream_index == 0 and decoder.metadata.duration_seconds_from_header is not None
    return decoder if known else None


def _header_by_pyav(content: Content, storage: Storage | None) -> AudioHeader:
    """Return the header that PyAV reads.

    To do so it reads MP3 and bare AAC to the end, so the headers of local files are kept until the files change.
    """
    place = None if isinstance(content, bytes | bytearray | memoryview) else os.fspath(content)
    key = None if place is None or is_remote(place) else (os.path.abspath(place), stat(place))  # noqa: PTH100 - a Path takes longer
    header = _headers.get(key) if key is not None else None
    if header is None:
        with pyav_audio.open_audio(content, storage) as audio:
            header = audio.clocked_header()
            if audio.format == "mpeg":
                raise ValueError(_no_index(audio.format))
        if key is not None and not header.samples.before:  # `before` would take memory for each packet
            if len(_headers) >= _MOST_HEADERS:
                _headers.clear()
            _headers[key] = header
    return header


def _first_is_mirrored(content: Content, storage: Storage | None) -> bool:
    """Return whether a video must be mirrored, by its first frame; torchcodec gives only its rotation."""
    with open_stream(content, "video", storage) as (container, stream):
        return any(is_mirrored(frame) for frame in islice(container.decode(stream), 1))


def _is_steady(metadata: Any) -> bool:
    """Return whether the mean frame rate of a video is that of its header, so that the rate does not change."""
    rate, mean = metadata.average_fps_from_header, metadata.average_fps
    return bool(rate and mean) and abs(mean / rate - 1) < _ROUNDING


class TorchcodecAudio:
    """An open audio stream; implements `AudioReader`."""

    def __init__(self, file: "_File", content: Content, storage: Storage | None) -> None:
        self._make = partial(_make, "AudioDecoder", file)
        self._by_pyav = partial(pyav_audio.open_audio, content, storage)
        self._decoder = _first_decoder(self._make, file.says_length)
        if self._decoder is not None:
            found = self._decoder.metadata
            rate, begin_s = found.sample_rate or 0, Fraction(found.begin_stream_seconds_from_header or 0)
            samples = Samples(round(found.duration_seconds_from_header * rate))
            header = AudioHeader(0, rate, found.num_channels or 0, begin_s, samples)
        else:
            header = _header_by_pyav(content, storage)
            self._decoder = self._make(header.index)
        self._header, self.codec = header, str(self._decoder.metadata.codec)
        # After a seek in Ogg, FFmpeg gives wrong times up to the end of a page, and torchcodec uses the first one.
        self._can_seek, self._is_new = not file.is_ogg, True
        if self.codec.startswith("adpcm_"):
            raise ValueError(
                f"torchcodec leaves out most of the blocks of its codec {self.codec}. Give decoder='pyav', or write it as FLAC."
            )
        self.sample_rate, self.samples, self.most = header.sample_rate, header.samples.count, header.most

    def read(self, start: int, count: int) -> Waveform:
        if not self._header.samples.is_exact and start + count > self.samples - TOLERANCE_S * self.sample_rate:
            with self._by_pyav() as audio:  # both decoders have the same lengths
                count = min(count, max(0, audio.end() - start))
        lossless = self.codec.startswith(_LOSSLESS)
        for run_up_s in (0.0, RUN_UP_S) if lossless else (RUN_UP_S,):
            seek_to = start - round(run_up_s * self.sample_rate)
            wave = self._after_seek(seek_to, start, count) if seek_to > 0 and self._can_seek else None
            if wave is not None:
                break
        else:
            wave = self._from_start(start, count)
        return filled(wave, start, count, self.sample_rate)

    def _after_seek(self, seek_to: int, start: int, count: int) -> Waveform | None:
        """Seek and decode `count` samples from `start` on; None if that fails, or decoding begins after `start`."""
        rate = self.sample_rate
        begin_s = float(self._header.begin_s + self._header.samples.late_s(seek_to, rate))
        for more_s in (0.0, TOLERANCE_S):  # with rounded times, decoding may stop too early
            try:
                found = self._samples(begin_s + seek_to / rate, begin_s + (start + count) / rate + more_s)
            except RuntimeError:
                self._decoder = self._make(self._header.index)  # the old decoder would repeat its failed seek
                return None
            at = round((found.pts_seconds - begin_s) * rate)
            if at > start:
                return None
            wave: Waveform = found.data.numpy()[:, start - at :][:, :count]
            if wave.shape[1] == count:
                break
        return wave

    def _from_start(self, start: int, count: int) -> Waveform:
        """Decode from the file's start on, and drop samples before the start of the stream."""
        begin_s, rate = float(self._header.begin_s), self.sample_rate
        for from_s in (0.0, begin_s - _BEFORE_S):
            self._decoder = self._decoder if self._is_new else self._make(self._header.index)
            found = self._samples(from_s, begin_s + (start + count) / rate + TOLERANCE_S)
            if found.pts_seconds - begin_s < _TICK_S:
                break
        at = min(0, round((found.pts_seconds - begin_s) * rate)) if self._header.samples.is_exact else 0
        wave: Waveform = found.data.numpy()[:, start - at :][:, :count]
        return wave

    def _samples(self, from_s: float, until_s: float) -> Any:
        self._is_new = False
        return self._decoder.get_samples_played_in_range(from_s, until_s)


class TorchcodecWav:
    """An open WAV file of PCM or floats; implements `AudioReader`.

    FFmpeg takes up to 40 times as long for the same values.
    """

    def __init__(self, file: "_File") -> None:
        file.seek(0)
        self._decoder = torchcodec().decoders.WavDecoder(file)
        found = self._decoder.metadata
        self.sample_rate = int(found.sample_rate)
        # A last sample that lacks channels is left out.
        self.samples = self.most = int(found.duration_seconds_from_header * self.sample_rate + _ROUNDING)

    def read(self, start: int, count: int) -> Waveform:
        rate = self.sample_rate
        found = self._decoder.get_samples_played_in_range(start / rate, (start + count) / rate)
        return filled(found.data.numpy(), start, count, rate)


class TorchcodecVideo:
    """An open video stream; implements `VideoReader`, with frames on the decoder's device."""

    def __init__(self, decoder: Any, header: VideoHeader, mirrored: Callable[[], bool]) -> None:
        self._decoder, self._rotation = decoder, decoder.metadata.rotation
        self._mirrored = self._rotation is not None and mirrored()
        self.seconds, self.fps = header.seconds, header.fps
        found = decoder.metadata  # from a scan of all packets
        # The header of AVI gives the time at which the first frame is decoded, which may be before it is shown.
        self._begin_s = max(
            found.begin_stream_seconds_from_header or 0.0, found.begin_stream_seconds_from_content or 0.0
        )
        if not found.num_frames_from_content:
            raise ValueError("it has no frames")
        self._last = found.num_frames_from_content - 1
        self._from_s, self._until_s = found.begin_stream_seconds_from_content, found.end_stream_seconds_from_content

    def read(self, times: Sequence[float]) -> tuple[Tensor, list[float]]:
        lasts_s = self._until_s - self._begin_s
        if times[-1] - lasts_s > TOLERANCE_S and self.seconds - lasts_s > TOLERANCE_S:
            raise ValueError(
                f"it ends at {lasts_s:.3f} s, its header claims {self.seconds:.3f} s: it is cut or damaged"
            )
        wanted = np.maximum(np.asarray(times) + self._begin_s, self._from_s)
        inside = int(np.searchsorted(wanted, self._until_s))
        frames, starts = [], []
        if inside:
            found = self._decoder.get_frames_played_at(wanted[:inside].tolist())
            frames, starts = [found.data], found.pts_seconds.tolist()
            late = np.flatnonzero(np.asarray(starts) > wanted[:inside] + _ROUNDING)
            if len(late):
                raise ValueError(
                    f"torchcodec finds a frame at {starts[late[0]]:.3f} s in the place of that at {wanted[late[0]]:.3f} s: it is damaged, or "
                    "has no index. Try decoder='pyav'."
                )
        if inside < len(wanted):  # after the end: repeat the last frame
            last = self._decoder.get_frame_at(self._last)
            frames.append(last.data.expand(len(wanted) - inside, *last.data.shape))
            starts += [float(last.pts_seconds)] * (len(wanted) - inside)
        whole = torch.cat(frames) if len(frames) > 1 else frames[0]
        if self._mirrored:  # torchcodec turns frames but does not mirror them
            whole = whole.flip(3 if round(self._rotation) % 180 else 2)
        if whole.device.type == "cpu":  # numpy copies in half of torch's time
            whole = torch.from_numpy(np.ascontiguousarray(whole.numpy()))
        return whole.contiguous(), [start - self._begin_s for start in starts]


class _File:
    """A file object for torchcodec.

    Errors of reading are kept in `error`, as they must not pass through FFmpeg's functions.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: BaseException | None = None
        head = file.read(_HEAD)
        self.is_mp4 = head[4:8] == b"ftyp"
        self.is_plain_wav = head.startswith(b"RIFF") and is_plain_wav(file)
        self.is_ogg, self.is_opus = head.startswith(b"OggS"), head[28:] == b"OpusHead"
        self.says_length = self.is_mp4 or head.startswith(_SAY_LENGTH)
        file.seek(0)

    def read(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except BaseException as error:
            self.error = self.error or error
            return b""

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            return self._file.seek(offset, whence)
        except BaseException as error:
            before_the_start = isinstance(error, ValueError) or getattr(error, "errno", None) == errno.EINVAL
            self.error = self.error or (None if before_the_start else error)
            return -1


@contextmanager
def _opened(content: Content, kind: Kind, storage: Storage | None) -> Iterator[_File]:
    """Open a file for torchcodec.

    Turn torchcodec's errors into those of PyAV's readers, and raise errors of reading.
    """
    with open_content(content, storage) as opened:
        file = _File(opened)
        try:
            yield file
        except (RuntimeError, LookupError, ValueError) as error:
            if file.error is not None:
                raise file.error from error
            if "DefaultCPUAllocator" in str(error):
                raise MemoryError(str(error)) from error
            if isinstance(error, ValueError) or "CUDA" in str(error):  # errors of the device are not the file's fault
                raise
            if _ENDS_EARLY in str(error):
                raise ValueError(
                    f"torchcodec with this FFmpeg does not reach its end, or it is cut or damaged: {error}. Try decoder='pyav'."
                ) from error
            raise ValueError(f"not {kind} that can be decoded: {str(error).partition(chr(10))[0]}") from error
        if file.error is not None:
            raise file.error
