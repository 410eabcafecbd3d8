"""Read the files that rows name. A field may hold a path below a root, a URL, the bytes, or a decoded picture."""

import base64
import io
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from loaderkit.datasets.images.checks import MAX_PIXELS, check_max_pixels
from loaderkit.datasets.images.decode import decode_picture, is_picture, picture_size
from loaderkit.datasets.images.decoders import PictureDecoder, check_decoder
from loaderkit.datasets.rows.named_rows import naming
from loaderkit.files.regular_file import open_regular
from loaderkit.files.storage import Storage
from loaderkit.files.urls import is_remote, stat

_ALLOW = "If the rows may name any file, give outside=True."
# URL schemes that a row may use. Others may lead to local files, such as `file` and fsspec's chains "zip::file".
_REMOTE = re.compile(r"(https?|s3a?|gs|gcs|az|abfss?|hf|memory)://")
_PIXEL_BYTES, _HEADER_BYTES = 8, 1 << 24  # file size limit: bytes per allowed pixel, plus the header


@dataclass(frozen=True, kw_only=True, slots=True)
class FileReader:
    """Reads the files that rows name.

    Args:
        owner: The dataset's name, for messages.
        root: The folder or URL that relative paths are relative to.
        storage: How to reach URLs.
        outside: Whether rows may name local files outside the root.
        max_pixels: The largest picture to decode, width times height; None for any.
        decoder: What decodes JPEG, as for `ImageFolder`.
    """

    owner: str
    root: str | os.PathLike[str] = "."
    storage: Storage | None = None
    outside: bool = False
    max_pixels: int | None = MAX_PIXELS
    decoder: PictureDecoder | None = None

    def __post_init__(self) -> None:
        check_max_pixels(self.owner, self.max_pixels)
        check_decoder(self.owner, self.decoder)

    def find(self, value: object) -> bytes | str:
        """Return the file's bytes if the value holds them, else its path or URL.

        Args:
            value: A path, a URL, a data URL, the bytes of a file, or a dict of Hugging Face's layout: {"bytes": ..., "path": ...}.

        Raises:
            ValueError: If the value is something else, or a path that leaves the root.
        """
        if isinstance(value, Mapping) and ("bytes" in value or "path" in value):
            value = value["path"] if value.get("bytes") is None else value["bytes"]
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if not isinstance(value, str) or not value:
            raise ValueError(
                f"found {value!r:.80} of type {type(value).__name__}, wanted a path, a URL, or the bytes of a file"
            )
        return _from_data_url(value) if value.startswith("data:") else self._place(value)

    def picture(self, value: Any) -> Tensor:
        """Return a picture (3, H, W) uint8. A tensor is returned as it is, a Pillow image is converted to RGB.

        Raises:
            ValueError: If the value is not a picture, or the picture is too large.
            OSError: If the file cannot be read.
        """
        if isinstance(value, Tensor):
            if value.ndim != 3 or not value.numel():
                raise ValueError(f"found a tensor of shape {tuple(value.shape)}, wanted a picture (3, H, W)")
            return value
        if is_picture(value):
            return torch.from_numpy(np.array(value.convert("RGB"))).permute(2, 0, 1)
        found = self.find(value)
        if isinstance(found, bytes):
            return decode_picture(found, max_pixels=self.max_pixels, decoder=self.decoder)
        with naming(found), self._open(found) as file:
            return decode_picture(file.read(), max_pixels=self.max_pixels, decoder=self.decoder)

    def size(self, value: Any) -> tuple[int, int]:
        """Return the height and width of a picture, from its header. Raises as `picture` does."""
        if isinstance(value, Tensor) or is_picture(value):
            height, width = self.picture(value).shape[1:]
            return height, width
        found = self.find(value)
        if isinstance(found, bytes):
            return picture_size(io.BytesIO(found), max_pixels=self.max_pixels, decoder=self.decoder)
        with naming(found), self._open(found, whole=False) as file:
            return picture_size(file, max_pixels=self.max_pixels, decoder=self.decoder)

    def _place(self, name: str) -> str:
        """Return the path or URL of a file that a row names; raise a ValueError if it leaves the root."""
        root = os.fspath(self.root)
        if "://" in name:
            if not self.outside and not _REMOTE.match(name):
                raise ValueError(f"{name!r:.200} is a URL of another kind than http and object stores. {_ALLOW}")
            return name
        parts = Path(name).parts
        inside = ".." not in parts and (not Path(name).is_absolute() or Path(name).is_relative_to(root))
        if not inside and (not self.outside or is_remote(root)):
            raise ValueError(f"{name!r:.200} leaves the root {root!r}. {_ALLOW}")
        return f"{root.rstrip('/')}/{name}" if is_remote(root) else str(Path(root, name))

    def _open(self, place: str, *, whole: bool = True) -> BinaryIO:
        """Open a file. Without a cache, or without `whole` if the cache lacks the file, reads are range requests."""
        found = stat(place, self.storage)
        if self.max_pixels is not None and found.size_bytes > self.max_pixels * _PIXEL_BYTES + _HEADER_BYTES:
            raise ValueError(
                f"it has {found.size_bytes:,} bytes, more than any picture of max_pixels={self.max_pixels:,}. If it is right, give "
                "a larger max_pixels=."
            )
        if not is_remote(place):
            return open_regular(place)
        storage = self.storage or Storage()
        if storage.cache_dir is not None and (whole or storage.has_copy(place, found)):
            return storage.open(place, found)
        return storage.open_ranges(place, found.size_bytes)  # `open` would request the version again


def _from_data_url(url: str) -> bytes:
    """Return the content of a URL such as "data:image/png;base64,..." (RFC 2397)."""
    head, _, body = url.partition(",")
    try:
        if not head.endswith(";base64"):
            raise ValueError("no base64")
        return base64.b64decode(body, validate=True)
    except ValueError as error:
        raise ValueError(f"the data URL {head[:80]!r} cannot be read: {error}") from error
