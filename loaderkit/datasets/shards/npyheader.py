"""Headers of `.npy` files, safe to parse in several threads.

numpy parses headers with Python's `ast`. In Python before 3.11.8 and 3.12.2, two threads must not use `ast` at the same
time: one of them, or the training's own `torch.compile`, sometimes fails with "AST constructor recursion depth
mismatch" (python/cpython#106905). So the headers that numpy writes for numbers and text are matched here without `ast`.
"""

import io
import re
from typing import BinaryIO, NamedTuple

import numpy as np

from loaderkit.system.types import Array, DType

_USUAL = re.compile(
    rb"\x93NUMPY\x01\x00(..)\{'descr': '([<>|][biufcSU][1-9]\d*)', 'fortran_order': (False|True), "
    rb"'shape': \(((?:(?:0|[1-9]\d*), )+(?:0|[1-9]\d*)|(?:0|[1-9]\d*),|)\), \} *\n",
    re.DOTALL,
)
_PREFIX = 10  # bytes before the header's text; the last two give the text's length
_TRIES = 100


class NpyHeader(NamedTuple):
    """An array's dtype and shape, whether it is in Fortran order, and the offset of its first byte in the file."""

    dtype: DType
    shape: tuple[int, ...]
    fortran: bool
    start: int


def read_npy_header(file: BinaryIO) -> NpyHeader:
    """Return the header of a `.npy` file. Errors are those of numpy, mostly ValueError."""
    file.seek(0)
    found = _USUAL.match(file.read(_PREFIX + 512))
    if found is not None and found.end() == _PREFIX + int.from_bytes(found[1], "little"):
        shape = tuple(int(size) for size in found[4].split(b",") if size)
        try:
            return NpyHeader(np.dtype(found[2].decode()), shape, found[3] == b"True", found.end())
        except TypeError:
            pass  # no such dtype: let numpy raise its error
    for _ in range(_TRIES):
        try:
            return _numpy_header(file)
        except SystemError as error:  # another thread was parsing, too
            disturbed = error
    raise disturbed


def decode_npy(data: bytes) -> Array:
    """Return the array in the bytes of a `.npy` file, as `np.load` does; raise a ValueError if it holds objects."""
    dtype, shape, fortran, start = read_npy_header(io.BytesIO(data))
    if dtype.hasobject:
        raise ValueError(f"the array holds objects ({dtype}), wanted numbers or text.")
    array: Array = np.ndarray(shape, dtype, data, start, order="F" if fortran else "C")
    return array.copy("K")


def _numpy_header(file: BinaryIO) -> NpyHeader:
    file.seek(0)
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
    return NpyHeader(dtype, shape, bool(fortran), file.tell())
