"""The callback that tells a DataModule about its Trainer's progress."""

import warnings
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher
from typing_extensions import override

from loaderkit.lightning.position import TrainPosition

_KEYS = {"train", "batches", "epoch_over"}  # of a position's state


class TrainProgress(pl.Callback):
    """Updates a TrainPosition as its Trainer proceeds; a DataModule attaches it to its Trainer."""

    def __init__(self, position: TrainPosition) -> None:
        self._position = position
        self._warned = False

    @classmethod
    def attach(cls, trainer: pl.Trainer, position: TrainPosition) -> None:
        """Add the callback to a Trainer; it replaces the one of an earlier run."""
        callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
        callbacks[:] = [callback for callback in callbacks if not isinstance(callback, cls)] + [cls(position)]

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._position.is_before_a_first_batch:
            # Lightning would treat it as the middle of the epoch.
            trainer.fit_loop.epoch_loop.restarting = False

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._position.begin_epoch()

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        fetcher = trainer.fit_loop._data_fetcher
        if isinstance(fetcher, _DataLoaderIterDataFetcher):
            self._check_steps(trainer, fetcher.fetched)
        self._position.begin_batch()

    @override
    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        data: pl.LightningDataModule = trainer.datamodule  # type: ignore[attr-defined]  # set by a connector
        _check_names(type(data).__qualname__, checkpoint)
        if trainer.state.fn == "fit":
            if self._position.awaits_loaders:
                data.train_dataloader()  # the loaders know how many batches are done
            self._position.correct_loops(checkpoint["loops"]["fit_loop"])

    def _check_steps(self, trainer: pl.Trainer, fetched: int) -> None:
        """Refuse or warn about steps that took `fetched` batches from a dataloader_iter and can't resume exactly."""
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


def _check_names(own: str, checkpoint: Mapping[str, Any]) -> None:
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
