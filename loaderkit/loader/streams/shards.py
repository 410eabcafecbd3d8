"""A position through a StreamDataset, along its lanes."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from loaderkit.datasets.streams.lane import Place
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.streams.position import LaneWalk
from loaderkit.loader.streams.workers import Item, LaneRun, run_lanes


class StreamPosition(LaneWalk):
    """Goes along the lanes of a StreamDataset: any rank may take over any of them."""

    _place: ClassVar[Any] = Place

    def _check_settings(self) -> None:
        check_unindexed(self.dataset, self.config, "it says so itself: StreamDataset(shuffle=True)")
        if self.config.bad_samples.policy == "replace":
            raise ValueError(
                "loader: bad_samples='replace' is for data with an index: a stream has no other samples to choose from. "
                "Use 'skip': the lane's next sample comes in a bad one's place."
            )
        stream, seed = self.dataset, self.config.seed
        if seed not in (0, stream.seed):
            raise ValueError(
                f"loader: seed={seed}, and the stream has seed={stream.seed}: a stream's order and draws come from its "
                "own. Give StreamDataset that seed, or leave the loader's out."
            )

    def _check_workers(self, lanes: int) -> None:
        workers, shards = self.num_workers, len(self.dataset.shards)
        if workers > min(lanes, self.dataset.parts):
            self.say(
                f"Loader: {workers} workers for {shards} shards in {lanes} lanes of this rank: some of the workers will be "
                "idle. Where the reader can skip, StreamDataset(share=...) lets lanes share a shard."
            )

    def _identity(self) -> dict[str, Any]:
        stream = self.dataset
        return {
            "shards": stream.fingerprint(),
            "order": stream.order(),
            "seed": stream.seed,
            "epochs": "of steps" if self.config.steps else "of the stream",
        }

    def _lanes(self) -> int:
        lanes: int = self.dataset.lanes
        return lanes

    def _run(self, places: Sequence[Any], cycle: int, turn: int) -> Iterator[Item]:
        stream, config = self.dataset, self.config
        run = LaneRun(stream=stream, config=config, lanes=self._own(), places=places, cycle=cycle, turn=turn)
        return run_lanes(run, config, stream.seed, self.num_workers)

    def _no_data(self) -> str:
        world, shards = self.world, len(self.dataset.shards)
        return f"rank {world.rank} of {world.size} found no samples in its part of {shards} shards"


def check_unindexed(dataset: Any, config: LoaderConfig, order: str) -> None:
    """Refuse settings that are for data with an index.

    Args:
        dataset: The data.
        config: The settings.
        order: Who says in which order the data comes.

    Raises:
        ValueError: If there are such.
    """
    for name in ("shuffle", "order", "plan"):
        if value := getattr(config, name):
            raise ValueError(
                f"loader: {name}={value!r} is for data with an index, and {type(dataset).__name__} is a stream: "
                f"{order}. Leave it out."
            )
    if config.engine == "threads":
        raise ValueError(
            f"loader: engine='threads' is for data with an index, and {type(dataset).__name__} is a stream, which processes "
            "read. Leave it out."
        )
    if config.tail == "pad":
        raise ValueError(
            "loader: tail='pad' is for data with an index: nobody knows how much a stream lacks. Give steps=, or "
            "stop='repeat', so that all ranks have as many batches."
        )
