"""A transform on the device makes what the collate would have made."""

from typing import Any

import numpy as np
import pytest
import torch
from drawing import equal
from fake_cuda import FakeCuda
from torchvision.transforms import v2

import loaderkit as lk
from loaderkit.datasets import Ragged
from loaderkit.device import BACKENDS, prefetch


@pytest.fixture(params=["no streams", "fake"], autouse=True)
def _streams(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "fake":
        monkeypatch.setitem(BACKENDS, "cpu", FakeCuda("all"))


def on_device(batch: Any, transform: Any) -> Any:
    return next(prefetch([batch], "cpu", transform=transform))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_images_are_normalised(dtype: torch.dtype, channels_last: bool) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    images = torch.randint(0, 256, (4, 3, 5, 6), dtype=torch.uint8)
    batch = {"image": images, "label": torch.arange(4, dtype=torch.uint8), "flat": images[:, 0]}
    made = on_device(batch, lk.Normalize(mean, std, dtype=dtype, channels_last=channels_last))
    wanted = v2.functional.normalize(v2.functional.to_dtype(images, scale=True), list(mean), list(std))
    assert made["image"].dtype == dtype
    assert made["image"].is_contiguous(memory_format=torch.channels_last) == channels_last
    torch.testing.assert_close(made["image"].float(), wanted.to(dtype).float(), rtol=1e-2, atol=1e-2)
    if dtype == torch.float32:
        torch.testing.assert_close(made["image"], wanted)
    assert torch.equal(made["label"], batch["label"])
    assert torch.equal(made["flat"], batch["flat"])


def test_a_batch_without_images_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no uint8 tensor \(\*, 1, H, W\)"):
        on_device({"x": torch.ones(2, 1, 3, 3)}, lk.Normalize([0.5], [0.5]))
    for mean, std in (([0.5], [0.5, 0.5]), ([0.5], [0.0])):
        with pytest.raises(ValueError, match="wanted as many of each"):
            lk.Normalize(mean, std)


@pytest.mark.parametrize("dtype", [np.uint16, np.int64, np.float32])
@pytest.mark.parametrize("lengths", [[3, 1, 5, 2], [0, 4, 0], [0, 0]])
@pytest.mark.parametrize("multiple_of", [1, 4])
def test_padding_is_that_of_the_collate(dtype: Any, lengths: list[int], multiple_of: int) -> None:
    rows = [np.arange(length).astype(dtype) + 7 for length in lengths]
    samples = [{"tokens": torch.from_numpy(row), "label": number} for number, row in enumerate(rows)]
    pad = lk.Pad(value=9, multiple_of=multiple_of, lengths=True, mask=True)
    wanted = lk.PadCollate({"tokens": pad})(samples)
    joined = lk.RaggedCollate(["tokens"], nested=False)(samples)
    assert isinstance(joined["tokens"], Ragged)
    made = on_device(joined, lk.PadRagged(value=9, multiple_of=multiple_of, mask=True))
    assert {name: made[name].tolist() for name in wanted} == {name: wanted[name].tolist() for name in wanted}
    assert equal(made["tokens"], wanted["tokens"])
    wide = on_device(joined, lk.PadRagged(value=9, dtype=torch.int64, lengths=False))
    assert wide["tokens"].dtype == torch.int64
    assert "tokens_lengths" not in wide


def test_a_ragged_by_itself_and_rows_of_vectors() -> None:
    ragged = Ragged(torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 6]))
    padded, lengths, mask = on_device(ragged, lk.PadRagged(value=-1, mask=True))
    assert padded.shape == (2, 5, 2)
    assert torch.equal(padded[1], ragged.values[1:])
    assert padded[0, 1:].eq(-1).all()
    assert (lengths.tolist(), mask.sum(1).tolist()) == ([1, 5], [1, 5])
    assert on_device(ragged, lk.PadRagged(lengths=False)).shape == (2, 5, 2)
    with pytest.raises(ValueError, match=r"no Ragged \(found \['x'\]\)"):
        on_device({"x": torch.ones(2)}, lk.PadRagged())
    with pytest.raises(ValueError, match="multiple_of is 0"):
        lk.PadRagged(multiple_of=0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_tokens_become_what_an_embedding_takes(dtype: torch.dtype) -> None:
    tokens = torch.tensor([[0, 1, 40_000], [65_535, 7, 8]])
    batch = {
        "short": tokens.to(torch.uint16),
        "rows": lk.Ragged(tokens.flatten().to(torch.uint32), torch.tensor([0, 2, 6])),
        "image": torch.ones(2, dtype=torch.uint8),
        "weights": torch.ones(2),
        "name": "a",
    }
    made = on_device(batch, lk.WidenTokens(dtype))
    assert equal([made["short"], made["rows"].values], [tokens.to(dtype), tokens.flatten().to(dtype)])
    assert all(equal(made[name], batch[name]) for name in ("image", "weights", "name"))
    assert equal(made["rows"].offsets, batch["rows"].offsets)
    assert torch.nn.Embedding(65_536, 2)(made["short"]).shape == (2, 3, 2)
    assert equal(on_device(batch["short"], lk.WidenTokens(dtype)), tokens.to(dtype))


def test_random_transforms_of_torchvision_resume() -> None:
    """They draw from the global generators, once for each batch."""
    data = lk.ArrayDataset({"image": torch.randint(0, 256, (24, 3, 16, 16), dtype=torch.uint8)})
    flip = v2.Compose([v2.RandomResizedCrop(8), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])

    def make() -> lk.DeviceLoader:
        return lk.DeviceLoader(lk.Loader(data, 4, shuffle=True), "cpu", transform=flip)

    lk.testing.assert_resumable(make, stops=[1, 4, 7], consumers=["trainer"], ids=lambda batch: [])
    lk.testing.assert_generators_untouched(make)
