"""A transform on the device makes what the collate would have made."""

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from drawing import equal
from fake_cuda import FakeCuda
from images_made import encode, picture
from PIL import Image
from torchvision.transforms import v2

import loaderkit as lk
from loaderkit.datasets.images.decode import decode_picture
from loaderkit.datasets.ragged import Ragged
from loaderkit.device.cuda import BACKENDS
from loaderkit.device.prefetch import prefetch


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


def jpegs(count: int = 5) -> list[bytes]:
    return [encode(picture(seed, size=(20 + 4 * seed, 30 - 3 * seed)), "JPEG") for seed in range(count)]


def test_pictures_are_decoded_where_the_batch_is() -> None:
    files = [*jpegs(), encode(picture(9), "PNG"), encode(picture(8, "CMYK"), "JPEG")]
    loader = lk.Loader(lk.RecordDataset([{"jpg": file, "y": row} for row, file in enumerate(files)]), 4, shuffle=True)
    for pad in (False, True):
        decode = pickle.loads(pickle.dumps(lk.DecodePictures("jpg", device="cpu", pad=pad)))
        batches = list(lk.DeviceLoader(loader, "cpu", transform=decode))
        assert sorted(row for batch in batches for row in batch["y"].tolist()) == list(range(7))
        for batch in batches:
            for place, row in enumerate(batch["y"].tolist()):
                wanted, found = decode_picture(files[row]), batch["jpg"][place]
                if pad:
                    height, width = batch["jpg_sizes"][place].tolist()
                    assert not found[:, height:].any()
                    assert not found[:, :, width:].any()
                    found = found[:, :height, :width]
                assert torch.equal(found, wanted)


@pytest.mark.parametrize("orientation", [None, *range(10)])
@pytest.mark.parametrize("order", ["II", "MM"])
def test_pictures_by_nvjpeg_are_set_upright(
    orientation: int | None, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ignores EXIF; here the CPU decodes in its place."""
    exif = Image.Exif()
    exif.endian = {"II": "<", "MM": ">"}[order]
    exif[0x0110] = "a camera"
    if orientation is not None:
        exif[0x0112] = orientation
    files = [*jpegs(2), encode(picture(7), "JPEG", exif=exif), encode(picture(3, "L"), "JPEG", exif=exif)]

    def decode(contents: list[torch.Tensor], mode: int, device: torch.device) -> list[torch.Tensor]:
        assert (mode, device) == (3, torch.device("cuda:1"))
        return [torch.ops.image.decode_jpeg(content, mode, False) for content in contents]

    monkeypatch.setattr(torch.ops.image, "decode_jpegs_cuda", SimpleNamespace(default=decode))
    found = lk.DecodePictures("jpg", device="cuda:1")({"jpg": files, "y": 1})
    assert found["y"] == 1
    assert all(map(torch.equal, found["jpg"], map(decode_picture, files)))


def test_what_cannot_be_decoded_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = lk.DecodePictures("jpg", device="cpu", max_pixels=20 * 30)
    for batch, found in (({"png": [b""]}, r"\['png'\]"), ({"jpg": torch.ones(2)}, r"\['jpg'\]"), ([b""], "list")):
        with pytest.raises(ValueError, match=rf"no list of bytes 'jpg' \(found {found}\)"):
            on_device(batch, decode)
    monkeypatch.setattr(torch.ops.image, "decode_jpegs_cuda", None)
    for device in ("cpu", "cuda"):
        decode = lk.DecodePictures("jpg", device=device, max_pixels=20 * 30)
        with pytest.raises(ValueError, match="claims 24 x 27 pixels, wanted at most max_pixels=600"):
            decode({"jpg": jpegs()})
        with pytest.raises(ValueError, match="not a picture that can be decoded"):
            decode({"jpg": [jpegs()[0][:30]]})
    with pytest.raises(RuntimeError, match="torchvision is missing or has no nvJPEG"):
        lk.DecodePictures("jpg", device="cuda")({"jpg": jpegs()})
    with pytest.raises(ValueError, match="DecodePictures: max_pixels is 0"):
        lk.DecodePictures("jpg", max_pixels=0)


def test_random_transforms_of_torchvision_resume() -> None:
    """They draw from the global generators, once for each batch."""
    data = lk.ArrayDataset({"image": torch.randint(0, 256, (24, 3, 16, 16), dtype=torch.uint8)})
    flip = v2.Compose([v2.RandomResizedCrop(8), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])

    def make() -> lk.DeviceLoader:
        return lk.DeviceLoader(lk.Loader(data, 4, shuffle=True), "cpu", transform=flip)

    lk.testing.assert_resumable(make, stops=[1, 4, 7], consumers=["trainer"], ids=lambda batch: [])
    lk.testing.assert_generators_untouched(make)
