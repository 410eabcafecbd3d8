"""Audio files as waveforms: whole, or as clips of a given length."""

import os
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from loaderkit.datasets.base import MapStyle, Transform
from loaderkit.datasets.media.clips import CACHE_DIR, ClipDataset, Labels, start_of_clip
from loaderkit.datasets.media.content import TOLERANCE_S, Content
from loaderkit.datasets.media.decoders import AudioReader, DecoderName, decoder_named
from loaderkit.datasets.media.pyav_audio import open_audio
from loaderkit.datasets.media.waveform import Waveform, resample, sized
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls
from loaderkit.system.arrays import Int64Array
from loaderkit.system.types import Array

_CLIPS = ("random", "middle", "all")
_REST_S = 0.05  # seconds; a shorter rest is mostly padding by the encoder


class AudioDataset(ClipDataset):
    """Audio files, or a dataset with a field of encoded audio, as waveforms.

    A sample is a dict: `"waveform"` float32 (channels, samples) from -1 to 1, `"sample_rate"`, and the other fields of
    the source, such as `"label"`. With `clip_s` all waveforms have the same length: a shorter file, or a file's last
    clip, ends with silence, and `"length"` is the number of samples before that silence. Without `clip_s` each sample
    is a whole file: `PadCollate({"waveform": Pad(dims=1, lengths=True)})` makes batches.

    FFmpeg decodes, in one thread. It seeks to a clip and decodes only that part of the file, to the same samples as a
    decode of the whole file. The length of a file is taken from its header; if the header is not exact, packets are
    counted or the end of the file is decoded. A file that ends more than 0.25 s before that length is an error.

    Args:
        source: A path, folder, glob or URL of files, or a list of them. Or a dataset of dicts, such as `TarDataset`, whose field
            holds the bytes of a file, its path or its URL.
        field: The dataset's field with the audio. By default the one whose name ends like an audio file's ("flac",
            "left.wav").
        labels: "folder": the folders in `source` are classes, numbered in sorted order. Or a list with a value for each
            file.
        clip_s: Length of a clip in seconds. None: whole files.
        clips: "random": one clip of each file, with a random start. "middle": the middle clip of each file. "all": all
            clips of a file, one after another; a rest below 0.05 s is left out. For "all" the headers of all files are
            read when the dataset is made.
        sample_rate: Sample rate in Hz to resample to, by FFmpeg; None keeps each file's rate.
        mono: Whether to average the channels to one.
        max_s: Without `clip_s`: the longest file to decode, in seconds; None for no limit.
        decoder: "pyav", or "torchcodec", which is faster and needs FFmpeg on the machine. Both give the same clips, and
            for lossless audio the same values. A run can resume only with the same decoder.
        transform: Called with each sample; its result replaces the sample.
        storage: How to reach remote files.
        cache_dir: Folder in which to store the lengths of files; None stores nothing.
        jobs: Number of processes that read the lengths of files.

    Raises:
        ImportError: If PyAV or the chosen decoder is not installed.
        FileNotFoundError: If there are no files.
        ValueError: If a setting is out of range. On reading: if a file cannot be decoded, is cut, or is longer than
            `max_s`.

    Examples:
        >>> import wave
        >>> for name, seconds in (("long.wav", 2), ("short.wav", 1)):
        ...     with wave.open(name, "wb") as file:
        ...         file.setparams((1, 2, 8000, 0, "NONE", ""))
        ...         file.writeframes(bytes(2 * 8000 * seconds))
        >>> dataset = lk.AudioDataset("*.wav", clip_s=1.5, sample_rate=16000)
        >>> batch = next(iter(lk.Loader(dataset, batch_size=2)))
        >>> batch["waveform"].shape, batch["length"]
        (torch.Size([2, 1, 24000]), tensor([24000, 16000]))
        >>> lk.AudioDataset("*.wav", cache_dir=None).lengths()
        array([16000,  8000])
    """

    suffixes: ClassVar[tuple[str, ...]] = (
        ".wav", ".flac", ".mp3", ".m4a", ".aac", ".ogg", ".oga", ".opus", ".aiff", ".aif", ".wma", ".mka", ".webm",
    )  # fmt: skip

    def __init__(
        self,
        source: Urls | MapStyle,
        *,
        field: str | None = None,
        labels: Labels = None,
        clip_s: float | None = None,
        clips: Literal["random", "middle", "all"] = "random",
        sample_rate: int | None = None,
        mono: bool = False,
        max_s: float | None = 3600.0,
        decoder: DecoderName = "pyav",
        transform: Transform | None = None,
        storage: Storage | None = None,
        cache_dir: str | os.PathLike[str] | None = CACHE_DIR,
        jobs: int = 1,
    ) -> None:
        if clips not in _CLIPS or (clip_s is not None and not clip_s >= TOLERANCE_S) or (sample_rate or 1) < 1:
            raise ValueError(
                f"AudioDataset: clips is {clips!r}, clip_s {clip_s} and sample_rate {sample_rate}; wanted one of {_CLIPS}, at "
                f"least {TOLERANCE_S} s, and at least 1."
            )
        if clip_s is None and clips == "all":
            raise ValueError("AudioDataset: clips='all' without clip_s, wanted the seconds of a clip: clip_s=...")
        self.clip_s, self.sample_rate, self.mono, self.max_s = clip_s, sample_rate, mono, max_s
        super().__init__(
            source,
            field=field,
            labels=labels,
            clips=clips if clip_s is not None else "whole",
            decoder=decoder,
            transform=transform,
            storage=storage,
            cache_dir=cache_dir,
            jobs=jobs,
        )

    def lengths(self) -> Int64Array:
        """Return the number of samples in each waveform, (N,) int64; 1 for a file that cannot be read.

        If a file's format rounds times, as Matroska and WebM do, the end of the file is decoded.
        """
        seconds, rates = self.times().T
        rates = np.where(np.isnan(rates), np.nan, self.sample_rate or rates)
        found = np.round((seconds if self.clip_s is None else self.clip_s) * rates)
        counts = np.ones(len(found), dtype=np.int64) if self._ends is None else np.diff(np.append(0, self._ends))
        return np.repeat(np.maximum(np.nan_to_num(found), 1).astype(np.int64), counts)

    def _measure(self, content: Content) -> tuple[float, float]:
        with open_audio(content, self._storage) as audio:  # by PyAV, so that both decoders have the same clips
            return audio.end() / audio.sample_rate, float(audio.sample_rate)

    def _counts(self, seconds: Any, rates: Array) -> Int64Array:
        found = np.ceil((np.nan_to_num(seconds) - _REST_S) / self.clip_s)
        counts: Int64Array = np.maximum(found, 1).astype(np.int64)
        return counts

    def _cut(self) -> str:
        return f"clips of {self.clip_s:g} s"

    def _read(self, content: Content, clip: int) -> dict[str, object]:
        with decoder_named(self.decoder).open_audio(content, self._storage) as audio:
            if self.clip_s is None:
                wave, _ = self._part(audio, 0, audio.most)
                return _sample(wave, self.sample_rate or audio.sample_rate)
            length = round(self.clip_s * audio.sample_rate)
            start = round(start_of_clip(self.clips, clip, audio.samples, self.clip_s * audio.sample_rate))
            wave, rate = self._part(audio, start, min(length, audio.most - start))
        size = round(self.clip_s * rate)
        return {**_sample(sized(wave, size), rate), "length": min(wave.shape[1], size)}

    def _part(self, audio: AudioReader, start: int, count: int) -> tuple[Waveform, int]:
        """Return `count` samples of a file from `start` on, resampled and mixed as wanted, and their sample rate.

        `start` and `count` are at the file's own sample rate.
        """
        if self.max_s is not None and self.clip_s is None and audio.samples > self.max_s * audio.sample_rate:
            raise ValueError(
                f"it lasts {audio.samples / audio.sample_rate:,.0f} s, wanted at most max_s={self.max_s:,.0f}. Give clip_s=, or a larger max_s=."
            )
        wave, rate = audio.read(start, count), self.sample_rate or audio.sample_rate
        if self.mono:
            wave = wave.mean(0, keepdims=True)
        return resample(wave, audio.sample_rate, rate, round(wave.shape[1] * rate / audio.sample_rate)), rate


def _sample(wave: Waveform, rate: int) -> dict[str, object]:
    return {"waveform": torch.from_numpy(wave), "sample_rate": rate}
