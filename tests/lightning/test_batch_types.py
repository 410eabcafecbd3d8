"""Under Lightning: batches of any container reach the model on its device, with their type."""

import dataclasses
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from fake_cuda import FakeCuda
from lightning_runs import quiet_trainer

import loaderkit as lk
from loaderkit.device import cuda


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any


class OwnList(list[Any]):
    def __init__(self, x: Any, tag: str) -> None:
        super().__init__([x])
        self.tag = tag

    @property
    def x(self) -> Any:
        return self[0]


class Model(pl.LightningModule):
    """Notes its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.found: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.found.append(batch)
        return self.layer(batch.x).mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.found.append(batch)

    predict_step = validation_step  # type: ignore[assignment]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


class Moves(Model):
    """Has a hook of its own."""

    moved = 0

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        self.moved += 1
        return batch


class MovesData(lk.DataModule):
    moved = 0

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:  # type: ignore[override]
        self.moved += 1
        return super().transfer_batch_to_device(batch, device, dataloader_idx)


@pytest.fixture(params=[False, True], ids=["when asked for", "ahead"])
def ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setitem(cuda.BACKENDS, "cpu", FakeCuda("all"))


def samples(make: Any) -> list[Any]:
    return [make(torch.full((2,), float(number))) for number in range(4)]


@pytest.mark.usefixtures("ahead")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [Frozen, lambda x: OwnList(x, "m")], ids=["frozen", "list"])
def test_any_container_reaches_the_model(make: Any, tmp_path: Path) -> None:
    model, config = Model(), lk.LoaderConfig(batch_size=2)
    data = lk.DataModule(samples(make), val={"all": samples(make)}, predict={"all": samples(make)}, loader=config)
    trainer = quiet_trainer(str(tmp_path), max_epochs=1)
    trainer.fit(model, data)
    trainer.predict(model, data, return_predictions=False)
    assert len(model.found) >= 6
    assert {type(batch) for batch in model.found} == {type(samples(make)[0])}
    assert all(batch.x.shape == (2, 2) for batch in model.found)
    assert {getattr(batch, "tag", "m") for batch in model.found} == {"m"}


@pytest.mark.filterwarnings("ignore")
def test_a_hook_of_ones_own_counts(tmp_path: Path) -> None:
    model = Moves()
    trainer = quiet_trainer(str(tmp_path), max_epochs=1)
    trainer.fit(model, lk.DataModule(samples(Frozen), loader=lk.LoaderConfig(batch_size=2)))
    assert (model.moved, len(model.found)) == (2, 2)
    data = MovesData(samples(Frozen), loader=lk.LoaderConfig(batch_size=2))
    other = Model()
    quiet_trainer(str(tmp_path), max_epochs=1).fit(other, data)
    assert (data.moved, len(other.found)) == (2, 2)
