"""Chips of a map: a torchgeo dataset, whose samples are read by region, as a map-style dataset."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from loaderkit.datasets.base import Transform, check_index
from loaderkit.datasets.memory.packed import Packed
from loaderkit.sampling.fingerprint import fingerprint_of_part
from loaderkit.sampling.keys import as_keys, digest_of
from loaderkit.sampling.samplers import Drawing
from loaderkit.seeding.draws import Declares
from loaderkit.system.arrays import Int64Array

_MOST = 1 << 24  # regions of a sampler without a length


class GeoChips(Declares):
    """The chips that a list of regions cuts from a torchgeo dataset.

    Chips are read by index, so they shuffle, split and resume like any data. The length of a chip is its area, so plans
    by length work for chips of many sizes: `TokenBudget(chips.lengths(), max_tokens=1_000_000)` fills batches of a
    million pixels.

    The regions of a random sampler are drawn once, here. If each epoch must have other regions, give the sampler to the
    Loader: `Loader(dataset, order=sampler)`.

    Args:
        dataset: A `torchgeo.datasets.GeoDataset`, or any object that gives a sample for a region.
        regions: Regions (N,), such as a `GridGeoSampler` or a list: slices (x, y) or (x, y, t) in units of the dataset's CRS, or
            a BoundingBox of an older torchgeo.
        resolution: Size of a pixel (x, y) in units of the CRS. Default: the dataset's `res`.
        transform: Called with each sample.
        seed: Seed of a random sampler.

    Raises:
        TypeError: If a region is neither slices nor a BoundingBox.
        ValueError: If a region has no area, or neither `resolution` nor the dataset gives a pixel size above 0.

    Examples:
        >>> class Map:
        ...     image, res = torch.arange(64.0).reshape(1, 8, 8), 1.0
        ...     def __getitem__(self, region):
        ...         x, y = region
        ...         return {"image": self.image[:, y, x]}
        >>> chips = lk.GeoChips(Map(), [(slice(x, x + 4), slice(0, 2 + x)) for x in range(3)])
        >>> chips.lengths()
        array([ 8, 12, 16])
        >>> chips[1]["image"].shape
        torch.Size([1, 3, 4])
    """

    def __init__(
        self,
        dataset: Any,
        regions: Iterable[object],
        *,
        resolution: float | tuple[float, float] | None = None,
        transform: Transform | None = None,
        seed: int = 0,
    ) -> None:
        self.dataset, self.transform = dataset, transform
        found = getattr(dataset, "res", None) if resolution is None else resolution
        sizes = np.broadcast_to(np.asarray(0 if found is None else found, dtype=float), 2)
        if not (sizes > 0).all():
            raise ValueError(
                f"GeoChips: the resolution is {found!r}, wanted the size of a pixel, above 0, along x and y. Give resolution=(1.0, 1.0)."
            )
        keys = as_keys(Drawing(regions, seed, 0).epoch(_MOST))
        self._areas = np.array([_area(number, key, sizes) for number, key in enumerate(keys)], dtype=np.int64)
        self._digest = digest_of(keys)
        self._regions = Packed(keys, "GeoChips: region")

    def __len__(self) -> int:
        return len(self._regions)

    def __getitem__(self, index: int) -> Any:
        sample = self.dataset[self.region(index)]
        return sample if self.transform is None else self.transform(sample)

    def region(self, index: int) -> Any:
        """Return the region of a chip."""
        check_index(self, index)
        return self._regions.read_one(index % len(self))

    def lengths(self) -> Int64Array:
        """Return the area of each chip in pixels, (N,) int64."""
        return self._areas

    def fingerprint(self) -> str:
        return f"chips({self._digest}) of {fingerprint_of_part(self.dataset)}"

    def _parts(self) -> list[object]:
        return [self.dataset, *super()._parts()]


def _area(number: int, region: Any, sizes: Any) -> int:
    """Return the area of a region in pixels, at least 1."""
    if hasattr(region, "minx"):  # a BoundingBox
        spans = [(region.minx, region.maxx), (region.miny, region.maxy)]
    elif isinstance(region, tuple) and len(region) > 1 and all(isinstance(part, slice) for part in region[:2]):
        spans = [(part.start, part.stop) for part in region[:2]]
    else:
        raise TypeError(
            f"GeoChips: region {number} is {region!r}, wanted slices (x, y) or (x, y, t), or a BoundingBox."
        )
    if any(start is None or stop is None or stop <= start for start, stop in spans):
        raise ValueError(
            f"GeoChips: region {number} is {region!r}, wanted slices with a start and a later stop along x and y."
        )
    lengths: list[int] = [
        max(1, round((stop - start) / size)) for (start, stop), size in zip(spans, sizes.tolist(), strict=True)
    ]
    return lengths[0] * lengths[1]
