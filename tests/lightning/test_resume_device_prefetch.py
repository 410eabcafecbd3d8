"""Under Lightning with copies ahead, by a stand-in for CUDA: the training is the same, and its state is what was learnt."""

import warnings
from pathlib import Path
from typing import Any

import lightning_job as jobs
import pytest
import torch
from fake_cuda import FakeCuda
from lightning_runs import SHARDS, check_same_end, checkpoints_of, resumed_job, run_here

import loaderkit as lk
from loaderkit.device import cuda

CASES: dict[str, dict[str, Any]] = {
    "indexed": {},
    "accumulation": {"trainer": {"accumulate_grad_batches": 3}},
    "limit": {"trainer": {"limit_train_batches": 7}},
    "validation within the epoch": {"trainer": {"val_check_interval": 5}, "save_in_validation": True},
    "stream": {"shards": SHARDS},
    "stream with steps": {"shards": SHARDS, "loader": {"steps": 13}},
    "stream with steps, limit": {"shards": SHARDS, "loader": {"steps": 13}, "trainer": {"limit_train_batches": 5}},
    "stream, reload": {"shards": SHARDS, "trainer": {"reload_dataloaders_every_n_epochs": 1}},
    "several": {"sizes": {"a": 18, "b": 31}},
}

QUICK = ("limit", "stream", "several")


def job(folder: Path) -> dict[str, Any]:
    return {"dir": str(folder), "name": "whole"}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    made = FakeCuda("all")
    monkeypatch.setitem(cuda.BACKENDS, "cpu", made)
    return made


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_training_and_resumes_are_those_without_copies_ahead(case: str, tmp_path: Path, fake: FakeCuda) -> None:
    base = {"dir": str(tmp_path), **CASES[case]}
    whole = {**base, "name": "whole", "save_every": 1}
    plain = {**base, "name": "plain", "save_every": 1}
    run_here(whole)
    assert len(fake.streams) > 1  # else nothing was copied ahead
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(cuda.BACKENDS, "cpu")
        run_here(plain)
    assert check_same_end(whole, plain, begins_at=0) >= 9
    checkpoints = checkpoints_of(whole)
    steps = [path for path in checkpoints if path.stem.startswith("step")]
    steps.sort(key=lambda path: int(path.stem.split("=")[1]))
    ends = [path for path in checkpoints if not path.stem.startswith("step")]
    for number, path in enumerate([steps[1], steps[len(steps) // 2], steps[-2], ends[0]]):
        resumed = resumed_job(whole, path, f"resumed-{number}")
        run_here(resumed)
        check_same_end(whole, resumed)


class Spy(jobs.Model):
    """Notes where its batches lie."""

    found: list[int]

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.found.append(batch["x"].data_ptr())
        return super().training_step(batch, batch_idx)


class After(lk.DataModule):
    seen: tuple[int, ...] = ()

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.seen = (*self.seen, batch["x"].data_ptr())
        return batch


class Before(lk.DataModule):
    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return {**batch, "x": batch["x"] * 2}


class Moves(jobs.Model):
    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return super().transfer_batch_to_device(batch, device, dataloader_idx)


def fit(model: jobs.Model, data: lk.DataModule) -> Any:
    trainer = jobs.make_trainer(model.job, max_epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(model, data)
    return trainer


def make_data(kind: type[lk.DataModule] = lk.DataModule, **config: Any) -> lk.DataModule:
    return kind(jobs.Samples(20), val=jobs.Samples(6), loader=lk.LoaderConfig(batch_size=4, **config))


def test_lightnings_own_transfer_finds_nothing_to_do(tmp_path: Path, fake: FakeCuda) -> None:
    model, data = Spy(job(tmp_path)), make_data(After)
    model.found = []
    fit(model, data)
    assert len(model.found) == 5
    assert set(model.found) <= fake.targets
    assert len(data.seen) >= 7
    assert set(data.seen) <= fake.targets
    assert "device: cpu (copied up to 2 ahead" in str(data.train_dataloader().describe())


def test_hooks_that_want_host_batches_get_them(tmp_path: Path, fake: FakeCuda) -> None:
    for model, data, who in (
        (jobs.Model(job(tmp_path)), make_data(Before), "Before overrides on_before_batch_transfer"),
        (Moves(job(tmp_path)), make_data(), "Moves overrides transfer_batch_to_device"),
        (jobs.Model(job(tmp_path)), make_data(device="cpu"), "the loader has device='cpu'"),
    ):
        trainer = fit(model, data)
        assert not fake.targets
        assert who in str(data.train_dataloader().describe())
        assert trainer.global_step == 5


def test_elsewhere_than_on_cuda_nothing_is_copied_ahead(tmp_path: Path) -> None:
    data = make_data()
    assert "(not ahead: there is no Trainer yet" in str(data.train_dataloader().describe())
    fit(jobs.Model(job(tmp_path)), data)
    assert "(not ahead: the Trainer's device is cpu" in str(data.train_dataloader().describe())
    assert data.train_dataloader().prefetcher is None
