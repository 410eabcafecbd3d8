"""Batches are on the host whatever `torch.set_default_device` says, with every engine. "meta" stands for "cuda"."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import loaderkit as lk
from loaderkit.system.stack import stack


@pytest.fixture
def elsewhere() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


class Own(torch.utils.data.Dataset[dict[str, Any]]):
    """Every leaf, and tensors that the dataset makes itself."""

    draws_nothing = True

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "integer": index,
            "float": 1.5,
            "mixed": index if index % 2 else 0.5,
            "bool": True,
            "complex": 1j,
            "numpy": np.float32(1),
            "array": np.ones(2),
            "own": torch.zeros(2),
            "empty": torch.zeros(0),
            "sparse": torch.ones(2).to_sparse(),
            "words": [1.0, 2.0],
        }


class Stream(lk.StreamDataset):
    def __init__(self) -> None:
        super().__init__(["a", "b"], read)


def read(shard: str, start: int) -> Iterator[dict[str, Any]]:
    return (Own()[index] for index in range(start, 4))


def devices(batch: Any) -> set[str]:
    if isinstance(batch, Tensor):
        return {batch.device.type}
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    return set().union(*map(devices, parts))


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"num_workers": 1, "engine": "ring"},
        {"num_workers": 1, "engine": "torch"},
        {"num_workers": 1, "engine": "threads"},
        {"num_workers": 1, "multiprocessing_context": "forkserver"},
    ],
    ids=str,
)
def test_a_batch_is_never_split_over_devices(engine: dict[str, Any]) -> None:
    batches = list(lk.Loader(Own(), 2, **engine))
    assert len(batches) == 2
    assert all(devices(batch) == {"cpu"} for batch in batches)
    assert torch.get_default_device().type == "meta"
    assert torch.zeros(1).is_meta  # the trainer's own tensors


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_is_never_split_over_devices(workers: int) -> None:
    batches = list(lk.Loader(Stream(), 2, num_workers=workers))
    assert len(batches) == 4
    assert all(devices(batch) == {"cpu"} for batch in batches)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    "collate",
    [
        stack,
        lk.PadCollate({"words": lk.Pad(lengths=True, mask="additive")}, sort_by="words"),
        lk.PadCollate({"words": lk.Pad(value=1, dims=(0,), multiple_of=4)}),
        lk.RaggedCollate(["words"], nested=False),
    ],
)
def test_collates_make_host_tensors_by_themselves(collate: Any) -> None:
    with torch.device("cpu"):
        samples = [Own()[index] for index in range(2)]
    for sample in samples:
        del sample["sparse"]
    assert devices(collate(samples)) == {"cpu"}


def test_a_loader_with_a_device_moves_there() -> None:
    with torch.device("meta"):
        (batch,) = lk.Loader([1.5, 2.5], 2, device="meta")
    assert batch.is_meta
