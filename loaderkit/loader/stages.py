"""Training in stages: mixture weights, batch size and sources that change at given samples."""

import copy
import dataclasses
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from loaderkit.datasets.base import knows_lengths
from loaderkit.datasets.combine import ConcatDataset
from loaderkit.sampling.batch_plan import BatchPlan
from loaderkit.sampling.cursor import Cursor, bad_cursor
from loaderkit.sampling.fingerprint import fingerprint
from loaderkit.sampling.order import Order
from loaderkit.sampling.plan import BatchKey, Plan, PlanPart
from loaderkit.sampling.sources import Sources, shuffled_source
from loaderkit.sampling.staged_order import Blend, StagedOrder, StageOrder
from loaderkit.seeding.keys import derive_seed
from loaderkit.system.checks import check_integer, plain_integer
from loaderkit.system.digests import shortened
from loaderkit.system.html import table
from loaderkit.system.overrides import is_map_style, own_attribute
from loaderkit.system.suggest import did_you_mean
from loaderkit.system.world import World

Weights = Mapping[str, float | tuple[float, float]]


@dataclass(frozen=True)
class Stage:
    """A part of a training with its own sources and weights. See `Stages`.

    Its batch size and its collate function may be its own, too.

    Args:
        weights: The weight of each source by name, above 0; they need not sum to 1. A pair is the weight at the stage's
            start and at its end: the source's share then changes linearly. One of the pair may be 0. A single name is a
            stage of that source alone.
        batch_size: Samples in a batch of each rank.
        samples: Samples of the stage, of all ranks together.
        steps: The stage's length in steps of `global_batch_size`, instead of `samples`.
        global_batch_size: Samples in a step of all ranks together, instead of `batch_size`. The number of ranks must divide it.
        collate_fn: Makes the stage's batches; by default the Loader's does.

    Raises:
        ValueError: If a weight or number is out of range, or the length or the batch size is missing or given twice.

    Examples:
        >>> lk.Stage({"web": (3, 1), "books": 1}, 32, samples=1_000_000).size
        1000000
        >>> lk.Stage("books", steps=100, global_batch_size=512).size
        51200
    """

    weights: str | Weights
    batch_size: int | None = None
    _: KW_ONLY
    samples: int | None = None
    steps: int | None = None
    global_batch_size: int | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "samples", "steps", "global_batch_size"):
            object.__setattr__(self, name, number := plain_integer(getattr(self, name)))
            if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
                raise ValueError(f"Stage: {name} is {number!r}, wanted an integer of at least 1.")
        if (self.samples is None) == (self.steps is None):
            raise ValueError(
                f"Stage: samples={self.samples} and steps={self.steps}, wanted one of them: the stage's length."
            )
        if (self.batch_size is None) == (self.global_batch_size is None):
            raise ValueError(
                f"Stage: batch_size={self.batch_size} and global_batch_size={self.global_batch_size}, wanted one of them."
            )
        if self.steps is not None and self.global_batch_size is None:
            raise ValueError(
                f"Stage: steps={self.steps} with batch_size={self.batch_size} of each rank, which is another number of samples "
                "on other ranks. Give samples=, or global_batch_size= instead of batch_size."
            )
        if self.collate_fn is not None and not callable(self.collate_fn):
            raise ValueError(f"Stage: collate_fn is {self.collate_fn!r}, wanted a function.")
        if not isinstance(self.weights, str | Mapping) or not self.weights:
            raise ValueError(f"Stage: weights is {self.weights!r}, wanted a dict of weights by name, or a name.")
        for name, weight in self.weights_by_name.items():
            if not all(isinstance(end, int | float | np.number) and 0 <= end < math.inf for end in weight) or not any(
                weight
            ):
                raise ValueError(
                    f"Stage: the weight of {name!r} is {weight[0] if weight[0] is weight[1] else weight!r}, wanted a number above 0, "
                    "or a pair of numbers of at least 0, not both 0. Leave out a source that the stage does not read."
                )
        for end, at in enumerate(("start", "end")):
            if not any(weight[end] for weight in self.weights_by_name.values()):
                raise ValueError(f"Stage: all weights are 0 at the stage's {at}, wanted one above 0.")

    @property
    def size(self) -> int:
        """Samples of the stage, of all ranks together."""
        return self.samples or (self.steps or 0) * (self.global_batch_size or 0)

    @property
    def weights_by_name(self) -> dict[str, tuple[float, float]]:
        """The weight of each source at the stage's start and at its end."""
        given = {self.weights: 1} if isinstance(self.weights, str) else self.weights
        return {
            name: (weight[0], weight[1]) if isinstance(weight, tuple | list) and len(weight) == 2 else (weight, weight)
            for name, weight in given.items()
        }

    def batch_size_of(self, world: World) -> int:
        """Return the samples in a batch of each rank.

        Raises:
            ValueError: If the ranks can't share a step evenly.
        """
        if self.batch_size is not None:
            return self.batch_size
        each, rest = divmod(self.global_batch_size or 0, world.size)
        if rest or not each:
            raise ValueError(
                f"Stage: global_batch_size is {self.global_batch_size}, wanted a multiple of the {world.size} ranks. Use another "
                "number of ranks, or give batch_size=."
            )
        return each


class Stages(Plan):
    """Training in stages: a plan for `Loader(stages.dataset, plan=stages)`.

    The whole schedule is one epoch. A stage takes the next samples of each source, where the stage before left it. A source
    that is used up starts its next pass, in another order. Within a window each source has its share, exact to one
    sample. A batch never has samples of two stages.

    A position counts the samples of the schedule, so a run resumes anywhere, also on other ranks, with other batch sizes
    or workers. At a resume, the stages and sources that the run has read must be the same. Later stages may change, a stage
    of constant weights may become longer or shorter, and sources may be added.

    If a Trainer ends an epoch early (`limit_train_batches`), the next epoch continues there. After the last stage an epoch has no
    batches.

    Args:
        stages: The stages, in their order.
        sources: The datasets by name. A name always means the same samples: rows of another length need a name of their own, or
            a `collate_fn` that cuts long rows. For a plan on paper, their sizes.
        orders: An order for some of the sources. The others are shuffled, datasets with shards by a ShardOrder.
        seed: Of the shuffles.
        window: Positions over which shares are exact. Linear weights change in steps of whole windows, at most 256 in a stage.
        tail: What happens to the samples at a stage's end that do not fill a step of all ranks: "keep" spreads them evenly,
            "drop" leaves them out.

    Attributes:
        order: The order of the samples of all stages, for a plan by length: `lk.LengthBuckets(lengths, 8, order=stages.order)`.

    Raises:
        ValueError: If there are no stages, a source is unknown or empty, or a source has less than one sample in a window.

    Examples:
        >>> web, books = lk.RecordDataset(range(60)), lk.RecordDataset(range(100, 120))
        >>> stages = lk.Stages(
        ...     [lk.Stage({"web": 3, "books": 1}, 8, samples=40), lk.Stage("books", 4, samples=12)],
        ...     {"web": web, "books": books},
        ... )
        >>> loader = lk.Loader(stages.dataset, plan=stages)
        >>> [(len(batch), int((batch >= 100).sum())) for batch in loader]
        [(8, 2), (8, 2), (8, 2), (8, 2), (8, 2), (4, 4), (4, 4), (4, 4)]
        >>> print(stages.plan())
        stage 0: 40 samples in batches of 8
          books: 10 samples, passes 0.00 to 0.50
          web: 30 samples, passes 0.00 to 0.50
        stage 1: 12 samples in batches of 4
          books: 12 samples, passes 0.50 to 1.10
    """

    order: StagedOrder

    def __init__(
        self,
        stages: Sequence[Stage],
        sources: Mapping[str, Any],
        *,
        orders: Mapping[str, Order] | None = None,
        seed: int = 0,
        window: int = 1000,
        tail: Literal["keep", "drop"] = "keep",
    ) -> None:
        self.stages = list(stages)
        if not self.stages or not all(isinstance(stage, Stage) for stage in self.stages):
            raise ValueError(f"Stages: stages is {stages!r:.200}, wanted a list of at least one lk.Stage.")
        if not isinstance(sources, Mapping):
            raise TypeError(
                f"Stages: sources is a {type(sources).__name__}, wanted a dict with a name for each dataset, such as "
                "{'web': web, 'books': books}. Stages name their sources."
            )
        check_integer("Stages", "window", window, 1)
        if tail not in ("keep", "drop"):
            raise ValueError(
                f"Stages: tail is {tail!r}, wanted 'keep' or 'drop'. 'pad' would repeat samples at the end of each stage."
            )
        # By name: neither a source's shuffle nor the dealing then depends on other sources that are added.
        self._sources = dict(sorted(sources.items()))
        sizes = [_size(name, source) for name, source in self._sources.items()]
        own = dict(orders or {})
        self._check_names(own, "orders")
        self._orders = {
            name: own.get(name) or shuffled_source(source, derive_seed("stages", seed, name))
            for name, source in self._sources.items()
        }
        for (name, order), size in zip(self._orders.items(), sizes, strict=True):
            if not order.size(0) or order.reach > size:
                raise ValueError(
                    f"Stages: the source {name!r} has {size} samples, and its order {order.size(0)} positions with indices below "
                    f"{order.reach}; wanted at least one, and none above the samples."
                )
        self.window, self.seed, self.tail, self.world = window, seed, tail, World()
        self._lines = Sources(list(self._orders.values()), sizes)
        blends = [self._blend(number, stage) for number, stage in enumerate(self.stages)]
        self.order = StagedOrder(self._lines, list(self._sources), blends, window=window)
        self._parts: list[BatchPlan] | None = None
        self._check_reads()

    def __repr__(self) -> str:
        sources = ", ".join(f"{name}: {size:,}" for name, size in zip(self._sources, self._lines.sizes, strict=True))
        return (
            f"Stages: {self.ends[-1]:,} samples in {len(self.stages)} stage{'s' * (len(self.stages) != 1)} of {sources}"
        )

    @property
    def dataset(self) -> ConcatDataset:
        """All sources as one dataset, for the Loader.

        Raises:
            TypeError: If a source is only a size.
        """
        sizes = [name for name, source in self._sources.items() if isinstance(source, int)]
        if sizes:
            raise TypeError(f"Stages: the sources {sizes} are numbers of samples, wanted datasets.")
        return ConcatDataset(list(self._sources.values()))

    @property
    def ends(self) -> list[int]:
        """For each stage the samples of the schedule up to its end."""
        return self.order.ends

    def parts(self) -> list[PlanPart]:
        """Return the order, the end and the collate function of each stage, by positions of the schedule."""
        spans = pairwise([0, *self.ends])
        return [
            PlanPart(StageOrder(self.order, start, end), end, stage.collate_fn)
            for stage, (start, end) in zip(self.stages, spans, strict=True)
        ]

    def stage_of(self, cursor: Cursor) -> int:
        """Return the number of the stage that the last batch before a cursor belongs to; 0 at the start."""
        return bisect_right(self.ends, max(0, self.samples_at(cursor) - 1))

    def samples_at(self, cursor: Cursor) -> int:
        """Return the samples of the schedule, over all ranks, before a cursor."""
        return _start(cursor) + cursor.samples

    def plan(self) -> "StagesPlan":
        """Return what each stage reads of each source; `str()` gives a few lines of text. It reads no data."""
        rows = []
        before = self.order.counts(0)
        for number, (stage, end) in enumerate(zip(self.stages, self.ends, strict=True)):
            after = self.order.counts(end)
            for row, (name, source) in enumerate(self._sources.items()):
                if name not in stage.weights_by_name:
                    continue
                samples, size = int(after[row] - before[row]), self._lines.sizes[row]
                tokens = _tokens(source)
                rows.append(
                    StageRow(
                        stage=number,
                        source=name,
                        samples=samples,
                        tokens=None if tokens is None else round(samples * tokens),
                        first_pass=int(before[row]) / size,
                        last_pass=int(after[row]) / size,
                    )
                )
            before = after
        return StagesPlan(tuple(self.stages), tuple(rows))

    # As a plan

    def with_world(self, world: World) -> Self:
        changed = copy.copy(self)
        changed.world, changed._parts = world, None
        return changed

    def key(self, epoch: int) -> str:
        return f"stages-1({shortened(self.order.key(epoch))})"

    def identity(self, cursor: Cursor, dataset: Any, size: int) -> tuple[str, str]:
        position = min(self.samples_at(cursor), self.ends[-1])
        read = {
            name
            for stage, start in zip(self.stages, [0, *self.ends], strict=False)
            if start < position
            for name in stage.weights_by_name
        }
        parts = [
            f"{name}: {fingerprint(source, _size(name, source))} {self._orders[name].key(0)}"
            for name, source in self._sources.items()
            if name in read
        ]
        # How far stages were read, not how long they are: what comes later may change.
        return f"sources({shortened('; '.join(parts))})", f"stages-1({shortened(self.order.history(position))})"

    def explain(self, before: str, now: str) -> str:
        old, new = map(_sources_in, (before, now))
        if old is None or new is None:  # the text of many sources is a hash
            found = ", ".join(f"{name!r}: {_size(name, source):,} samples" for name, source in self._sources.items())
            return f"A source that the run has read is another one now, or has another order. The sources are {found}. "
        changed = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        said = [f"source {name!r}: {old.get(name, 'none')} then, {new.get(name, 'none')} now" for name in changed]
        return f"What differs is {'; '.join(said)}. "

    @property
    def step(self) -> int:
        return max(part.step for part in self._stage_plans())

    def remaining(self, cursor: Cursor) -> int:
        return self._steps_after(self.samples_at(cursor))

    def advance(self, cursor: Cursor, batches: int = 1) -> Cursor:
        position, left = self.samples_at(cursor), batches
        for part, end in zip(self._stage_plans(), self.ends, strict=True):
            if position >= end:
                continue
            if left == 0:
                break
            here = self._steps(part, end, position)
            if left < here:
                position, left = part.advance(Cursor(samples=position), left).samples, 0
                break
            position, left = end, left - here
        there = dataclasses.replace(
            cursor, samples=position - _start(cursor), batches=cursor.batches + batches - left, plan=cursor.plan
        )
        return self.next_epoch(there) if position >= self.ends[-1] and there.samples else there

    def keys(self, cursor: Cursor) -> Iterator[BatchKey]:
        position = self.samples_at(cursor)
        for part, end in zip(self._stage_plans(), self.ends, strict=True):
            if position < end:
                self._steps(part, end, position)
                yield from part.keys(Cursor(samples=position))
                position = end

    def batch(self, cursor: Cursor, ahead: int = 0) -> BatchKey:
        if cursor.epoch and not cursor.plan:
            raise IndexError(
                f"stages: batch {ahead} of epoch {cursor.epoch} asked for. The schedule is one epoch; a later one starts where a "
                "Trainer ended the one before. Ask for epoch 0, and count from the schedule's start."
            )
        return super().batch(cursor, ahead)

    def next_epoch(self, cursor: Cursor) -> Cursor:
        """Return the start of the epoch that continues at a cursor."""
        return Cursor(epoch=cursor.epoch + 1, plan=(self.samples_at(cursor),))

    def placed(self, cursor: Cursor) -> Cursor:
        done = self._steps_after(_start(cursor), counts=True) - self._steps_after(self.samples_at(cursor), counts=True)
        return dataclasses.replace(cursor, batches=max(0, done))

    def why_over(self, cursor: Cursor) -> str | None:
        if self.remaining(cursor):
            return None
        return (
            f"Loader: no batches in epoch {cursor.epoch}: the {len(self.stages)} stages, {self.ends[-1]:,} samples, are over. "
            "They are one epoch. To continue, add a Stage."
        )

    def check_size(self, size: int) -> None:
        if self.order.reach != size:
            raise ValueError(
                f"loader: the sources of the Stages have {self.order.reach:,} samples, the dataset has {size:,}. Give the "
                "Loader stages.dataset."
            )

    def check_cursor(self, cursor: Cursor) -> None:
        total = self.ends[-1]
        if len(cursor.plan) > 1 or not 0 <= _start(cursor) <= total:
            raise bad_cursor(
                "plan", list(cursor.plan), f"at most one number, from 0 to {total:,}: where the epoch began"
            )
        if self.samples_at(cursor) > total:
            raise bad_cursor("samples", cursor.samples, f"at most {total - _start(cursor):,}: to the end of the stages")

    def _stage_plans(self) -> list[BatchPlan]:
        """Return the plan of each stage, which takes positions of the whole schedule."""
        if self._parts is None:
            self._parts = [
                BatchPlan(
                    order=StageOrder(self.order, start, end),
                    batch_size=stage.batch_size_of(self.world),
                    tail=self.tail,
                    world=self.world,
                )
                for stage, (start, end) in zip(self.stages, pairwise([0, *self.ends]), strict=True)
            ]
        return self._parts

    def _steps_after(self, position: int, *, counts: bool = False) -> int:
        """Return the steps to the schedule's end; with `counts` also if the ranks can't share the first ones."""
        steps = 0
        for part, end in zip(self._stage_plans(), self.ends, strict=True):
            if position < end:
                few = counts and end - position < self.world.size
                steps += self.tail == "keep" if few else self._steps(part, end, position)
                position = end
        return steps

    def _steps(self, part: BatchPlan, end: int, position: int) -> int:
        """Return the steps of a stage from a position on."""
        left, ranks = end - position, self.world.size
        if self.tail == "keep" and left < ranks:
            raise ValueError(
                f"stages: {left} samples left in stage {self.ends.index(end)} for {ranks} ranks, wanted at least one for each "
                f"(tail='keep'). Use at most {left} ranks, or tail='drop', or go on after it: "
                f"loader.seek(epoch=0, samples={end})."
            )
        return part.remaining(Cursor(samples=position))

    def _blend(self, number: int, stage: Stage) -> Blend:
        weights = stage.weights_by_name
        self._check_names(weights, f"stage {number}")
        ends = []
        for end in (0, 1):
            total = math.fsum(weight[end] for weight in weights.values())
            ends.append(np.array([weights.get(name, (0, 0))[end] / total for name in self._sources], dtype=np.float64))
        return Blend(stage.size, *ends)

    def _check_reads(self) -> None:
        """Raise a ValueError if a stage names a source and gets no sample of it."""
        for row in self.plan().rows:
            if not row.samples:
                raise ValueError(
                    f"Stages: stage {row.stage} of {self.stages[row.stage].size:,} samples, in windows of {self.window:,}, reads "
                    f"no sample of {row.source!r}, wanted at least one. Give it a larger weight, or use a larger window or stage."
                )

    def _check_names(self, names: Mapping[str, Any], where: str) -> None:
        for name in names:
            if name not in self._sources:
                known = list(self._sources)
                raise ValueError(
                    f"Stages: {where} names the source {name!r}, wanted one of {known}.{did_you_mean(str(name), known)}"
                )


class StageRow(NamedTuple):
    """What a stage reads of a source.

    Attributes:
        stage: Number of the stage.
        source: Name of the source.
        samples: Samples that the stage reads of it.
        tokens: Tokens in these: the stride of a TokenDataset, or the mean of `lengths()`, for each; None if unknown.
        first_pass: Passes over the source before the stage; 2.5 is half of the third pass.
        last_pass: The same after the stage.
    """

    stage: int
    source: str
    samples: int
    tokens: int | None
    first_pass: float
    last_pass: float


@dataclass(frozen=True, slots=True)
class StagesPlan:
    """What each stage reads; `str()` gives a few lines of text.

    Attributes:
        stages: The stages.
        rows: A row for each stage and each of its sources.
    """

    stages: tuple[Stage, ...]
    rows: tuple[StageRow, ...]

    def __str__(self) -> str:
        lines = []
        for number, stage in enumerate(self.stages):
            how = f"batches of {stage.batch_size}" if stage.batch_size else f"steps of {stage.global_batch_size}"
            lines.append(f"stage {number}: {stage.size:,} samples in {how}")
            for row in self.rows:
                if row.stage == number:
                    tokens = "" if row.tokens is None else f", {row.tokens:,} tokens"
                    passes = f"passes {row.first_pass:,.2f} to {row.last_pass:,.2f}"
                    lines.append(f"  {row.source}: {row.samples:,} samples{tokens}, {passes}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return table("Training in stages", [(line,) for line in str(self).splitlines()])


def _size(name: str, source: Any) -> int:
    if isinstance(source, int):
        return source
    if not is_map_style(source):
        raise TypeError(
            f"Stages: the source {name!r} is of type {type(source).__name__}, wanted a dataset with __len__ and __getitem__. "
            "Streams are mixed by lk.interleave."
        )
    return len(source)


def _sources_in(text: str) -> dict[str, str] | None:
    """Return what an identity says of each source; None if it has only a hash."""
    inner = text.removeprefix("sources(").removesuffix(")")
    parts = [part.split(": ", 1) for part in inner.split("; ")]
    return {part[0]: part[1] for part in parts} if all(len(part) == 2 for part in parts) else None


def _start(cursor: Cursor) -> int:
    """Return the samples of the schedule before the cursor's epoch."""
    return cursor.plan[0] if cursor.plan else 0


def _tokens(source: Any) -> float | None:
    """Return the mean tokens of a source's samples; None if it does not know them."""
    stride = own_attribute(source, "stride")
    if isinstance(stride, int):
        return stride
    return float(np.mean(source.lengths())) if knows_lengths(source) else None
