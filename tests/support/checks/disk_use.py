"""How much of the disk a folder takes, with files that were deleted and are still open."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from loaderkit.files.cache import Cache


class Peak:
    """The most bytes that were found, and how often was looked."""

    def __init__(self) -> None:
        self.size_bytes = self.looks = 0


def disk_used(folder: Path, *, deleted: bool = True) -> int:
    """Return the bytes that files of a folder take; with `deleted`, also those that only this process and its children have open."""
    if not folder.is_dir():
        return 0
    with Cache(folder, 1).locked():  # else one file might go and another come during the look, and both would count
        return _disk_used(folder, deleted)


def _disk_used(folder: Path, deleted: bool) -> int:
    sizes: dict[int, int] = {}
    files = list(folder.glob("*.lk*"))
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)] if deleted else []:
        with contextlib.suppress(OSError):
            for fd in Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    target = os.readlink(fd)  # noqa: PTH115 - a Path would strip nothing, and costs more
                    if target.startswith(str(folder)) and target.endswith(".lkshard (deleted)"):
                        files.append(fd)
    for file in files:
        with contextlib.suppress(OSError):
            found = file.stat()
            sizes[found.st_ino] = found.st_blocks * 512
    return sum(sizes.values())


@contextlib.contextmanager
def peak_of(folder: Path, *, deleted: bool = True) -> Iterator[Peak]:
    """Watch a folder, many times a second."""
    peak, over = Peak(), threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            peak.size_bytes = max(peak.size_bytes, disk_used(folder, deleted=deleted))
            peak.looks += 1

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()
