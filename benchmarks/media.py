"""Measure clips of audio and video: what it costs to decode the wanted part alone, and to decode all and cut.

64 FLAC files of 30 s at 16 kHz, of which a sample is a second from a random place; 32 H.264 videos of 10 s (320 x 240, 25 frames a second,
a keyframe every 50 frames), of which a sample is 8 frames, each fourth from a random place. lk.Loader reads `AudioDataset` and `VideoDataset` by
both of their decoders. DataLoader reads torchcodec's decoders with one thread, as its documentation says (video also in its approximate mode, which does not look through
the file first), and a dataset that decodes the whole file by PyAV and cuts. Each contender runs in a process of its own.
"""

import random
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from lib.apart import Make, interleave_apart
from lib.contenders import Epoch, Job, by_torch, ours
from lib.harness import Row, parse_options, quartiles, ratio, record
from report.declare import Report
from torch import Tensor
from torch.utils.data import DataLoader

import loaderkit as lk

RATE, LONG_S, CLIP_S = 16000, 30, 1
FPS, FILM_S, FRAMES, STRIDE = 25, 10, 8, 4
LOADER, OURS_BY_CODEC = "lk.Loader", "lk.Loader, torchcodec"
CODEC, APPROXIMATE, ALL = "torchcodec", "torchcodec, approximate", "decode all, then cut"

REPORT = Report(minutes=6)
REPORT.chart(
    "Clips: throughput over decoding the whole file (more is better)",
    "throughput_ratio_to_decoding_all",
    panels=("kind", "workers"),
)


def write_sounds(folder: Path, count: int) -> list[Path]:
    rng, paths = np.random.default_rng(0), [folder / f"{number}.flac" for number in range(count)]
    for path in paths:
        wave = np.cumsum(rng.normal(0, 200, RATE * LONG_S)) % 8000
        frame = av.AudioFrame.from_ndarray(wave.astype(np.int16)[None], format="s16", layout="mono")
        frame.sample_rate = RATE
        with av.open(str(path), "w") as file:
            stream: Any = file.add_stream("flac", rate=RATE, layout="mono")
            file.mux([*stream.encode(frame), *stream.encode()])
    return paths


def write_films(folder: Path, count: int) -> list[Path]:
    rng, paths = np.random.default_rng(0), [folder / f"{number}.mp4" for number in range(count)]
    for path in paths:
        picture = rng.integers(0, 255, (15, 20, 3), dtype=np.uint8).repeat(16, 0).repeat(16, 1)
        with av.open(str(path), "w") as file:
            stream: Any = file.add_stream("libx264", rate=FPS, options={"preset": "veryfast"})
            stream.width, stream.height, stream.gop_size = 320, 240, 50
            for number in range(FPS * FILM_S):
                file.mux(stream.encode(av.VideoFrame.from_ndarray(np.roll(picture, 2 * number, axis=1))))
            file.mux(stream.encode())
    return paths


class Clips:
    """One clip of each file, by a function from a path to a tensor."""

    def __init__(self, paths: list[Path], read: Callable[[str], Tensor]) -> None:
        self._paths, self._read = [str(path) for path in paths], read

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Tensor:
        return self._read(self._paths[index])


def sound_by_torchcodec(path: str) -> Tensor:
    start = random.random() * (LONG_S - CLIP_S)
    found: Tensor = _torchcodec().AudioDecoder(path).get_samples_played_in_range(start, start + CLIP_S).data
    return found[:, : RATE * CLIP_S - 1]  # rounding may leave out one


def sound_by_all(path: str) -> Tensor:
    with av.open(path) as file:
        wave = np.concatenate([frame.to_ndarray() for frame in file.decode(audio=0)], axis=1)
    start = random.randrange(wave.shape[1] - RATE * CLIP_S)
    return torch.from_numpy(wave[:, start : start + RATE * CLIP_S].astype(np.float32) / 32768)


def places() -> list[int]:
    start = random.randrange(FPS * FILM_S - FRAMES * STRIDE)
    return list(range(start, start + FRAMES * STRIDE, STRIDE))


def film_by_torchcodec(mode: Any, path: str) -> Tensor:
    found: Tensor = _torchcodec().VideoDecoder(path, num_ffmpeg_threads=1, seek_mode=mode).get_frames_at(places()).data
    return found


def film_by_all(path: str) -> Tensor:
    with av.open(path) as file:
        file.streams.video[0].thread_count = 1
        frames = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
    return torch.from_numpy(np.stack([frames[place] for place in places()])).permute(0, 3, 1, 2)


def by_loader(make: Callable[[], Any], batch_size: int, workers: int, stack: ExitStack) -> Epoch:
    return ours(Job(dataset=make(), batch_size=batch_size), workers, "auto", stack)


def _torchcodec() -> Any:
    return import_module("torchcodec.decoders")  # it needs the libraries of FFmpeg


def main() -> None:
    options = parse_options(__doc__)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        sounds = write_sounds(folder, 16 if options.quick else 64)
        films = write_films(folder, 8 if options.quick else 32)
        sound_readers: dict[str, Any] = {CODEC: sound_by_torchcodec, ALL: sound_by_all}
        film_readers: dict[str, Any] = {
            CODEC: partial(film_by_torchcodec, "exact"),
            APPROXIMATE: partial(film_by_torchcodec, "approximate"),
            ALL: film_by_all,
        }
        cases: list[tuple[str, list[Path], Any, dict[str, Any], int]] = [
            ("audio", sounds, partial(lk.AudioDataset, sounds, clip_s=CLIP_S), sound_readers, 8),
            ("video", films, partial(lk.VideoDataset, films, frames=FRAMES, stride=STRIDE), film_readers, 4),
        ]
        for kind, paths, make, readers, batch in cases:
            for workers in (0, 2):
                makes: dict[str, Make] = {
                    LOADER: partial(by_loader, make, batch, workers),
                    OURS_BY_CODEC: partial(by_loader, partial(make, decoder="torchcodec"), batch, workers),
                }
                for name, read in readers.items():
                    makes[name] = partial(
                        by_torch, Job(dataset=Clips(paths, read), batch_size=batch), workers, DataLoader
                    )
                label = f"{kind}, {workers} workers"
                found = interleave_apart(makes, rounds=2 if options.quick else 20, limit_s=60, label=label)
                for name, taken in found.items():
                    rows.append(
                        {
                            "kind": kind,
                            "workers": workers,
                            "contender": name,
                            **quartiles("ms_per_clip", taken.values(), 1 / len(paths) * 1e3),
                            "ratio_to_torchcodec": ratio(taken, found[CODEC]) if CODEC in found else float("nan"),
                            "throughput_ratio_to_decoding_all": 1 / ratio(taken, found[ALL]),
                            "repeats": len(taken),
                        }
                    )
    record("media", rows, options)


if __name__ == "__main__":
    main()
