"""A training's position in its data: saved after the last batch trained on, and restored with the Trainer's loops."""

import contextlib
import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from typing_extensions import override

from loaderkit.lightning.callbacks import batches_done
from loaderkit.lightning.framework import DataLoaderIterDataFetcher, pl
from loaderkit.lightning.history import History
from loaderkit.lightning.loaders import TrainLoader
from loaderkit.lightning.progress import (
    Pending,
    begun,
    between_epochs,
    end_batch_first,
    end_no_batch,
    epoch_batches,
    forget_ready_epoch,
    learnt,
    metrics_of,
    missing_metrics_allowed,
    pending,
    pending_in,
    reopen_epoch,
    set_batches,
    set_epoch_batches,
    set_epoch_over,
    update_plateau_schedulers,
)
from loaderkit.system.state import COUNT, FLAG, STATE, StateError, damaged, lists_of, open_state, seal

_FORM = {"train": lists_of(STATE), "batches": COUNT, "epoch_over": FLAG, "ended": lists_of(FLAG)}
_WAY_OUT = "start a new training"

_KEY = "loaderkit"  # in a checkpoint: what the Trainer had left to do, and its metrics
_KEYS = {"train", "batches", "epoch_over"}  # of a position's state


def open_position(state: object) -> dict[str, Any]:
    """Check the state of a DataModule and return its fields. The loaders' states in it are not checked.

    Raises:
        StateError: If `state` is not the state of a DataModule, or is damaged.
    """
    fields = open_state(state, _FORM, "the state of a loaderkit DataModule", _WAY_OUT)
    states, ended = fields["train"], fields["ended"]
    if len(ended) not in (0, len(states)):
        raise damaged("ended", ended, f"an entry for each of {len(states)} datasets", _WAY_OUT)
    if fields["batches"] and (fields["epoch_over"] or not states):
        raise damaged("batches", fields["batches"], "0, because the epoch is over or there are no datasets", _WAY_OUT)
    return fields


class TrainPosition:
    """The position after the last batch trained on, in all training loaders of one fit.

    It keeps a History of each loader. All Histories have their mark at the same batch: where the loaders started, or where the
    last epoch began. The Trainer counts the batches that it has trained on since then. The saved state has each loader's state
    that many batches after the mark; without a Trainer it has the loaders' current states.
    """

    def __init__(self, trainer: pl.Trainer | None = None) -> None:
        self._trainer = trainer
        self._loaders: list[TrainLoader] = []
        self._histories: list[History] = []  # one for each loader, if a Trainer draws the batches
        self._before: list[TrainLoader] = []  # loaders of the fit that this one continues
        self._trained = 0  # batches of all epochs that the Trainer had begun at these loaders' last batch
        self._restored: dict[str, Any] | None = None
        self._first = 0  # batches of the Trainer's epoch before the mark
        self._waiting = True  # whether no batch has begun since the mark
        self._recounted = False  # whether the loaded state counts batches of another size
        self._closing = False  # whether the Trainer only ends an epoch whose batches are all trained on

    def is_of(self, trainer: pl.Trainer) -> bool:
        """Return whether this is the Trainer's position."""
        return self._trainer is trainer

    @property
    def awaits_loaders(self) -> bool:
        """Whether a state was loaded, and no loaders exist yet to restore it."""
        return self._restored is not None and not self._loaders

    @property
    def is_before_a_first_batch(self) -> bool:
        """Whether a state was restored at an epoch's start."""
        return self._restored is not None and self._first == 0 and not self._closing

    @property
    def is_epoch_over(self) -> bool:
        """Whether the epoch's batches are all trained on."""
        return self._learnt()[1]

    def next_fit(self, trainer: pl.Trainer | None) -> "TrainPosition":
        """Return the position of the next fit; with the same Trainer it continues after the last epoch."""
        after = TrainPosition(trainer)
        if trainer is not None and self.is_of(trainer) and self._trained == begun(trainer) and between_epochs(trainer):
            after._before = self.replace_loaders()
        self.close()
        return after

    def replace_loaders(self) -> list[TrainLoader]:
        """Stop the loaders, return them, and make room for new ones."""
        if not self._waiting:
            self._end_epoch()
        before, self._loaders, self._before = self._loaders or self._before, [], []
        histories, self._histories = self._histories, []
        for loader in before:
            loader.position.discard_ahead()
        for history in histories:
            history.stop()
        for loader in before:
            loader.close()
        return before

    def add(self, loader: TrainLoader) -> None:
        """Add a new loader; `place` then positions all loaders."""
        if self._trainer is not None:
            saved = functools.partial(self._saved_state, len(self._loaders))
            history = History(loader.position, saved, self._stand_where_the_trainer_does)
            loader.record_in(history)
            self._histories.append(history)
        self._loaders.append(loader)

    def place(self, before: Sequence[TrainLoader]) -> None:
        """Move the new loaders to the loaded state, or to where the loaders before them stopped."""
        if self._restored is not None:
            self._restore(self._restored)
            if self._trainer is None:
                self._restored = None  # without a Trainer, the next loaders continue from these
            return
        # After a reload, or in a second fit, which continues the count of epochs.
        epoch = self._trainer.current_epoch if self._trainer is not None else 0
        for row, loader in enumerate(self._loaders):
            if len(before) == len(self._loaders):
                loader.position.follow(before[row].position)
            else:
                loader.seek(epoch=epoch)
        self._stand(0)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain values, the same on every rank."""
        # A tuple is one entry for torch.distributed.checkpoint, so a state has the same entries with and without loaders.
        if not self._loaders:
            fields = self._restored or {"train": (), "batches": 0, "epoch_over": False, "ended": []}
            return seal({**fields, "train": tuple(fields["train"])})
        if self._trainer is None:
            states = tuple(loader.state_dict() for loader in self._loaders)
            batches = self._loaders[0].cursor.batches
            return seal({"train": states, "batches": batches, "epoch_over": False, "ended": []})
        batches, over = self._learnt()
        states = tuple(history.state_after(batches - self._first, over=over) for history in self._histories)
        # Before an epoch's first batch, say that the last epoch is over: else a resume would take the new one for begun.
        over = over or self._closing or (self._waiting and self._first == 0 and between_epochs(self._trainer))
        ended = [not over and each.has_ended(state) for each, state in zip(self._histories, states, strict=True)]
        return seal({"train": states, "batches": 0 if over else batches, "epoch_over": over, "ended": ended})

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Restore a saved position in the loaders, now or when they are made.

        Raises:
            StateError: If `state` is not the state of a DataModule, or is damaged.
        """
        fields = open_position(state)
        if not fields["train"]:
            return  # saved by a run without these loaders
        self._restored = fields
        if self._loaders:
            self._restore(self._restored)

    def begin_epoch(self) -> None:
        """Record that the Trainer begins an epoch."""
        self._closing = False
        if not self._waiting or self._first:
            self._end_epoch()
            self._stand(0)
        if self._trainer is not None and len(self._loaders) == 1 and (batches := self._loaders[0].batches) is not None:
            set_epoch_batches(self._trainer, batches)
        if self._trainer is not None and any(loader.is_over() for loader in self._loaders):
            self._trainer.should_stop = True  # else a Trainer without a limit would begin empty epochs forever

    def begin_batch(self) -> None:
        """Record that the Trainer begins a batch."""
        self._waiting = False
        self._restored = None  # used: loaders made later continue from these
        if self._trainer is not None:
            self._trained = begun(self._trainer)
        batches, _ = self._learnt()
        for history in self._histories:
            history.begin_batch(batches - self._first)

    def correct_loops(self, fit_loop: dict[str, Any], left: Pending) -> Pending:
        """Make the batch counts in a checkpoint's loops agree with the loaders, before Lightning loads them.

        `left` is what the Trainer that saved the checkpoint had left to do. Returns what of it the resuming Trainer has to do.
        """
        if self._restored is None:
            return "nothing"
        forget_ready_epoch(fit_loop)
        current, total = (fit_loop["epoch_loop.batch_progress"][part] for part in ("current", "total"))
        over, batches = self._restored["epoch_over"], self._restored["batches"]
        saved_whole = current["processed"] == batches or (over and batches == 0)  # no open accumulation
        uncounted = saved_whole and current["ready"] == current["processed"]
        if not uncounted or self._recounted:
            left = "nothing"
        if left in ("validation", "validated"):
            self._closing = over
            done = current["processed"] if over else self._first
            set_batches(fit_loop, done, uncounted=False, is_last=over)
            return left
        if over:
            set_epoch_over(fit_loop, uncounted=uncounted)
            return left
        reopened = reopen_epoch(fit_loop)  # Lightning counts every step when an epoch ends
        # A step that on_train_batch_start skips, or that finds its dataloader_iter exhausted, is counted only in part.
        unequal = not total["ready"] == total["started"] == total["processed"]
        if reopened or unequal or current["processed"] != self._first or current["ready"] != self._first:
            set_batches(fit_loop, self._first, uncounted=uncounted and not reopened)
        return "nothing"

    @property
    def is_closing(self) -> bool:
        """Whether the Trainer only ends an epoch whose batches are all trained on."""
        return self._closing

    def close(self) -> None:
        """Stop the loaders' workers."""
        for loader in self._loaders:
            loader.close()

    def _saved_state(self, row: int) -> dict[str, object]:
        state: dict[str, Any] = self.state_dict()["train"][row]
        return state

    def _learnt(self) -> tuple[int, bool]:
        """Return (number of the epoch's batches trained on, whether the epoch is over)."""
        if self._waiting or self._trainer is None:
            return self._first, False
        batches, over = learnt(self._trainer)
        return max(batches, self._first), over

    def _end_epoch(self) -> None:
        """Return batches that CombinedLoader fetched from some datasets before it found that others had ended.

        A run then continues after an epoch exactly like a run that resumes there.
        """
        if len(self._loaders) > 1 and self._trainer is not None and self._trainer.state.fn == "fit":
            batches = 0 if self._waiting else batches_done(self._trainer)[0] - self._first
            for history in self._histories:
                history.end_epoch(batches)

    def _stand(self, first: int, ended: Sequence[bool] = ()) -> None:
        for row, history in enumerate(self._histories):
            history.mark(ended=len(ended) > 1 and ended[row])
        self._first, self._waiting = first, True

    def _stand_where_the_trainer_does(self) -> None:
        if self._trainer is not None:
            self._stand(learnt(self._trainer)[0])

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Move the loaders to a loaded state."""
        saved = state["train"]
        if len(saved) != len(self._loaders):
            raise StateError(
                f"cannot resume: found {len(saved)} training datasets in the checkpoint, wanted {len(self._loaders)}, as this "
                f"DataModule has. Give it the same datasets."
            )
        for row, loader in enumerate(self._loaders):
            loader.restore(saved[row])
        first = self._translate(state)
        self._recounted = first != state["batches"] or self._restored is not state
        self._stand(first, state["ended"])

    def _translate(self, state: Mapping[str, Any]) -> int:
        """Return how many batches of the epoch are done, in the current world and batch size."""
        old = [saved.get("step") for saved in state["train"]]
        new = [loader.step for loader in self._loaders]
        fewer_steps = new == [None] and state["batches"] and not self._loaders[0].cursor.batches
        # The steps of a loader with stages differ in size, so `old` and `new` do not tell: compare the counts of batches too.
        recounted = any(
            loader.step is not None and loader.cursor.batches != saved["cursor"]["batches"]
            for loader, saved in zip(self._loaders, state["train"], strict=True)
        )
        if old == new and not fewer_steps and not recounted:
            return int(state["batches"])
        if len(new) > 1:
            raise StateError(
                "cannot resume: several training datasets were read in parallel, and the number of ranks or the batch size has "
                f"changed (steps of {old} samples over all ranks then, of {new} now). Use those of the checkpoint."
            )
        loader = self._loaders[0]
        done = loader.cursor.batches
        at_limit = (
            not fewer_steps and self._trainer is not None and 0 < epoch_batches(self._trainer, len(loader)) <= done
        )
        if fewer_steps or at_limit:
            # The epoch is already over in the new unit, or a stream ended unnoticed before the limit.
            if at_limit:
                loader.leave_epoch()
            self._restored = {**state, "epoch_over": True}
            return 0
        return done


class TrainProgress(pl.Callback):
    """Updates a TrainPosition as its Trainer proceeds; a DataModule attaches it to its Trainer."""

    def __init__(self, position: TrainPosition) -> None:
        self._position = position
        self._warned = False
        self._left: Pending = "nothing"  # what the Trainer that saved the checkpoint had left to do
        self._metrics: dict[str, torch.Tensor] = {}  # of the checkpoint
        self._allowing = contextlib.ExitStack()  # allows missing metrics while the Trainer only ends an epoch

    @classmethod
    def attach(cls, trainer: pl.Trainer, position: TrainPosition) -> None:
        """Add the callback to a Trainer; it replaces the one of an earlier run."""
        callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
        callbacks[:] = [callback for callback in callbacks if not isinstance(callback, cls)] + [cls(position)]
        end_no_batch(trainer)

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        device = trainer.strategy.root_device
        trainer.callback_metrics.update({name: value.to(device) for name, value in self._metrics.items()})
        if self._left == "schedulers":
            update_plateau_schedulers(trainer)
        self._left, self._metrics = "nothing", {}
        if self._position.is_before_a_first_batch:
            # Lightning would treat it as the middle of the epoch.
            trainer.fit_loop.epoch_loop.restarting = False

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._allowing.close()
        self._position.begin_epoch()

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, batch_idx: int
    ) -> None:
        fetcher = trainer.fit_loop._data_fetcher
        if isinstance(fetcher, DataLoaderIterDataFetcher):
            self._check_steps(trainer, fetcher.fetched)
        self._position.begin_batch()

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Lightning skips the schedulers that wait for a metric in the epoch that a resume continues. Its setter of `restarting`
        # would restart the loop's children if there are max_steps.
        trainer.fit_loop._restarting = False
        if self._position.is_closing:
            self._allowing.enter_context(missing_metrics_allowed(trainer))

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._allowing.close()

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, object]
    ) -> None:
        if trainer.state.fn == "fit":
            left = pending(trainer)
            is_last_batch = left in ("validation", "validated") and self._position.is_epoch_over
            metrics = metrics_of(trainer, is_last_batch=is_last_batch)
            checkpoint[_KEY] = {"pending": left, "metrics": metrics}

    @override
    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        data: pl.LightningDataModule = trainer.datamodule  # type: ignore[attr-defined]  # set by a connector
        _check_names(type(data).__qualname__, checkpoint)
        if trainer.state.fn == "fit":
            if self._position.awaits_loaders:
                data.train_dataloader()  # the loaders know how many batches are done
            fit_loop, ours = checkpoint["loops"]["fit_loop"], checkpoint.get(_KEY, {})
            batches = fit_loop["epoch_loop.batch_progress"]["current"]["processed"]
            self._left = self._position.correct_loops(fit_loop, ours.get("pending") or pending_in(fit_loop))
            self._metrics = ours.get("metrics", {})
            if self._left in ("validation", "validated"):
                last = batches if self._position.is_closing else None
                end_batch_first(trainer, validated=self._left == "validated", epoch_batches=last)

    def _check_steps(self, trainer: pl.Trainer, fetched: int) -> None:
        """Check steps that took `fetched` batches of this epoch from a dataloader_iter.

        Raise a ValueError if they accumulate gradients. Warn if they did not take one batch each, so that a resume is not exact.
        """
        if trainer.accumulate_grad_batches > 1:
            raise ValueError(
                f"DataModule: accumulate_grad_batches={trainer.accumulate_grad_batches} with a training_step(dataloader_iter): "
                "Lightning clears these gradients one step late, so some are lost, others count twice, and no resume is exact. "
                "Use training_step(batch, batch_idx), or accumulate in the step itself with automatic_optimization = False."
            )
        steps = trainer.fit_loop.epoch_loop.batch_idx
        if fetched != steps and not self._warned:
            self._warned = True
            warnings.warn(
                f"DataModule: training_step took {fetched} batches of its dataloader_iter in {steps} steps of this epoch. "
                "Lightning counts steps, so a resume would skip too few or too many batches. Take one batch in each step.",
                stacklevel=2,
            )


def _check_names(own: str, checkpoint: Mapping[str, object]) -> None:
    """Warn if Lightning ignored a checkpoint's data state because the DataModule's class has another name."""
    states = [name for name, state in checkpoint.items() if isinstance(state, Mapping) and set(state) >= _KEYS]
    if own not in checkpoint and states:
        warnings.warn(
            f"DataModule: the checkpoint has the data state of class {states[0]!r}, and this DataModule is {own!r}. "
            "Lightning saves it under the class's name, so neither the position in the data nor fitted statistics were "
            f"loaded. Name the class {states[0]!r}, or rename the entry: checkpoint[{own!r}] = "
            f"checkpoint.pop({states[0]!r}).",
            stacklevel=2,
        )
