"""Folders that each format's own writer made, and how they are opened."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from datasets_made import FIXTURES

import loaderkit as lk


def copied(*name: str, needs: str = "loaderkit") -> Callable[[Path], None]:
    """Copy files that a format's own writer made; skip the test if the library that reads them is not installed."""

    def made(folder: Path) -> None:
        pytest.importorskip(needs)
        shutil.copytree(FIXTURES.joinpath(*name), folder, dirs_exist_ok=True)

    return made


def lance(folder: Path) -> Any:
    pytest.importorskip("lance")
    return lk.LanceDataset(folder)


# Not all of them can be listed by shards.
OWN: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any]]] = {
    "ArrayRecord": (
        copied("array_record", needs="array_record"),
        lambda folder: lk.ArrayRecordDataset(sorted(folder.glob("*.array_record"))),
    ),
    "Energon": (copied("energon", "data"), partial(lk.TarDataset, split="train")),
    "HDF5": (copied("chunked"), lambda folder: lk.Hdf5Dataset(folder / "rows.h5")),
    "Lance": (copied("lance", "data.lance"), lance),
    "LeRobot": (copied("lerobot", "data"), partial(lk.LeRobotDataset, columns=["index", "action"])),
    "litdata": (copied("litdata", "dicts"), lk.LitDataset),
    "litdata packed by batch": (copied("litdata", "packed-by-batch"), lk.LitDataset),
    "MDS": (copied("mds", "plain"), lk.MDSDataset),
    "MDS packed": (copied("mds", "gz"), lk.MDSDataset),
    "safetensors": (copied("safetensors"), lk.SafetensorsDataset),
    "Shar": (copied("shar", "data"), lk.SharDataset),
    "TFRecord": (copied("tfrecord"), lambda folder: lk.TFRecordDataset(sorted(folder.glob("examples*")))),
    "WebDataset": (copied("webdataset"), lk.TarDataset),
    "Zarr 2": (copied("chunked", "v2.zarr", needs="zarr"), partial(lk.ZarrDataset, missing="fill")),
    "Zarr 3 in shards": (copied("chunked", "sharded.zarr", needs="zarr"), partial(lk.ZarrDataset, missing="fill")),
}
