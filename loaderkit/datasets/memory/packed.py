"""Many small objects as bytes in two tensors: reading them counts no references, so that processes share the memory."""

import pickle
from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import torch

_AS_IS = 0  # the first byte of an object that is pickled whole; in others it is the number of a dict's keys
_MOST_KEYS = 255
_STRINGS = {str}
_PLAIN = {str, bytes, int, float, complex, bool, type(None)}


class Packed:
    """Objects, each pickled, end to end.

    Forked workers share the two tensors, and spawned ones are handed them in shared memory. Of dicts of plain values, and of
    lists of these, the values alone are pickled: all that have the same keys share these, packed and as they are read, where else
    each has strings of its own.

    Args:
        objects: Any iterable; read once.
        what: For errors: whose and what these are.

    Raises:
        TypeError: If one can't be pickled.
    """

    def __init__(self, objects: Iterable[Any], what: str) -> None:
        packed, ends = bytearray(), array("q", [0])
        kinds: dict[tuple[str, ...], int] = {}
        for number, value in enumerate(objects):
            kind = _AS_IS
            if type(value) is dict and {*map(type, value)} == _STRINGS and _is_flat(value):
                keys = tuple(value)
                kind = kinds.get(keys, _AS_IS)
                if kind == _AS_IS and len(kinds) < _MOST_KEYS:
                    kind = kinds[keys] = len(kinds) + 1
            packed.append(kind)
            try:
                packed += pickle.dumps(value if kind == _AS_IS else (*value.values(),), pickle.HIGHEST_PROTOCOL)
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                raise TypeError(f"{what} {number} can't be packed: {error}.") from error
            ends.append(len(packed))
        # Tensors, not arrays: torch moves them to shared memory when a worker is spawned.
        self._bytes = torch.frombuffer(packed, dtype=torch.uint8) if packed else torch.empty(0, dtype=torch.uint8)
        self._ends = torch.frombuffer(ends, dtype=torch.int64)
        self._count = len(ends) - 1  # to ask a tensor takes 0.5 us
        self._keys = list(kinds)
        self._seen: tuple[tuple[int, int], memoryview, memoryview] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_seen": None}

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """Bytes of memory, the offsets included."""
        return self._bytes.nbytes + self._ends.nbytes

    def read_one(self, row: int) -> Any:
        """Return the object at a place, from 0 to the last; a new one each time."""
        places = self._ends.data_ptr(), self._bytes.data_ptr()
        seen = self._seen
        if seen is None or seen[0] != places:  # moving to shared memory gives the tensors other addresses
            seen = self._seen = places, self._ends.numpy().data, self._bytes.numpy().data
        _, ends, content = seen
        start = ends[row]
        kind, value = content[start], pickle.loads(content[start + 1 : ends[row + 1]])
        return value if kind == _AS_IS else dict(zip(self._keys[kind - 1], value, strict=True))

    def read(self, rows: Sequence[int]) -> list[Any]:
        """Return the objects at these places, from 0 to the last; new ones each time."""
        places = np.asarray(rows, dtype=np.int64)
        # Views are made anew each time: moving to shared memory gives the tensors other addresses.
        ends, content = self._ends.numpy(), self._bytes.numpy()
        firsts, memory = ends[places], content.data
        starts, stops = (firsts + 1).tolist(), ends[places + 1].tolist()
        found = [pickle.loads(memory[start:stop]) for start, stop in zip(starts, stops, strict=True)]
        kinds = content[firsts]
        if not kinds.any():
            return found
        if (kinds == kinds[0]).all():
            return list(map(dict, map(zip, repeat(self._keys[kinds[0] - 1]), found)))
        return [
            value if kind == _AS_IS else dict(zip(self._keys[kind - 1], value, strict=True))
            for value, kind in zip(found, kinds.tolist(), strict=True)
        ]


def _is_flat(record: dict[str, Any]) -> bool:
    """Say whether nothing in a dict may refer to it: then it can be put together again from its values."""
    values = record.values()
    return {*map(type, values)} <= _PLAIN or all(
        type(value) in _PLAIN or (type(value) in (list, tuple) and {*map(type, value)} <= _PLAIN) for value in values
    )
