"""Headers of `.npy` files are read as numpy reads them, also in several threads."""

import gc
import io
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from loaderkit.datasets.shards.npyheader import decode_npy, read_npy_header

THREADS, READS = 8, 1000
DTYPES = ["bool", "int8", "uint16", ">i4", "int64", "float16", ">f8", "complex64", "U3", ">U2", "S5", "m8[s]", "M8[ns]"]


def content(array: Any, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


def filled(shape: tuple[int, ...], dtype: Any, *, fortran: bool = False) -> Any:
    array = np.ndarray(shape, dtype, bytes(np.arange(np.prod(shape) * np.dtype(dtype).itemsize, dtype=np.uint8) % 64))
    return np.asfortranarray(array) if fortran else array


def of_numpy(data: bytes) -> Any:
    """What numpy reads in a header, or the error's type."""
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        return dtype, shape, fortran, file.tell()
    except Exception as error:
        return type(error)


def of_ours(data: bytes) -> Any:
    try:
        return tuple(read_npy_header(io.BytesIO(data)))
    except Exception as error:
        return type(error)


@given(
    st.sampled_from(DTYPES),
    st.just(()) | array_shapes(min_dims=1, max_dims=6, min_side=0, max_side=4),
    st.booleans(),
    st.sampled_from([None, (1, 0), (2, 0)]),
)
def test_an_array_is_what_np_load_reads(dtype: str, shape: tuple[int, ...], fortran: bool, version: Any) -> None:
    data = content(filled(shape, dtype, fortran=fortran), version)
    assert of_ours(data) == of_numpy(data)
    assert isinstance(of_ours(data), tuple)
    wanted, found = np.load(io.BytesIO(data)), decode_npy(data)
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.tobytes() == wanted.tobytes()
    assert found.flags.c_contiguous == wanted.flags.c_contiguous
    assert found.flags.writeable


@given(st.binary(max_size=3), st.integers(0, 100), st.integers(0, 3), st.sampled_from([(), (7,), (10, 2)]))
@example(b"10L", 61, 1, (7,))  # as Python 2 wrote it
@example(b"0", 61, 0, (7,))  # no number in Python 3
@example(b"3", 23, 1, (7,))  # no dtype
@example(b"_", 62, 0, (10, 2))
@example(b"7", 62, 1, (7,))  # a number instead of a shape
def test_a_damaged_header_is_read_as_numpy_does(put: bytes, at: int, instead_of: int, shape: tuple[int, ...]) -> None:
    whole = content(filled(shape, "int32"))
    data = whole[:at] + put + whole[at + instead_of :]
    assert of_ours(data) == of_numpy(data)


@pytest.mark.parametrize("cut", [0, 5, 9, 10, 50, 127, 128, 131])
def test_a_cut_array_is_an_error(cut: int) -> None:
    with pytest.raises((ValueError, TypeError, EOFError)):
        decode_npy(content(np.ones(1, np.float32))[:cut])


@pytest.fixture
def _disturbed() -> Iterator[None]:
    """Collect garbage often, and let other threads run during it."""
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()

    def python(*_: Any) -> None:
        for _ in range(3):
            pass

    gc.callbacks.append(python)
    gc.set_threshold(5)
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*threshold)
    gc.callbacks.remove(python)


def errors_of(read: Callable[[], Any]) -> list[Exception]:
    """Read in threads at once, and return what failed."""
    barrier = threading.Barrier(THREADS)

    def run(_: int) -> list[Exception]:
        barrier.wait(60)
        found = []
        for _ in range(READS):
            try:
                read()
            except Exception as error:
                found.append(error)
        return found

    with ThreadPoolExecutor(THREADS) as pool:
        return [error for each in pool.map(run, range(THREADS)) for error in each]


@pytest.mark.usefixtures("_disturbed")
@pytest.mark.parametrize("dtype", ["int32", "m8[s]"])
def test_threads_do_not_disturb_each_other(dtype: str) -> None:
    data = content(filled((5, 2), dtype))
    assert not errors_of(lambda: read_npy_header(io.BytesIO(data)))
    assert not errors_of(lambda: decode_npy(data))


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python collects no garbage inside its parser from 3.12 on")
@pytest.mark.usefixtures("_disturbed")
def test_numpy_alone_is_disturbed() -> None:
    data = content(filled((5, 2), "int32"))
    assert any(isinstance(error, SystemError) for error in errors_of(lambda: np.load(io.BytesIO(data))))
