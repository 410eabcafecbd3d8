"""Samples on their way from a lane to a batch, and what is done to them there."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch.utils.data as torch_data

from loaderkit.datasets.bad_samples import RAISE, BadSamples, describe, drop_traceback, portable
from loaderkit.seeding.samples import SampleSeeds


class Step(NamedTuple):
    """What is done to a sample under its seed."""

    function: Callable[[Any], Any]
    is_filter: bool = False


class PendingSample(NamedTuple):
    """A sample as it was read, with what is still to be done to it."""

    sample: Any
    word: int  # its seed
    shard: str
    number: int  # in that shard
    steps: Sequence[Step]


class Failed(NamedTuple):
    """Comes in the place of a sample that is to be left out: it is consumed as any other is."""

    error: str  # its type and message
    cause: Exception

    @classmethod
    def of(cls, error: Exception) -> "Failed":
        """Keep what there is to say of an error that is not raised."""
        failed = cls(describe(error), portable(error))
        drop_traceback(error)
        return failed


DROPPED = object()


def done(taken: PendingSample, seeds: SampleSeeds, row: int, policy: BadSamples = RAISE) -> Any:
    """Do to a sample what is to be done, under its own seed.

    It is not tried again: a step may have changed the sample before it failed.

    Returns:
        The sample; DROPPED where a filter drops it; Failed where the policy leaves it out.
    """
    sample = taken.sample
    if type(sample) is Failed:
        return sample
    if taken.steps:
        seeds.enter(row)
    try:
        for step in taken.steps:
            found = step.function(sample)
            if not step.is_filter:
                sample = found
            elif not found:
                return DROPPED
    except Exception as error:
        error.add_note(f"loaderkit: raised while transforming sample {taken.number} of shard {taken.shard!r}.")
        if not policy.blames(error):
            raise
        return Failed.of(error)
    return sample


def transform_samples(
    taken: Sequence[PendingSample], finish: Callable[[list[Any], SampleSeeds], Any] | None = None
) -> Any:
    """Transform samples of a lane, each under its own seed.

    Args:
        taken: What `take` returned; not empty.
        finish: Makes a batch of them, within their seeds.
    """
    with seeds_of(taken) as seeds:
        samples = [done(each, seeds, row) for row, each in enumerate(taken)]
        return samples if finish is None else finish(samples, seeds)


def seeds_of(taken: Sequence[PendingSample]) -> SampleSeeds:
    """Return the seeds of samples that were taken."""
    return SampleSeeds(np.array([each.word for each in taken], dtype=np.uint64), restore=alone())


def alone() -> bool:
    """Say whether the generators of this process are the caller's, not a worker's."""
    return torch_data.get_worker_info() is None
