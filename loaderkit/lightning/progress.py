"""Read from a Trainer's loops how many batches it trained on, and correct these counts in a checkpoint."""

from typing import Any

from loaderkit.lightning.callbacks import batches_done
from loaderkit.lightning.framework import pl


def learnt(trainer: pl.Trainer) -> tuple[int, bool]:
    """Return (number of the epoch's batches that were trained on, whether the epoch is over).

    Batches of an unfinished gradient accumulation do not count, because their gradients are not saved.
    """
    done, over = batches_done(trainer)
    stopped = trainer.should_stop or 0 <= trainer.max_steps <= trainer.global_step
    # Lightning does not notice the last batch if the data ends before its length or limit.
    over = over or (between_epochs(trainer) and not stopped)
    if not over and trainer.lightning_module.automatic_optimization:
        done -= done % trainer.accumulate_grad_batches
    return done, over


def begun(trainer: pl.Trainer) -> int:
    """Return how many batches have begun in all epochs."""
    batches: int = trainer.fit_loop.epoch_loop.batch_progress.total.ready
    return batches


def between_epochs(trainer: pl.Trainer) -> bool:
    """Return whether the last epoch that the Trainer began is over."""
    epochs: Any = trainer.fit_loop.epoch_progress.current
    return bool(epochs.started == epochs.processed)


def epoch_batches(trainer: pl.Trainer, batches: int) -> int:
    """Return how many of a loader's batches the Trainer uses in an epoch."""
    limit = trainer.limit_train_batches
    return min(batches, limit) if isinstance(limit, int) else int(batches * limit)


def set_epoch_batches(trainer: pl.Trainer, batches: int) -> None:
    """Tell a Trainer how many batches the loader has in the epoch that begins.

    Lightning asks for the length once in a fit. It would cut a later epoch that has more batches, and would not notice the
    last batch of one that has fewer.
    """
    fit_loop: Any = trainer.fit_loop
    found = epoch_batches(trainer, batches)
    if found == fit_loop.max_batches:
        return
    fit_loop.max_batches, fit_loop._combined_loader.limits = found, [found]
    interval: Any = trainer.val_check_interval
    if isinstance(interval, float):
        trainer.val_check_batch = max(1, int(found * interval))


def forget_ready_epoch(fit_loop: dict[str, Any]) -> None:
    """Remove from a checkpoint's loops the epoch that was about to begin.

    Lightning would begin it without counting it as ready, and then treat the middle of an epoch as its end.
    """
    for part in fit_loop["epoch_progress"].values():
        part["ready"] = part["started"]


def set_epoch_over(fit_loop: dict[str, Any], *, uncounted: bool) -> None:
    """Set a checkpoint's loops to the start of the next epoch.

    Lightning notices the epoch's end only if an epoch has as many batches as when the checkpoint was
    saved. With `max_steps` it would continue the old epoch.
    """
    epochs = fit_loop["epoch_progress"]
    ended = epochs["current"]["processed"] == epochs["current"]["ready"]
    for part in ("current", "total"):
        for name in ("started", "processed", "completed"):
            epochs[part][name] = epochs[part]["ready"]
    total = fit_loop["epoch_loop.batch_progress"]["total"]["processed"]
    set_batches(fit_loop, 0, total=total, uncounted=uncounted and not ended)


def reopen_epoch(fit_loop: dict[str, Any]) -> bool:
    """Set a checkpoint's loops back into their epoch if they count it as done; return whether they did.

    Lightning counts it as done if it stops in an epoch (`max_steps`, early stopping), and would begin the next one.
    """
    epochs = fit_loop["epoch_progress"]
    if not 0 < epochs["current"]["ready"] == epochs["current"]["processed"]:
        return False
    for part in ("current", "total"):
        for name in ("processed", "completed"):
            epochs[part][name] = epochs[part]["ready"] - 1
    return True


def set_batches(fit_loop: dict[str, Any], batches: int, *, total: int | None = None, uncounted: bool) -> None:
    """Set the number of finished batches in a checkpoint's loops, with no batch in progress.

    `batches` counts the epoch's. `total` counts those of all epochs, and by default changes by as much.
    `uncounted`: the last step was saved before Lightning counted it for the loggers.
    """
    progress = fit_loop["epoch_loop.batch_progress"]
    if total is None:
        total = progress["total"]["processed"] + batches - progress["current"]["processed"]
    for name in ("ready", "started", "processed", "completed"):
        progress["current"][name] = batches
        progress["total"][name] = total
    progress["is_last_batch"] = False
    fit_loop["epoch_loop.state_dict"]["_batches_that_stepped"] += uncounted
