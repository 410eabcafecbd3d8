"""Small pictures, encoded."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from loaderkit.datasets.images.decoders import check_decoder


def need_picture_decoder(name: Any) -> None:
    """Import a decoder of JPEG; skip a test, with the reason, if it is missing."""
    try:
        check_decoder("the test", name)
    except ImportError as error:
        pytest.skip(str(error))


def picture(seed: int = 0, mode: str = "RGB", size: tuple[int, int] = (12, 9)) -> Image.Image:
    """A smooth picture, so that JPEG keeps it nearly."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (3, 3, 3), dtype=np.uint8))
    return coarse.resize(size, Image.Resampling.BILINEAR).convert(mode)


def encode(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pixels(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
