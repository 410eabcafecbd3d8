"""Run a training with a DataModule in this process, and check that it resumes exactly from its checkpoints."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_runs import quiet_trainer

import loaderkit as lk

EPOCHS = 2


class Recorder(pl.LightningModule):
    """A layer with dropout over a batch's numbers; it records the batches that it trains on."""

    def __init__(self, numbers: Callable[[Any], torch.Tensor], width: int) -> None:
        super().__init__()
        self.numbers = numbers
        self.seen: list[list[float]] = []
        self.net = torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.Linear(width, 3))

    def forward(self, batch: Any) -> torch.Tensor:
        return self.net(self.numbers(batch))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        numbers = self.numbers(batch)
        self.seen.append(numbers.double().sum(1).tolist())  # tells the samples, and their augmentations
        return self.net(numbers).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self(batch)

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def fit(folder: Path, model: Recorder, data: lk.DataModule, *, saving: bool = False, ckpt: Path | None = None) -> None:
    with _quietly():
        trainer(folder, saving=saving).fit(model, datamodule=data, ckpt_path=ckpt)


def predict(folder: Path, model: Recorder, data: lk.DataModule, ckpt: Path) -> Any:
    with _quietly():
        return trainer(folder).predict(model, datamodule=data, ckpt_path=ckpt)


@contextmanager
def _quietly() -> Iterator[None]:
    """Hide Lightning's warnings and use one thread, because two threads cost such a small model three times the CPU."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(threads)


def trainer(folder: Path, *, saving: bool = False) -> pl.Trainer:
    callbacks: list[pl.Callback] = [lk.SeedSteps()]
    if saving:
        callbacks.append(ModelCheckpoint(folder / "saved", "{step}", every_n_train_steps=1, save_top_k=-1))
    return quiet_trainer(folder, max_epochs=EPOCHS, callbacks=callbacks, enable_checkpointing=saving)


def check_resumes(
    make_data: Callable[[int], lk.DataModule], make_model: Callable[[], Recorder], folder: Path, *, stops: list[int]
) -> Path:
    """Check that a run resumed after each stop, with 0 and 2 workers, has the whole run's samples and weights.

    Returns:
        The checkpoint of the last stop.
    """
    torch.manual_seed(0)
    whole = make_model()
    start = {name: value.clone() for name, value in whole.state_dict().items()}
    fit(folder, whole, make_data(0), saving=True)
    steps = len(whole.seen)
    assert steps > max(stops) > 0  # else the law is vacuous
    assert len({tuple(batch) for batch in whole.seen}) > 0.9 * steps  # a window's last, small batch may repeat
    for stop in stops:
        for workers in (0, 2):
            resumed = make_model()
            resumed.load_state_dict(start)
            path = folder / "saved" / f"step={stop}.ckpt"
            fit(folder, resumed, make_data(workers), ckpt=path)
            assert resumed.seen == whole.seen[stop:], f"stop {stop}, {workers} workers"
            wanted, found = whole.state_dict(), resumed.state_dict()
            assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    return folder / "saved" / f"step={stops[-1]}.ckpt"
