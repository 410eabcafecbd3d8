"""Shuffled epochs over Lance, ArrayRecord, LeRobot, Zarr and HDF5, next to each format's own loader.

The batch size is 64. Both read the same files, warm, and make the same batches; videos are decoded by PyAV. A time is that of an epoch
without its first batches, so that starting workers does not count. The peers: `lance.torch.data.SafeLanceDataset` and LeRobot's own dataset
in torch's DataLoader, grain over `ArrayRecordDataSource`, and for Zarr and HDF5 a dataset of ten lines that reads the rows of a batch.

It takes the formats whose libraries it finds: pylance, array_record with grain, lerobot (which needs an environment of its own), zarr, h5py.

    python benchmarks/formats_rows.py [--quick]
"""

import importlib.util
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data as torch_data
from lib.harness import Row, interleave, parse_options, ratio, record, steady
from report.declare import Report, each

import loaderkit as lk

BATCH, WORKERS = 64, (0, 2)
WIDTH = 512  # numbers of a row
Make = Callable[[int], Any]  # from a number of workers to what gives batches
NEEDS = {
    "Lance": ("lance",),
    "ArrayRecord": ("array_record", "grain"),
    "LeRobot": ("lerobot",),
    "Zarr": ("zarr",),
    "HDF5": ("h5py",),
}

REPORT = Report(minutes=0, group="Data on disk")
for name in ("Lance", "ArrayRecord", "Zarr", "HDF5"):
    REPORT.target(
        f"Rows of {name}, 0 and 2 workers: speed over what its users have",
        each("ours / peer", format=name, workers=("0", "2")),
        least=1,
    )
REPORT.chart(
    "Samples a second over those of the format's own loader (more is better)",
    "ours / peer",
    names=("format", "workers"),
    log=True,
    mark=1,
)


def main() -> None:
    options = parse_options(__doc__)
    rows, rounds = (1280, 1) if options.quick else (12_800, 5)
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, needs in NEEDS.items():
            if not all(map(importlib.util.find_spec, needs)):
                continue
            ours, peer, count = CASES[name](Path(folder), rows)
            for workers in WORKERS:
                contenders = {"ours": Epoch(ours, workers, count), "peer": Epoch(peer, workers, count)}
                taken = interleave(contenders, rounds=rounds, label=f"{name}, {workers} workers", limit_s=120)
                speed = {who: count * BATCH / float(np.median(list(times.values()))) for who, times in taken.items()}
                found.append(
                    {
                        "format": name,
                        "workers": workers,
                        "ours samples/s": speed["ours"],
                        "peer samples/s": speed["peer"],
                        "ours / peer": ratio(taken["peer"], taken["ours"]),
                    }
                )
                for one in contenders.values():
                    one.close()
    record("formats_rows", found, options)


class Epoch:
    """One epoch of a loader, in seconds without its first batches; the loader is made once."""

    def __init__(self, make: Make, workers: int, count: int) -> None:
        self._make, self._workers, self._count = make, workers, count
        self._loader: Any = None

    def __call__(self) -> float:
        if self._loader is None:
            self._loader = self._make(self._workers)
        batches = iter(self._loader)
        taken = steady(batches, self._count - 1)
        for _ in batches:
            pass
        return float(taken)

    def close(self) -> None:
        if isinstance(self._loader, lk.Loader):
            self._loader.close()
        self._loader = None


def ours(dataset: Any, workers: int, **settings: Any) -> Any:
    settings |= {"persistent_workers": True} if workers else {}
    return lk.Loader(dataset, BATCH, shuffle=True, drop_last=True, num_workers=workers, **settings)


def of_torch(dataset: Any, workers: int, **settings: Any) -> Any:
    settings |= {"persistent_workers": True} if workers else {}
    return torch_data.DataLoader(dataset, BATCH, shuffle=True, drop_last=True, num_workers=workers, **settings)


def spawned(dataset: Any, workers: int, **settings: Any) -> Any:
    settings |= {"multiprocessing_context": "spawn"} if workers else {}
    return of_torch(dataset, workers, **settings)


def table(rows: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).random((rows, WIDTH), dtype=np.float32)


def lance_case(folder: Path, rows: int) -> tuple[Make, Make, int]:
    import lance
    import pyarrow as pa
    from lance.torch.data import SafeLanceDataset

    vectors = pa.FixedSizeListArray.from_arrays(table(rows).ravel(), WIDTH)
    path = str(folder / "a.lance")
    lance.write_dataset(pa.table({"n": np.arange(rows), "x": vectors}), path, max_rows_per_file=rows // 8)
    peer = partial(spawned, SafeLanceDataset(path), collate_fn=stacked)
    return partial(ours, lk.LanceDataset(path)), peer, rows // BATCH


def stacked(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Make a batch of rows with lists of floats, which the default collate would turn around."""
    return {
        "n": torch.tensor([one["n"] for one in samples]),
        "x": torch.tensor([one["x"] for one in samples], dtype=torch.float32),
    }


def as_floats(record: bytes) -> npt.NDArray[np.float32]:
    return np.frombuffer(record, np.float32).copy()


def array_record_case(folder: Path, rows: int) -> tuple[Make, Make, int]:
    import grain
    from array_record.python.array_record_data_source import ArrayRecordDataSource
    from array_record.python.array_record_module import ArrayRecordWriter

    path = str(folder / "a.array_record")
    writer = ArrayRecordWriter(path, "group_size:1")
    for row in table(rows):
        writer.write(row.tobytes())
    writer.close()

    def peer(workers: int) -> Any:
        whole = grain.MapDataset.source(ArrayRecordDataSource([path])).shuffle(seed=0).map(as_floats)
        batches = whole.to_iter_dataset().batch(BATCH, drop_remainder=True)
        return batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers)) if workers else batches

    return partial(ours, lk.ArrayRecordDataset(path, transform=as_floats)), peer, rows // BATCH


def lerobot_case(folder: Path, rows: int) -> tuple[Make, Make, int]:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    size, episodes = (96, 96, 3), 10
    features: dict[str, Any] = {
        "observation.state": {"dtype": "float32", "shape": (14,), "names": None},
        "action": {"dtype": "float32", "shape": (14,), "names": None},
        "observation.images.top": {"dtype": "video", "shape": size, "names": ["height", "width", "channels"]},
    }
    root, random = folder / "robot", np.random.default_rng(0)
    made = LeRobotDataset.create("none/none", 10, features, root=root, use_videos=True)
    frames = rows // 4 // episodes
    for _ in range(episodes):
        for frame in range(frames):
            numbers = random.random((2, 14), dtype=np.float32)
            picture = np.full(size, frame * 5 % 256, dtype=np.uint8)
            values = {"observation.state": numbers[0], "action": numbers[1], "observation.images.top": picture}
            made.add_frame(values | {"task": "move"})
        made.save_episode()
    made.finalize()
    deltas = {"action": [step / 10 for step in range(16)]}
    count = frames * episodes // BATCH
    peer = LeRobotDataset("none/none", root=root, delta_timestamps=deltas, video_backend="pyav")
    # Its decoders do not live through a fork of a process that has used them.
    return partial(ours, lk.LeRobotDataset(root, deltas, decoder="pyav")), partial(spawned, peer), count


class Rows:
    """What people write today: the rows of a batch from an open array."""

    def __init__(self, opening: Callable[[], Any], rows: int) -> None:
        self._opening, self._rows = opening, rows
        self._array: Any = None

    def __len__(self) -> int:
        return self._rows

    def __getitems__(self, indices: list[int]) -> Any:
        if self._array is None:
            self._array = self._opening()
        once, places = np.unique(indices, return_inverse=True)
        return list((self._array.oindex if hasattr(self._array, "oindex") else self._array)[once][places])


def open_zarr(path: str) -> Any:
    import zarr

    return zarr.open_group(path, mode="r")["x"]


def open_hdf5(path: str) -> Any:
    import h5py

    return h5py.File(path, "r")["x"]


def zarr_case(folder: Path, rows: int) -> tuple[Make, Make, int]:
    import zarr

    path = str(folder / "a.zarr")
    zarr.open_group(path, mode="w").create_array("x", data=table(rows), chunks=(64, WIDTH))
    peer = Rows(partial(open_zarr, path), rows)
    return partial(ours, lk.ZarrDataset(path)), partial(of_torch, peer), rows // BATCH


def hdf5_case(folder: Path, rows: int) -> tuple[Make, Make, int]:
    import h5py

    path = str(folder / "a.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=table(rows), chunks=(64, WIDTH), compression="lzf")
    peer = Rows(partial(open_hdf5, path), rows)
    return partial(ours, lk.Hdf5Dataset(path)), partial(of_torch, peer), rows // BATCH


CASES: dict[str, Callable[[Path, int], tuple[Make, Make, int]]] = {
    "Lance": lance_case,
    "ArrayRecord": array_record_case,
    "LeRobot": lerobot_case,
    "Zarr": zarr_case,
    "HDF5": hdf5_case,
}


if __name__ == "__main__":
    main()
