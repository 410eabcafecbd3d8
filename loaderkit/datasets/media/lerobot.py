"""LeRobot datasets: the frames of episodes, with windows of earlier and later frames, and pictures from videos."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from loaderkit.datasets.arrow.parquet import ParquetDataset
from loaderkit.datasets.base import Transform, check_index, check_indices
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.images.decode import decode_picture
from loaderkit.datasets.media.content import MAX_FRAME_PIXELS
from loaderkit.datasets.media.decoders import DecoderName, decoder_named
from loaderkit.datasets.places import Place
from loaderkit.files.storage import Storage
from loaderkit.files.urls import read_in
from loaderkit.seeding.draws import Declares
from loaderkit.seeding.sample_seeds import per_sample
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import listed
from loaderkit.system.digests import digest
from loaderkit.system.types import Array

_NEEDED = ("timestamp", "task_index")  # columns that each frame's pictures and task are found by
_CONVERT = "Convert it: python -m lerobot.datasets.v30.convert_dataset_v21_to_v30 --repo-id=..."


class LeRobotDataset(Declares):
    """The frames of a LeRobot dataset, with windows around them.

    It reads version 3 of the format, and samples correspond to those of lerobot's own `LeRobotDataset`. A sample is a
    dict with the features of one frame, and its `"task"` as text. Numbers have the features' dtypes and shapes.
    Pictures and frames of videos are uint8 tensors (3, H, W): divide by 255 on the device, with `lk.Normalize`.

    A feature in `delta_timestamps` is a window (T, *): its values in the frames at T times relative to the sample's
    frame. A window does not leave the episode: frames before its first or after its last frame are replaced by that
    frame, and `"NAME_is_pad"` (T,) bool is true for them.

    With `shuffle=True` a Loader's shards are the episodes. All frames that a batch needs of one video file are decoded
    in one pass.

    Args:
        root: Path or URL of the dataset's folder.
        delta_timestamps: Times of each feature's window, in seconds relative to the frame, such as
            `{"action": [0.0, 0.1, 0.2]}`. Each must be a whole number of frames.
        columns: Features to read; by default all. Other videos are not decoded.
        episodes: Numbers of the episodes to read, in that order; by default all.
        decoder: "pyav" or "torchcodec", as for `VideoDataset`.
        tolerance_s: Seconds by which the time of a video frame may differ from its timestamp, and a window's time from
            a whole frame.
        max_pixels: Most pixels (width times height) of a frame; None for no limit.
        transform: Called with each sample; its result replaces the sample.
        storage: How to reach remote files, and where to keep copies.

    Attributes:
        info: The content of `meta/info.json`: features, frame rate and others.
        stats: The content of `meta/stats.json`: means, deviations and others of each feature; empty if there is no such
            file.

    Raises:
        ShardError: If the folder is not a LeRobot dataset of version 3, or its tables and videos do not match.
        ValueError: If a window asks for an unknown feature or a time between two frames, or there is no such episode.
        ImportError: If pyarrow or the decoder is not installed.

    Examples:
        >>> dataset = lk.LeRobotDataset("pusht", delta_timestamps={"action": [0.0, 0.1]})  # doctest: +SKIP
        >>> dataset[0]["action"].shape, dataset[0]["action_is_pad"]  # doctest: +SKIP
        ((2, 2), array([False, False]))
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        *,
        columns: Sequence[str] | None = None,
        episodes: Sequence[int] | None = None,
        decoder: DecoderName = "pyav",
        tolerance_s: float = 1e-4,
        max_pixels: int | None = MAX_FRAME_PIXELS,
        transform: Transform | None = None,
        storage: Storage | None = None,
    ) -> None:
        self.root, self.transform, self.storage = os.fspath(root).rstrip("/"), transform, storage
        self.decoder, self.tolerance_s, self.max_pixels = decoder, tolerance_s, max_pixels
        self._version = decoder_named(decoder).version()
        self.info = self._read_json("meta/info.json")
        if not str(found := self.info.get("codebase_version", "unknown")).startswith("v3."):
            raise ShardError(f"{self.root}: a LeRobot dataset of version {found}, wanted v3. {_CONVERT}")
        self.stats = self._read_json("meta/stats.json", needed=False)
        self._features: dict[str, Any] = self.info["features"]
        self._columns = self._choose_columns(columns)
        self._videos = [name for name in self._columns if self._features[name]["dtype"] == "video"]
        self._deltas = self._as_frames(delta_timestamps or {})
        self._episodes = self._read_episodes()
        self._tasks = self._read_tasks()
        files = dict.fromkeys(
            zip(*(self._episodes[f"data/{name}_index"].tolist() for name in ("chunk", "file")), strict=True)
        )
        paths = [
            f"{self.root}/{self.info['data_path'].format(chunk_index=chunk, file_index=file)}" for chunk, file in files
        ]
        kept = [name for name in self._columns if name not in self._videos]
        self._rows = ParquetDataset(paths, list(dict.fromkeys([*kept, *_NEEDED])), storage=storage)
        starts, ends = self._episodes["dataset_from_index"], self._episodes["dataset_to_index"]
        if len(self._rows) != ends[-1] or starts[0] or (starts[1:] != ends[:-1]).any():
            raise ShardError(
                f"{self.root}: its data files have {len(self._rows):,} frames, its episodes {ends[-1]:,} one after another. Restore the "
                "missing files."
            )
        self._chosen = self._choose(episodes)
        self._lengths: Int64Array = (ends - starts)[self._chosen]
        self._ends = self._lengths.cumsum()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> Any:
        check_index(self, index)
        sample = self._read(np.array([index % len(self)]))[0]
        return sample if self.transform is None else self.transform(sample)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        samples = self._read(check_indices(self, indices))
        return samples if self.transform is None else per_sample(self.transform, samples)

    @property
    def shard_sizes(self) -> Int64Array:
        """Number of frames in each episode (E,)."""
        return self._lengths

    def place(self, index: int) -> Place:
        """Return where a frame's row is stored: the Parquet file, and the row in it."""
        check_index(self, index)
        return self._rows.place(int(self._frames(np.array([index % len(self)]))[1][0]))

    def fingerprint(self) -> str:
        """Return a text of the dataset's name, frame rate, episodes, columns and windows, and of the decoder."""
        windows = {name: deltas.tolist() for name, deltas in self._deltas.items()}
        chosen = digest(self._chosen, self._lengths, repr(self._columns))
        return f"lerobot-1 {os.path.basename(self.root)} {self.info['fps']} fps {chosen} {windows} by {self.decoder}"  # noqa: PTH119 - also a URL's

    def _read(self, indices: Int64Array) -> list[dict[str, object]]:
        if not len(indices):
            return []
        episodes, frames = self._frames(indices)
        first, last = self._episodes["dataset_from_index"][episodes], self._episodes["dataset_to_index"][episodes] - 1
        rows = {
            name: np.clip(frames[:, None] + deltas, first[:, None], last[:, None])
            for name, deltas in self._deltas.items()
        }
        wanted = np.unique(np.concatenate([frames, *(each.ravel() for each in rows.values())]))
        found = self._rows.__getitems__(wanted.tolist())
        at = dict(zip(wanted.tolist(), found, strict=True))
        samples = []
        for number, frame in enumerate(frames.tolist()):
            sample = {
                name: self._window(name, [at[row][name] for row in rows[name][number].tolist()])
                if name in rows
                else self._value(name, at[frame][name])
                for name in self._columns
                if name not in self._videos
            }
            for name, deltas in self._deltas.items():
                moved = frame + deltas
                sample[f"{name}_is_pad"] = (moved < first[number]) | (moved > last[number])
            sample["task"] = self._tasks[int(at[frame]["task_index"])]
            samples.append(sample)
        for name in self._videos:
            each = rows.get(name, frames[:, None])
            times = np.array([[at[row]["timestamp"] for row in window] for window in each.tolist()])
            for sample, pictures in zip(samples, self._pictures(name, episodes, times), strict=True):
                sample[name] = pictures if name in rows else pictures[0]
        return samples

    def _frames(self, indices: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return for each of the indices (B,) its episode (B,), and its row in all data files together (B,)."""
        part = np.searchsorted(self._ends, indices, side="right")
        episodes = self._chosen[part]
        starts: Int64Array = self._episodes["dataset_from_index"][episodes]
        return episodes, starts + indices - (self._ends - self._lengths)[part]

    def _value(self, name: str, value: Any) -> Any:
        """Return a feature's value with its dtype and shape; a picture is decoded to uint8 (3, H, W)."""
        feature = self._features[name]
        if feature["dtype"] == "image":
            content = value["bytes"]
            if content is None:
                content = read_in(self.root, self.storage)(value["path"])
            return decode_picture(content, max_pixels=self.max_pixels)
        if feature["dtype"] == "string":
            return value
        shape = tuple(feature["shape"])
        array = np.asarray(value, feature["dtype"])
        return array.reshape(shape) if shape != (1,) else array.reshape(())[()]

    def _window(self, name: str, values: list[Any]) -> torch.Tensor | Array | list[Any]:
        found = [self._value(name, value) for value in values]
        if self._features[name]["dtype"] == "string":
            return found
        return torch.stack(found) if isinstance(found[0], torch.Tensor) else np.stack(found)

    def _pictures(self, name: str, episodes: Int64Array, times: npt.NDArray[np.float64]) -> Iterator[torch.Tensor]:
        """Return, for each of B samples, the frames (T, 3, H, W) uint8 of the video feature `name`.

        `times` (B, T) are in seconds since the start of `episodes` (B,). The frames of each file are decoded in one
        pass.
        """
        begins = self._episodes[f"videos/{name}/from_timestamp"][episodes]
        wanted = begins[:, None] + times
        files = np.stack([self._episodes[f"videos/{name}/{part}_index"][episodes] for part in ("chunk", "file")], 1)
        found: list[Any] = [None] * len(episodes)
        for chunk, file in sorted(set(map(tuple, files.tolist()))):
            mine = np.flatnonzero((files == (chunk, file)).all(1))
            path = self.info["video_path"].format(video_key=name, chunk_index=chunk, file_index=file)
            once, places = np.unique(wanted[mine], return_inverse=True)
            pictures = self._decode(f"{self.root}/{path}", once)[torch.from_numpy(places.reshape(-1))]
            for place, window in zip(mine.tolist(), torch.split(pictures, times.shape[1]), strict=True):
                found[place] = window
        return iter(found)

    def _decode(self, file: str, times: npt.NDArray[np.float64]) -> torch.Tensor:
        """Return the frames (N, 3, H, W) uint8 of a file that begin at increasing `times` (N,), in seconds."""
        try:
            with decoder_named(self.decoder).open_video(file, self.storage, max_pixels=self.max_pixels) as video:
                # Ask for the middle of each frame, as files round the times at which frames begin.
                pictures, starts = video.read((times + 0.5 / self.info["fps"]).tolist())
        except (ValueError, OSError) as error:
            raise ShardError(f"{file}: {error}") from error
        off = np.abs(np.asarray(starts) - times)
        if off.max() > self.tolerance_s:
            worst = int(off.argmax())
            raise ShardError(
                f"{file}: the frame at {times[worst]:.4f} s begins at {starts[worst]:.4f} s, wanted one within tolerance_s={self.tolerance_s} s. The "
                "video does not fit the data, or its frames are not at even times: give a larger tolerance_s."
            )
        return pictures

    def _choose_columns(self, columns: Sequence[str] | None) -> list[str]:
        chosen = listed("LeRobotDataset", "columns", self._features if columns is None else columns)
        if not set(chosen) <= set(self._features):
            raise ValueError(f"LeRobotDataset: columns are {chosen}, wanted some of {sorted(self._features)}.")
        return chosen

    def _as_frames(self, deltas: Mapping[str, Sequence[float]]) -> dict[str, Int64Array]:
        fps, found = self.info["fps"], {}
        for name, seconds in deltas.items():
            if name not in self._columns:
                raise ValueError(
                    f"LeRobotDataset: delta_timestamps has {name!r}, wanted one of {sorted(self._columns)}."
                )
            times = np.asarray(seconds, dtype=np.float64)
            frames = np.round(times * fps).astype(np.int64)
            off = np.abs(times - frames / fps)
            if times.ndim != 1 or not len(times) or off.max() > self.tolerance_s:
                raise ValueError(
                    f"LeRobotDataset: delta_timestamps of {name!r} are {list(seconds)}, wanted whole numbers of frames of 1/{fps} s."
                )
            found[name] = frames
        return found

    def _choose(self, episodes: Sequence[int] | None) -> Int64Array:
        total = len(self._episodes["dataset_from_index"])
        chosen = np.arange(total) if episodes is None else np.asarray(list(episodes), dtype=np.int64)
        if len(chosen) and (chosen.min() < 0 or chosen.max() >= total):
            raise ValueError(f"LeRobotDataset: episodes are {chosen.tolist()}, wanted numbers from 0 to {total - 1}.")
        return chosen

    def _read_episodes(self) -> dict[str, Array]:
        columns = ["episode_index", "dataset_from_index", "dataset_to_index", "data/chunk_index", "data/file_index"]
        columns += [
            f"videos/{name}/{part}" for name in self._videos for part in ("chunk_index", "file_index", "from_timestamp")
        ]
        table = ParquetDataset(f"{self.root}/meta/episodes/*/*.parquet", columns, storage=self.storage)
        rows = table.__getitems__(range(len(table)))
        found = {name: np.array([row[name] for row in rows]) for name in columns}
        if not rows or (found["episode_index"] != np.arange(len(rows))).any():
            raise ShardError(
                f"{self.root}: its table of episodes has {len(rows):,} rows that are not numbered from 0. Restore it."
            )
        return found

    def _read_tasks(self) -> dict[int, str]:
        table = ParquetDataset(f"{self.root}/meta/tasks.parquet", storage=self.storage)
        name = next(one for one in table.columns if one != "task_index")  # the texts: pandas' index, whose name varies
        return {int(row["task_index"]): row[name] for row in table.__getitems__(range(len(table)))}

    def _read_json(self, name: str, *, needed: bool = True) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(read_in(self.root, self.storage)(name))
        except (OSError, ValueError) as error:
            if not needed and isinstance(error, FileNotFoundError):
                return {}
            raise ShardError(f"{self.root}: not a LeRobot dataset, {name} can't be read: {error}") from error
        return found
