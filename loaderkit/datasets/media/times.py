"""Read the duration and the sample or frame rate of each file once, and store them in a small file for later runs."""

import functools
import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loaderkit.datasets.media.pyav_container import pyav_version
from loaderkit.files.atomic import write_atomically
from loaderkit.system.digests import digest
from loaderkit.system.process_pool import map_tasks
from loaderkit.system.progress import with_progress

Times = npt.NDArray[np.float64]  # (N, 2): duration in seconds, and sample or frame rate; NaN for an unreadable file
VERSION = "loaderkit media times 2"
_EACH = 256  # files in a task of a process


def measure_times(
    read: Callable[[int], tuple[float, float]],
    size: int,
    version: str | None,
    cache_dir: str | os.PathLike[str] | None,
    jobs: int,
) -> Times:
    """Return the durations in seconds and the rates of files, (N, 2), from `cache_dir` if they are stored there.

    Args:
        read: Returns the duration and rate of a file by its number, or raises an error.
        size: Number of files.
        version: A text that changes with the files. None if there is none; then nothing is stored.
        cache_dir: Folder in which the results are stored; None stores nothing.
        jobs: Number of processes that read files.

    Raises:
        OSError: If the results can't be written.
    """
    if version is None or cache_dir is None:
        return _read_all(read, size, jobs)
    about = {"version": VERSION, "decoder": pyav_version(), "files": version}
    path = Path(cache_dir).expanduser() / f"{digest(json.dumps(about))}.npz"
    times = _load(path, about, size)
    if times is None:
        times = _read_all(read, size, jobs)
        content = io.BytesIO()
        np.savez_compressed(content, about=np.array(json.dumps(about)), times=times)
        try:
            write_atomically(path, content.getvalue())
        except OSError as error:
            error.add_note(
                f"loaderkit: raised while writing the times of files to {path}. Give another cache_dir=, or None."
            )
            raise
    return times


def _read_all(read: Callable[[int], tuple[float, float]], size: int, jobs: int) -> Times:
    times = np.full((size, 2), np.nan)
    spans = [(start, min(start + _EACH, size)) for start in range(0, size, _EACH)]
    done = map_tasks(functools.partial(_read_span, read), spans, executor=None, jobs=jobs)
    for (start, stop), result in with_progress(done, len(spans), "reading times"):
        if isinstance(result, Exception):
            raise result
        times[start:stop] = result
    return times


def _read_span(read: Callable[[int], tuple[float, float]], span: tuple[int, int]) -> Times:
    times = np.full((span[1] - span[0], 2), np.nan)
    for row, number in enumerate(range(*span)):
        try:
            times[row] = read(number)
        except (ImportError, MemoryError):  # not a fault of the file
            raise
        except Exception:  # decoding a clip raises the same error, to which a policy for bad samples applies
            continue
    return times


def _load(path: Path, about: Mapping[str, object], size: int) -> Times | None:
    """Return the stored times; None if there is no such file, it is damaged, or it is about other files."""
    try:
        with np.load(io.BytesIO(path.read_bytes())) as file:
            found, times = json.loads(str(file["about"])), file["times"]
    except Exception:  # a damaged file also raises errors of zlib and of Python's tokenizer
        return None
    return times if found == about and times.dtype == np.float64 and times.shape == (size, 2) else None
