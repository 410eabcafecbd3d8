"""Samples between a lane and a batch, and the steps that transform them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from loaderkit.datasets.bad_samples import RAISE, BadSamples, describe, drop_traceback, portable
from loaderkit.datasets.base import Transform
from loaderkit.seeding.sample_seeds import SampleSeeds
from loaderkit.system.names import function_name
from loaderkit.system.worker_info import in_worker_process


class Step(NamedTuple):
    """A function that `map` or `filter` applies to a sample, or that makes a batch of the samples of a `batch`."""

    function: Transform
    is_filter: bool = False
    is_collate: bool = False  # its errors are always raised, as those of a Loader's collate function

    def __str__(self) -> str:
        return f"{'filter' if self.is_filter else 'map'}({function_name(self.function)})"


class PendingSample(NamedTuple):
    """A sample as it was read, with the steps that are still to be applied."""

    sample: Any
    seed: int
    shard: str
    number: int  # in that shard
    steps: Sequence[Step]


class Failed(NamedTuple):
    """Takes the place of a sample that could not be read or transformed, and is left out."""

    error: str  # its type and message
    cause: Exception

    @classmethod
    def of(cls, error: Exception) -> "Failed":
        """Keep an error that is not raised, without its frames."""
        failed = cls(describe(error), portable(error))
        drop_traceback(error)
        return failed


DROPPED = object()


def with_steps(pending: list[PendingSample], steps: Sequence[Step]) -> list[PendingSample]:
    """Return samples with more steps after their own."""
    return [each._replace(steps=(*each.steps, *steps)) for each in pending] if steps else pending


def apply_steps(pending: PendingSample, seeds: SampleSeeds, row: int, policy: BadSamples = RAISE) -> object:
    """Apply a sample's steps under its own seed. Return DROPPED if a filter drops it, Failed if the policy leaves it out.

    A step that fails is not tried again, because it may have changed the sample.
    """
    sample = pending.sample
    if type(sample) is Failed:
        return sample
    if pending.steps:
        seeds.enter(row)
    try:
        for step in pending.steps:
            found = step.function(sample)
            if not step.is_filter:
                sample = found
            elif not found:
                return DROPPED
    except Exception as error:
        doing = "collating the batch that begins with" if step.is_collate else "transforming"
        error.add_note(f"loaderkit: raised while {doing} sample {pending.number} of shard {pending.shard!r}.")
        if step.is_collate or not policy.blames(error):
            raise
        return Failed.of(error)
    return sample


def transform_samples(
    pending: Sequence[PendingSample], finish: Callable[[list[Any], SampleSeeds], object] | None = None
) -> Any:
    """Apply the steps of several samples, each under its own seed; `finish` makes a batch of them under their seeds."""
    with seeds_of(pending) as seeds:
        samples = [apply_steps(each, seeds, row) for row, each in enumerate(pending)]
        return samples if finish is None else finish(samples, seeds)


def seeds_of(pending: Sequence[PendingSample]) -> SampleSeeds:
    """Return the samples' seeds. In the main process they restore the random generators, which belong to the user."""
    return SampleSeeds(np.array([each.seed for each in pending], dtype=np.uint64), restore=not in_worker_process())
