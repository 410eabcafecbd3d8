"""A Lightning callback that keeps a StepLog."""

import os
from typing import Any

from typing_extensions import override

from loaderkit.lightning.framework import pl
from loaderkit.lightning.loaders import TrainLoader
from loaderkit.loader.loader import Loader
from loaderkit.loader.step_log import StepLog


class StepLogCallback(pl.Callback):
    """Keeps a `StepLog` of a training: what each step was trained on.

    Steps have the numbers that Lightning's loggers show: optimizer steps, counted from 0. With gradient accumulation, a
    step has all batches that were accumulated for it.

    Args:
        path: The file. A resumed training continues it.

    Examples:
        >>> import lightning.pytorch as pl
        >>> trainer = pl.Trainer(callbacks=[lk.StepLogCallback("steps.log")], accelerator="cpu", logger=False)
        >>> trainer.callbacks[0].step_log.path
        'steps.log'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.step_log = StepLog(path)

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        _loader_of(trainer)  # an error before the first step

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        loader = _loader_of(trainer)
        loop: Any = trainer.fit_loop.epoch_loop
        point = loader.point_after_step if isinstance(loader, TrainLoader) else None
        self.step_log.record(loader, loop._batches_that_stepped, point=point)

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.step_log.close()


def _loader_of(trainer: pl.Trainer) -> Loader:
    """Return the Trainer's training loader.

    Raises:
        ValueError: If the Trainer has several training loaders, one that is not a Loader, or a Loader without a length, from
            which Lightning fetches one batch ahead.
    """
    loader: object = trainer.train_dataloader
    if not isinstance(loader, Loader):
        raise ValueError(
            f"StepLogCallback: the training loader is of type {type(loader).__name__}, wanted one lk.Loader, or a DataModule with one "
            "training dataset."
        )
    if not isinstance(loader, TrainLoader):
        try:
            len(loader)
        except TypeError:
            raise ValueError(
                "StepLogCallback: the Loader has no length, so Lightning fetches one batch ahead of the step. Give it to an "
                "lk.DataModule, or give it steps=."
            ) from None
    return loader
