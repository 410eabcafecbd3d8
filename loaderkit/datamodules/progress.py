"""What a Trainer has learnt, in batches: read from its loops when saving, and put right in them when loading."""

from typing import Any

import lightning.pytorch as pl
from typing_extensions import override

from loaderkit.callbacks import batches_done


class TrainProgress(pl.Callback):
    """Tells the DataModule where the Trainer stands; a DataModule adds it to its Trainer by itself."""

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.datamodule._resumes_before_a_first_batch:  # type: ignore[attr-defined]
            # Lightning would take it for a place in the middle of the epoch.
            trainer.fit_loop.epoch_loop.restarting = False

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
    done, over = batches_done(trainer)
    if not over and trainer.lightning_module.automatic_optimization:
        done -= done % trainer.accumulate_grad_batches
    return done, over


def set_epoch_over(fit_loop: dict[str, Any]) -> None:
    """Make a checkpoint's loops say that the next epoch begins.

    Lightning sees by itself that the last batch was the last one, but only where an epoch has as many batches as
    when it was saved; and with `max_steps` it would go on in the old epoch.
    """
    epochs = fit_loop["epoch_progress"]
    if epochs["current"]["processed"] < epochs["current"]["ready"]:
        count_step(fit_loop)
    for part in ("current", "total"):
        for name in ("started", "processed", "completed"):
            epochs[part][name] = epochs[part]["ready"]
    set_batches(fit_loop, 0, total=fit_loop["epoch_loop.batch_progress"]["total"]["processed"])


def count_step(fit_loop: dict[str, Any]) -> None:
    """Count the step before the checkpoint for the loggers: Lightning does so only after it has saved."""
    fit_loop["epoch_loop.state_dict"]["_batches_that_stepped"] += 1


def set_batches(fit_loop: dict[str, Any], batches: int, *, total: int | None = None) -> None:
    """Make a checkpoint's loops say that so many of the epoch's batches are done, none in the middle."""
    progress = fit_loop["epoch_loop.batch_progress"]
    if total is None:
        total = progress["total"]["processed"] + batches - progress["current"]["processed"]
    for name in ("ready", "started", "processed", "completed"):
        progress["current"][name] = batches
        progress["total"][name] = total
    progress["is_last_batch"] = False
