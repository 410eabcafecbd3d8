"""Types of numpy arrays that the whole package uses, and their byte order."""

import numpy as np
import numpy.typing as npt

from loaderkit.system.types import Array

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]
UInt64Array = npt.NDArray[np.uint64]


def native(array: Array) -> Array:
    """Return an array in the machine's byte order, which may be the array itself."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
