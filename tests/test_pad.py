"""Padding equals the obvious slow way, and errors name the field and the samples."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import loaderkit as lk
from loaderkit.collate import CollateError
from loaderkit.collate.pad import pad_sequences

rules = st.builds(
    lk.Pad,
    value=st.sampled_from([0, -100, 7]),
    side=st.sampled_from(["right", "left"]),
    multiple_of=st.integers(1, 5),
    lengths=st.booleans(),
    mask=st.booleans(),
)
dtypes = st.sampled_from([torch.int64, torch.float32, torch.int16, torch.float16])
shapes = st.sampled_from([(), (2,), (0,), (3, 1)])


@st.composite
def sequences(draw: st.DrawFn) -> list[Tensor]:
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
    dtype, shape = draw(dtypes), draw(shapes)
    return [torch.arange(1, 1 + length * int(np.prod(shape))).reshape(length, *shape).to(dtype) for length in lengths]


def slowly(values: list[Tensor], rule: lk.Pad) -> dict[str, Tensor]:
    """Pad step by step."""
    longest = max(map(len, values))
    while longest % rule.multiple_of:
        longest += 1
    rows, masks = [], []
    for value in values:
        filler = torch.full(value.shape[1:], rule.value, dtype=value.dtype)
        steps, there = list(value), [True] * len(value)
        while len(steps) < longest:
            steps.insert(len(steps) if rule.side == "right" else 0, filler)
            there.insert(len(there) if rule.side == "right" else 0, False)
        rows.append(torch.stack(steps) if steps else value)
        masks.append(torch.tensor(there, dtype=torch.bool))
    return {
        "padded": torch.stack(rows),
        "lengths": torch.tensor([len(value) for value in values]),
        "mask": torch.stack(masks),
    }


def same(left: Tensor, right: Tensor) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(left, right)


@given(sequences(), rules)
def test_padding_equals_the_obvious_way_in_every_form_of_sample(values: list[Tensor], rule: lk.Pad) -> None:
    wanted = slowly(values, rule)
    extras = [name for name in ("lengths", "mask") if getattr(rule, name)]

    alone = lk.PadCollate(rule)(values)
    found = alone if extras else (alone,)
    assert len(found) == 1 + len(extras)
    assert all(map(same, found, [wanted["padded"], *(wanted[name] for name in extras)]))

    named = lk.PadCollate({"x": rule})([{"n": row, "x": value} for row, value in enumerate(values)])
    assert list(named) == ["n", "x", *(f"x_{name}" for name in extras)]
    assert same(named["x"], wanted["padded"])
    assert all(same(named[f"x_{name}"], wanted[name]) for name in extras)
    assert named["n"].tolist() == list(range(len(values)))

    placed = lk.PadCollate({1: rule})([(row, value) for row, value in enumerate(values)])
    assert len(placed) == 2 + len(extras)
    assert all(map(same, placed[1:], [wanted["padded"], *(wanted[name] for name in extras)]))


@given(sequences(), st.sampled_from(["right", "left"]))
def test_padding_is_undone_by_the_lengths(values: list[Tensor], side: Any) -> None:
    padded, lengths = pad_sequences(values, value=-1, side=side)
    assert len(padded) == len(values) > 0
    for row, length, value in zip(padded, lengths.tolist(), values, strict=True):
        assert same(row[:length] if side == "right" else row[len(row) - length :], value)


class Sample(NamedTuple):
    tokens: Any
    label: int


def test_fields_have_rules_of_their_own() -> None:
    collate = lk.PadCollate(
        {"tokens": lk.Pad(value=9, multiple_of=4, mask=True), "labels": lk.Pad(value=-100, side="left", lengths=True)}
    )
    batch = collate([{"tokens": [1, 2], "labels": np.array([1.0])}, {"tokens": (3,), "labels": np.array([2.0, 3.0])}])
    assert batch["tokens"].tolist() == [[1, 2, 9, 9], [3, 9, 9, 9]]
    assert batch["tokens_mask"].tolist() == [[True, True, False, False], [True, False, False, False]]
    assert batch["labels"].tolist() == [[-100.0, 1.0], [2.0, 3.0]]
    assert batch["labels_lengths"].tolist() == [1, 2]
    assert set(batch) == {"tokens", "labels", "tokens_mask", "labels_lengths"}


def test_a_namedtuples_fields_go_by_their_names() -> None:
    tokens, labels, lengths = lk.PadCollate({"tokens": lk.Pad(lengths=True)})([Sample([1], 5), Sample([2, 3], 6)])
    assert tokens.tolist() == [[1, 0], [2, 3]]
    assert labels.tolist() == [5, 6]
    assert lengths.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("samples", "message", "rows"),
    [
        ([{"x": torch.ones(2, 3)}, {"x": torch.ones(2, 4)}], r"'x' has shape after the first axis \(3,\) and", [0, 1]),
        ([{"x": torch.ones(2)}, {"x": torch.ones(2).int()}], "'x' has dtype torch.float32 and torch.int32", [0, 1]),
        ([{"x": torch.ones(2)}, {"x": torch.tensor(1)}], "'x' is a tensor without axes", [1]),
        ([{"x": torch.ones(2)}, {"x": 3}], "'x' is int, wanted a sequence", [1]),
        ([{"x": [1]}, {"x": [1]}, {"y": [1]}], "field 'x' is missing in a sample", [2]),
        ([{"x": [1], "y": torch.ones(1)}, {"x": [1], "y": torch.ones(2)}], "field 'y' has shapes", [0, 1]),
    ],
)
def test_sequences_that_do_not_fit_are_named(samples: list[Any], message: str, rows: list[int]) -> None:
    with pytest.raises(CollateError, match=message) as caught:
        lk.PadCollate({"x": lk.Pad()})(samples)
    assert list(caught.value.rows) == rows


@pytest.mark.parametrize("workers", [0, 2])
def test_the_samples_that_do_not_fit_are_named_by_their_indices(workers: int) -> None:
    data = [{"x": torch.ones(2, 4 if index == 5 else 3)} for index in range(8)]
    loader = lk.Loader(
        data, 3, order=lk.Subset([7, 6, 1, 2, 0, 5]), collate_fn=lk.PadCollate({"x": lk.Pad()}), num_workers=workers
    )
    with pytest.raises(CollateError, match=r"\(samples 2, 5\)"):
        list(loader)


def test_tuples_of_other_lengths_are_named() -> None:
    with pytest.raises(CollateError, match="field '1' is missing in a sample"):
        lk.PadCollate({0: lk.Pad()})([([1], 2), ([1],)])


def test_rules_for_fields_that_are_not_there_are_refused() -> None:
    with pytest.raises(KeyError, match=r"fields \['x'\], wanted \['y'\] too"):
        lk.PadCollate({"y": lk.Pad()})([{"x": [1]}])
    with pytest.raises(TypeError, match="the samples are Tensor; wanted dicts or tuples"):
        lk.PadCollate({"y": lk.Pad()})([torch.ones(2)])


def test_a_rule_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple_of is 0"):
        lk.Pad(multiple_of=0)
    with pytest.raises(ValueError, match="side is 'top'"):
        lk.Pad(side="top")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no sequences given"):
        pad_sequences([])
