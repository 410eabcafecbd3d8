"""What a batch costs, part by part."""

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from loaderkit.cli.bench.subject import Setting, Subject
from loaderkit.collate.stack import stack
from loaderkit.datasets.base import reads_batches, reads_many
from loaderkit.engine.batch_reader import takes_batches
from loaderkit.loader.loader import Loader
from loaderkit.system.nested import pin, to_device

INLINE = Setting(0, "inline")
_ENOUGH = 200  # batches, or calls
_FEWEST_TO_JUDGE = 40
_STRAGGLER = 5.0
_LEAST_S = 1e-3  # less matters to nobody


def short(value: float) -> str:
    """Format a number to three digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Cost:
    """A part of a batch's cost."""

    part: str
    seconds: float | None  # a batch; None: not measured
    why_not: str = ""

    def __str__(self) -> str:
        return f"not measured: {self.why_not}" if self.seconds is None else f"{short(self.seconds * 1e3)} ms"


@dataclass(frozen=True, slots=True)
class Costs:
    """The parts, and what was read while they were measured.

    Args:
        parts: In the order in which a batch goes through them.
        unit: What `times_s` are of: "samples" or "batches".
        times_s: How long each of them took to read.
    """

    parts: list[Cost]
    unit: str
    times_s: list[float]

    def stragglers(self) -> tuple[float, float] | None:
        """Return the middle of the slowest 5 % and of all, if the first is more than 5 times as long, and a millisecond.

        The middle, not the mean: a busy machine stops any one of them.
        """
        if len(self.times_s) < _FEWEST_TO_JUDGE:
            return None
        times = np.sort(self.times_s)
        slow, middle = float(np.median(times[-(len(times) // 20) :])), float(np.median(times))
        return (slow, middle) if slow > max(_STRAGGLER * middle, _LEAST_S) else None


class TimedSamples:
    """A dataset whose samples' times are written down."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.times_s: list[float] = []

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        start = time.perf_counter()
        sample = self._dataset[index]
        self.times_s.append(time.perf_counter() - start)
        return sample

    def __getattr__(self, name: str) -> Any:
        if name in ("__getitems__", "read_batch", "_dataset"):
            raise AttributeError(name)
        return getattr(self._dataset, name)


class TimedCollate:
    """A collate whose time is added up."""

    def __init__(self, collate: Callable[..., Any]) -> None:
        self._collate, self.seconds = collate, 0.0
        if takes_batches(collate):
            self.collate_batch = lambda *given: self._call(collate.collate_batch, *given)  # type: ignore[attr-defined]

    def __call__(self, samples: Any) -> Any:
        return self._call(self._collate, samples)

    def _call(self, collate: Callable[..., Any], *given: Any) -> Any:
        start = time.perf_counter()
        batch = collate(*given)
        self.seconds += time.perf_counter() - start
        return batch


class Again:
    """A collate that makes a copy of the same batch each time."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __call__(self, samples: Any) -> Any:
        return copy.deepcopy(self.batch)


def measure_costs(subject: Subject, engines: list[str], *, seconds: float) -> Costs:
    """Measure the parts one by one.

    Transport is by how much longer a copy of a batch takes that is asked for from an idle worker, and handed over
    by it, than one that is made here. So it is what a batch costs in all, not what of it other work hides.

    Args:
        subject: Whose batches.
        engines: Whose transport is measured.
        seconds: For all parts together, about.

    Raises:
        ValueError: If there are no batches.
    """
    dataset, config = subject.dataset, subject.config
    together = config.collate_fn is None and config.batch_size is not None and reads_batches(dataset)
    one_by_one = not subject.is_stream and not reads_many(dataset) and not reads_batches(dataset)
    timed = TimedSamples(dataset) if one_by_one else dataset
    collates = config.collate_fn
    if collates is None and config.batch_size is not None:
        collates = stack
    collate = None if together or collates is None else TimedCollate(collates)
    loader = subject.loader(INLINE, dataset=timed, collate_fn=collate, device=None, pin_memory=False)
    times_s, collate_s, batch = _read(loader, collate, seconds / 2)
    name = "read and collate" if together else "read"  # such a dataset reads whole batches
    parts = [Cost(name, statistics.fmean(times_s) - statistics.fmean(collate_s))]
    if collate is not None:
        parts.append(Cost("collate", statistics.fmean(collate_s)))
    parts += _transport(subject, engines, batch, seconds / 2)
    parts += _to_cuda(batch)
    samples_s = timed.times_s if isinstance(timed, TimedSamples) else times_s
    return Costs(parts, "samples" if one_by_one else "batches", samples_s)


def _read(loader: Loader, collate: TimedCollate | None, seconds: float) -> tuple[list[float], list[float], Any]:
    times_s: list[float] = []
    collate_s: list[float] = []
    end, batch, batches = time.perf_counter() + seconds, None, iter(loader)
    while len(times_s) < _ENOUGH and (len(times_s) < 2 or time.perf_counter() < end):
        start, before = time.perf_counter(), collate.seconds if collate else 0.0
        try:
            batch = next(batches)
        except StopIteration:
            break
        times_s.append(time.perf_counter() - start)
        collate_s.append(collate.seconds - before if collate else 0.0)
    loader.close()
    if not times_s:
        raise ValueError("an epoch has no batches: fewer samples than a batch, and the tail is dropped?")
    if len(times_s) > 2:  # files are opened, and memory is asked for, in the first one
        del times_s[0], collate_s[0]
    return times_s, collate_s, batch


def _transport(subject: Subject, engines: list[str], batch: Any, seconds: float) -> list[Cost]:
    parts = []
    settings = [Setting(1, engine) for engine in engines if engine in ("torch", "ring")]
    again = Again(batch)
    limit_s = seconds / (2 * len(settings) + 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a worker has
    try:
        here_s = _hand_over(Loader(range(1 << 40), 1, collate_fn=again), limit_s)
    finally:
        torch.set_num_threads(threads)
    for setting in settings:
        name = f"transport ({setting.engine})"
        loader = Loader(
            range(1 << 40),
            1,
            collate_fn=again,
            num_workers=1,
            prefetch_factor=1,  # nothing is made ahead
            engine=setting.engine,  # type: ignore[arg-type]
            multiprocessing_context=subject.config.multiprocessing_context,
        )
        try:
            parts.append(Cost(name, max(0.0, _hand_over(loader, limit_s) - here_s)))
        except Exception as error:
            parts.append(Cost(name, None, f"{type(error).__name__}: {error}"))
        finally:
            loader.close()
    return parts


def _hand_over(loader: Loader, seconds: float) -> float:
    """Return the seconds that the fastest tenth of batches take at most: a busy machine wakes a worker when it can."""
    batches = iter(loader)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 12 or (len(times) < 10 * _ENOUGH and time.perf_counter() < end):
        start = time.perf_counter()
        batch = next(batches)
        times.append(time.perf_counter() - start)
        del batch  # its memory may be wanted for another one
    return float(np.quantile(times[5:], 0.1))


def _to_cuda(batch: Any) -> list[Cost]:
    if not torch.cuda.is_available():
        return [Cost("pin", None, "no CUDA"), Cost("copy", None, "no CUDA")]
    pinned = pin(batch)

    def copied() -> None:
        to_device(pinned, "cuda")
        torch.cuda.synchronize()

    return [Cost("pin", _median_s(lambda: pin(batch))), Cost("copy", _median_s(copied))]


def _median_s(function: Callable[[], Any]) -> float:
    times = []
    for _ in range(20):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times[5:])
