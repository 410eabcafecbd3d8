"""Read from a Trainer's loops how many batches it trained on, and correct these counts in a checkpoint."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import torch

from loaderkit.lightning.callbacks import batches_done
from loaderkit.lightning.framework import pl

# What a Trainer has left to do. "validation": end the last batch, with its validation. "validated": end the last batch, whose
# validation is done. "schedulers": end the epoch, of which only the schedulers are left.
Pending: TypeAlias = Literal["nothing", "validation", "validated", "schedulers"]


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


def pending(trainer: pl.Trainer) -> Pending:
    """Return what the Trainer has left to do for the last batch or epoch that it trained on."""
    batches: Any = trainer.fit_loop.epoch_loop.batch_progress.total
    epochs: Any = trainer.fit_loop.epoch_progress.current
    if epochs.started == epochs.processed == epochs.completed + 1:
        return "schedulers"
    if trainer.sanity_checking or not batches.ready == batches.processed > 0:
        return "nothing"
    if trainer.validating:
        validation = trainer.fit_loop.epoch_loop.val_loop.batch_progress
        is_done = validation.is_last_batch and validation.current.completed == validation.current.ready
        return "validated" if is_done else "validation"
    return "validation" if batches.completed == batches.processed - 1 else "nothing"


def pending_in(fit_loop: Mapping[str, Any]) -> Pending:
    """Return what `pending` returns, for a checkpoint's loops. They do not show whether validation is done."""
    batches, epochs = fit_loop["epoch_loop.batch_progress"]["total"], fit_loop["epoch_progress"]["current"]
    if epochs["started"] == epochs["processed"] == epochs["completed"] + 1:
        return "schedulers"
    at_batch_end = batches["ready"] == batches["processed"] == batches["completed"] + 1
    return "validation" if at_batch_end else "nothing"


def metrics_of(trainer: pl.Trainer, *, is_last_batch: bool) -> dict[str, torch.Tensor]:
    """Return copies of the metrics that hooks and schedulers see, on the CPU.

    After an epoch's last batch, they include the epoch's means of training metrics. With several ranks these means are left
    out: all ranks would have to communicate, but one rank alone saves a checkpoint at a signal.
    """
    found = dict(trainer.callback_metrics)
    if is_last_batch:
        results: Any = trainer.fit_loop.epoch_loop._results
        if trainer.world_size == 1:
            found |= results.metrics(on_step=False)["callback"]
        else:
            own = {item.meta.name for _, item in results.valid_items() if item.meta.on_epoch}
            found = {name: value for name, value in found.items() if name.removesuffix("_epoch") not in own}
    return {name: value.detach().cpu().clone() for name, value in found.items()}


def end_batch_first(trainer: pl.Trainer, *, validated: bool, epoch_batches: int | None) -> None:
    """Let a resumed Trainer first end the last batch trained on: run its validation, then its schedulers.

    Lightning skips both.

    Args:
        trainer: The Trainer that resumes.
        validated: Whether the validation is done already.
        epoch_batches: The number of the epoch's batches if that batch was the epoch's last, else None.
    """
    loop: Any = trainer.fit_loop.epoch_loop
    start = loop.on_run_start

    def on_run_start(data_fetcher: Any) -> None:
        end_no_batch(trainer)
        start(data_fetcher)
        loop.restarting = False
        if epoch_batches is not None and trainer.fit_loop.max_batches != float("inf"):
            set_max_batches(trainer, epoch_batches)  # the Trainer already has the next epoch's number
        loop._skip_next_val = validated
        with missing_metrics_allowed(trainer):
            loop.on_advance_end(data_fetcher)

    loop.on_run_start = on_run_start


def end_no_batch(trainer: pl.Trainer) -> None:
    """Undo `end_batch_first`."""
    trainer.fit_loop.epoch_loop.__dict__.pop("on_run_start", None)


def update_plateau_schedulers(trainer: pl.Trainer) -> None:
    """Update the schedulers that monitor a metric at each epoch's end, as Lightning would have done after the last epoch."""
    loop, epochs = trainer.fit_loop.epoch_loop, trainer.fit_loop.epoch_progress.current
    epochs.completed -= 1
    with missing_metrics_allowed(trainer):
        loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
    epochs.completed += 1


@contextlib.contextmanager
def missing_metrics_allowed(trainer: pl.Trainer) -> Iterator[None]:
    """Let schedulers whose metric is not in the checkpoint miss one update, with Lightning's warning, rather than fail."""
    waiting = [config for config in trainer.lr_scheduler_configs if config.reduce_on_plateau and config.strict]
    missing = [config for config in waiting if config.monitor not in trainer.callback_metrics]
    for config in missing:
        config.strict = False
    try:
        yield
    finally:
        for config in missing:
            config.strict = True


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
    fit_loop._combined_loader.limits = [found]
    set_max_batches(trainer, found)


def set_max_batches(trainer: pl.Trainer, batches: int) -> None:
    """Tell a Trainer how many batches it uses in an epoch; a `val_check_interval` that is a fraction follows."""
    trainer.fit_loop.max_batches = batches
    interval: object = trainer.val_check_interval
    if isinstance(interval, float):
        trainer.val_check_batch = max(1, int(batches * interval))


def forget_ready_epoch(fit_loop: dict[str, Any]) -> None:
    """Remove from a checkpoint's loops the epoch that was about to begin.

    Lightning would begin it without counting it as ready, and then treat the middle of an epoch as its end.
    """
    for part in fit_loop["epoch_progress"].values():
        part["ready"] = part["started"]


def set_epoch_over(fit_loop: dict[str, Any], *, uncounted: bool) -> None:
    """Set the loops in a checkpoint to the start of the next epoch.

    If the number of batches in an epoch has changed since the checkpoint was saved, Lightning does not notice that the
    epoch is over, and a Trainer with `max_steps` would continue it. For `uncounted` see `set_batches`.
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


def set_batches(
    fit_loop: dict[str, Any], batches: int, *, total: int | None = None, uncounted: bool, is_last: bool = False
) -> None:
    """Set the number of finished batches in a checkpoint's loops, with no batch in progress.

    Args:
        fit_loop: The state of the checkpoint's fit loop, which is changed.
        batches: Batches of the epoch.
        total: Batches of all epochs. Default: it changes by as much as `batches` changes the epoch's.
        uncounted: Whether the checkpoint was saved before Lightning counted the last step for the loggers.
        is_last: Whether the last of these batches is the epoch's last one.
    """
    progress = fit_loop["epoch_loop.batch_progress"]
    if total is None:
        total = progress["total"]["processed"] + batches - progress["current"]["processed"]
    for name in ("ready", "started", "processed", "completed"):
        progress["current"][name] = batches
        progress["total"][name] = total
    progress["is_last_batch"] = is_last
    fit_loop["epoch_loop.state_dict"]["_batches_that_stepped"] += uncounted
