"""Samples that a lane has read, and the steps (maps and filters) that are applied to them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from loaderkit.datasets.bad_samples import RAISE, BadSamples, describe, drop_traceback, portable
from loaderkit.datasets.base import Transform
from loaderkit.seeding.sample_seeds import SampleSeeds
from loaderkit.system.names import function_name
from loaderkit.system.worker_info import in_worker_process


class Step(NamedTuple):
    """A function that `map` or `filter` applies to a sample, or that `batch` applies to a list of samples."""

    function: Transform
    is_filter: bool = False
    is_collate: bool = False  # its errors are always raised, like those of a Loader's collate function

    def __str__(self) -> str:
        return f"{'filter' if self.is_filter else 'map'}({function_name(self.function)})"


class PendingSample(NamedTuple):
    """A sample with the steps that are still to be applied."""

    sample: Any
    seed: int
    shard: str
    number: int  # in that shard
    steps: Sequence[Step]


class Failed(NamedTuple):
    """Takes the place of a sample that could not be read or transformed, and is left out."""

    error: str  # the error's type and message
    cause: Exception

    @classmethod
    def of(cls, error: Exception) -> "Failed":
        """Return a Failed for an error, without its traceback."""
        failed = cls(describe(error), portable(error))
        drop_traceback(error)
        return failed


DROPPED = object()


def with_steps(pending: list[PendingSample], steps: Sequence[Step]) -> list[PendingSample]:
    """Return the samples with further steps appended to their own."""
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
    """Return samples after their steps, each applied under its own seed, or `finish(samples, seeds)` if given."""
    with seeds_of(pending) as seeds:
        samples = [apply_steps(each, seeds, row) for row, each in enumerate(pending)]
        return samples if finish is None else finish(samples, seeds)


def seeds_of(pending: Sequence[PendingSample]) -> SampleSeeds:
    """Return the seeds of samples, a context. In the main process, leaving it restores the user's random generators."""
    return SampleSeeds(np.array([each.seed for each in pending], dtype=np.uint64), restore=not in_worker_process())
