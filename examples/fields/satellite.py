"""Random chips of satellite images, by TorchGeo's dataset and sampler: killed, resumed, and the same bit for bit.

    pip install torchgeo
    python examples/fields/satellite.py

The sampler's keys are slices of coordinates. It draws from torch's global generator, which the Loader seeds with each epoch.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from killed import compare
from torchgeo.datasets import RasterDataset, stack_samples
from torchgeo.samplers import RandomGeoSampler

import loaderkit as lk

SCENES, SIZE, CHIP = 2, 128, 32


class Scenes(RasterDataset):  # type: ignore[misc]
    filename_glob = "scene_*.tif"


def write(folder: Path) -> None:
    for number in range(SCENES):
        content = np.random.default_rng(number).integers(0, 255, (3, SIZE, SIZE), np.uint8)
        place = rasterio.transform.from_origin(500_000 + number * 10 * SIZE, 4_000_000, 10, 10)  # pixels of 10 m
        settings: dict[str, Any] = {"height": SIZE, "width": SIZE, "count": 3, "dtype": "uint8", "crs": "EPSG:32632"}
        with rasterio.open(folder / f"scene_{number}.tif", "w", driver="GTiff", transform=place, **settings) as file:
            file.write(content)


def chip(sample: dict[str, Any]) -> dict[str, Any]:
    """Keep what has a value in each sample: bounds and times differ in type from version to version."""
    return {"image": sample["image"]}


def make(folder: Path, workers: int) -> lk.Loader:
    data = Scenes(folder, transforms=chip)
    chips = RandomGeoSampler(data, size=CHIP, length=48)
    return lk.Loader(data, batch_size=4, order=chips, seed=1, num_workers=workers, collate_fn=stack_samples)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        compare(lambda workers: make(Path(folder), workers))
