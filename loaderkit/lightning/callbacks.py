"""Lightning callbacks: SeedSteps and DataWaitCallback."""

import math
from typing import Any

import torch
from typing_extensions import override

from loaderkit.lightning.framework import pl
from loaderkit.loader.downloads import Downloads
from loaderkit.monitor.monitor import DataWaitMonitor
from loaderkit.seeding.keys import derive_seed
from loaderkit.seeding.worker_seeds import seed_all


class SeedSteps(pl.Callback):
    """Makes a resumed run draw the same random numbers, such as dropout's.

    The random numbers of a training step become a function of (seed, rank, epoch, batch).
    Lightning's checkpoints hold no generator states, so without this callback a resumed run draws other numbers than an
    uninterrupted one. With it both draw the same, also while a batch is transferred.

    Args:
        seed: Seed of the steps, independent of the loader's.

    Examples:
        >>> import lightning.pytorch as pl
        >>> trainer = pl.Trainer(callbacks=[lk.SeedSteps(seed=3)], accelerator="cpu", logger=False)
        >>> trainer.callbacks[0].seed
        3
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        done, over = batches_done(trainer)
        epochs: Any = trainer.fit_loop.epoch_progress.current
        self._seed(trainer, "fetch", 0 if over and epochs.started == epochs.processed else done)

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._seed(trainer, "fetch", 0)

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, batch_idx: int
    ) -> None:
        self._seed(trainer, "step", _begun(trainer) - 1)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        self._seed(trainer, "fetch", _begun(trainer))

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._seed(trainer, "fetch", batches_done(trainer)[0])

    def _seed(self, trainer: pl.Trainer, what: str, batch: int) -> None:
        seed_all(derive_seed(what, self.seed, trainer.global_rank, trainer.current_epoch, batch))


def _begun(trainer: pl.Trainer) -> int:
    """Return how many of the epoch's batches have begun; with a dataloader_iter, `batch_idx` does not count them all."""
    batches: int = trainer.fit_loop.epoch_loop.batch_progress.current.ready
    return batches


def batches_done(trainer: pl.Trainer) -> tuple[int, bool]:
    """Return (number of the epoch's batches that went through the training step, whether the epoch is over)."""
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress
    done = progress.current.processed
    over = done == progress.current.ready and (progress.is_last_batch or done >= trainer.num_training_batches)
    return done, over


def _download_metrics(found: Downloads | None) -> dict[str, float]:
    if found is None:
        return {}
    metrics = {
        "download_mb_s": found.bytes_per_s / 1e6,
        "cache_hits": found.hit_rate,
        "shards_ahead": found.shards_ahead,
    }
    return {name: float(value) for name, value in metrics.items() if value is not None}


class DataWaitCallback(pl.Callback):
    """Measures and logs the share of each training step that waits for data.

    `DataWaitMonitor` defines the measurement. A step is one batch, even if gradients accumulate, and
    excludes validation. The mean over a moving window appears in the progress bar, in
    `trainer.callback_metrics` and in the loggers. Each rank measures its own waits; rank 0's are shown.

    For remote shards, `download_mb_s`, `cache_hits` (a share) and `shards_ahead` are logged too; see `lk.Downloads`.

    Args:
        name: The metric's name.
        window: Number of steps in the moving window.
        warmup: Number of first steps to leave out.
        warn_above: Share above which one warning names a remedy; None never warns.
        log_every: Batches between updates of the progress bar. Loggers get a value every
            `log_every_n_steps` of the Trainer.

    Examples:
        >>> import lightning.pytorch as pl
        >>> callback = lk.DataWaitCallback(warn_above=0.2)
        >>> trainer = pl.Trainer(callbacks=[callback], accelerator="cpu", logger=False)
        >>> callback.name  # in trainer.callback_metrics
        'data_wait'
    """

    def __init__(
        self,
        name: str = "data_wait",
        *,
        window: int = 100,
        warmup: int = 10,
        warn_above: float | None = 0.1,
        log_every: int = 20,
    ) -> None:
        if log_every < 1:
            raise ValueError(f"DataWaitCallback: log_every is {log_every}, wanted at least 1 batch.")
        self.name, self.log_every = name, log_every
        self.monitor = DataWaitMonitor(window=window, warmup=warmup, warn_above=warn_above)
        self._trained = False  # a batch was trained on since the step began
        self._logged_step = -1
        self._loop: object = None

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        monitor = self.monitor
        monitor.device = trainer.strategy.root_device
        fit_loop: Any = trainer.fit_loop
        loaders = fit_loop._combined_loader.flattened
        monitor.begin(loaders[0] if len(loaders) == 1 else None)
        self._unhook()
        # The loop's fetcher calls these two around each next(). Lightning has no hook there.
        loop = self._loop = fit_loop.epoch_loop
        before, after = loop._on_before_fetch, loop._on_after_fetch

        def on_before_fetch() -> None:
            before()
            monitor.clock.begin_wait(same_step=not self._trained)
            self._trained = False

        def on_after_fetch() -> None:
            monitor.clock.end_wait()
            after()

        loop._on_before_fetch, loop._on_after_fetch = on_before_fetch, on_after_fetch

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, batch_idx: int
    ) -> None:
        self._trained = True

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        step, every = self._loop._batches_that_stepped, trainer.log_every_n_steps  # type: ignore[attr-defined]  # Lightning sets it from outside
        to_loggers = every and (step + 1) % every == 0 and step != self._logged_step  # once for each optimizer step
        if not to_loggers and batch_idx % self.log_every:
            return
        share = self.monitor.share
        if math.isnan(share):
            return
        found = {self.name: share} | _download_metrics(self.monitor.downloads)
        # `self.log` would take about 0.4 ms, and copy to the GPU and back.
        trainer.progress_bar_metrics.update(found)
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in found.items()})
        if to_loggers:
            self._logged_step = step
            for logger in trainer.loggers:
                logger.log_metrics(found, step=step)

    @override
    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.monitor.clock.suspend()

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.monitor.clock.resume()

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.monitor.clock.end_step()
        self._trained = False

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._unhook()
        self.monitor.clock.finish()

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._unhook()
        self.monitor.clock.drop_step()

    def _unhook(self) -> None:
        if self._loop is not None:
            for name in ("_on_before_fetch", "_on_after_fetch"):
                self._loop.__dict__.pop(name, None)
            self._loop = None
