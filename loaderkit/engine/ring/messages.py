"""The messages in the ring's pipes: tasks to the workers, and answers back."""

import contextlib
import os
import pickle
import struct
from typing import NamedTuple

import numpy as np

from loaderkit.sampling.plan import BatchKey

TASK = struct.Struct("<qqq")  # number of the batch, slot, size of the key in the slot; a pipe writes a task atomically
ANSWER = struct.Struct("<qqqqqq")  # number of the batch, slot, kind; bytes in the slot, of the structure, of the image

IN_SLOT, IN_PIPE, FAILED, LEFT = range(4)  # kinds of answers: where the batch is, or why it is missing

_KEY = struct.Struct("<qqq")  # epoch, number of samples, number of bounds of rows (-1: none)
_PICKLED = -2  # in place of the number of bounds: the whole key follows, pickled, because its indices are not integers
_PIPE = 1 << 16  # bytes that a pipe holds


class Answer(NamedTuple):
    """A worker's answer to a task."""

    number: int
    slot: int
    kind: int
    size: int  # bytes of the batch in the slot, or in the image
    structure: bytes  # see `write_batch`; for FAILED, the exception
    image: bytes | bytearray  # replaces the slot's content if that has no memory for the batch

    def head(self) -> bytes:
        """Return the bytes that go through the pipe before the image."""
        return ANSWER.pack(*self[:4], len(self.structure), len(self.image)) + self.structure


class Inbox:
    """Reads a worker's answers from its pipe, without waiting for an answer that is incomplete."""

    def __init__(self, fd: int) -> None:
        self.ended = False
        self._fd = fd
        self._chunk = bytearray(_PIPE)
        self._view = memoryview(self._chunk)
        self._begun = bytearray()  # an incomplete answer

    def read(self) -> list[Answer]:
        """Read what is in the pipe, and return the answers that are complete."""
        with contextlib.suppress(BlockingIOError):
            size = _PIPE
            while size == _PIPE:
                size = os.readv(self._fd, (self._chunk,))  # into the same memory each time: os.read allocates
                self._begun += self._view[:size]
            self.ended = not size
        answers = []
        start = 0
        with memoryview(self._begun) as data:
            while len(data) - start >= ANSWER.size:
                number, slot, kind, used, structure, image = ANSWER.unpack_from(data, start)
                middle = start + ANSWER.size + structure
                end = middle + image
                if len(data) < end:
                    break
                content, rest = bytes(data[middle - structure : middle]), bytes(data[middle:end])
                answers.append(Answer(number, slot, kind, used, content, rest))
                start = end
        del self._begun[:start]
        return answers


def pack_key(key: BatchKey) -> bytes:
    """Return a key as bytes, five times as fast as pickle."""
    rows = key.rows
    if key.indices.dtype == object:
        return _KEY.pack(key.epoch, len(key.positions), _PICKLED) + pickle.dumps(key, pickle.HIGHEST_PROTOCOL)
    positions, indices = np.asarray(key.positions, np.int64), np.asarray(key.indices, np.int64)
    head = _KEY.pack(key.epoch, len(positions), -1 if rows is None else len(rows))
    content = head + positions.tobytes() + indices.tobytes()
    return content if rows is None else content + np.asarray(rows, np.int64).tobytes()


def unpack_key(content: bytes) -> BatchKey:
    """Return the key that `pack_key` turned into these bytes."""
    epoch, samples, bounds = _KEY.unpack_from(content)
    if bounds == _PICKLED:
        key: BatchKey = pickle.loads(memoryview(content)[_KEY.size :])
        return key
    numbers = np.frombuffer(bytearray(content), np.int64, offset=_KEY.size)
    rows = None if bounds < 0 else numbers[2 * samples :]
    return BatchKey(epoch=epoch, positions=numbers[:samples], indices=numbers[samples : 2 * samples], rows=rows)
