"""What a Trainer has learnt, in batches: read from its loops when saving, and put right in them when loading."""

from typing import Any

import lightning.pytorch as pl
from typing_extensions import override


class TrainProgress(pl.Callback):
    """Tells the DataModule where the Trainer stands; a DataModule adds it to its Trainer by itself."""

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trainer.datamodule._begin_epoch()  # type: ignore[attr-defined]

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        trainer.datamodule._begin_batch()  # type: ignore[attr-defined]

    @override
    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if trainer.state.fn == "fit":
            trainer.datamodule._correct_loops(checkpoint["loops"]["fit_loop"])  # type: ignore[attr-defined]


def learnt(trainer: pl.Trainer) -> tuple[int, bool]:
    """Return how many of the epoch's batches were learnt whole, and whether that was all of them.

    Batches of an unfinished gradient accumulation do not count: their gradients
    are not saved.
    """
    progress = trainer.fit_loop.epoch_loop.batch_progress
    done = progress.current.processed
    if done == progress.current.ready and (progress.is_last_batch or done >= trainer.num_training_batches):
        return done, True
    if trainer.lightning_module.automatic_optimization:
        done -= done % trainer.accumulate_grad_batches
    return done, False


def set_whole_epoch(fit_loop: dict[str, Any], batches: int) -> None:
    """Make a checkpoint's loops say that an epoch of so many batches is done, at the same stage as before."""
    current = fit_loop["epoch_loop.batch_progress"]["current"]
    change = batches - current["processed"]
    for name in ("ready", "started", "processed", "completed"):
        current[name] += change


def set_batches(fit_loop: dict[str, Any], batches: int) -> None:
    """Make a checkpoint's loops say that so many of the epoch's batches are done, none in the middle."""
    progress = fit_loop["epoch_loop.batch_progress"]
    change = batches - progress["current"]["processed"]
    total = progress["total"]["processed"] + change
    for name in ("ready", "started", "processed", "completed"):
        progress["current"][name] = batches
        progress["total"][name] = total
    progress["is_last_batch"] = False
