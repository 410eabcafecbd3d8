"""Open files that must be regular: reading a named pipe would wait for a writer, perhaps for ever."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file to read its bytes.

    Raises:
        ValueError: If it is a named pipe, a socket or a device.
        OSError: If it cannot be opened.
    """
    return open(path, "rb", opener=_open)


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Return a file's bytes; raise as `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def _open(path: str, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # opening a pipe would wait for a writer, too
    except OSError:
        if Path(path).is_socket():  # opening one fails
            raise _refused(path, stat.S_IFSOCK) from None
        raise
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind in _KINDS:
        os.close(descriptor)
        raise _refused(path, kind)
    return descriptor


def _refused(path: str, kind: int) -> ValueError:
    return ValueError(
        f"{os.fspath(path)}: {_KINDS[kind]}, wanted a regular file. Remove it, or leave it out of the list."
    )
