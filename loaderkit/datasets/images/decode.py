"""Encoded pictures to pixels, always upright uint8 RGB, and back."""

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loaderkit.system.threads import threads_of_a_read

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_RGB = 3  # torchvision.io.ImageReadMode.RGB
_FOR_A_THREAD = 8  # pictures; waking a thread takes longer than decoding fewer


def decode_picture(data: bytes) -> Tensor:
    """Decode a picture to a uint8 tensor (3, H, W).

    torchvision reads JPEG and PNG if it has these decoders. Pillow reads everything else, and the first frame of
    animations. Grey pictures get three equal channels, palettes and CMYK become RGB, and transparency is dropped. Channels
    of 16 bits keep their upper 8. EXIF orientation is applied.

    Raises:
        ValueError: If no decoder can read the picture.
    """
    decode = _torchvision_decoder(data)
    if decode is not None:
        try:
            pixels: Tensor = decode(torch.frombuffer(bytearray(data), dtype=torch.uint8), _RGB, True)
        except RuntimeError:
            return _decode_with_pillow(data)  # reads more pictures, and has better messages
        return pixels if pixels.dtype == torch.uint8 else (pixels.to(torch.int32) >> 8).to(torch.uint8)
    return _decode_with_pillow(data)


def decode_pictures(contents: Sequence[memoryview]) -> list[Tensor]:
    """Decode pictures in as many threads as torch may use; a worker process or thread uses one.

    Args:
        contents: The encoded pictures.

    Raises:
        ValueError: If no decoder can read one of the pictures.
    """
    threads = min(threads_of_a_read(), len(contents) // _FOR_A_THREAD)
    if threads < 2:
        return _decode_each(contents)
    parts = [
        contents[len(contents) * part // threads : len(contents) * (part + 1) // threads] for part in range(threads)
    ]
    # Decoders draw no random numbers, and release the interpreter lock.
    decoded = _threads(os.getpid(), torch.get_num_threads() - 1).map(_decode_each, parts[1:])
    return [*_decode_each(parts[0]), *chain.from_iterable(decoded)]


def _decode_each(contents: Sequence[memoryview]) -> list[Tensor]:
    return [decode_picture(bytes(content)) for content in contents]


@cache
def _threads(process: int, count: int) -> ThreadPoolExecutor:
    """Return the threads of a process; a forked process cannot use those of its parent."""
    return ThreadPoolExecutor(count, thread_name_prefix=f"decode in {process}")


def _torchvision_decoder(data: bytes) -> Any:
    if data.startswith(_JPEG):
        return _torchvision_operator("decode_jpeg")
    return _torchvision_operator("decode_png") if data.startswith(_PNG) else None


@cache
def _torchvision_operator(name: str) -> Any:
    # The operator itself: its Python function warns at each call since torchvision 0.29.
    try:
        import torchvision.io  # noqa: F401 - registers the operators
    except ImportError:
        return None
    operator = getattr(torch.ops.image, name, None)
    return getattr(operator, "default", None)  # skips the search for an overload at each call


def _decode_with_pillow(data: bytes) -> Tensor:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError("this picture needs Pillow: pip install 'loaderkit[images]'.") from error
    try:
        with Image.open(io.BytesIO(data)) as picture:
            upright = ImageOps.exif_transpose(picture)
            if upright.mode == "F":
                raise ValueError("its pixels are floats, wanted 8 or 16 bits a channel")
            deep = upright.mode.startswith("I")
            pixels = np.array(upright if deep else upright.convert("RGB"))
    except Image.DecompressionBombError as error:
        raise ValueError(f"Pillow refuses it as a decompression bomb: {error}") from error
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError) as error:  # what Pillow's plugins raise
        raise ValueError(f"not a picture that can be decoded: {error}") from error
    if deep:
        if pixels.size and not 0 <= pixels.min() <= pixels.max() < 1 << 16:
            raise ValueError(f"its pixels go from {pixels.min()} to {pixels.max()}, wanted 8 or 16 bits a channel")
        pixels = np.repeat((pixels >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
    return torch.from_numpy(pixels).permute(2, 0, 1)  # channels last in memory, as torchvision decodes


def is_picture(value: Any) -> bool:
    """Return whether a value is a Pillow picture, without importing Pillow."""
    return any(kind.__module__ == "PIL.Image" for kind in type(value).__mro__)


def encode_picture(value: Any, kind: str, quality: int) -> bytes:
    """Encode a Pillow picture, or uint8 pixels (3, H, W), (H, W, 3) or (H, W).

    Args:
        value: The picture.
        kind: "png" or "jpeg".
        quality: JPEG quality, 1 to 100.

    Raises:
        ValueError: If the value is not a picture.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("encoding a picture needs Pillow: pip install 'loaderkit[images]'.") from error
    picture = value
    if not is_picture(value):
        pixels = np.asarray(value)
        if pixels.ndim == 3 and pixels.shape[0] == 3:
            pixels = pixels.transpose(1, 2, 0)
        if pixels.dtype != np.uint8 or not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)):
            raise ValueError(
                f"{pixels.dtype} of shape {tuple(np.shape(value))} is no picture, wanted uint8 (3, H, W), (H, W, 3) or (H, W)"
            )
        if not pixels.size:
            raise ValueError(f"a picture of shape {tuple(np.shape(value))} has no pixels")
        picture = Image.fromarray(np.ascontiguousarray(pixels))
    file = io.BytesIO()
    try:
        picture.save(file, kind, quality=quality) if kind == "jpeg" else picture.save(file, kind)
    except OSError as error:
        raise ValueError(f"can't be encoded as {kind}: {error}") from error
    return file.getvalue()
