"""Samples to tar archives in the WebDataset layout."""

import io
import json
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.images.pictures import encode_picture, is_picture
from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.datasets.tar.dataset import TarDataset
from loaderkit.datasets.tar.index import index_tar
from loaderkit.writing.format import Sample, WriteError, Written, check_fields, to_array, to_fields

_TEXT, _NUMBER, _JSON = ("txt", "text", "transcript"), ("cls", "cls2", "index", "inx", "id", "count"), ("json", "jsn")
_PICTURE = ("png", "jpg", "jpeg")
_END = bytes(1024)


@dataclass(frozen=True, kw_only=True)
class TarFormat:
    """Tar archives as WebDataset lays them out: a file for each field, named KEY.FIELD.

    A field's type makes its file: bytes as they are, text `.txt`, whole numbers `.cls`,
    arrays and tensors `.npy`, all else that JSON has `.json`. A field that is named so
    already ("cls", "seg.npy") keeps its name, another gets the extension
    ("label" is "label.cls"). Pixels named "png" or "jpg" (uint8, (3, H, W), (H, W, 3) or
    (H, W)) are encoded, a Pillow picture always (as PNG, if its field's name does not say). Names are in
    lower case, as readers take them. A sample's "__key__" is its key, else its
    index with nine digits.

    Args:
        fields: Names of the fields of samples that are tuples, or one value.
        same_fields: Whether a sample with other fields than the first is an error.
        jpeg_quality: Of pictures that are encoded, 1 to 100.
    """

    name: ClassVar[str] = "tar"
    suffix: ClassVar[str] = ".tar"
    fields: Sequence[str] | None = None
    same_fields: bool = True
    jpeg_quality: int = 95

    def __post_init__(self) -> None:
        if not 1 <= self.jpeg_quality <= 100:
            raise ValueError(f"TarFormat: jpeg_quality is {self.jpeg_quality}, wanted 1 to 100.")

    def settings(self) -> dict[str, Any]:
        fields = None if self.fields is None else list(self.fields)
        return {"fields": fields, "same_fields": self.same_fields, "jpeg_quality": self.jpeg_quality}

    def learn(self, samples: Sequence[Sample]) -> Any:
        index, sample = samples[0]
        return sorted(self._files(index, sample)[1]) if self.same_fields else None

    def write(self, file: BinaryIO, samples: Iterable[Sample], learned: Any) -> Written:
        keys: set[str] = set()
        for index, sample in samples:
            key, files = self._files(index, sample)
            if key in keys:
                raise WriteError(f"sample {index}: its key {key!r} came before in this shard; wanted each once.")
            keys.add(key)
            if learned is not None:
                check_fields(files, learned, index, "Optional fields: TarFormat(same_fields=False).")
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
            raise WriteError(f"was not written as an archive that can be read: {error}") from error
        return ShardIndex(
            kind=TarDataset.kind,
            count=len(table.ends),
            size_bytes=size_bytes,
            changed_ns=shard.stat().st_mtime_ns,
            offsets=table.pack(),
        )

    def _files(self, index: int, sample: Any) -> tuple[str, dict[str, bytes]]:
        fields = to_fields(sample, self.fields, index)
        key = fields.pop("__key__", f"{index:09d}")
        _check_key(key, index)
        files: dict[str, bytes] = {}
        for name, value in fields.items():
            try:
                extension, content = _to_file(name.lower(), value, self.jpeg_quality)
            except (ValueError, TypeError, OverflowError, RecursionError) as error:
                raise WriteError(f"sample {index}, field {name!r}: {error}") from error
            if extension in files:
                raise WriteError(f"sample {index}, field {name!r}: a second file {extension!r}; wanted other names.")
            files[extension] = content
        if not files:
            raise WriteError(f"sample {index}: has no fields, wanted one at least.")
        return key, files


def _add(file: BinaryIO, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o444
    # mtime, uid and gid are 0, names of the owner empty: the same bytes whoever writes, and when.
    file.write(member.tobuf(tarfile.PAX_FORMAT, errors="surrogateescape"))
    file.write(content)
    file.write(bytes(-len(content) % 512))


def _check_key(key: Any, index: int) -> None:
    if not isinstance(key, str):
        raise WriteError(f"sample {index}: its __key__ is {key!r}, wanted a string.")
    parts = key.split("/")
    base = parts[-1]
    hidden = not base or (parts[0].startswith("__") and parts[0].endswith("__"))
    if hidden or "." in base or "\0" in key or ".." in parts or not parts[0]:
        raise WriteError(
            f"sample {index}: its __key__ is {key!r}; wanted a relative path without '..', whose last part has no dot "
            "(what follows a dot is a field's name) and whose first is not as '__name__'."
        )


def _to_file(name: str, value: Any, quality: int) -> tuple[str, bytes]:
    """Return a field's extension and content."""
    if not name or name.startswith(".") or "/" in name or "\0" in name or name == "__key__":
        raise ValueError("a name that can't be an extension; wanted one without '/', that does not start with a dot.")
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


def _to_json(value: Any) -> bytes:
    _check_json(value)
    return json.dumps(value, ensure_ascii=False).encode()


def _check_json(value: Any) -> None:
    """Refuse what JSON would change without a word."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"JSON would make text of the key {key!r}; wanted text.")
            _check_json(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_json(inner)
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise TypeError(
            f"holds {type(value).__name__}, wanted bytes, text, numbers, an array, a tensor, a picture, or what JSON has."
        )
