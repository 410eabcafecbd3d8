"""Objects pickled into two tensors, so that worker processes share their memory."""

import io
import pickle
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from loaderkit.system.arrays import Int64Array
from loaderkit.system.tensor_pickling import TensorsByValue


class _Pickler(TensorsByValue, pickle.Pickler):
    """Pickles tensors of all dtypes: what torch's own reduction makes of uint16, uint32, uint64 and float8 can't be read."""


class Packed:
    """A list of objects, each pickled, in one tensor of bytes; `what` names an object in errors.

    Python counts references in each object, so a forked worker that reads a list of
    objects gets a copy of their memory pages. The memory of tensors stays shared with
    forked workers, and is sent to spawned workers as shared memory.
    """

    def __init__(self, objects: Iterable[object], what: str) -> None:
        packed, ends = io.BytesIO(), array("q", [0])
        pickler = _Pickler(packed, pickle.HIGHEST_PROTOCOL)
        for number, value in enumerate(objects):
            try:
                pickler.dump(value)
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                raise TypeError(f"{what} {number} can't be pickled: {error}.") from error
            pickler.clear_memo()  # each object is read alone
            ends.append(packed.tell())
        # Tensors rather than arrays: torch moves them to shared memory for a spawned worker.
        self._bytes = (
            torch.frombuffer(packed.getbuffer(), dtype=torch.uint8) if ends[-1] else torch.empty(0, dtype=torch.uint8)
        )
        self._ends = torch.frombuffer(ends, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @property
    def size_bytes(self) -> int:
        """Size in memory in bytes: the pickled objects and their offsets."""
        return self._bytes.nbytes + self._ends.nbytes

    def read_one(self, row: int) -> Any:
        """Return a new copy of the object at `row`, which is from 0 to N - 1."""
        return self.read([row])[0]

    def read(self, rows: Sequence[int] | Int64Array) -> list[Any]:
        """Return new copies of the objects at `rows` (B,), each from 0 to N - 1."""
        places = np.asarray(rows, dtype=np.int64)
        # Do not keep these views: moving to shared memory changes the tensors' addresses.
        ends, content = self._ends.numpy(), self._bytes.numpy().data
        spans = zip(ends[places].tolist(), ends[places + 1].tolist(), strict=True)
        return [pickle.loads(content[start:end]) for start, end in spans]
