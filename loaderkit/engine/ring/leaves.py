"""The leaves of a batch: tensors and storages as they lie in a slot, made over its memory again."""

import functools
import pickle
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.storage import TypedStorage

# A tensor in a slot: where, numpy's dtype, torch's where that is another, the shape, and the stride if it is not contiguous.
# A storage: where, its size in bytes, its dtype or None.
Leaf = tuple[int, str | int, torch.dtype | None, tuple[int, ...], tuple[int, ...] | None]


class Leaves(NamedTuple):
    """The leaves of a batch, as they are read."""

    # All of them if one is; else they are contiguous tensors of numpy's dtypes with elements, told by the rest.
    unusual: tuple[Leaf, ...]
    starts: tuple[int, ...]
    numbers: tuple[np.dtype[Any], ...]
    shapes: tuple[tuple[int, ...], ...]

    def over(self, memory: Any) -> list[Any]:
        """Return tensors and storages that are views of a slot's memory."""
        if self.unusual:
            return [_leaf(memory, *leaf) for leaf in self.unusual]
        array: Any = np.ndarray  # nothing but calls of C: this runs for each tensor
        return list(map(torch.from_numpy, map(array, self.shapes, self.numbers, repeat(memory), self.starts)))


@functools.lru_cache(maxsize=8)  # the batches of a loader have mostly the same
def pack_leaves(leaves: tuple[Leaf, ...]) -> bytes:
    """Return what a reader has to know of leaves, as bytes."""
    usual = all(
        isinstance(numbers, str) and dtype is None and stride is None and 0 not in shape
        for _, numbers, dtype, shape, stride in leaves
    )
    starts, numbers, _, shapes, _ = zip(*leaves, strict=True) if usual and leaves else ((),) * 5
    return pickle.dumps((() if usual else leaves, starts, numbers, shapes), pickle.HIGHEST_PROTOCOL)


def unpack_leaves(content: bytes) -> Leaves:
    """Return the leaves of these bytes."""
    unusual, starts, numbers, shapes = pickle.loads(content)
    return Leaves(unusual, starts, tuple(map(np.dtype, numbers)), shapes)


def _leaf(memory: Any, start: int, numbers: Any, dtype: torch.dtype | None, shape: Any, stride: Any) -> Any:
    """Make a tensor, or a storage, over a part of the memory; it is a storage of its own, so that saving it saves no more."""
    if type(numbers) is int:
        raw = np.frombuffer(memory, np.uint8, numbers, start) if numbers else np.empty(0, np.uint8)
        untyped = torch.from_numpy(raw).untyped_storage()
        return untyped if dtype is None else TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]
    tensor = torch.from_numpy(np.empty(shape, numbers) if 0 in shape else np.ndarray(shape, numbers, memory, start))
    if dtype is not None:
        tensor = tensor.view(dtype)
    return tensor if stride is None else tensor.as_strided(shape, stride)
