"""Epochs of different lengths under a Trainer, by plans and by skips; a checkpoint carries what is left out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datamodule_runs import Recorder, fit

import loaderkit as lk

SIZE, BATCH = 24, 4


class Skipping(lk.DataModule):
    def train_dataloader(self) -> Any:
        loader = super().train_dataloader()
        loader.skip(epoch=0, steps=range(3, 6))
        loader.skip(epoch=1, samples=range(2, 6))
        return loader


def data(kind: type[lk.DataModule]) -> lk.DataModule:
    train = lk.ArrayDataset(torch.arange(1.0, SIZE + 1).reshape(SIZE, 1))
    return kind(train=train, val=train, loader=lk.LoaderConfig(batch_size=BATCH, shuffle=True, seed=5))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[list[float]], list[Path]]:
    folder = tmp_path_factory.mktemp("whole")
    model = Recorder(lambda batch: batch, 1)
    fit(folder, model, data(Skipping), saving=True)
    saved = sorted((folder / "saved").glob("*.ckpt"), key=lambda path: int(path.stem.split("=")[1].split("-")[0]))
    return model.seen, saved


def test_each_epoch_has_all_samples_but_those_left_out(whole: tuple[list[list[float]], list[Path]]) -> None:
    """Epoch 1 has more steps than epoch 0: Lightning, which asks for the length once, does not cut it."""
    seen, _ = whole
    order = lk.Shuffled(SIZE, seed=5)
    wanted = [[1.0 + index for index in order.indices(epoch, 0, SIZE).tolist()] for epoch in (0, 1)]
    found = [sample for batch in seen for sample in batch]
    assert found == wanted[0][:12] + wanted[1][:2] + wanted[1][6:]
    assert [len(batch) for batch in seen] == [4] * 8


@pytest.mark.parametrize("kind", [Skipping, lk.DataModule])
@pytest.mark.parametrize("stop", [2, 3, 5])
def test_a_resumed_run_leaves_out_the_same(
    kind: type[lk.DataModule], stop: int, whole: tuple[list[list[float]], list[Path]], tmp_path: Path
) -> None:
    """Also if the new program does not call `skip`: the checkpoint says it."""
    seen, saved = whole
    content = torch.load(saved[stop - 1], weights_only=True)
    if kind is lk.DataModule:
        content["DataModule"] = content.pop("Skipping")
    torch.save(content, path := tmp_path / "last.ckpt")
    model = Recorder(lambda batch: batch, 1)
    fit(tmp_path, model, data(kind), ckpt=path)
    assert model.seen == seen[stop:]


def test_a_plan_whose_epochs_grow_is_not_cut(tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(1, 30, SIZE)
    plan = lk.TokenBudget(lengths, 30, window=8, seed=3)
    batches = [plan.batches(epoch) for epoch in (0, 1)]
    assert batches[0] < batches[1]  # else the law is vacuous
    train = lk.ArrayDataset(torch.arange(1.0, SIZE + 1).reshape(SIZE, 1))
    model = Recorder(lambda batch: batch, 1)
    fit(tmp_path, model, lk.DataModule(train=train, loader=lk.LoaderConfig(plan=plan)))
    assert len(model.seen) == sum(batches)
    assert sorted(sample for batch in model.seen for sample in batch) == sorted(2 * [*range(1, SIZE + 1)])


def test_a_bare_loader_warns_that_a_trainer_asks_once(tmp_path: Path) -> None:
    loader = lk.Loader(lk.ArrayDataset(torch.rand(SIZE, 1)), BATCH)
    loader.skip(epoch=0, steps=range(1, 2))
    with pytest.warns(UserWarning, match="steps are left out.*Use loaderkit.DataModule"):
        loader.sampler.set_epoch(0)
