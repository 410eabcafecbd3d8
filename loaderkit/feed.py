"""What runs in a worker: from a key to a batch, under the samples' own seeds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch.utils.data as torch_data

from loaderkit.collate.stack import CollateError, stack
from loaderkit.datasets.base import draws_nothing, reads_batches, reads_many
from loaderkit.plan import BatchKey
from loaderkit.seeding import SampleSeeds, hash_positions


@dataclass(frozen=True)
class Feed:
    """Reads and collates batches; a pure function of the key.

    Args:
        dataset: Anything with `__getitem__`, or better `__getitems__` or `read_batch`.
        collate_fn: From a list of samples to a batch; None stacks them.
        seed: The loader's.
        batched: False hands on single samples, not collated.
    """

    dataset: Any
    collate_fn: Callable[[list[Any]], Any] | None
    seed: int
    batched: bool = True
    _whole: bool = field(init=False, default=False)  # whether the dataset makes collated batches itself

    def __post_init__(self) -> None:
        whole = self.collate_fn is None and self.batched and reads_batches(self.dataset)
        object.__setattr__(self, "_whole", whole)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: BatchKey) -> Any:
        return self.read(key)

    def __getitems__(self, key: BatchKey) -> Any:
        # torch's workers call this with what the batch sampler gave.
        return self.read(key)

    def read(self, key: BatchKey) -> Any:
        """Return the key's batch.

        Raises:
            Exception: Whatever the dataset or the collate raises, with a note
                that names the sample.
        """
        if self._whole:
            return self.dataset.read_batch(key.indices)
        if self.collate_fn is None and self.batched and draws_nothing(self.dataset):
            return self._collate(self._read_samples(key, None), key)  # generators need not be ours
        in_worker = torch_data.get_worker_info() is not None
        words = hash_positions(key.positions, "sample", self.seed, key.epoch)
        with SampleSeeds(words, restore=not in_worker) as seeds:
            samples = self._read_samples(key, seeds)
            if not self.batched:
                return samples[0] if self.collate_fn is None else self.collate_fn(samples[0])
            if self.collate_fn is not None:
                seeds.enter_batch()  # stacking draws nothing
            return self._collate(samples, key)

    def _read_samples(self, key: BatchKey, seeds: SampleSeeds | None) -> list[Any]:
        indices = key.indices.tolist()
        try:
            if seeds is None or reads_many(self.dataset):
                if seeds is not None:
                    seeds.enter_batch()
                samples = list(self.dataset.__getitems__(indices))
            else:
                samples, dataset, enter = [], self.dataset, seeds.enter
                for row, index in enumerate(indices):
                    enter(row)
                    samples.append(dataset[index])
        except Exception as error:
            alone = None if seeds is None else seeds.row
            which = f"samples {_shorten(indices)}" if alone is None else f"sample {indices[alone]}"
            position = key.positions[alone or 0]
            error.add_note(f"loaderkit: raised while reading {which} (epoch {key.epoch}, position {position}).")
            raise
        if len(samples) != len(indices):
            raise ValueError(
                f"{type(self.dataset).__name__}.__getitems__ returned {len(samples)} samples for {len(indices)} indices, "
                "wanted one for each."
            )
        return samples

    def _collate(self, samples: list[Any], key: BatchKey) -> Any:
        try:
            collate: Callable[[list[Any]], Any] = self.collate_fn or stack
            if key.rows is not None:  # rows of several samples each
                samples = [samples[first:last] for first, last in pairwise(key.rows.tolist())]
            return collate(samples)
        except CollateError as error:
            rows = [int(key.indices[row]) for row in error.rows]
            where = f" (samples {', '.join(map(str, rows))})" if rows else ""
            raise CollateError(f"{error}{where}.", error.rows) from error
        except Exception as error:
            error.add_note(f"loaderkit: raised while collating samples {_shorten(key.indices.tolist())}.")
            raise


def _shorten(indices: list[int]) -> str:
    shown = ", ".join(map(str, indices[:8]))
    return f"{shown}, ... ({len(indices)} in all)" if len(indices) > 8 else shown
