"""Lightning callbacks."""

import random
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from typing_extensions import override

from loaderkit.seeding import derive_seed


class SeedSteps(pl.Callback):
    """Make the training step's own randomness, as in dropout, a function of (seed, rank, epoch, batch).

    Lightning's checkpoints hold no generator's state, so that a resumed run draws
    other numbers than the uninterrupted one. With this callback both draw the
    same, also in what happens to a batch on its way to the device.

    Args:
        seed: Of the steps; independent of the loader's.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        done, over = batches_done(trainer)
        self._seed(trainer, "fetch", 0 if over else done)

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._seed(trainer, "fetch", 0)

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._seed(trainer, "step", batch_idx)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._seed(trainer, "fetch", batch_idx + 1)

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._seed(trainer, "fetch", batches_done(trainer)[0])

    def _seed(self, trainer: pl.Trainer, what: str, batch: int) -> None:
        seed = derive_seed(what, self.seed, trainer.global_rank, trainer.current_epoch, batch)
        torch.manual_seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        random.seed(seed)


def batches_done(trainer: pl.Trainer) -> tuple[int, bool]:
    """Return how many of the epoch's batches went through the training step, and whether that was all of them."""
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress
    done = progress.current.processed
    over = done == progress.current.ready and (progress.is_last_batch or done >= trainer.num_training_batches)
    return done, over
