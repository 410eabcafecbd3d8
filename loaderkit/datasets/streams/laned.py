"""`LanedStream`: how a stream opens its lanes, for a Loader at any place, and for a plain DataLoader at an epoch's start."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.utils.data as torch_data

from loaderkit.datasets.bad_samples import RAISE, BadSamples
from loaderkit.datasets.streams.filter import FilteredLane
from loaderkit.datasets.streams.lane import Lane, LaneSpec, Place, are_counts
from loaderkit.datasets.streams.samples import Step, transform_samples
from loaderkit.seeding.private import PrivateGenerators
from loaderkit.system.world import World


class LanedStream(torch_data.IterableDataset[Any]):
    """The base of StreamDataset: opens lanes, and applies the maps and filters that follow its source.

    Attributes:
        lanes: How many lanes there are, over all ranks and workers.
    """

    lanes: int

    def _start(self, steps: tuple[Step, ...]) -> None:
        self._steps = steps
        epoch: Any = torch.zeros((), dtype=torch.int64, device="cpu")
        self._epoch = epoch.share_memory_()  # set_epoch then reaches persistent workers
        self._world: World | None = None

    def _lane(self, spec: LaneSpec) -> Lane:
        """Return a lane of the source, before the last filter."""
        raise NotImplementedError

    def _flaw(self, lane: int, place: Place) -> str | None:
        """Return in words what a place should be instead; None if the lane can be at this place."""
        raise NotImplementedError

    def open(self, lane: int, place: Place, path: Sequence[int] = (), policy: BadSamples = RAISE) -> Lane:
        """Return a lane that is read from a place on.

        `path` has the number of the stream at each level of composed streams, down to this one.
        """
        filters = [number for number, step in enumerate(self._steps, 1) if step.is_filter]
        cut = filters[-1] if filters else 0
        reader = self._lane(LaneSpec(lane, place, path, self._steps[:cut] if cut else self._steps, policy))
        return FilteredLane(reader, self._steps[cut:], policy) if cut else reader

    def flaw(self, lane: int, place: Sequence[Any]) -> str | None:
        """Return in words what a state's place should be instead; None if the lane can be at this place."""
        if not are_counts(place):
            return "a list of counts: cycle, shard, sample, used and position"
        return self._flaw(lane, Place(*place))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next `iter()` in a plain torch DataLoader; a Loader counts epochs itself."""
        self._epoch.fill_(epoch)

    def __iter__(self) -> Iterator[Any]:
        return PrivateGenerators({"stream": self}).each(self._samples())

    def _samples(self) -> Iterator[object]:
        info = torch_data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        world = self._world or World.detect()
        numbers = range(world.rank, self.lanes, world.size)[worker::workers]
        start = Place(cycle=int(self._epoch))
        lanes = [self.open(lane, start) for lane in numbers]
        while lanes:
            lanes = [lane for lane in lanes if lane.fill(1)]
            for lane in lanes:
                yield from transform_samples(lane.take(1))

    def __getstate__(self) -> dict[str, object]:
        # Only a forked worker has torch.distributed initialised.
        return self.__dict__ | {"_world": self._world or World.detect()}
