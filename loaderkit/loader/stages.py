"""Training in stages: mixture weights, batch size and sources that change at given samples."""

import copy
import dataclasses
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, Self

from loaderkit.datasets.combine import ConcatDataset
from loaderkit.loader.stage import Stage, StageRow, StagesPlan
from loaderkit.loader.stage_sources import StageSources
from loaderkit.sampling.batch_plan import BatchPlan
from loaderkit.sampling.cursor import Cursor, bad_cursor
from loaderkit.sampling.order import Order
from loaderkit.sampling.plan import BatchKey, Plan, PlanPart
from loaderkit.sampling.staged_order import StagedOrder, StageOrder
from loaderkit.system.checks import check_integer
from loaderkit.system.digests import shortened
from loaderkit.system.world import World


class Stages(Plan):
    """Training in stages: a plan for `Loader(stages.dataset, plan=stages)`.

    The whole schedule is one epoch. A stage continues each source after the samples that earlier stages read. A source
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
            a `collate_fn` that cuts long rows. To plan without data, give sizes in place of datasets.
        orders: An order for some of the sources. The others are shuffled, datasets with shards by a ShardOrder.
        seed: The seed of the shuffles.
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
        sources: Mapping[str, object],
        *,
        orders: Mapping[str, Order] | None = None,
        seed: int = 0,
        window: int = 1000,
        tail: Literal["keep", "drop"] = "keep",
    ) -> None:
        self.stages = list(stages)
        if not self.stages or not all(isinstance(stage, Stage) for stage in self.stages):
            raise ValueError(f"Stages: stages is {stages!r:.200}, wanted a list of at least one lk.Stage.")
        check_integer("Stages", "window", window, 1)
        if tail not in ("keep", "drop"):
            raise ValueError(
                f"Stages: tail is {tail!r}, wanted 'keep' or 'drop'. 'pad' would repeat samples at the end of each stage."
            )
        self.window, self.seed, self.tail, self.world = window, seed, tail, World()
        self._sources = StageSources(sources, orders or {}, seed)
        blends = [self._sources.blend(number, stage) for number, stage in enumerate(self.stages)]
        self.order = StagedOrder(self._sources.lines, self._sources.names, blends, window=window)
        self._parts: list[BatchPlan] | None = None
        _check_reads(self.plan(), window)

    def __repr__(self) -> str:
        several = "s" * (len(self.stages) != 1)
        return f"Stages: {self.ends[-1]:,} samples in {len(self.stages)} stage{several} of {self._sources}"

    @property
    def dataset(self) -> ConcatDataset:
        """All sources as one dataset, for the Loader.

        Raises:
            TypeError: If a source is only a size.
        """
        return self._sources.dataset()

    @property
    def ends(self) -> list[int]:
        """For each stage, the number of samples from the schedule's start to the stage's end."""
        return self.order.ends

    def parts(self) -> list[PlanPart]:
        """Return the order, end and collate function of each stage. Positions count from the schedule's start."""
        spans = pairwise([0, *self.ends])
        return [
            PlanPart(StageOrder(self.order, start, end), end, stage.collate_fn)
            for stage, (start, end) in zip(self.stages, spans, strict=True)
        ]

    def stage_of(self, cursor: Cursor) -> int:
        """Return the number of the stage that the last batch before a cursor belongs to; 0 at the start."""
        return bisect_right(self.ends, max(0, self.samples_at(cursor) - 1))

    def samples_at(self, cursor: Cursor) -> int:
        """Return how many samples of the schedule come before a cursor, over all ranks."""
        return _start(cursor) + cursor.samples

    def plan(self) -> "StagesPlan":
        """Return what each stage reads from each source; `str()` gives a few lines of text. It reads no data."""
        rows = []
        before = self.order.counts(0)
        for number, (stage, end) in enumerate(zip(self.stages, self.ends, strict=True)):
            after = self.order.counts(end)
            for row, (name, size) in enumerate(zip(self._sources.names, self._sources.sizes, strict=True)):
                if name not in stage.weights_by_name:
                    continue
                samples, tokens = int(after[row] - before[row]), self._sources.tokens(name)
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

    # The interface of a plan

    def with_world(self, world: World) -> Self:
        changed = copy.copy(self)
        changed.world, changed._parts = world, None
        return changed

    def key(self, epoch: int) -> str:
        return f"stages-1({shortened(self.order.key(epoch))})"

    def identity(self, cursor: Cursor, dataset: object, size: int) -> tuple[str, str]:
        position = min(self.samples_at(cursor), self.ends[-1])
        read = {
            name
            for stage, start in zip(self.stages, [0, *self.ends], strict=False)
            if start < position
            for name in stage.weights_by_name
        }
        # How far stages were read, not how long they are: what comes later may change.
        return self._sources.identity(read), f"stages-1({shortened(self.order.history(position))})"

    def explain(self, before: str, now: str) -> str:
        return self._sources.explain(before, now)

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
        """Return the plan of each stage. Its cursors count samples from the start of the whole schedule."""
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
        """Return the number of steps from a position to the schedule's end.

        Raise a ValueError if a stage's samples are too few to share among the ranks; with `counts`, count a step for
        them.
        """
        steps = 0
        for part, end in zip(self._stage_plans(), self.ends, strict=True):
            if position < end:
                few = counts and end - position < self.world.size
                steps += self.tail == "keep" if few else self._steps(part, end, position)
                position = end
        return steps

    def _steps(self, part: BatchPlan, end: int, position: int) -> int:
        """Return the number of steps from a position to the stage's end.

        Raise a ValueError if some ranks would get no sample.
        """
        left, ranks = end - position, self.world.size
        if self.tail == "keep" and left < ranks:
            raise ValueError(
                f"stages: {left} samples left in stage {self.ends.index(end)} for {ranks} ranks, wanted at least one for each "
                f"(tail='keep'). Use at most {left} ranks, or tail='drop', or go on after it: "
                f"loader.seek(epoch=0, samples={end})."
            )
        return part.remaining(Cursor(samples=position))


def _check_reads(plan: StagesPlan, window: int) -> None:
    """Raise a ValueError if a stage names a source and gets no sample of it."""
    for row in plan.rows:
        if not row.samples:
            raise ValueError(
                f"Stages: stage {row.stage} of {plan.stages[row.stage].size:,} samples, in windows of {window:,}, reads "
                f"no sample of {row.source!r}, wanted at least one. Give it a larger weight, or use a larger window or stage."
            )


def _start(cursor: Cursor) -> int:
    """Return how many samples of the schedule come before the cursor's epoch."""
    return cursor.plan[0] if cursor.plan else 0
