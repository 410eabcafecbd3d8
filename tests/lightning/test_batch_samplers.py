"""A batch sampler makes the training's batches alone; an evaluation delivers each sample once."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from datamodule_runs import Recorder, fit
from lightning_runs import quiet_trainer
from torch.utils.data import BatchSampler, RandomSampler

import loaderkit as lk

SIZE = 16
DATA = torch.arange(float(SIZE)).reshape(SIZE, 1).repeat(1, 2)


class Budget:
    """Batches of two sizes in a random order. Like PyG's DynamicBatchSampler it has a `__len__` that raises."""

    def __init__(self, error: type[Exception] = ValueError) -> None:
        self.error = error

    def __iter__(self) -> Iterator[list[int]]:
        indices = torch.randperm(SIZE).tolist()
        while indices:
            size = 3 if len(indices) % 2 else 1
            yield indices[:size]
            indices = indices[size:]

    def __len__(self) -> int:
        raise self.error("the length is undefined")


def torch_sampler() -> Any:
    return BatchSampler(RandomSampler(range(SIZE)), 6, drop_last=False)


class Evaluated(Recorder):
    def __init__(self) -> None:
        super().__init__(lambda batch: batch, 2)
        self.evaluated: list[float] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if not self.trainer.sanity_checking:
            self.evaluated += batch[:, 0].tolist()


@pytest.mark.parametrize("make", [torch_sampler, Budget])
@pytest.mark.parametrize("shuffle", [None, False])
@pytest.mark.parametrize("val", [1, 5, SIZE, 40])
def test_training_has_its_batches_and_an_evaluation_each_sample(make: Any, shuffle: bool | None, val: int) -> None:
    data = lk.DataModule(
        DATA,
        val=torch.arange(val),
        test=torch.arange(val),
        predict=torch.arange(val),
        loader=lk.LoaderConfig(batch_sampler=make(), shuffle=shuffle, seed=1),
    )
    data.setup("fit")
    train = data.train_dataloader()
    wanted = lk.Loader(DATA, batch_sampler=make(), seed=1)
    for _ in range(2):
        batches, alone = list(train), list(wanted)
        assert len(train) == len(alone)
        assert all(map(torch.equal, batches, alone))
        assert sorted(torch.cat(batches)[:, 0].tolist()) == list(range(SIZE))
    for stage in ("val", "test", "predict"):
        found = list(getattr(data, f"{stage}_dataloader")())
        assert torch.cat(found).tolist() == list(range(val))
        assert len(found[0]) == min(val, 6 if make is torch_sampler else 1)


@pytest.mark.parametrize("error", [TypeError, NotImplementedError, ValueError, RuntimeError])
def test_a_sampler_whose_length_raises_has_none(error: type[Exception]) -> None:
    loader = lk.Loader(DATA, batch_sampler=Budget(error))
    assert sum(map(len, loader)) == SIZE
    data = lk.DataModule(DATA, loader=lk.LoaderConfig(batch_sampler=Budget(error)))
    assert sum(map(len, data.train_dataloader())) == SIZE


def test_batch_size_is_that_of_an_evaluation() -> None:
    config = lk.LoaderConfig(batch_sampler=torch_sampler(), batch_size=5)
    data = lk.DataModule(DATA, val=DATA, loader=config)
    assert [len(batch) for batch in data.val_dataloader()] == [5, 5, 5, 1]
    assert [len(batch) for batch in data.train_dataloader()] == [6, 6, 4]
    own = lk.DataModule(DATA, val=DATA, loader=config, eval_loader=lk.LoaderConfig(batch_sampler=[[1, 2], [3]]))
    assert [batch[:, 0].tolist() for batch in own.val_dataloader()] == [[1, 2], [3]]
    for wrong in (5, None):
        with pytest.raises(ValueError, match=rf"batch_sampler= makes the batches alone. Leave out batch_size={wrong}"):
            lk.Loader(DATA, wrong, batch_sampler=torch_sampler())


@pytest.mark.parametrize("settings", [{"shuffle": True}, {"order": [1, 2]}, {"plan": lk.LengthBuckets([1] * SIZE, 2)}])
def test_what_contradicts_a_batch_sampler_is_named(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"batch_sampler= makes the batches alone. Leave out {next(iter(settings))}="):
        lk.LoaderConfig(batch_sampler=torch_sampler(), **settings)


@pytest.mark.parametrize("make", [torch_sampler, Budget])
def test_a_trainer_resumes_inside_an_epoch_and_evaluates_each_sample(make: Any, tmp_path: Path) -> None:
    def module() -> lk.DataModule:
        return lk.DataModule(DATA, val=DATA, loader=lk.LoaderConfig(batch_sampler=make(), seed=1))

    whole = Evaluated()
    fit(tmp_path / "whole", whole, module(), saving=True)
    assert whole.evaluated == 2 * list(range(SIZE))
    saved = sorted((tmp_path / "whole").rglob("*.ckpt"))
    assert saved
    for path in saved[:: max(1, len(saved) // 3)]:
        again = Evaluated()
        fit(tmp_path / path.stem, again, module(), ckpt=path)
        step = torch.load(path, weights_only=True)["global_step"]
        assert again.seen == whole.seen[step:]


def test_overfitting_reads_the_same_batches_each_epoch(tmp_path: Path) -> None:
    model = Evaluated()
    data = lk.DataModule(DATA, val=DATA, loader=lk.LoaderConfig(batch_sampler=torch_sampler()))
    running = quiet_trainer(tmp_path, max_epochs=2, overfit_batches=2, enable_checkpointing=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's, about itself
        running.fit(model, datamodule=data)
    assert len(model.seen[0]) == 6
    assert model.seen[:2] * (len(model.seen) // 2) == model.seen
