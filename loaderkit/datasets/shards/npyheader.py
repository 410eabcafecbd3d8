"""Headers of `.npy` files, by any number of threads.

numpy parses them with Python's `ast`, and in Python 3.11 two threads that do so disturb each other: one of them, or the training's
own `torch.compile`, now and then fails with "AST constructor recursion depth mismatch" (python/cpython#106905).
"""

import io
import re
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

# What numpy itself writes for numbers and text needs no `ast`. All else is left to numpy.
_PLAIN = re.compile(
    rb"\x93NUMPY\x01\x00(..)\{'descr': '([<>|][biufcSU][1-9]\d*)', 'fortran_order': (False|True), "
    rb"'shape': \(((?:(?:0|[1-9]\d*), )+(?:0|[1-9]\d*)|(?:0|[1-9]\d*),|)\), \} *\n",
    re.DOTALL,
)
_LENGTH = 10  # bytes up to the header's text, of which the last two say how long that is
_LONGEST = _LENGTH + 512
_TRIES = 100


class NpyHeader(NamedTuple):
    """dtype and shape of an array, whether it is in Fortran order, and the byte that it starts at."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    start: int


def read_npy_header(file: BinaryIO) -> NpyHeader:
    """Read the header of a file.

    Raises:
        ValueError: From numpy, as other errors, where it can't be read.
    """
    file.seek(0)
    plain = _plain_header(file.read(_LONGEST))
    return plain if plain is not None else _undisturbed(lambda: _numpy_header(file))


def decode_npy(data: bytes) -> npt.NDArray[Any]:
    """Return the array that `np.load` reads from the bytes of a file.

    Raises:
        ValueError: From numpy, as other errors, where they are not a whole array, or one of objects.
    """
    plain = _plain_header(data[:_LONGEST])
    if plain is None:
        return _undisturbed(lambda: np.load(io.BytesIO(data), allow_pickle=False))
    array: npt.NDArray[Any] = np.ndarray(
        plain.shape, plain.dtype, data, plain.start, order="F" if plain.fortran else "C"
    )
    return array.copy("K")


def _plain_header(head: bytes) -> NpyHeader | None:
    found = _PLAIN.match(head)
    if found is None or found.end() != _LENGTH + int.from_bytes(found[1], "little"):
        return None
    try:
        dtype = np.dtype(found[2].decode())
    except TypeError:  # a number of so many bytes is none
        return None
    shape = tuple(int(size) for size in found[4].split(b",") if size)
    return NpyHeader(dtype, shape, found[3] == b"True", found.end())


def _numpy_header(file: BinaryIO) -> NpyHeader:
    file.seek(0)
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
    return NpyHeader(dtype, shape, bool(fortran), file.tell())


def _undisturbed(parse: Callable[[], T]) -> T:
    """Parse again where another thread was in between: rarely, and not a hundred times."""
    for _ in range(_TRIES):
        try:
            return parse()
        except SystemError as error:
            disturbed = error
    raise disturbed
