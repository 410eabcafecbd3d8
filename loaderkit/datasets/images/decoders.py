"""Choose the library that decodes JPEG. Pillow always decodes the other formats.

torchvision and torchcodec give the same pixels, so the choice between them does not change a fingerprint. Pillow may
use another libjpeg, with other pixels, so the fingerprint says if Pillow is chosen.
"""

import contextlib
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Literal, get_args

import torch
from torch import Tensor

PictureDecoder = Literal["torchvision", "torchcodec", "pillow"]

_RGB = 3  # torchvision.io.ImageReadMode.RGB
_OLDEST = (0, 16)  # first torchcodec with decoders of pictures
_INSTALL = "pip install 'torchcodec>=0.16'"


def check_decoder(owner: str, decoder: PictureDecoder | None) -> None:
    """Check the name of a decoder, and that torchcodec is installed if it is chosen.

    Raises:
        ValueError: If the name is not one of `PictureDecoder`.
        ImportError: If torchcodec is chosen, and is not installed or too old.
    """
    if decoder is not None and decoder not in get_args(PictureDecoder):
        raise ValueError(f"{owner}: decoder is {decoder!r}, wanted one of {get_args(PictureDecoder)}, or None.")
    if decoder == "torchcodec":
        jpeg_decoder(decoder)


def decoder_fingerprint(decoder: PictureDecoder | None) -> str:
    """Return the text that a decoder adds to a fingerprint: "" unless it is Pillow, whose pixels may differ."""
    return " by pillow" if decoder == "pillow" else ""


@cache
def jpeg_decoder(decoder: PictureDecoder | None) -> Callable[[bytes], Tensor] | None:
    """Return a function that decodes a JPEG to uint8 RGB (3, H, W) with EXIF orientation applied; None for Pillow.

    `decoder=None` takes torchcodec if it is installed, else torchvision, whose decoders are deprecated since 0.29.

    Raises:
        ImportError: If the decoder is not installed. Pillow is never used unless it is named.
    """
    if decoder == "pillow":
        return None
    if decoder == "torchcodec":
        return _by_torchcodec()
    if decoder is None:
        with contextlib.suppress(ImportError):
            return _by_torchcodec()
    if (decode := find_operator("decode_jpeg")) is None:
        what = "decoder='torchvision'" if decoder else "neither torchcodec nor torchvision decodes JPEG here"
        raise ImportError(
            f"{what}: torchvision has no operator for JPEG. {_INSTALL}, and give decoder='torchcodec', which makes the same pixels; or "
            "give decoder='pillow', whose pixels may be others."
        )
    return lambda data: decode(torch.frombuffer(bytearray(data), dtype=torch.uint8), _RGB, True)


def find_operator(name: str) -> Any:
    """Return a torchvision operator for pictures.

    Return None if torchvision is not installed or has no operator of this name.
    """
    # The operator itself, as torchvision's Python function for it warns at each call since 0.29.
    try:
        import torchvision.io  # noqa: F401 - registers the operators
    except ImportError:
        return None
    operator = getattr(torch.ops.image, name, None)
    return getattr(operator, "default", None)  # the overload itself, which torch else searches for at each call


def _by_torchcodec() -> Callable[[bytes], Tensor]:
    ways = f"{_INSTALL}, or give decoder='torchvision', which makes the same pixels."
    try:
        codecs: Any = import_module("torchcodec.decoders")
    except (ImportError, OSError, RuntimeError) as error:
        raise ImportError(f"decoder='torchcodec' needs torchcodec: {ways}") from error
    if not hasattr(codecs, "decode_jpeg"):
        version = import_module("torchcodec").__version__
        raise ImportError(
            f"decoder='torchcodec' found torchcodec {version}, wanted {_OLDEST[0]}.{_OLDEST[1]} or later: {ways}"
        )
    # A tensor: for bytes, torchcodec 0.17 changes the filters of warnings at each call, which is slow and not safe in threads.
    return lambda data: codecs.decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode="RGB")
