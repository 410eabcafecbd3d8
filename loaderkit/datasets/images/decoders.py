"""Which library decodes JPEG. Pillow decodes everything else, whichever is chosen.

torchvision and torchcodec give the same pixels, so data that one of them decodes has one fingerprint. Pillow's may be of another
libjpeg, so it is a part of the fingerprint.
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
_OLDEST = (0, 16)  # torchcodec, with decoders of pictures
_INSTALL = "pip install 'torchcodec>=0.16'"


def check_decoder(owner: str, decoder: PictureDecoder | None) -> None:
    """Refuse a decoder that is not there.

    Raises:
        ValueError: If it has another name.
        ImportError: If it is not installed, or too old.
    """
    if decoder is not None and decoder not in get_args(PictureDecoder):
        raise ValueError(f"{owner}: decoder is {decoder!r}, wanted one of {get_args(PictureDecoder)}, or None.")
    if decoder == "torchcodec":
        jpeg_decoder(decoder)


def decoder_fingerprint(decoder: PictureDecoder | None) -> str:
    """Return what a decoder adds to a fingerprint: nothing, but for one whose pixels may be others."""
    return " by pillow" if decoder == "pillow" else ""


@cache
def jpeg_decoder(decoder: PictureDecoder | None) -> Callable[[bytes], Tensor] | None:
    """Return what decodes a JPEG upright to uint8 RGB (3, H, W); None if Pillow does.

    Without a name that is torchcodec if it is installed, else torchvision: its decoders are deprecated since 0.29.

    Raises:
        ImportError: If there is none. Pillow is never chosen in silence.
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
    """Return an operator of torchvision for pictures; None if it has none of this name."""
    # The operator itself: its Python function warns at each call since torchvision 0.29.
    try:
        import torchvision.io  # noqa: F401 - registers the operators
    except ImportError:
        return None
    operator = getattr(torch.ops.image, name, None)
    return getattr(operator, "default", None)  # skips the search for an overload at each call


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
    return lambda data: codecs.decode_jpeg(data, mode="RGB")
