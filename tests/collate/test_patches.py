"""Pictures as patches: none is padded, each pixel is in one patch, and a budget counts what they cost."""

import os
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import loaderkit as lk

SIDES = st.integers(1, 300)


def picture(height: int, width: int, channels: int = 3) -> torch.Tensor:
    numbers = torch.arange(channels * height * width) % 251
    return numbers.reshape(channels, height, width).to(torch.uint8)


@pytest.mark.parametrize("merge", [1, 2, 3])
@pytest.mark.parametrize("channels", [1, 3])
def test_patches_put_back_are_the_pictures(merge: int, channels: int) -> None:
    patches, unit = lk.Patches(size=4, merge=merge), 4 * merge
    values = [picture(unit * rows, unit * columns, channels) for rows, columns in ((1, 1), (3, 2), (2, 5))]
    found = patches(values)
    assert found["pictures"].tolist() == [1, 1, 1]
    at = 0
    for value, (rows, columns) in zip(values, found["grids"].tolist(), strict=True):
        mine = found["patches"][at : at + rows * columns]
        at += rows * columns
        blocks = mine.reshape(rows // merge, columns // merge, merge, merge, channels, 4, 4)
        assert torch.equal(blocks.permute(4, 0, 2, 5, 1, 3, 6).reshape(value.shape), value)
    assert at == len(found["patches"]) == sum(value[0].numel() for value in values) // 16


@given(SIDES, SIDES, st.sampled_from([1, 2]), st.sampled_from([None, 1, 7, 64]))
def test_a_picture_costs_what_it_becomes(height: int, width: int, merge: int, most: int | None) -> None:
    patches = lk.Patches(size=7, merge=merge, max_tokens=most)
    value = torch.zeros(1, height, width, dtype=torch.uint8)
    found = patches([value])
    assert patches.tokens(value) * merge**2 == len(found["patches"]) == int(found["grids"].prod())
    assert 1 <= patches.tokens(value) <= (most or 10**6)
    assert all(side % (7 * merge) == 0 for side in patches.fitting(height, width))


def test_a_budget_counts_pictures() -> None:
    rng, patches = np.random.default_rng(0), lk.Patches(size=14, merge=2)
    samples = [
        {
            "text": torch.arange(int(rng.integers(1, 30))),
            "image": [picture(*rng.integers(20, 120, 2).tolist()) for _ in range(rng.integers(0, 3))],
        }
        for _ in range(40)
    ]

    def cost(sample: dict[str, Any]) -> int:
        return len(sample["text"]) + patches.tokens(sample["image"])

    plan = lk.TokenBudget(lk.measure_lengths(samples, cost), max_tokens=160)
    collate = lk.MultimodalCollate({"text": lk.Pad(lengths=True), "image": patches})
    batches = list(lk.Loader(samples, plan=plan, collate_fn=collate, num_workers=2))
    assert len(batches) > 3
    tokens = [int(batch["text_lengths"].sum()) + len(batch["image"]["patches"]) // 4 for batch in batches]
    assert max(tokens) <= 160
    assert sum(tokens) == sum(map(cost, samples))
    for batch in batches:
        assert batch["image"]["pictures"].sum() == len(batch["image"]["grids"])


@pytest.mark.slow
def test_the_order_of_patches_is_that_of_qwen2_vl() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    theirs = pytest.importorskip("transformers.models.qwen2_vl.image_processing_qwen2_vl")
    processor = theirs.Qwen2VLImageProcessor(do_rescale=False, do_normalize=False, do_resize=False)
    values = [picture(56, 84), picture(28, 112)]
    wanted, ours = processor(values, return_tensors="pt"), lk.Patches(size=14, merge=2)(values)
    assert wanted["image_grid_thw"][:, 1:].tolist() == ours["grids"].tolist()
    pixels = wanted["pixel_values"].reshape(-1, 3, 2, 14 * 14)[:, :, 0].flatten(1)
    assert torch.equal(pixels, ours["patches"].to(pixels.dtype))
    for height, width in ((100, 300), (999, 1500), (57, 61), (4000, 90)):
        sized = theirs.smart_resize(height, width, 28, 1, 28 * 28 * 64)
        assert lk.Patches(size=14, merge=2, max_tokens=64).fitting(height, width) == sized


def test_no_pictures_make_empty_patches() -> None:
    found = lk.Patches(size=14)([[], []])
    assert (found["patches"].shape, found["grids"].shape) == ((0, 588), (0, 2))
    assert found["pictures"].tolist() == [0, 0]


def test_errors_name_what_was_found() -> None:
    for settings in ({"size": 0}, {"size": 4, "merge": 0}, {"size": 4, "max_tokens": 0}):
        with pytest.raises(ValueError, match="wanted at least 1 each"):
            lk.Patches(**settings)
    collate = lk.MultimodalCollate({"image": lk.Patches(size=4)})
    with pytest.raises(
        lk.CollateError, match=r"found a Tensor of shape \(8, 8\), wanted a picture .* \(in field 'image'\)"
    ):
        collate([{"image": picture(8, 8)}, {"image": picture(8, 8)[0]}])
    with pytest.raises(lk.CollateError, match=r"3 channels of torch\.uint8 and 1 of torch\.uint8"):
        collate([{"image": picture(8, 8)}, {"image": [picture(8, 8, 1)]}])
