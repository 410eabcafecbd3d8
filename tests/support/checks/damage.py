"""Damaged copies of a file, and a process that reads them, so that a crash, a hang and a flood of memory are seen."""

import multiprocessing
import resource
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

Case = tuple[str, bytes]  # what was done, and the content
_WAIT_S = 30.0  # for one case; a hang takes longer
_CPU_S = 1.0
_MORE_MEMORY = 2 << 30  # bytes of address space


def cuts(content: bytes, most: int = 150) -> Iterator[Case]:
    """Cut at each byte, or at `most` places if there are more bytes: at the beginning, at the end, and some between."""
    places, third = set(range(len(content))), most // 3
    if len(content) > most:
        between = np.linspace(0, len(content) - 1, third).astype(int).tolist()
        places = {*range(third), *range(len(content) - third, len(content)), *between}
    for place in sorted(places):
        yield f"cut at {place}", content[:place]


def changed_bytes(content: bytes, places: Iterable[int]) -> Iterator[Case]:
    """Set each of these bytes to its extremes, and to its neighbours."""
    for place in places:
        for value in sorted({0, 1, 127, 128, 255, content[place] ^ 1, content[place] ^ 128} - {content[place]}):
            yield f"byte {place} = {value}", content[:place] + bytes([value]) + content[place + 1 :]


def flips(content: bytes, count: int, seed: int = 0) -> Iterator[Case]:
    """Flip 1 to 8 random bits."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        damaged = bytearray(content)
        bits = rng.integers(0, 8 * len(content), rng.integers(1, 9))
        for bit in bits.tolist():
            damaged[bit // 8] ^= 1 << bit % 8
        yield f"flip {number} of seed {seed}, bits {bits.tolist()}", bytes(damaged)


def outcomes(
    read: Callable[[bytes], Any], cases: Sequence[Case], errors: tuple[type[Exception], ...]
) -> dict[str, Any]:
    """Read each case in a process of its own, and return what it gave by the case's name: a value, or an error's message.

    Raises:
        AssertionError: If one ends the process, hangs, takes more than a second of CPU time, or raises another error.
    """
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    process = fork.Process(target=_read_all, args=(read, cases, errors, there))
    process.start()
    there.close()
    found: dict[str, Any] = {}
    try:
        for name, _ in cases:
            assert here.poll(_WAIT_S), f"{name}: no end after {_WAIT_S} s"
            try:
                is_ours, result, cpu_s = here.recv()
            except EOFError:
                process.join()
                raise AssertionError(f"{name}: the process ended with {process.exitcode}") from None
            assert is_ours, f"{name}: raised {result}"
            assert cpu_s < _CPU_S, f"{name}: took {cpu_s:.1f} s of CPU time"
            found[name] = result
    finally:
        process.kill()
        process.join()
        here.close()
    return found


def _read_all(
    read: Callable[[bytes], Any], cases: Sequence[Case], errors: tuple[type[Exception], ...], to: Connection
) -> None:
    warnings.simplefilter("ignore")  # Pillow warns of damaged metadata
    torch.set_num_threads(1)  # a forked process has none of the parent's OpenMP threads, and would wait for them
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _MORE_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for _, content in cases:
        start = time.process_time()
        is_ours = True
        try:
            result = read(content)
        except errors as error:
            result = f"{type(error).__name__}: {error}"
        except Exception as error:
            is_ours, result = False, f"{type(error).__name__}: {error}"
        to.send((is_ours, result, time.process_time() - start))
