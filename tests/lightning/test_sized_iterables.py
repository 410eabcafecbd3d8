"""An IterableDataset with a length, as torch's documentation writes it, resumes exactly under a Trainer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data as torch_data
from datamodule_runs import EPOCHS, Recorder, fit

import loaderkit as lk

SIZE, BATCHES = 11, 3


class Sized(torch_data.IterableDataset[Any]):
    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.at = getattr(self, "start", 0)
        self.start = 0
        while self.at < SIZE:
            self.at += 1
            yield torch.tensor([self.at, float(torch.rand(()))])


class Stateful(Sized):
    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["at"]


@pytest.mark.parametrize("kind", [Sized, Stateful])
def test_a_stop_anywhere_resumes_exactly(kind: Any, tmp_path: Path) -> None:
    def make() -> tuple[Recorder, lk.DataModule]:
        return Recorder(lambda batch: batch, 2), lk.DataModule(train=kind(), loader=lk.LoaderConfig(batch_size=4))

    whole, data = make()
    fit(tmp_path, whole, data, saving=True)
    assert len(whole.seen) == EPOCHS * BATCHES
    assert [len(batch) for batch in whole.seen] == [4, 4, 3] * EPOCHS
    for stop in range(1, EPOCHS * BATCHES):
        model, data = make()
        fit(tmp_path, model, data, ckpt=tmp_path / "saved" / f"step={stop}.ckpt")
        assert model.seen == whole.seen[stop:], stop
