"""What a type checker knows of batches and samples: mypy reads this file, and the tests run it."""

from typing import Any, assert_type

import torch
from torch import Tensor

import loaderkit as lk

NUMBERS = torch.arange(6.0)


def half(sample: Tensor) -> float:
    return float(sample) / 2


def joined(samples: list[Any]) -> str:
    return ",".join(map(str, samples))


def test_a_loader_knows_what_its_collate_makes() -> None:
    loader = lk.Loader(NUMBERS, 4, collate_fn=joined)
    for batch in loader:
        assert_type(batch, str)
    padded = lk.Loader([[1], [2, 3]], 2, collate_fn=lk.PadCollate[Tensor]())
    for rows in padded:
        assert_type(rows, Tensor)
    assert rows.shape == (2, 2)


def test_a_dataset_of_datasets_has_their_samples() -> None:
    data = lk.ArrayDataset(NUMBERS, transform=half)
    assert_type(data[1], float)
    assert_type(lk.SubsetDataset(data, [3])[0], float)
    assert_type(lk.ConcatDataset([data, data])[0], float)
    assert_type(lk.MapDataset(data, str)[0], str)
    assert lk.MapDataset(data, str)[5] == "2.5"


def test_a_split_has_the_parts_that_it_is_annotated_with() -> None:
    data = lk.ArrayDataset(NUMBERS, transform=half)
    parts: lk.Split[lk.SubsetDataset[float]] = lk.split(data, {"train": 0.5, "val": 0.5})
    assert_type(parts["train"], lk.SubsetDataset[float])
    assert sum(map(len, parts.values())) == 6
