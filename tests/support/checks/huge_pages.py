"""Memory in huge pages: a fork copies the page table, which after all imports takes it 20 ms, and its end as long."""

import contextlib
import ctypes
from pathlib import Path

SIZE = 1 << 21
MADV_COLLAPSE = 25


def use() -> None:
    """Put this process's memory into huge pages, where the kernel can (Linux, from 6.1 on).

    Pages that are written to while a forked process has them too become small again.
    """
    maps = Path("/proc/self/maps")
    with contextlib.suppress(OSError):
        libc = ctypes.CDLL(None)
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for line in maps.read_text().splitlines():
            area, rights, *rest = line.split()
            if rights == "rw-p" and (len(rest) == 3 or rest[3] == "[heap]"):
                start, end = (int(place, 16) for place in area.split("-"))
                start, end = -(-start // SIZE) * SIZE, end // SIZE * SIZE
                if start < end:
                    libc.madvise(start, end - start, MADV_COLLAPSE)  # it only says what it could not do
