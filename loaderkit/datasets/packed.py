"""Many small objects as bytes in two tensors: reading them counts no references, so that processes share the memory."""

import pickle
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch


class Packed:
    """Objects, each pickled, end to end.

    Forked workers share the two tensors, and spawned ones are handed them in shared memory.

    Args:
        objects: Any iterable; read once.
        what: For errors: whose and what these are.

    Raises:
        TypeError: If one can't be pickled.
    """

    def __init__(self, objects: Iterable[Any], what: str) -> None:
        packed, ends = bytearray(), array("q", [0])
        for number, value in enumerate(objects):
            try:
                packed += pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                raise TypeError(f"{what} {number} can't be packed: {error}.") from error
            ends.append(len(packed))
        # Tensors, not arrays: torch moves them to shared memory when a worker is spawned.
        self._bytes = torch.frombuffer(packed, dtype=torch.uint8) if packed else torch.empty(0, dtype=torch.uint8)
        self._ends = torch.frombuffer(ends, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @property
    def size_bytes(self) -> int:
        """Bytes of memory, the offsets included."""
        return self._bytes.nbytes + self._ends.nbytes

    def read(self, rows: Sequence[int]) -> list[Any]:
        """Return the objects at these places, from 0 to the last; new ones each time."""
        places = np.asarray(rows, dtype=np.int64)
        # Views are made anew each time: moving to shared memory gives the tensors other addresses.
        ends, content = self._ends.numpy(), self._bytes.numpy().data
        starts, stops = ends[places].tolist(), ends[places + 1].tolist()
        return [pickle.loads(content[start:stop]) for start, stop in zip(starts, stops, strict=True)]
