"""Under Lightning: the share is that of fetching, whatever else the Trainer does between two steps."""

import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import lightning_job as jobs
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.profilers import SimpleProfiler
from lightning_runs import quiet_trainer
from slow_data import HandClock, Slow

import loaderkit as lk

WAIT_S, COMPUTE_S, SAVE_S = 0.006, 0.010, 0.004


class Samples(Slow):
    def __getitem__(self, index: int) -> Any:
        super().__getitem__(index)
        return torch.ones(4)


class NoLength(torch.utils.data.IterableDataset[Any]):
    """The same samples, one after the other."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __iter__(self) -> Any:
        return (self.samples[row] for row in range(len(self.samples)))


class Step(pl.LightningModule):
    """Computes for a while."""

    def __init__(self, seconds: float = COMPUTE_S, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 1)
        self.seconds, self.sleep = seconds, sleep

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.sleep(self.seconds)
        loss: torch.Tensor = self.net(batch).sum()
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Saving(pl.Callback):
    """Takes its time after each batch, as one that saves does."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self.sleep = sleep

    def on_train_batch_end(self, *_: Any) -> None:
        self.sleep(SAVE_S)


def make_trainer(folder: Path, *callbacks: pl.Callback, **settings: Any) -> pl.Trainer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return quiet_trainer(
            folder, **{"callbacks": list(callbacks), "max_epochs": 2, "num_sanity_val_steps": 1, **settings}
        )


def fit(trainer: pl.Trainer, model: pl.LightningModule, *data: Any, **more: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(model, *data, **more)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "DataLoader": {"data": "DataLoader"},
    "no length": {"data": "no length"},
    "DataLoader without length": {"data": "DataLoader without length"},
    "validation within the epoch": {"val": True, "trainer": {"val_check_interval": 10}},
    "accumulation": {"trainer": {"accumulate_grad_batches": 4}},
    "limit": {"trainer": {"limit_train_batches": 15}},
    "saving": {"callback": True},
}


def by_hand(**given: Any) -> tuple[lk.DataWaitCallback, HandClock]:
    callback, hand = lk.DataWaitCallback(**given), HandClock()
    callback.monitor.clock.now_ns = hand
    return callback, hand


@pytest.mark.parametrize("case", CASES)
def test_the_share_is_that_of_fetching(case: str, tmp_path: Path) -> None:
    given = CASES[case]
    callback, hand = by_hand(warmup=0, warn_above=None)
    others = [Saving(hand.sleep)] if given.get("callback") else []
    trainer = make_trainer(tmp_path, callback, *others, **given.get("trainer", {}))
    kind = given.get("data", "")
    samples = Samples(30, WAIT_S, hand.sleep)
    data: Any = NoLength(samples) if "length" in kind else samples
    if kind.startswith("DataLoader"):
        data = torch.utils.data.DataLoader(data, batch_size=1)
    else:
        data = lk.DataModule(data, val=Samples(6, 0.03, hand.sleep) if given.get("val") else None)
    fit(trainer, Step(COMPUTE_S, hand.sleep), data)
    summary = callback.monitor.summary()
    assert summary.steps == 2 * given.get("trainer", {}).get("limit_train_batches", 30)
    others_s = SAVE_S if others else 0.0
    # Without a length Lightning fetches an epoch's first batch before it calls back.
    off = 0.01 if "length" in kind else 1e-9
    assert summary.share == pytest.approx(WAIT_S / (WAIT_S + COMPUTE_S + others_s), abs=off)


def test_the_share_is_shown_and_logged(tmp_path: Path) -> None:
    callback, hand = by_hand(warmup=5, window=10, warn_above=0.2)
    logger = CSVLogger(tmp_path, version=0)
    profiler = SimpleProfiler()
    trainer = make_trainer(tmp_path, callback, logger=logger, log_every_n_steps=15, profiler=profiler)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer.fit(Step(COMPUTE_S, hand.sleep), lk.DataModule(Samples(40, WAIT_S, hand.sleep)))
    own = [str(warning.message) for warning in said if "DataWaitMonitor" in str(warning.message)]
    assert len(own) == 1
    assert "num_workers is 0; " in own[0]
    shown = trainer.progress_bar_metrics["data_wait"]
    assert shown == pytest.approx(WAIT_S / (WAIT_S + COMPUTE_S))
    assert float(trainer.callback_metrics["data_wait"]) == pytest.approx(shown)
    rows = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines()
    column = rows[0].split(",").index("data_wait")
    assert sum(bool(row.split(",")[column]) for row in rows[1:]) == 80 // 15
    assert len(profiler.recorded_durations["[_TrainingEpochLoop].train_dataloader_next"]) == 80


def test_after_an_exception_the_trainer_is_as_it_was(tmp_path: Path) -> None:
    class Fails(Step):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            if batch_idx == 3:
                raise KeyError("broken")
            return super().training_step(batch, batch_idx)

    callback = lk.DataWaitCallback(warmup=0, warn_above=None)
    trainer = make_trainer(tmp_path, callback, max_epochs=1)
    before = set(vars(trainer.fit_loop.epoch_loop))
    with pytest.raises(KeyError):
        fit(trainer, Fails(), lk.DataModule(Samples(8, 0)))
    assert set(vars(trainer.fit_loop.epoch_loop)) == before
    assert callback.monitor.summary().steps == 3
    trainer = make_trainer(tmp_path, callback, max_epochs=1)
    fit(trainer, Step(0), lk.DataModule(Samples(8, 0)))
    assert callback.monitor.summary().steps == 11


def train_on_two_ranks(job: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)

    class RankOneIsSlow(Samples):
        def __getitem__(self, index: int) -> Any:
            self.seconds = 0.1 * torch.distributed.get_rank()  # more than a step's work on a busy machine
            return super().__getitem__(index)

    class Collectives(pl.Callback):
        def on_train_end(self, trainer: pl.Trainer, *_: Any) -> None:
            said = [str(warning.message) for warning in heard if "DataWaitMonitor" in str(warning.message)]
            share = callback.monitor.summary().share
            logged = float(trainer.callback_metrics["data_wait"])
            Path(job["dir"], f"rank-{trainer.global_rank}.json").write_text(json.dumps([share, logged, len(said)]))

    callback = lk.DataWaitCallback(warmup=5, window=10, warn_above=0.1)
    trainer = make_trainer(Path(job["dir"]), callback, Collectives(), devices=2, strategy="ddp_fork", max_epochs=1)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        trainer.fit(Step(0.004), lk.DataModule(RankOneIsSlow(50, 0)))


@pytest.mark.slow
def test_each_rank_measures_its_own_waits(tmp_path: Path) -> None:
    """Rank 0 waits for rank 1's gradients, not for data."""
    job = {"dir": str(tmp_path), "name": "ranks"}
    assert jobs.launch(job, train_on_two_ranks) == 0, jobs.log_of(job)
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    assert first[0] + 0.2 < second[0]
    assert abs(first[1] - first[0]) < 0.3
    assert abs(second[1] - second[0]) < 0.3
    assert second[2] == 0  # rank 1 does not warn


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="log_every is 0"):
        lk.DataWaitCallback(log_every=0)
