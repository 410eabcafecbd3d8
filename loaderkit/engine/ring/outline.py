"""The outline of a batch of the usual kind, tensors in dicts, lists, tuples and namedtuples: worked out once, as batches mostly have the same."""

import copyreg
import functools
import math
import pickle
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from loaderkit.engine.ring.leaves import Leaf, pack_leaves
from loaderkit.engine.ring.slots import ALIGNMENT

Array = np.ndarray[Any, Any]
# What a node of the outline is: a tensor, a plain value, or a container with the keys of a dict and its nodes.
_TENSOR, _VALUE = 0, 1
Node = int | tuple[type, tuple[str, ...], tuple[Any, ...]]
_numpy, _address, _contiguous = Tensor.numpy, Tensor.data_ptr, Tensor.is_contiguous
_TENSORS = {Tensor}
_PLAIN = frozenset({int, float, bool, str, bytes, type(None)})


class Outline(NamedTuple):
    """A batch taken apart."""

    root: Node
    contents: list[Array]  # of the tensors
    values: list[Any]


class Places(NamedTuple):
    """Where tensors lie in a slot."""

    starts: list[int]
    size: int  # bytes, of all
    leaves: bytes  # as the reader wants them


class _UnusualError(Exception):
    """The batch is of another kind."""


def take_apart(batch: Any) -> Outline | None:
    """Take a batch apart; None if more than its containers, numbers and plain values has to arrive."""
    tensors: list[Tensor] = []
    values: list[Any] = []
    try:
        root = _node(batch, tensors, values, set())
        # By map() throughout: this runs for each tensor.
        if any(map(vars, tensors)):  # attributes of its own
            return None
        contents = list(map(_numpy, tensors))  # raises where more than numbers on the host has to arrive
        if len(set(map(_address, tensors))) < len(tensors):  # the same memory is to arrive as the same
            return None
    except (_UnusualError, TypeError, RuntimeError):
        return None
    return Outline(root, contents, values) if all(map(_contiguous, tensors)) else None


def _node(value: Any, tensors: list[Tensor], values: list[Any], seen: set[int]) -> Node:
    kind = type(value)
    if kind is Tensor:
        tensors.append(value)
        return _TENSOR
    if kind in _PLAIN:
        values.append(value)
        return _VALUE
    if id(value) in seen:  # the same object twice, or within itself
        raise _UnusualError
    seen.add(id(value))
    if kind is dict:
        if not set(map(type, value)) <= {str}:
            raise _UnusualError
        return dict, tuple(value), _nodes(value.values(), tensors, values, seen)
    if kind is list or kind is tuple or _is_namedtuple(kind):  # type: ignore[arg-type]
        return kind, (), _nodes(value, tensors, values, seen)
    raise _UnusualError


@functools.lru_cache(maxsize=64)
def _is_namedtuple(kind: type) -> bool:
    """Say whether pickle would make such a value of its parts alone."""
    return (
        kind.__bases__ == (tuple,)
        and "_make" in vars(kind)
        and kind not in copyreg.dispatch_table
        and all(
            getattr(kind, name) is getattr(object, name) for name in ("__reduce_ex__", "__reduce__", "__getstate__")
        )
    )


def _nodes(parts: Collection[Any], tensors: list[Tensor], values: list[Any], seen: set[int]) -> tuple[Node, ...]:
    if set(map(type, parts)) == _TENSORS:
        tensors.extend(parts)
        return (_TENSOR,) * len(parts)
    return tuple([_node(part, tensors, values, seen) for part in parts])


@functools.lru_cache(maxsize=8)
def builder(outline: bytes) -> Callable[[list[Tensor], list[Any]], Any]:
    """Return what puts tensors and values together again, as `pack_node` has noted it."""
    root: Node = pickle.loads(outline)
    if not isinstance(root, tuple) or any(root[2]):
        return lambda tensors, values: _build(root, iter(tensors), iter(values))
    kind, keys, _ = root  # of tensors alone
    if kind is dict:
        return lambda tensors, _: dict(zip(keys, tensors, strict=True))
    make = getattr(kind, "_make", kind)
    return lambda tensors, _: make(tensors)


def _build(node: Node, tensors: Iterator[Tensor], values: Iterator[Any]) -> Any:
    if node == _TENSOR:
        return next(tensors)
    if node == _VALUE:
        return next(values)
    kind, keys, nodes = node  # type: ignore[misc]
    only_tensors = not any(nodes)
    parts = list(islice(tensors, len(nodes))) if only_tensors else [_build(part, tensors, values) for part in nodes]
    if kind is dict:
        return dict(zip(keys, parts, strict=True))
    return parts if kind is list else getattr(kind, "_make", kind)(parts)


@functools.lru_cache(maxsize=8)
def pack_node(node: Node) -> bytes:
    """Return an outline as bytes."""
    return pickle.dumps(node, pickle.HIGHEST_PROTOCOL)


def find_places(contents: list[Array]) -> Places:
    """Find places for tensors, side by side."""
    return _places(tuple([(content.dtype, content.shape) for content in contents]))


@functools.lru_cache(maxsize=8)
def _places(kinds: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]) -> Places:
    leaves: list[Leaf] = []
    size = 0
    for dtype, shape in kinds:
        leaves.append((size, dtype.str, None, shape, None))
        size = -(-(size + dtype.itemsize * math.prod(shape)) // ALIGNMENT) * ALIGNMENT
    return Places([leaf[0] for leaf in leaves], size, pack_leaves(tuple(leaves)))
