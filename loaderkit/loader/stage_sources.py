"""The datasets of a training in stages, by name."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from loaderkit.datasets.base import knows_lengths
from loaderkit.datasets.combine import ConcatDataset
from loaderkit.loader.stage import Stage
from loaderkit.sampling.fingerprint import fingerprint
from loaderkit.sampling.order import Order
from loaderkit.sampling.sources import Sources, shuffled_source
from loaderkit.sampling.staged_order import Blend
from loaderkit.seeding.keys import derive_seed
from loaderkit.system.digests import shortened
from loaderkit.system.overrides import is_map_style, own_attribute
from loaderkit.system.suggest import did_you_mean

Source = Any  # a dataset, or its size, to plan without data


class StageSources:
    """Datasets by name, each in an order of its own.

    If sources are added, the shuffles of the others stay the same, and so does the dealing of their samples.

    Args:
        sources: The datasets by name, or their sizes.
        orders: An order for some of the sources.
        seed: The seed of the other sources' shuffles.

    Attributes:
        names: The names, sorted.
        sizes: Samples of each source.
        lines: Turns numbers of a source's samples into indices of the joined dataset.

    Raises:
        TypeError: If the sources have no names, or one is no dataset.
        ValueError: If an order does not fit its source.
    """

    def __init__(self, sources: Mapping[str, Source], orders: Mapping[str, Order], seed: int) -> None:
        if not isinstance(sources, Mapping):
            raise TypeError(
                f"Stages: sources is a {type(sources).__name__}, wanted a dict with a name for each dataset, such as "
                "{'web': web, 'books': books}. Stages name their sources."
            )
        self._sources = dict(sorted(sources.items()))
        self.names = list(self._sources)
        self.sizes = [_size(name, source) for name, source in self._sources.items()]
        self.check_names(orders, "orders")
        self._orders = {
            name: orders.get(name) or shuffled_source(source, derive_seed("stages", seed, name))
            for name, source in self._sources.items()
        }
        for (name, order), size in zip(self._orders.items(), self.sizes, strict=True):
            if not order.size(0) or order.reach > size:
                raise ValueError(
                    f"Stages: the source {name!r} has {size} samples, and its order {order.size(0)} positions with indices below "
                    f"{order.reach}; wanted at least one, and none above the samples."
                )
        self.lines = Sources(list(self._orders.values()), self.sizes)

    def __str__(self) -> str:
        return ", ".join(f"{name}: {size:,}" for name, size in zip(self.names, self.sizes, strict=True))

    def check_names(self, names: Collection[str], where: str) -> None:
        """Raise a ValueError for a name that is not a source. `where` says in the error who names it."""
        for name in names:
            if name not in self._sources:
                raise ValueError(
                    f"Stages: {where} names the source {name!r}, wanted one of {self.names}.{did_you_mean(str(name), self.names)}"
                )

    def dataset(self) -> ConcatDataset:
        """Return all sources as one dataset; raise a TypeError if a source was given as a number of samples."""
        sizes = [name for name, source in self._sources.items() if isinstance(source, int)]
        if sizes:
            raise TypeError(f"Stages: the sources {sizes} are numbers of samples, wanted datasets.")
        return ConcatDataset(list(self._sources.values()))

    def blend(self, number: int, stage: Stage) -> Blend:
        """Return the share of each source in a stage. `number` is the stage's number, for an error."""
        weights = stage.weights_by_name
        self.check_names(weights, f"stage {number}")
        ends = []
        for end in (0, 1):
            total = math.fsum(weight[end] for weight in weights.values())
            ends.append(np.array([weights.get(name, (0, 0))[end] / total for name in self.names], dtype=np.float64))
        return Blend(stage.size, *ends)

    def tokens(self, name: str) -> float | None:
        """Return the mean number of tokens in a source's samples; None if the source does not know it."""
        source = self._sources[name]
        stride = own_attribute(source, "stride")
        if isinstance(stride, int):
            return stride
        return float(np.mean(source.lengths())) if knows_lengths(source) else None

    def identity(self, names: Collection[str]) -> str:
        """Return a text that names the data and the orders of some sources, for a state."""
        parts = [
            f"{name}: {fingerprint(source, _size(name, source))} {self._orders[name].key(0)}"
            for name, source in self._sources.items()
            if name in names
        ]
        return f"sources({shortened('; '.join(parts))})"

    def explain(self, before: str, now: str) -> str:
        """Return what differs between two texts of `identity`, as sentences for an error."""
        old, new = map(_sources_in, (before, now))
        if old is None or new is None:  # the text of many sources is a hash
            found = ", ".join(f"{name!r}: {_size(name, source):,} samples" for name, source in self._sources.items())
            return f"A source that the run has read is another one now, or has another order. The sources are {found}. "
        changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        said = [f"source {name!r}: {old.get(name, 'none')} then, {new.get(name, 'none')} now" for name in changed]
        return f"What differs is {'; '.join(said)}. "


def _size(name: str, source: Source) -> int:
    if isinstance(source, int):
        return source
    if not is_map_style(source):
        raise TypeError(
            f"Stages: the source {name!r} is of type {type(source).__name__}, wanted a dataset with __len__ and __getitem__. "
            "Streams are mixed by lk.interleave."
        )
    return len(source)


def _sources_in(text: str) -> dict[str, str] | None:
    """Return the part of an `identity` that describes each source, by name; None if the identity is only a hash."""
    inner = text.removeprefix("sources(").removesuffix(")")
    parts = [part.split(": ", 1) for part in inner.split("; ")]
    return {part[0]: part[1] for part in parts} if all(len(part) == 2 for part in parts) else None
