"""What the benchmarks share: interleaved repeats, medians of paired ratios, CSV files.

Contenders take turns, in another order each round, and are compared within a round. Whatever else the machine
does then slows all of them alike.
"""

import argparse
import contextlib
import csv
import gc
import math
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from report.results import BENCHMARKS, RESULTS

LEAST_ROUNDS = 3
Row = dict[str, Any]


class LeftOutError(Exception):
    """A contender that failed, or took too long."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a script was called."""

    quick: bool
    out: Path | None  # None: results are printed only


def parse_options(description: str | None) -> Options:
    """Read the command line that all scripts have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="small sizes and few repeats; prints, writes nothing")
    parser.add_argument("--out", type=Path, help=f"where results go (benchmarks/{RESULTS.name}, with --quick nowhere)")
    given = parser.parse_args()
    return Options(quick=given.quick, out=given.out or (None if given.quick else RESULTS))


def seconds(function: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Time one call, or return the seconds that it has taken itself, where it does."""
    start = clock()
    own = function()
    return own if isinstance(own, float) else clock() - start


def drain(batches: Iterable[Any]) -> None:
    """Iterate as a training loop does, holding one batch at a time."""
    for _ in batches:
        pass


def steady(batches: Iterator[Any], count: int, ahead: int = 8) -> float:
    """Return the seconds of this many batches in the middle of a run, without its start and prefetched batches."""
    skip = min(ahead, count // 4) + 1
    for _ in range(skip):
        next(batches)
    start = time.perf_counter()
    for _ in range(count - skip):
        next(batches)
    return (time.perf_counter() - start) * count / (count - skip)


def turns(count: int, number: int) -> list[int]:
    """Return the order in which the contenders take turns in a round.

    Over 2 * count rounds each contender follows each other one equally often (Williams, 1949), because one may slow
    the next.
    """
    zigzag = [(step + 1) // 2 if step % 2 else -(step // 2) for step in range(count)]
    order = [(place + number) % count for place in zigzag]
    return order[::-1] if number // count % 2 else order


def interleave(
    contenders: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    first: int = 0,
    limit_s: float = math.inf,
    seldom: Mapping[str, int] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    label: str = "",
) -> dict[str, dict[int, float]]:
    """Time each contender once a round, after one call that does not count; report rounds and contenders that are left out.

    Args:
        contenders: What to call, by name.
        rounds: Number of rounds.
        first: Number of the first round, if others came before.
        limit_s: After three rounds, none begins later than this; before, none later than three times this.
        seldom: Contenders that take part only every so many rounds.
        clock: Counts seconds: `time.process_time` for work on one thread that never waits.
        label: What is measured, for progress lines.

    Returns:
        Seconds by name and round, without the contenders that raised LeftOutError.
    """
    found: dict[str, dict[int, float]] = {name: {} for name in contenders}
    gc.freeze()  # what is imported need not be looked through each time
    begun = told = time.monotonic()
    for number in range(-1, rounds):
        late = (time.monotonic() - begun) / limit_s
        if (number >= LEAST_ROUNDS and late > 1) or (number >= 1 and late > LEAST_ROUNDS):
            tell(f"{label}: {number} rounds in the time that there is, not {rounds}")
            break
        names = [name for name in found if max(number, 0) % (seldom or {}).get(name, 1) == 0]
        if number >= 0:  # the first time in the order given: forks before threads
            names = [names[place] for place in turns(len(names), first + number)]
        for name in names:
            gc.collect()
            try:
                taken = seconds(contenders[name], clock)
            except LeftOutError as error:
                del found[name]
                tell(f"{label}: {name}: left out: {error}.")
                continue
            if number >= 0:
                found[name][first + number] = taken
        if time.monotonic() - told > 1:
            told = time.monotonic()
            tell(f"{label}: round {number + 1} of {rounds}, {told - begun:.0f} s")
    return found


def tell(text: str) -> None:
    """Say on stderr how far a script is."""
    print(text.removeprefix(": "), file=sys.stderr, flush=True)


def ratio(taken: Mapping[int, float], reference: Mapping[int, float]) -> float:
    """Return the median over the rounds of taken / reference."""
    return statistics.median(taken[number] / reference[number] for number in taken.keys() & reference.keys())


def spread(values: Iterable[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    low, middle, high = np.quantile(list(values), [0.25, 0.5, 0.75])
    return float(low), float(middle), float(high)


def descendants(process: int) -> list[int]:
    """Return the processes that a process has started, and theirs; none where there is no /proc."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it ends
        for path in Path(f"/proc/{process}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # a thread has ended
                found += map(int, path.read_text().split())
    return found + [other for child in found for other in descendants(child)]


def end(processes: Iterable[int]) -> None:
    """Kill processes; those that have ended are passed over."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def leave() -> NoReturn:
    """End a forked process at once, with all that it has started."""
    end(descendants(os.getpid()))
    os._exit(0)


def machine() -> str:
    """Describe what the numbers were taken on."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        fields = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
        cpu = {key.strip(): value.strip() for key, value in fields.items()}.get("model name", cpu)
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}"
    cores = f"{len(os.sched_getaffinity(0))} cores of {cpu}"
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # it was used
        cores += f", {torch.cuda.get_device_name()}"
    return f"{cores}; {platform.system()}; {versions}"


def record(name: str, rows: list[Row], options: Options) -> None:
    """Print rows with equal columns, and write them with the machine to `<name>.csv`; draw the script's pictures."""
    shown = [{key: _short(value) for key, value in row.items()} for row in rows]
    widths = {key: max(len(key), *(len(row[key]) for row in shown)) for key in shown[0]}
    for row in [{key: key for key in widths}, *shown]:
        print("  ".join(row[key].ljust(width) for key, width in widths.items()))
    print(machine())
    if options.out is None:
        return
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "machine"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(row | {"machine": machine()} for row in shown)
    from report.pictures import draw  # matplotlib is not to be imported before contenders are forked

    question = Path(sys.argv[0]).resolve().relative_to(BENCHMARKS).with_suffix("")
    draw(str(question), options.out)
    tell(f"written: {name}.csv and its picture")


def quartiles(name: str, values: Iterable[float], scale: float = 1.0) -> Row:
    """Return three columns: the median, and the quartiles as `<name>_q1` and `<name>_q3`."""
    low, middle, high = spread(values)
    return {name: middle * scale, f"{name}_q1": low * scale, f"{name}_q3": high * scale}


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
