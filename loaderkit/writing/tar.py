"""Write samples to tar archives in the WebDataset layout."""

import io
import json
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.images.decode import encode_picture, is_picture
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.tar.dataset import TarDataset
from loaderkit.datasets.tar.index import index_tar
from loaderkit.system.checks import listed
from loaderkit.system.types import Json
from loaderkit.writing.format import Sample, Settings, WriteError, Written, check_fields, to_array, to_fields

_TEXT, _NUMBER, _JSON = ("txt", "text", "transcript"), ("cls", "cls2", "index", "inx", "id", "count"), ("json", "jsn")
_PICTURE = ("png", "jpg", "jpeg")
_END = bytes(1024)


@dataclass(frozen=True, kw_only=True)
class TarFormat:
    """Write tar archives in the WebDataset layout.

    Each field of a sample becomes a file, named KEY.FIELD. Its type decides the file's extension: text `.txt`, integers
    `.cls` (Python's or NumPy's), arrays and tensors `.npy`, other JSON values `.json`. Bytes are written as they are.
    The extension is appended to the field's name ("label" becomes "label.cls") unless the name ends in it. Pixels are
    encoded if their field is named "png" or "jpg": uint8 (3, H, W), (H, W, 3) or (H, W). Pillow images are always
    encoded, by default as PNG. Names become lower case, as readers expect. The key is the sample's "__key__", or its
    index with nine digits.

    Args:
        fields: The names of the fields, for samples that are tuples or single values.
        same_fields: Whether all samples must have the fields of the first sample.
        jpeg_quality: The quality of JPEG images, 1 to 100.

    Examples:
        >>> manifest = lk.write_shards([("a", 1), ("b", 2)], "shards", format=lk.TarFormat(fields=["txt", "label"]))
        >>> lk.TarDataset("shards")[1]
        {'__key__': '000000001', 'txt': 'b', 'label.cls': 2}
    """

    name: ClassVar[str] = "tar"
    suffix: ClassVar[str] = ".tar"
    fields: Sequence[str] | None = None
    same_fields: bool = True
    jpeg_quality: int = 95

    def __post_init__(self) -> None:
        listed("TarFormat", "fields", self.fields)
        if not 1 <= self.jpeg_quality <= 100:
            raise ValueError(f"TarFormat: jpeg_quality is {self.jpeg_quality}, wanted 1 to 100.")

    def settings(self) -> Settings:
        fields = None if self.fields is None else list(self.fields)
        return {"fields": fields, "same_fields": self.same_fields, "jpeg_quality": self.jpeg_quality}

    def learn(self, samples: Sequence[Sample]) -> Json:
        index, sample = samples[0]
        return sorted(self._files(index, sample)[1]) if self.same_fields else None

    def write(self, file: BinaryIO, samples: Iterable[Sample], learned: Any) -> Written:
        keys: set[str] = set()
        for index, sample in samples:
            key, files = self._files(index, sample)
            if key in keys:
                raise WriteError(f"sample {index}: its key {key!r} is in this shard already; wanted each key once.")
            keys.add(key)
            if learned is not None:
                check_fields(files, learned, index, "For optional fields use TarFormat(same_fields=False).")
            for extension, content in files.items():
                _add(file, f"{key}.{extension}", content)
        file.write(_END)
        return Written(counts={"samples": len(keys)})

    def index(self, shard: Path, written: Written) -> ShardIndex:
        size_bytes = shard.stat().st_size
        try:
            with shard.open("rb") as file:
                table = index_tar(file, size_bytes, str(shard))
        except ShardError as error:
            raise WriteError(f"the written archive cannot be read: {error}") from error
        return ShardIndex(
            kind=TarDataset.kind,
            count=len(table.ends),
            size_bytes=size_bytes,
            changed_ns=shard.stat().st_mtime_ns,
            offsets=table.pack(),
        )

    def _files(self, index: int, sample: object) -> tuple[str, dict[str, bytes]]:
        fields = to_fields(sample, self.fields, index)
        key = _checked_key(fields.pop("__key__", f"{index:09d}"), index)
        files: dict[str, bytes] = {}
        for name, value in fields.items():
            try:
                extension, content = _to_file(name.lower(), value, self.jpeg_quality)
            except (ValueError, TypeError, OverflowError, RecursionError) as error:
                raise WriteError(f"sample {index}, field {name!r}: {error}") from error
            if extension in files:
                raise WriteError(
                    f"sample {index}, field {name!r}: a second file {extension!r}; wanted different names."
                )
            files[extension] = content
        if not files:
            raise WriteError(f"sample {index}: has no fields, wanted at least one.")
        return key, files


def _add(file: BinaryIO, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o444
    # mtime, uid and gid are 0 and owner names are empty, so the bytes do not depend on who writes or when.
    file.write(member.tobuf(tarfile.PAX_FORMAT, errors="surrogateescape"))
    file.write(content)
    file.write(bytes(-len(content) % 512))


def _checked_key(key: object, index: int) -> str:
    if not isinstance(key, str):
        raise WriteError(f"sample {index}: its __key__ is {key!r}, wanted a string.")
    parts = key.split("/")
    base = parts[-1]
    hidden = not base or (parts[0].startswith("__") and parts[0].endswith("__"))
    if hidden or "." in base or "\0" in key or ".." in parts or not parts[0]:
        raise WriteError(
            f"sample {index}: its __key__ is {key!r}; wanted a relative path without '..'. Its last part must not have a dot "
            "(a field's name follows it), and its first part must not look like '__name__'."
        )
    return key


def _to_file(name: str, value: object, quality: int) -> tuple[str, bytes]:
    """Return a field's file extension and the file's content."""
    if not name or name.startswith(".") or "/" in name or "\0" in name or name == "__key__":
        raise ValueError("a name that can't be an extension; wanted one without '/' and without a dot at the start.")
    ending = name.rpartition(".")[2]
    if isinstance(value, bytes | bytearray | memoryview):
        return name, bytes(value)
    value = to_array(value)
    if is_picture(value) or (isinstance(value, np.ndarray) and ending in _PICTURE):
        extension = name if ending in _PICTURE else f"{name}.png"
        return extension, encode_picture(value, "png" if extension.endswith("png") else "jpeg", quality)
    if isinstance(value, np.integer):
        value = int(value)
    if isinstance(value, np.ndarray | np.generic):
        file = io.BytesIO()
        np.save(file, value, allow_pickle=False)
        return _named(name, ending, ("npy",)), file.getvalue()
    if ending in _JSON:
        return name, _to_json(value)
    if isinstance(value, str):
        return _named(name, ending, _TEXT), value.encode(errors="strict")
    if isinstance(value, int) and not isinstance(value, bool):
        return _named(name, ending, _NUMBER), str(value).encode()
    return f"{name}.json", _to_json(value)


def _named(name: str, ending: str, endings: Sequence[str]) -> str:
    return name if ending in endings else f"{name}.{endings[0]}"


def _to_json(value: object) -> bytes:
    _check_json(value)
    return json.dumps(value, ensure_ascii=False).encode()


def _check_json(value: object) -> None:
    """Raise a TypeError for a value that JSON cannot hold or would change silently."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"JSON would turn the key {key!r} into text; wanted text.")
            _check_json(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_json(inner)
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise TypeError(
            f"holds {type(value).__name__}, wanted bytes, text, numbers, an array, a tensor, an image, or a JSON value."
        )
