"""Measure what each part of a batch costs: read, collate, transport, pin, copy."""

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from loaderkit.cli.bench.subject import NO_BATCHES, Setting, Subject
from loaderkit.collate import stack
from loaderkit.datasets.base import reads_batches, reads_many
from loaderkit.engine.batch_reader import takes_batches
from loaderkit.loader.loader import Loader
from loaderkit.system.nested import pin, to_device

INLINE = Setting(0, "inline")
_ENOUGH = 200  # batches to read
_FEWEST_TO_JUDGE = 40  # samples or batches
_STRAGGLER = 5.0  # times the median
_LEAST_S = 1e-3  # shorter delays don't matter


def short(value: float) -> str:
    """Format a number to three digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Cost:
    """One part of a batch's cost."""

    part: str
    seconds: float | None  # for a batch; None: not measured
    why_not: str = ""

    def __str__(self) -> str:
        return f"not measured: {self.why_not}" if self.seconds is None else f"{short(self.seconds * 1e3)} ms"


@dataclass(frozen=True, slots=True)
class Costs:
    """The parts of a batch's cost, and the time of each read.

    Args:
        parts: The parts, in the order in which a batch passes through them.
        unit: What was timed: "samples" or "batches".
        times_s: Seconds that each of them took to read.
    """

    parts: list[Cost]
    unit: str
    times_s: list[float]

    def stragglers(self) -> tuple[float, float] | None:
        """Return (median of the slowest 5 %, median of all) in seconds, or None if there are no stragglers.

        Stragglers take more than 5 times the median and more than a millisecond. The median of
        the slowest is used because a busy machine delays single reads.
        """
        if len(self.times_s) < _FEWEST_TO_JUDGE:
            return None
        times = np.sort(self.times_s)
        slow, middle = float(np.median(times[-(len(times) // 20) :])), float(np.median(times))
        return (slow, middle) if slow > max(_STRAGGLER * middle, _LEAST_S) else None


class TimedSamples:
    """A dataset that records how long each sample takes."""

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
    """A collate function that adds up its own time."""

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


class CopyBatch:
    """A collate function that returns a copy of the same batch each time."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __call__(self, samples: Any) -> Any:
        return copy.deepcopy(self.batch)


def measure_costs(subject: Subject, engines: list[str], *, seconds: float) -> Costs:
    """Measure the parts one at a time.

    Transport is the extra time to get a batch from one idle worker, compared with making it in
    this process. It is the full cost, even if a training would hide some of it.

    Args:
        subject: The dataset and its loader's settings.
        engines: The engines whose transport to measure.
        seconds: Total time, about.

    Raises:
        ValueError: If there are no batches.
    """
    dataset, config = subject.dataset, subject.config
    together = config.collate_fn is None and config.batch_size is not None and reads_batches(dataset)
    one_by_one = not subject.is_stream and not reads_many(dataset) and not reads_batches(dataset)
    timed = TimedSamples(dataset) if one_by_one else dataset
    collate_fn = config.collate_fn
    if collate_fn is None and config.batch_size is not None:
        collate_fn = stack
    collate = None if together or collate_fn is None else TimedCollate(collate_fn)
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
        raise ValueError(NO_BATCHES)
    if len(times_s) > 2:  # the first batch opens files and allocates memory
        del times_s[0], collate_s[0]
    return times_s, collate_s, batch


def _transport(subject: Subject, engines: list[str], batch: Any, seconds: float) -> list[Cost]:
    parts = []
    settings = [Setting(1, engine) for engine in engines if engine in ("torch", "ring")]
    copy_batch = CopyBatch(batch)
    limit_s = seconds / (2 * len(settings) + 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # like a worker
    try:
        here_s = _delivery_s(Loader(range(1 << 40), 1, collate_fn=copy_batch), limit_s)
    finally:
        torch.set_num_threads(threads)
    for setting in settings:
        name = f"transport ({setting.engine})"
        loader = Loader(
            range(1 << 40),
            1,
            collate_fn=copy_batch,
            num_workers=1,
            prefetch_factor=1,  # no batch is made ahead
            engine=setting.engine,  # type: ignore[arg-type]
            multiprocessing_context=subject.config.multiprocessing_context,
        )
        try:
            parts.append(Cost(name, max(0.0, _delivery_s(loader, limit_s) - here_s)))
        except Exception as error:
            parts.append(Cost(name, None, f"{type(error).__name__}: {error}"))
        finally:
            loader.close()
    return parts


def _delivery_s(loader: Loader, seconds: float) -> float:
    """Return the 10 % quantile of the time to get a batch; slower ones may be delayed by a busy machine."""
    batches = iter(loader)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 12 or (len(times) < 10 * _ENOUGH and time.perf_counter() < end):
        start = time.perf_counter()
        batch = next(batches)
        times.append(time.perf_counter() - start)
        del batch  # frees its memory for the next one
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
