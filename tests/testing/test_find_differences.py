"""The laws' parts: differences between batches, ids of samples, private generators of datasets."""

import dataclasses
import functools
import random
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from toy import Numbered

from loaderkit.testing import (
    LawError,
    assert_no_private_generators,
    find_difference,
    find_private_generators,
    sample_ids,
)

Pair = namedtuple("Pair", "x index")  # noqa: PYI024


@dataclasses.dataclass
class Batch:
    idx: torch.Tensor


@pytest.mark.parametrize(
    ("batch", "wanted"),
    [
        (3, [3]),
        ("a", ["a"]),
        ([3, "a"], [3, "a"]),
        (torch.tensor([3, 4]), [3, 4]),
        (np.array(["a", "b"]), ["a", "b"]),
        ({"x": torch.rand(2), "index": torch.tensor([3, 4])}, [3, 4]),
        (Pair(x=torch.rand(2), index=np.array([3, 4])), [3, 4]),
        (Batch(idx=torch.tensor([3, 4])), [3, 4]),
    ],
)
def test_sample_ids_are_found_in_plain_batches(batch: Any, wanted: list[Any]) -> None:
    assert sample_ids(batch) == wanted


@pytest.mark.parametrize("batch", [torch.rand(3), (torch.rand(3), torch.tensor([1, 2, 3])), {"x": 1}, None])
def test_sample_ids_are_not_guessed(batch: Any) -> None:
    with pytest.raises(TypeError, match=r"cannot tell which samples .* give ids="):
        sample_ids(batch)


class Box:
    def __init__(self, x: Any) -> None:
        self.x = x


VALUES: list[Any] = [
    torch.tensor([1.0, float("nan")]),
    torch.tensor([1.0, 2.0]),
    torch.tensor([1.0, 2.0], dtype=torch.float64),
    torch.tensor([[1.0, 2.0]]),
    torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
    torch.tensor(0.0),
    torch.tensor(-0.0),
    torch.tensor([], dtype=torch.int64),
    torch.tensor([1.0, 0.0, 2.0]).to_sparse(),
    np.array([1.0, 2.0]),
    np.array([1, "a", None], dtype=object),
    np.array(["a", "b"]),
    {"a": 1, "b": [1, 2]},
    {"b": [1, 2], "a": 1},
    {"a": 1, "b": [1, 3]},
    (1, 2),
    [1, 2],
    [1, 2, 3],
    Pair(1, torch.tensor(2)),
    Batch(torch.tensor([1])),
    Batch(torch.tensor([2])),
    Box(torch.tensor([1])),
    Box(torch.tensor([2])),
    float("nan"),
    1.0,
    1,
    True,
    "a",
    None,
]


def test_a_difference_is_found_if_and_only_if_there_is_one() -> None:
    for i, wanted in enumerate(VALUES):
        for j, got in enumerate(VALUES):
            assert (find_difference(wanted, got) is None) == (i == j), (wanted, got)
            assert (find_difference({"deep": [wanted]}, {"deep": [got]}) is None) == (i == j)


def test_a_difference_names_its_place() -> None:
    a, b = ({"x": [np.zeros(1), torch.zeros(2, 3)]} for _ in range(2))
    b["x"][1][1, 2] = 7
    assert find_difference(a, b) == "batch['x'][1][1, 2] is 7.0, wanted 0.0"
    assert find_difference(torch.zeros(2), torch.zeros(3)) == "batch is float32 (3,), wanted float32 (2,)"
    assert find_difference(Box(1), Box(2), "it") == "it.x is 2, wanted 1"


class Slotted:
    __slots__ = ("rng",)

    def __init__(self) -> None:
        self.rng = random.Random(0)


class TestPrivateGenerators:
    @pytest.mark.parametrize(
        ("hide", "path"),
        [
            (lambda: {"rng": np.random.default_rng(0)}, "dataset['rng']"),
            (lambda: [0, Box(torch.Generator())], "dataset[1].x"),
            (lambda: Box(functools.partial(max, np.random.RandomState(0))), "dataset.x.args[0]"),
            (lambda: Box(Slotted()), "dataset.x.rng"),
            (lambda: _closure(np.random.default_rng(0)), "dataset.<rng>"),
            (lambda: Box(random.Random(0).random), "dataset.x.__self__"),
        ],
    )
    def test_one_is_found_by_its_path(self, hide: Any, path: str) -> None:
        found = find_private_generators(hide())
        assert found == [path]

    def test_global_generators_and_plain_objects_do_not_count(self) -> None:
        box = Box([np.zeros(3), torch.zeros(3), torch.default_generator, np.random.rand, random.random, {"a": print}])
        box.x.append(box)  # a cycle
        assert find_private_generators(box) == []
        assert find_private_generators(torch.nn.Dropout()) == []
        assert_no_private_generators(Numbered(3))

    def test_the_error_names_the_path_and_the_way_out(self) -> None:
        with pytest.raises(
            LawError, match=r"dataset\.x is a random generator that the dataset keeps: .*sample_rng\(\)"
        ):
            assert_no_private_generators(Box(np.random.default_rng(0)))


def _closure(rng: np.random.Generator) -> Any:
    return lambda index: rng.random() + index
