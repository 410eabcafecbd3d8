"""Audio as waveforms: whole files, or clips of a given length."""

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
_REST_S = 0.05  # a shorter rest is mostly what an encoder added


class AudioDataset(ClipDataset):
    """Audio files, or a dataset with a field of encoded audio, as waveforms.

    A sample is a dict: `"waveform"` float32 (channels, samples) from -1 to 1, `"sample_rate"`, and the other fields of the
    source, such as `"label"`. With `clip_s` all waveforms are equally long. A shorter file, or a file's last clip, ends with
    silence, and `"length"` says how many samples are sound. Without it a sample is a whole file:
    `PadCollate({"waveform": Pad(dims=1, lengths=True)})` makes batches.

    FFmpeg decodes, in one thread. A clip is found by a seek, and only its part of the file is decoded: the same samples as in
    the whole file. The length of a file is what its header says; if that is not exact, its packets are counted or its end is
    decoded. A file that ends more than 0.25 s earlier is an error.

    Args:
        source: A path, folder, glob or URL of files, or a list of them. Or a dataset of dicts, such as `TarDataset`, whose field
            holds the bytes of a file, its path or its URL.
        field: The field of a dataset. By default the one whose name ends as audio files do ("flac", "left.wav").
        labels: "folder" numbers the folders of `source` as classes. Or a value for each file of a list.
        clip_s: Seconds of a clip. None: whole files.
        clips: "random": a clip that starts anywhere, one for each file. "middle": one from its middle. "all": one after
            another; a rest below 0.05 s is left out. With "all" the headers of all files are read at once.
        sample_rate: Samples in a second, by FFmpeg's resampler; None keeps each file's own.
        mono: Whether to average the channels.
        max_s: The longest file to decode as a whole; None for any.
        decoder: "pyav", or "torchcodec", which is faster and needs FFmpeg on the machine. Both give the same clips; lossless audio
            also has the same bits. A run resumes with the decoder that it began with.
        transform: Called with each sample; its result replaces the sample.
        storage: How to reach remote files.
        cache_dir: Folder that keeps the lengths of files; None keeps nothing.
        jobs: Processes that read the lengths of files.

    Raises:
        ImportError: If PyAV is missing, or the chosen decoder.
        FileNotFoundError: If there are no files.
        ValueError: If a setting is out of range. On reading: if a file cannot be decoded, is cut or too long.

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
        """Return the number of samples of each waveform (N,); 1 for a file that cannot be read.

        The end of a file is decoded if it rounds times, as Matroska and WebM do.
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
        """Return a part of a file at the wanted rate, and this rate."""
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
