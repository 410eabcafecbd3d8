"""Decode pictures to uint8 RGB pixels, with EXIF orientation applied, and encode pixels."""

import io
import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from loaderkit.datasets.images.checks import MAX_PIXELS, PNG, check_png, check_png_rows, check_size, jpeg_shape
from loaderkit.datasets.images.decoders import PictureDecoder, find_operator, jpeg_decoder
from loaderkit.datasets.images.exif import jpeg_orientation, upright
from loaderkit.system.threads import threads_of_a_read

if TYPE_CHECKING:
    from PIL import Image

_JPEG = b"\xff\xd8\xff"
_IGNORED = ("transparency",)  # Pillow would warn that converting to RGB drops it
# Not EXIF, but Pillow would take an orientation from these too.
_IGNORED_IN_PNG = (*_IGNORED, "XML:com.adobe.xmp", "xmp", "Raw profile type exif")
_NO_PICTURE = "not a picture that can be decoded"
_RGB = 3  # torchvision.io.ImageReadMode.RGB
_ORIENTATION, _TURNED = 0x0112, (5, 6, 7, 8)  # EXIF's tag, and its values that swap height and width
_FOR_A_THREAD = 8  # least pictures for another thread: waking it takes longer than decoding fewer


def decode_picture(
    data: bytes, *, max_pixels: int | None = MAX_PIXELS, decoder: PictureDecoder | None = None
) -> Tensor:
    """Decode a picture to a uint8 tensor (3, H, W).

    `decoder` decodes JPEG, and Pillow all other formats; of an animation, the first frame. Grey pictures get three
    equal channels, palettes and CMYK become RGB, and transparency is dropped. Channels of 16 bits keep their upper 8
    bits. EXIF orientation is applied.

    Args:
        data: The content of a file.
        max_pixels: Most pixels (width times height) of a picture; None for no limit. Pillow has a limit of its own,
            `PIL.Image.MAX_IMAGE_PIXELS`: above it Pillow warns, and above twice the limit it raises an error.
        decoder: "torchvision", "torchcodec" or "pillow". None: torchcodec if it is installed, else torchvision.

    Raises:
        ValueError: If no decoder can read the picture, or it is too large.
        ImportError: If the decoder that the picture needs is not installed.
    """
    if not data.startswith(_JPEG):
        return _decode_with_pillow(data, max_pixels)
    decode = jpeg_decoder(decoder)
    _check_jpeg(data, max_pixels)
    if decode is None:
        return _decode_with_pillow(data, max_pixels)
    try:
        return decode(data)
    except RuntimeError:
        return _decode_with_pillow(data, max_pixels)  # it reads more pictures, and has better error messages


def decode_pictures(
    contents: Sequence[memoryview], *, max_pixels: int | None = MAX_PIXELS, decoder: PictureDecoder | None = None
) -> list[Tensor]:
    """Decode pictures to uint8 tensors (3, H, W), in as many threads as torch may use; in a worker, in one.

    Args:
        contents: The encoded pictures.
        max_pixels: Most pixels (width times height) of a picture; None for no limit.
        decoder: The decoder of JPEG, as for `decode_picture`.

    Raises:
        ValueError: If no decoder can read one of the pictures, or it is too large.
    """
    decode_each = partial(_decode_each, max_pixels=max_pixels, decoder=decoder)
    threads = min(threads_of_a_read(), len(contents) // _FOR_A_THREAD)
    if threads < 2:
        return decode_each(contents)
    parts = [
        contents[len(contents) * part // threads : len(contents) * (part + 1) // threads] for part in range(threads)
    ]
    # Decoders draw no random numbers, and release the interpreter lock.
    decoded = _threads(os.getpid(), torch.get_num_threads() - 1).map(decode_each, parts[1:])
    return [*decode_each(parts[0]), *chain.from_iterable(decoded)]


def decode_pictures_on(
    contents: Sequence[bytes], device: torch.device, *, max_pixels: int | None = MAX_PIXELS
) -> list[Tensor]:
    """Decode pictures as `decode_picture` does, to uint8 tensors (3, H, W) on a device.

    On CUDA, nvJPEG decodes all JPEG pictures in one call (as `torchvision.io.decode_jpeg` does for a list). Its pixels
    may differ from the CPU's. The CPU decodes all other formats, and JPEG with four channels.

    Raises:
        ValueError: If a picture is too large, or no decoder can read it.
        RuntimeError: If torchvision is not installed, or has no nvJPEG.
    """
    if device.type != "cuda":
        views = [memoryview(content) for content in contents]
        return [pixels.to(device) for pixels in decode_pictures(views, max_pixels=max_pixels)]
    by_gpu = [content.startswith(_JPEG) and _check_jpeg(content, max_pixels) in (1, 3) for content in contents]
    encoded = [content for content, is_gpu in zip(contents, by_gpu, strict=True) if is_gpu]
    pictures = _decode_by_nvjpeg(encoded, device) if encoded else []
    upon = iter(map(upright, pictures, map(jpeg_orientation, encoded)))
    return [
        next(upon) if is_gpu else decode_picture(content, max_pixels=max_pixels).to(device)
        for content, is_gpu in zip(contents, by_gpu, strict=True)
    ]


def _decode_by_nvjpeg(contents: Sequence[bytes], device: torch.device) -> list[Tensor]:
    decode = find_operator("decode_jpegs_cuda")
    if decode is None:
        raise RuntimeError(
            "torchvision is missing or has no nvJPEG: install its build for CUDA (extra 'images'), or decode on the CPU."
        )
    tensors = [torch.frombuffer(bytearray(content), dtype=torch.uint8) for content in contents]
    pictures: list[Tensor] = decode(tensors, _RGB, device)
    return pictures


def _check_jpeg(data: bytes, max_pixels: int | None) -> int:
    """Return the number of channels of a JPEG; raise a ValueError if it has too many pixels, or no readable header."""
    try:
        width, height, channels = jpeg_shape(data)
        check_size(width, height, max_pixels)
    except ValueError as error:
        raise ValueError(f"{_NO_PICTURE}: {error}") from error
    return channels


def picture_size(
    file: BinaryIO, *, max_pixels: int | None = MAX_PIXELS, decoder: PictureDecoder | None = None
) -> tuple[int, int]:
    """Return the height and width of the picture that `decode_picture` returns, from the header alone.

    The EXIF orientation of a PNG is used only if it is stored before the pixels.

    Raises:
        ValueError: If Pillow does not know the picture, or it is too large.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "reading a picture's size needs Pillow: pip install '.[images]' in a checkout of loaderkit."
        ) from error
    try:
        with Image.open(file) as picture:
            width, height = picture.size
            check_size(width, height, max_pixels)
            is_png = picture.format == "PNG"
            if is_png or (picture.format == "JPEG" and decoder != "pillow"):
                for name in _IGNORED_IN_PNG:
                    picture.info.pop(name, None)
            # To look for EXIF after a PNG's pixels, Pillow would decode them. The size of a TIFF is turned already.
            looks = picture.format != "TIFF" and (not is_png or "exif" in picture.info)
            turned = looks and picture.getexif().get(_ORIENTATION) in _TURNED
    except MemoryError:  # not a fault of the file
        raise
    except Exception as error:  # Pillow's plugins raise errors of any kind
        raise ValueError(f"{_NO_PICTURE}: {error}") from error
    return (width, height) if turned else (height, width)


def _decode_each(
    contents: Sequence[memoryview], max_pixels: int | None, decoder: PictureDecoder | None
) -> list[Tensor]:
    return [decode_picture(bytes(content), max_pixels=max_pixels, decoder=decoder) for content in contents]


@cache
def _threads(process: int, count: int) -> ThreadPoolExecutor:
    """Return a pool of `count` threads for the process with id `process`: a fork can't use its parent's threads."""
    return ThreadPoolExecutor(count, thread_name_prefix=f"decode in {process}")


def _decode_with_pillow(data: bytes, max_pixels: int | None) -> Tensor:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ImportError("this picture needs Pillow: pip install '.[images]' in a checkout of loaderkit.") from error
    is_png = data.startswith(PNG)
    try:
        if is_png:
            check_png(data, max_pixels)
        with Image.open(io.BytesIO(data)) as picture:
            check_size(*picture.size, max_pixels)
            if picture.format == "EPS":
                raise ValueError("it is PostScript, a program that may never end")
            picture.load()
            if is_png and _may_lack_rows(picture):
                check_png_rows(data)
            for name in _IGNORED_IN_PNG if is_png else _IGNORED:
                picture.info.pop(name, None)
            ImageOps.exif_transpose(picture, in_place=True)
            if picture.mode == "F":
                raise ValueError("its pixels are floats, wanted 8 or 16 bits a channel")
            deep = picture.mode.startswith("I")
            pixels = np.array(picture if deep or picture.mode == "RGB" else picture.convert("RGB"))
    except MemoryError:  # not a fault of the file
        raise
    except Image.DecompressionBombError as error:
        raise ValueError(f"{error} That is Pillow's own limit: PIL.Image.MAX_IMAGE_PIXELS.") from error
    except Exception as error:  # Pillow's plugins raise errors of any kind
        raise ValueError(f"{_NO_PICTURE}: {error}") from error
    if deep:
        if pixels.size and not 0 <= pixels.min() <= pixels.max() < 1 << 16:
            raise ValueError(f"its pixels go from {pixels.min()} to {pixels.max()}, wanted 8 or 16 bits a channel")
        pixels = np.repeat((pixels >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
    return torch.from_numpy(pixels).permute(2, 0, 1)  # channels last in memory, as torchvision decodes


def open_with_pillow(data: bytes | memoryview) -> "Image.Image":
    """Return an encoded picture as a Pillow image, which is decoded when its pixels are used.

    Raises:
        ValueError: If it is PostScript.
        OSError: If Pillow does not know the format.
    """
    from PIL import Image

    picture = Image.open(io.BytesIO(data))
    if picture.format == "EPS":
        raise ValueError("it is PostScript, a program that may never end")
    return picture


def raw_to_pillow(data: memoryview) -> "Image.Image":
    """Return a Pillow image from raw bytes, as litdata and MDS write it.

    The bytes are the width, the height and the length of the mode's name (uint32 each), the name, and the pixels.
    """
    from PIL import Image

    width, height, length = struct.unpack_from("<3I", data)
    start = 12 + length
    return Image.frombytes(str(data[12:start], "utf-8"), (width, height), bytes(data[start:]))


def _may_lack_rows(picture: "Image.Image") -> bool:
    """Return whether a decoded PNG may lack rows, which Pillow leaves black: interlaced, or the last row is black."""
    width, height = picture.size
    return "interlace" in picture.info or not any(picture.crop((0, height - 1, width, height)).tobytes())


def is_picture(value: object) -> bool:
    """Return whether a value is a Pillow image, without importing Pillow."""
    return any(kind.__module__ == "PIL.Image" for kind in type(value).__mro__)


def encode_picture(value: Any, kind: str, quality: int) -> bytes:
    """Encode a Pillow image, or uint8 pixels (3, H, W), (H, W, 3) or (H, W).

    Args:
        value: The picture.
        kind: "png" or "jpeg".
        quality: JPEG quality, 1 to 100; not used for PNG.

    Raises:
        ValueError: If the value is not a picture, has no pixels, or has a mode that the format can't store.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "encoding a picture needs Pillow: pip install '.[images]' in a checkout of loaderkit."
        ) from error
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
