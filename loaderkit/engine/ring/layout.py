"""A batch as bytes: its tensors and arrays side by side in a slot, and the structure that puts them together again."""

import functools
import pickle
import struct
from typing import Any, NamedTuple

import numpy as np

from loaderkit.engine.ring import pickled
from loaderkit.engine.ring.leaves import Leaves, pack_leaves, unpack_leaves
from loaderkit.engine.ring.outline import Outline, builder, find_places, pack_node, take_apart

Array = np.ndarray[Any, Any]
# Where the leaves end, and the outline if there is one: till there it is as in other batches, mostly. Then comes the table
# of pickle's buffers, of this size; -1 where there is an outline, with values behind it.
_HEAD = struct.Struct("<qqq")


class Written(NamedTuple):
    """A batch on its way."""

    structure: bytes
    size: int  # bytes in the slot or the image
    image: bytearray | None  # what would lie in the slot, where there was no memory for it


def write(batch: Any, slots: Any, slot: int) -> Written:
    """Write a batch into a slot, or into an image of one if it is too large for a slot or there is no memory left."""
    known = take_apart(batch)
    return _write_pickled(batch, slots, slot) if known is None else _write_outline(known, slots, slot)


def _write_outline(known: Outline, slots: Any, slot: int) -> Written:
    where = find_places(known.contents)
    outline = pack_node(known.root)
    values = pickle.dumps(known.values, pickle.HIGHEST_PROTOCOL) if known.values else b""
    middle = _HEAD.size + len(where.leaves)
    head = _HEAD.pack(middle, middle + len(outline), -1)
    structure = b"".join((head, where.leaves, outline, values))
    memory, image = _memory(slots, slot, where.size)
    if image is None:
        views, before = slots.views.get(slot, (None, None))
        if before is not where:
            views = _views(known.contents, where.starts, memory)
            slots.views[slot] = views, where
    else:
        views = _views(known.contents, where.starts, memory)
    for view, content in zip(views, known.contents, strict=True):
        view[...] = content
    return Written(structure, where.size, image)


def _write_pickled(batch: Any, slots: Any, slot: int) -> Written:
    made = pickled.dump(batch)
    leaves = pack_leaves(made.leaves)
    end = _HEAD.size + len(leaves)
    head = _HEAD.pack(end, end, len(made.table))
    memory, image = _memory(slots, slot, made.size)
    for start, content in made.parts:
        np.ndarray(content.shape, content.dtype, memory, start)[...] = content
    return Written(b"".join((head, leaves, made.table, made.content)), made.size, image)


def _views(contents: list[Array], starts: list[int], memory: Any) -> list[Array]:
    return [
        np.ndarray(content.shape, content.dtype, memory, start if content.size else 0)
        for content, start in zip(contents, starts, strict=True)
    ]


def _memory(slots: Any, slot: int, size: int) -> tuple[Any, bytearray | None]:
    """Return a slot's memory, or that of an image and the image."""
    try:
        slots.reserve(slot, size)
        return slots.bytes(slot, size), None
    except OSError:
        image = bytearray(size)
        return np.frombuffer(image, np.uint8), image


def read(structure: bytes, memory: Any, *, own_buffers: bool = False) -> Any:
    """Return the batch of a structure; its tensors and arrays are views of the slot's memory.

    Args:
        structure: As `write` returned it.
        memory: The slot's, or that of an image.
        own_buffers: Copy arrays, and view tensors alone.
    """
    _, end, table = _HEAD.unpack_from(structure)
    leaves, build = _unpack(structure[:end])
    tensors = leaves.over(memory)
    if table < 0:
        return build(tensors, pickle.loads(structure[end:]) if end < len(structure) else [])
    content = structure[end + table :]
    return pickled.load(content, structure[end : end + table], tensors, memory, own_buffers=own_buffers)


@functools.lru_cache(maxsize=8)
def _unpack(known: bytes) -> tuple[Leaves, Any]:
    middle, end, _ = _HEAD.unpack_from(known)
    return unpack_leaves(known[_HEAD.size : middle]), builder(known[middle:end]) if end > middle else None
