"""Patches of volumes as an indexed dataset: each volume is read once for many patches."""

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderkit.datasets.base import MapStyle, Transform, as_dataset, check_index
from loaderkit.datasets.volumes.cut import Shape, cut, spatial_shape, with_location
from loaderkit.sampling.fingerprint import fingerprint
from loaderkit.sampling.order import Order
from loaderkit.sampling.shard_order import MAX_WINDOW, ShardOrder
from loaderkit.seeding.draws import Declares, Draws, SampleRngSeeds, draws
from loaderkit.seeding.keys import hash_positions
from loaderkit.seeding.sample_seeds import SampleSeeds, seeds_apart
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import check_integer, listed
from loaderkit.system.digests import digest
from loaderkit.system.indices import as_indices
from loaderkit.system.per_thread import PerThread
from loaderkit.system.world import World


class PatchDataset(Declares):
    """Patches of volumes, with a length and random access.

    Random patches are for training, a grid is for inference. The dataset replaces `torchio.Queue`. A sample is a patch
    as the volume's own type: a torchio Subject, a dict such as MONAI's, a tuple, or one tensor or array. The last axes
    are cut; the axes before them, such as channels, stay whole. Affines of torchio and MONAI follow the patch.

    **Random patches.** Each volume has `patches` patches in an epoch. Where a patch lies depends only on the seed, the
    epoch and the patch's number. Random transforms of the volumes' dataset are seeded for each volume and epoch: all
    patches of a volume in an epoch are cut from the same transformed volume. `transform` is seeded for each patch.

    **A grid.** Without `patches` and `sampler`, patches cover each volume in steps of size - overlap. The last patch
    along an axis ends at the volume's border.

    **Order.** With `shuffle=True` a Loader takes volumes in a new order each epoch. The patches of about `block`
    neighbours in that order are shuffled together, in each of `lanes` lanes. If the number of lanes is a multiple of
    ranks x workers, each worker has its own lanes, and reads each of its volumes once an epoch. Otherwise several
    workers read a lane's volumes. With any other order, and without shuffling, every epoch has the patches of epoch 0.

    **Memory.** When a volume is read, its random patches are cut, and the volume is freed. A process keeps the patches
    of up to `lanes` x (`block` + 2) volumes, until they are delivered. For a grid it keeps the volumes themselves;
    without shuffling, one at a time.

    Patch p of epoch e has the index e * len(data) + p, so `data[index]` and `loader.indices` agree.

    Args:
        volumes: A dataset of volumes, such as a list of arrays (C, *S), a `torchio.SubjectsDataset` or a `monai.data.Dataset`.
        size: Shape of a patch (D,), such as (64, 64, 32). An integer stands for three equal ones.
        patches: Number of random patches of each volume in an epoch: one number for all, or one for each volume (V,).
        overlap: For a grid: elements that neighbours share (D,), from 0 to size - 1. An integer stands for D equal ones.
        sampler: Instead of `size`: a function from a volume to `patches` patches or more, such as a
            `torchio.LabelSampler`, or MONAI's `RandCropByPosNegLabeld` with `num_samples`. It runs under the volume's
            seed.
        fields: Names of a dict's fields, or positions of a tuple's parts, that are cut. By default tensors and arrays of more than D axes.
        shapes: For a grid: the spatial shape of each volume (V, D), or one for all (D,). By default each volume is read
            once to find its shape.
        transform: Called with each patch.
        locations: Whether a patch comes with its location (2 D,) int64, its start and then its end, and the number of
            its volume. They are the fields "location" and "volume" of a dict, or the last parts of a tuple. By default
            only for a grid.
        seed: The seed of the random patches and of the volumes' transforms.
        block: Number of volumes whose patches are shuffled together.
        lanes: Number of places in the shuffled volumes that are read in turn, over all ranks and workers.

    Raises:
        TypeError: If `volumes` is not a dataset, or a volume has nothing to cut.
        ValueError: If a number is out of range, or two settings contradict each other. On reading: if a volume is smaller than a
            patch, or its fields have different shapes.

    Examples:
        >>> volumes = [torch.arange(6 * 6.0).reshape(1, 6, 6) + 100 * number for number in range(4)]
        >>> data = lk.PatchDataset(volumes, (2, 2), patches=8)
        >>> len(data), data[0].shape
        (32, torch.Size([1, 2, 2]))
        >>> next(iter(lk.Loader(data, batch_size=4, shuffle=True))).shape
        torch.Size([4, 1, 2, 2])

        A grid for inference, and a volume from its patches.

        >>> grid = lk.PatchDataset(volumes, (4, 4), overlap=1)
        >>> whole = torch.zeros(4, 1, 6, 6)
        >>> for patches, locations, numbers in lk.Loader(grid, batch_size=3):
        ...     for patch, (top, left, bottom, right), number in zip(patches, locations, numbers):
        ...         whole[number, :, top:bottom, left:right] = patch
        >>> torch.equal(whole, torch.stack(volumes))
        True
    """

    def __init__(
        self,
        volumes: MapStyle,
        size: int | Sequence[int] | None = None,
        *,
        patches: int | Sequence[int] | Int64Array | None = None,
        overlap: int | Sequence[int] | None = None,
        sampler: Callable[[Any], Iterable[object]] | None = None,
        fields: Sequence[object] | None = None,
        shapes: "npt.ArrayLike | None" = None,
        transform: Transform | None = None,
        locations: bool | None = None,
        seed: int = 0,
        block: int = 8,
        lanes: int = 4,
    ) -> None:
        self.volumes: MapStyle = as_dataset(volumes, "PatchDataset: the volumes' dataset")
        for name, number in (("block", block), ("lanes", lanes)):
            check_integer("PatchDataset", name, number, 1)
        _check_together(size, patches, overlap, sampler, shapes, locations)
        self.sampler, self.transform = sampler, transform
        self.fields = listed("PatchDataset", "fields", fields)
        self.seed, self.block, self.lanes = seed, int(block), int(lanes)
        self.size: Shape = () if size is None else _sizes("size", size, 3, 1)
        self._grids: list[list[list[int]]] | None = None  # where a grid's patches begin, by volume and axis
        if patches is None:
            overlaps = _sizes("overlap", overlap or 0, len(self.size), 0)
            if any(shared >= length for shared, length in zip(overlaps, self.size, strict=True)):
                raise ValueError(
                    f"PatchDataset: overlap is {overlaps}, wanted less than the size {self.size}, along each axis."
                )
            self.overlap = overlaps
            self._grids = [
                [_grid(*axis) for axis in zip(shape, self.size, overlaps, strict=True)]
                for shape in self._shapes(shapes)
            ]
            counts = np.array([math.prod(map(len, grid)) for grid in self._grids], dtype=np.int64)
        else:
            counts = _counts(patches, len(self.volumes))
        self.locations = self._grids is not None if locations is None else locations
        self._ends = counts.cumsum()
        self._counts = counts
        self._open: PerThread[OrderedDict[tuple[int, int], _Volume]] = PerThread(OrderedDict)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __iter__(self) -> Iterator[Any]:  # indices beyond the length are later epochs, so Python would not stop
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> Any:
        if index < 0 or not len(self):
            check_index(self, index)
            index += len(self)
        epoch, index = divmod(int(index), len(self))
        volume = self.volume(index)
        patch = self._take(epoch, volume, index - self._start(volume))
        return patch if self.transform is None else self.transform(patch)

    @property
    def shard_sizes(self) -> Int64Array:
        """The number of patches of each volume (V,)."""
        return self._counts

    def volume(self, index: int) -> int:
        """Return the number of the volume that patch `index` is cut from."""
        return int(np.searchsorted(self._ends, index % len(self), side="right"))

    def epoch_order(self, seed: int) -> Order:
        """Return the order of a Loader with shuffle=True."""
        lanes = self.lanes
        while lanes > 1 and lanes * self.block > len(self._counts):  # a lane must have something to shuffle
            lanes //= 2
        mean = len(self) / max(1, len(self._counts))
        return _PatchOrder(
            self._counts, seed=seed, lanes=lanes, window=min(MAX_WINDOW, max(1, round(self.block * mean))), block=1
        )

    def fingerprint(self) -> str:
        how = f"grid, overlap={self.overlap}" if self._grids is not None else f"seed={self.seed}"
        how = f"size={self.size}, {how}" if self.sampler is None else how
        return f"patches({digest(self._counts)}, {how}) of {fingerprint(self.volumes, len(self.volumes))}"

    def _parts(self) -> list[object]:
        sampler = [] if self.sampler is None else [self.sampler]
        return [self.volumes, *sampler, *super()._parts()]

    def _start(self, volume: int) -> int:
        return int(self._ends[volume - 1]) if volume else 0

    def _take(self, epoch: int, volume: int, number: int) -> object:
        """Return patch `number` of a volume. The volume is read again if it is not kept or the patch was delivered."""
        opened, key = self._open.own, (epoch, volume)
        if key not in opened or number not in opened[key].left:
            opened.pop(key, None)
            while len(opened) >= self.lanes * (self.block + 2):
                opened.popitem(last=False)  # the least recently used
            opened[key] = self._read(epoch, volume)
        found = opened[key]
        opened.move_to_end(key)
        found.left.discard(number)
        if not found.left:
            del opened[key]
        return found.make(number)

    def _read(self, epoch: int, volume: int) -> "_Volume":
        """Read a volume, and cut its random patches. A grid's patches are cut later."""
        name, count = f"PatchDataset: volume {volume}", int(self._counts[volume])
        with self._seeded(epoch, volume):
            whole = self.volumes[volume]
            sampled = None if self.sampler is None else list(itertools.islice(self.sampler(whole), count))
        if sampled is not None:
            if len(sampled) < count:
                raise ValueError(
                    f"{name} has {len(sampled)} patches from the sampler, wanted {count}. Let it give as many as patches=."
                )
            return _Volume(dict(enumerate(sampled)).pop, count)
        shape = spatial_shape(whole, len(self.size), self.fields, name)
        starts = self._starts(epoch, volume, shape, name)

        def take(number: int) -> object:
            patch = cut(whole, starts[number], self.size, self.fields, name)
            return with_location(patch, starts[number], self.size, volume) if self.locations else patch

        if self._grids is not None:
            return _Volume(take, count)
        return _Volume({number: take(number) for number in range(count)}.pop, count)

    def _starts(self, epoch: int, volume: int, shape: Shape, name: str) -> list[Shape]:
        """Return where each patch of a volume begins, (D,) each."""
        if len(shape) != len(self.size) or any(
            length < wanted for length, wanted in zip(shape, self.size, strict=True)
        ):
            raise ValueError(
                f"{name} has shape {shape}, wanted {len(self.size)} axes of at least the patches' {self.size}. Pad it in the volumes' "
                "dataset, for example by torchio.CropOrPad or monai.transforms.SpatialPadd."
            )
        if self._grids is None:
            numbers = self._start(volume) + np.arange(self._counts[volume])
            axes = [
                (hash_positions(numbers, "patch", self.seed, epoch, axis) >> np.uint64(32))
                * np.uint64(length - wanted + 1)
                >> np.uint64(32)
                for axis, (length, wanted) in enumerate(zip(shape, self.size, strict=True))
            ]
            return [tuple(start) for start in np.stack(axes, axis=1).tolist()]
        grid = self._grids[volume]
        ends = tuple(axis[-1] + wanted for axis, wanted in zip(grid, self.size, strict=True))
        if ends != shape:
            raise ValueError(
                f"{name} has shape {shape}, and had {ends} when the grid was made. Wanted one shape: give the right shapes=, and transforms "
                "that keep it."
            )
        return list(itertools.product(*grid))

    def _shapes(self, given: "npt.ArrayLike | None") -> list[Shape]:
        """Return the spatial shape (D,) of each volume, from the setting or by reading the volumes."""
        count, axes = len(self.volumes), len(self.size)
        if given is None:
            shapes = []
            for volume in range(count):
                with self._seeded(0, volume):
                    shapes.append(
                        spatial_shape(self.volumes[volume], axes, self.fields, f"PatchDataset: volume {volume}")
                    )
        else:
            found = np.asarray(given)
            if found.shape not in ((axes,), (count, axes)) or found.dtype.kind not in "iu":
                raise ValueError(
                    f"PatchDataset: shapes have shape {found.shape} and dtype {found.dtype}, wanted integers ({count}, {axes}), one row for "
                    f"each volume, or ({axes},) for all."
                )
            shapes = [tuple(row) for row in np.broadcast_to(found, (count, axes)).tolist()]
        for volume, shape in enumerate(shapes):
            if any(length < wanted for length, wanted in zip(shape, self.size, strict=True)):
                raise ValueError(
                    f"PatchDataset: volume {volume} has shape {shape}, wanted at least the patches' {self.size}. Pad it in the volumes' "
                    "dataset, for example by torchio.CropOrPad or monai.transforms.SpatialPadd."
                )
        return shapes

    def _seeded(self, epoch: int, volume: int) -> AbstractContextManager[object]:
        """Return a context in which random numbers come from the seed of this volume and epoch."""
        drawn = draws(self.volumes) if self.sampler is None else Draws.ANYTHING
        if drawn is Draws.NOTHING:
            return nullcontext()
        words = hash_positions(np.array([volume]), "volume", self.seed, epoch)
        seeds = SampleRngSeeds(words) if drawn is Draws.SAMPLE_RNG else SampleSeeds(words)
        return _entered(seeds)


class _Volume:
    """A volume that was read: `make` returns a patch by number, and `left` has the numbers not delivered yet."""

    def __init__(self, make: Callable[[int], object], count: int) -> None:
        self.make, self.left = make, set(range(count))


class _PatchOrder(ShardOrder):
    """The patches of each epoch, where each volume is a shard. Patch p of epoch e has the index e * reach + p."""

    def at(self, epoch: int, positions: Int64Array) -> Int64Array:
        return super().at(epoch, positions) + epoch * self.reach

    def key(self, epoch: int) -> str:
        return f"patches-1({super().key(epoch)})"

    def with_block(self, block: int) -> "_PatchOrder":
        return _PatchOrder(self.shard_sizes, seed=self.seed, lanes=self.lanes, window=self.window, block=block)

    def remark(self, world: World, batch_size: int) -> str | None:
        return None  # it would recommend a ShardOrder, which has only the patches of epoch 0


@contextmanager
def _entered(seeds: SampleSeeds) -> Iterator[None]:
    with seeds_apart(seeds):
        seeds.enter(0)
        yield


def _check_together(
    size: object, patches: object, overlap: object, sampler: object, shapes: object, locations: bool | None
) -> None:
    """Raise a ValueError for settings that contradict each other."""
    if (size is None) is (sampler is None):
        raise ValueError(f"PatchDataset: size is {size!r} and sampler is {sampler!r}, wanted one of them.")
    if sampler is not None and patches is None:
        raise ValueError(
            "PatchDataset: a sampler is given without patches=, wanted the number of patches that it gives of each volume."
        )
    if patches is not None and (overlap is not None or shapes is not None):
        name = "overlap" if overlap is not None else "shapes"
        raise ValueError(
            f"PatchDataset: {name}= is for a grid, and patches={patches!r} asks for random patches. Leave one of them out."
        )
    if sampler is not None and locations:
        raise ValueError(
            "PatchDataset: locations=True with a sampler, which knows them alone. Let it give them: torchio's samplers do."
        )


def _sizes(name: str, given: object, axes: int, least: int) -> Shape:
    """Return a setting as one integer for each axis; a single integer stands for all axes."""
    found = (given,) * axes if isinstance(given, int | np.integer) and not isinstance(given, bool) else given
    values = tuple(found) if isinstance(found, Iterable) else ()
    if not values or (name != "size" and len(values) != axes):
        raise ValueError(f"PatchDataset: {name} is {given!r}, wanted an integer, or one for each axis.")
    for value in values:
        check_integer("PatchDataset", name, value, least)
    return tuple(map(int, values))


def _counts(patches: object, volumes: int) -> Int64Array:
    """Return the number of random patches of each volume (V,)."""
    if isinstance(patches, int | np.integer):
        check_integer("PatchDataset", "patches", patches, 1)
        return np.full(volumes, patches, dtype=np.int64)
    counts = as_indices("PatchDataset", patches)
    if len(counts) != volumes or (counts < 0).any():
        raise ValueError(
            f"PatchDataset: patches are {patches!r}, wanted an integer, or {volumes:,} of at least 0, one for each volume."
        )
    return counts


def _grid(length: int, size: int, overlap: int) -> list[int]:
    """Return where a grid's patches begin along an axis. The last one ends at the border."""
    starts = list(range(0, length - size + 1, size - overlap))
    return starts if starts[-1] == length - size else [*starts, length - size]
