"""What a Trainer has learnt, in batches: read from its loops when saving, and put right in them when loading."""

from typing import Any

import lightning.pytorch as pl

from loaderkit.lightning.callbacks import batches_done


def learnt(trainer: pl.Trainer) -> tuple[int, bool]:
    """Return how many of the epoch's batches were learnt whole, and whether that was all of them.

    Batches of an unfinished gradient accumulation do not count: their gradients
    are not saved.
    """
    done, over = batches_done(trainer)
    stopped = trainer.should_stop or 0 <= trainer.max_steps <= trainer.global_step
    # Lightning does not know the last batch where the data ends before its length or limit.
    over = over or (between_epochs(trainer) and not stopped)
    if not over and trainer.lightning_module.automatic_optimization:
        done -= done % trainer.accumulate_grad_batches
    return done, over


def used(trainer: pl.Trainer) -> int:
    """Return how many of the epoch's batches were used, learnt or not: those fetched ahead were not.

    A step that takes a dataloader_iter, and finds it at its end, has begun without a batch.
    """
    current: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return int(current.processed)


def begun(trainer: pl.Trainer) -> int:
    """Return how many batches have begun in all epochs."""
    batches: int = trainer.fit_loop.epoch_loop.batch_progress.total.ready
    return batches


def between_epochs(trainer: pl.Trainer) -> bool:
    """Say whether the last epoch that was begun is over, for the Trainer."""
    epochs: Any = trainer.fit_loop.epoch_progress.current
    return bool(epochs.started == epochs.processed)


def epoch_batches(trainer: pl.Trainer, batches: int) -> int:
    """Return how many of a loader's batches the Trainer takes in an epoch."""
    limit = trainer.limit_train_batches
    return min(batches, limit) if isinstance(limit, int) else int(batches * limit)


def forget_ready_epoch(fit_loop: dict[str, Any]) -> None:
    """Make a checkpoint's loops say nothing of an epoch that they were about to begin.

    Lightning begins it without counting it as ready, and from then on takes the middle of an epoch for its end.
    """
    for part in fit_loop["epoch_progress"].values():
        part["ready"] = part["started"]


def set_epoch_over(fit_loop: dict[str, Any], *, uncounted: bool) -> None:
    """Make a checkpoint's loops say that the next epoch begins.

    Lightning sees by itself that the last batch was the last one, but only where an epoch has as many batches as
    when it was saved; and with `max_steps` it would go on in the old epoch.

    Args:
        fit_loop: The loops' state, changed in place.
        uncounted: See `set_batches`; at an epoch's very end all is counted.
    """
    epochs = fit_loop["epoch_progress"]
    ended = epochs["current"]["processed"] == epochs["current"]["ready"]
    for part in ("current", "total"):
        for name in ("started", "processed", "completed"):
            epochs[part][name] = epochs[part]["ready"]
    total = fit_loop["epoch_loop.batch_progress"]["total"]["processed"]
    set_batches(fit_loop, 0, total=total, uncounted=uncounted and not ended)


def reopen_epoch(fit_loop: dict[str, Any]) -> bool:
    """Make a checkpoint's loops say that they are within their epoch, if they count it as done; return whether they did.

    Lightning does so where it was stopped in an epoch (`max_steps`, early stopping), and would begin the next one.
    """
    epochs = fit_loop["epoch_progress"]
    if not 0 < epochs["current"]["ready"] == epochs["current"]["processed"]:
        return False
    for part in ("current", "total"):
        for name in ("processed", "completed"):
            epochs[part][name] = epochs[part]["ready"] - 1
    return True


def set_batches(fit_loop: dict[str, Any], batches: int, *, total: int | None = None, uncounted: bool) -> None:
    """Make a checkpoint's loops say that so many of the epoch's batches are done, none in the middle.

    Args:
        fit_loop: The loops' state, changed in place.
        batches: In the epoch.
        total: In all epochs; by default it changes as the epoch's do.
        uncounted: Whether a step was whole and saved before Lightning counted it for the loggers.
    """
    progress = fit_loop["epoch_loop.batch_progress"]
    if total is None:
        total = progress["total"]["processed"] + batches - progress["current"]["processed"]
    for name in ("ready", "started", "processed", "completed"):
        progress["current"][name] = batches
        progress["total"][name] = total
    progress["is_last_batch"] = False
    fit_loop["epoch_loop.state_dict"]["_batches_that_stepped"] += uncounted
