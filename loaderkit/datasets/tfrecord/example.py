"""Parse `tf.train.Example` and `SequenceExample` without TensorFlow or protobuf.

The formats are those of tensorflow/core/example: example.proto and feature.proto.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderkit.system.checks import check_ordered

# The wanted form of a feature: a type for exactly one value, a list of one type for any number of values.
Spec = type | list[type]
Features = Sequence[str] | Mapping[str, Spec] | None

_BYTES, _FLOATS, _INTEGERS = 1, 2, 3  # field numbers of a Feature
_KINDS: dict[object, int] = {bytes: _BYTES, float: _FLOATS, int: _INTEGERS}
_NAMES = {_BYTES: "bytes", _FLOATS: "floats", _INTEGERS: "integers"}
_DTYPES: dict[int, type[np.generic]] = {_FLOATS: np.float32, _INTEGERS: np.int64}
_SHORT = 16  # up to this many bytes, packed integers are parsed faster without numpy
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # wire types


def check_features(where: str, features: Features) -> None:
    """Raise a ValueError unless `features` is a list of names, or a mapping from names to types."""
    check_ordered(where, "features", features)
    specs = features.values() if isinstance(features, Mapping) else ()
    kinds = [kind[0] if isinstance(kind, list) and len(kind) == 1 else kind for kind in specs]
    if isinstance(features, str) or not all(isinstance(kind, type) and kind in _KINDS for kind in kinds):
        raise ValueError(
            f"{where}: features is {features!r}, wanted a list of names, or a dict with int, float or bytes for one value, and "
            "[int], [float] or [bytes] for all values of a feature."
        )


def parse_example(record: bytes, features: Features = None) -> dict[str, Any]:
    """Return the features of a serialised `tf.train.Example`.

    Raises:
        ValueError: If the record is of another format, or lacks a wanted feature.
    """
    found: dict[str, bytes] = {}
    for number, content in _fields(record):
        if number == 1:
            found |= _entries(content)
    return _chosen(found, features, _value)


def parse_sequence_example(record: bytes, features: Features = None) -> dict[str, dict[str, Any]]:
    """Return a serialised `tf.train.SequenceExample`: `context`, and `feature_lists` with one value for each step.

    Raises:
        ValueError: If the record is of another format, or lacks a wanted feature.
    """
    parts: dict[int, dict[str, bytes]] = {1: {}, 2: {}}
    for number, content in _fields(record):
        if number in parts:
            parts[number] |= _entries(content)
    if features is not None and (absent := [name for name in features if name not in parts[1] | parts[2]]):
        raise _absent(absent[0], parts[1] | parts[2])
    mine = [None if features is None else _only(features, part) for part in parts.values()]
    return {
        "context": _chosen(parts[1], mine[0], _value),
        "feature_lists": _chosen(parts[2], mine[1], _steps),
    }


def _only(features: Sequence[str] | Mapping[str, Spec], part: Mapping[str, bytes]) -> Features:
    if isinstance(features, Mapping):
        return {name: spec for name, spec in features.items() if name in part}
    return [name for name in features if name in part]


def _chosen(
    found: Mapping[str, bytes], features: Features, value: Callable[[bytes, Spec | None], object]
) -> dict[str, Any]:
    """Return the values of the wanted features by name; of all if `features` is None."""
    names: Mapping[str, Spec | None] = dict.fromkeys(found if features is None else features)
    specs = features if isinstance(features, Mapping) else names
    values = {}
    for name, spec in specs.items():
        if name not in found and not isinstance(spec, list):
            raise _absent(name, found)
        try:
            values[name] = value(found.get(name, b""), spec)
        except ValueError as error:
            raise ValueError(f"feature {name!r}: {error}") from error
    return values


def _absent(name: str, found: Mapping[str, bytes]) -> ValueError:
    return ValueError(
        f"no feature {name!r}, found {sorted(found)}. If records may lack it, read it as a list: features={{{name!r}: [int]}}"
    )


def _value(content: bytes, spec: Spec | None) -> Any:
    """Return a Feature's value in the form of `spec`. None: an array (n,) of numbers, `bytes`, or a list of them."""
    kind, values = _list_of(content)
    if spec is None:
        return values[0] if kind == _BYTES and len(values) == 1 else values
    wanted = _KINDS[spec[0] if isinstance(spec, list) else spec]
    if kind and kind != wanted:
        raise ValueError(f"has {_NAMES[kind]}, wanted {_NAMES[wanted]}")
    if isinstance(spec, list):
        return values if kind or wanted == _BYTES else np.empty(0, _DTYPES[wanted])
    if len(values) != 1:
        raise ValueError(f"has {len(values)} values, wanted one. For all: [{spec.__name__}]")
    return int(values[0]) if wanted == _INTEGERS else values[0]


def _steps(content: bytes, spec: Spec | None) -> list[Any]:
    """Return the values of a FeatureList, one for each step."""
    return [_value(feature, spec) for number, feature in _fields(content) if number == 1]


def _list_of(content: bytes) -> tuple[int, Any]:
    """Return the kind of a Feature (`_BYTES`, `_FLOATS` or `_INTEGERS`) and its values; 0 and [] for an empty one."""
    kind, values = 0, []
    for number, inner in _fields(content):
        if number in _NAMES:
            kind, values = number, list(_fields(inner))
    if kind == _BYTES:
        return kind, [value for number, value in values if number == 1]
    if kind == _FLOATS:
        return kind, np.frombuffer(b"".join(value for _, value in values), "<f4").astype(np.float32)
    if kind == _INTEGERS:
        integers: list[int] = []
        for _, value in values:
            if isinstance(value, int):
                integers.append(value)
            else:
                integers += _varints(value)
        return kind, np.array(integers, np.uint64).view(np.int64)
    return 0, []


def _entries(content: bytes) -> dict[str, bytes]:
    """Return the entries of a protobuf map. If a name comes twice, its last entry counts."""
    found = {}
    for number, entry in _fields(content):
        if number == 1:
            pair = dict(_fields(entry))
            found[bytes(pair.get(1, b"")).decode()] = pair.get(2, b"")
    return found


def _fields(content: bytes | memoryview) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each field in a protobuf message: an integer for a varint, else bytes."""
    if not isinstance(content, bytes):
        raise ValueError("a number in the place of a message: the record is of another format")
    at, end = 0, len(content)
    while at < end:
        key, at = _varint(content, at)
        wire = key & 7
        if wire == _VARINT:
            value, at = _varint(content, at)
            yield key >> 3, value
            continue
        if wire == _LENGTH:
            size, at = _varint(content, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"byte {at}: a field of type {wire}, wanted 0, 1, 2 or 5: the record is of another format")
        if size > end - at:
            raise ValueError(f"byte {at}: a field of {size:,} bytes where {end - at:,} are left")
        yield key >> 3, content[at : at + size]
        at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Decode a varint: groups of seven bits, lowest first. Return the number, and the position after it."""
    value = shift = 0
    for place in range(at, min(at + 10, len(content))):
        byte = content[place]
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, place + 1
        shift += 7
    raise ValueError(f"byte {at}: a number without an end")


def _varints(content: bytes) -> list[int]:
    """Decode a sequence of varints."""
    if len(content) <= _SHORT:
        at, found = 0, []
        while at < len(content):
            value, at = _varint(content, at)
            found.append(value)
        return found
    groups: npt.NDArray[np.uint8] = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(groups < 128)
    starts = np.concatenate([[0], ends[:-1] + 1])
    sizes = ends - starts + 1
    if not len(ends) or ends[-1] != len(groups) - 1 or sizes.max() > 10:
        raise ValueError("a number without an end")
    values = np.zeros(len(ends), np.uint64)
    for group in range(int(sizes.max())):
        long = sizes > group
        values[long] |= (groups[starts[long] + group] & 127).astype(np.uint64) << np.uint64(7 * group)
    return list(values.tolist())
