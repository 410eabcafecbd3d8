"""Measure batches per second for each setting, and what each part of a batch costs."""

import contextlib
import copy
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from loaderkit.cli.bench.subject import INLINE, Setting, Subject
from loaderkit.datasets.base import MapStyle, reads_batches, reads_many
from loaderkit.loader.loader import Loader
from loaderkit.reading.batch_reader import takes_batches
from loaderkit.system.nested import pin, to_device
from loaderkit.system.stack import stack

Cache = Literal["warm", "cold"]  # of remote shards

_WARM_UP = 2  # the cache may be filled for this many times the seconds for all turns
_COLD_S = 10.0  # the shortest cold turn: the first downloads come in bursts
_LEAST_NOISE, _MOST_NOISE = 0.05, 0.25


@dataclass(slots=True)
class Measured:
    """The measurements of a setting."""

    rates: dict[int, float] = field(default_factory=dict)  # batches per second, by round
    first_s: list[float] = field(default_factory=list)  # from making the loader to its first batch
    downloads: dict[int, float] = field(default_factory=dict)  # bytes per second, by round
    error: str = ""

    @property
    def rate(self) -> float:
        """The median rate."""
        return float(np.median(list(self.rates.values())))

    @property
    def spread(self) -> float:
        """Half of the interquartile range, divided by the median."""
        low, high = np.quantile(list(self.rates.values()), [0.25, 0.75])
        return float(high - low) / 2 / self.rate

    def ratio_to(self, other: "Measured") -> float:
        """Return the median of this setting's rate divided by the other's, over the rounds that both have."""
        return float(
            np.median([self.rates[turn] / other.rates[turn] for turn in self.rates.keys() & other.rates.keys()])
        )


@dataclass(frozen=True, slots=True)
class Advice:
    """The recommended setting: the fewest workers that are as fast as the fastest, within the noise."""

    setting: Setting
    fastest: Setting
    noise: float  # relative differences below it are not significant


def settings_of(engines: Sequence[str], workers: Sequence[int]) -> list[Setting]:
    """Return each engine with each number of workers that it supports."""
    pairs = itertools.product(dict.fromkeys(engines), sorted(set(workers)))
    return [Setting(number, engine) for engine, number in pairs if (engine == "inline") == (number == 0)]


def turns(
    subject: Subject, settings: Sequence[Setting], *, seconds: float, rounds: int, cache: Cache = "warm"
) -> Iterator[dict[Setting, Measured]]:
    """Measure the settings in turns, in a new order each round; yield all measurements after each turn.

    A round that has begun is finished, so that all settings have the same rounds. There is at least one, however short `seconds`
    is. With remote shards each turn reads an epoch's first batches. If the cache is "warm", their shards are downloaded before,
    which does not count as part of `seconds`. A "cold" turn begins with an empty cache, and reads as many batches as the others.
    """
    draw, end = random.Random(0), time.perf_counter() + seconds
    slice_s = min(5.0, max(0.05, 0.6 * seconds / (rounds * len(settings))))
    found = {setting: Measured() for setting in settings}
    batches = 0  # of each cold turn
    for number in range(rounds):
        in_time = number == 0 or time.perf_counter() < end
        for setting in draw.sample(list(settings), len(settings)):
            into = found[setting]
            if in_time and not into.error:
                try:
                    if subject.remote is None:
                        # Start with other samples, which the page cache does not hold.
                        _measure(subject, setting, number, slice_s, number, into)
                    elif cache == "cold":
                        batches = _measure_cold(subject, setting, batches, max(_COLD_S, slice_s), number, into)
                    else:
                        end += _measure_warm(subject, setting, slice_s, _WARM_UP * seconds, number, into)
                except Exception as error:
                    into.rates.pop(number, None)  # that of a failed attempt
                    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
                    into.error = f"{type(error).__name__}: {error}{notes}"
            yield found


def _measure_warm(
    subject: Subject, setting: Setting, slice_s: float, limit_s: float, number: int, into: Measured
) -> float:
    """Measure a setting when all shards that it opens are in the cache. Return the seconds spent on filling the cache."""
    begin = time.perf_counter()
    while True:
        start, before = time.perf_counter(), _missing(subject)
        _measure(subject, setting, 0, slice_s, number, into)
        if _missing(subject) == before:
            return start - begin
        if start - begin > limit_s:
            raise ValueError(
                f"shards are still downloaded after {limit_s:g} s: the network is slow, or the cache is too small for what is "
                "read. Give more --seconds or a larger --cache-bytes, or measure from an empty cache: --cache cold."
            )
        _measure(subject, setting, 0, 2 * slice_s + 1, number, into)  # reads more than the next attempt will


def _missing(subject: Subject) -> int:
    """Close this process's open shards, and return how many times so far a shard was opened that was not in the cache."""
    if subject.remote is None:
        return 0
    subject.remote.close()
    found = subject.remote.storage.counts.read()
    return found["opened"] - found["hits"]


def _measure_cold(subject: Subject, setting: Setting, batches: int, slice_s: float, number: int, into: Measured) -> int:
    """Time an epoch's first `batches` batches from an empty cache, and return their number.

    If `batches` is 0, time those that come within about `slice_s` seconds.
    """
    with empty_cache(subject), contextlib.closing(subject.loader(setting)) as loader:
        loader.seek(epoch=0)
        start, count, first_s = time.perf_counter(), 0, 0.0
        for _ in loader:
            count += 1
            spent_s = time.perf_counter() - start
            first_s = first_s or spent_s
            if count == batches or (not batches and spent_s > slice_s):
                break
        if not count:
            raise ValueError(_NO_BATCHES)
        into.rates[number] = count / spent_s
        into.downloads[number] = loader.downloads.size_bytes / spent_s if loader.downloads else 0.0
        into.first_s.append(first_s)
    return count


@contextlib.contextmanager
def empty_cache(subject: Subject) -> Iterator[None]:
    """Inside the `with`, download remote shards to a new folder in their cache's folder. It is deleted afterwards."""
    data = subject.remote
    if data is None or data.storage.cache_dir is None:
        yield
        return
    storage, place = data.storage, Path(data.storage.cache_dir).expanduser()
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=place, ignore_cleanup_errors=True) as folder:
        data.close()
        data.storage = replace(storage, cache_dir=folder)
        try:
            yield
        finally:
            data.close()
            data.storage = storage


def _measure(subject: Subject, setting: Setting, epoch: int, slice_s: float, number: int, into: Measured) -> None:
    """Measure a setting from the start of an epoch, as round `number`."""
    start = time.perf_counter()
    with contextlib.closing(subject.loader(setting)) as loader:
        loader.seek(epoch=epoch)
        batches = _epochs(loader)
        next(batches)
        first_s = time.perf_counter() - start
        for _ in range(2 * setting.workers):  # let every worker start, and use up the first batches
            next(batches)
            if time.perf_counter() - start > slice_s + first_s:
                break
        count, begin = 0, time.perf_counter()
        while count < max(2, setting.workers) or time.perf_counter() - begin < slice_s:
            next(batches)
            count += 1
        into.rates[number] = count / (time.perf_counter() - begin)
        into.first_s[number:] = [first_s]


def _epochs(loader: Loader) -> Iterator[object]:
    """Yield batches without end, unless an epoch has none."""
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
            del batch  # frees its memory for the next one
        if empty:
            raise ValueError(_NO_BATCHES)


def advise(found: dict[Setting, Measured]) -> Advice | None:
    """Return the recommended setting; None if nothing was measured."""
    there = {setting: measured for setting, measured in found.items() if measured.rates}
    if not there:
        return None
    fastest = max(there, key=lambda setting: there[setting].rate)
    best = there[fastest]
    noise, fits = _LEAST_NOISE, [fastest]
    for setting, measured in there.items():
        mine = min(max(_LEAST_NOISE, best.spread, measured.spread), _MOST_NOISE)
        if min(measured.ratio_to(best), measured.rate / best.rate) >= 1 - mine:
            fits.append(setting)
            noise = max(noise, mine)
    fewest = min(setting.workers for setting in fits)
    chosen = max((setting for setting in fits if setting.workers == fewest), key=lambda setting: there[setting].rate)
    return Advice(chosen, fastest, noise)


_NO_BATCHES = "an epoch has no batches. Use a smaller batch size, or tail='keep'."
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
    """The parts of a batch's cost, and the time of each read."""

    parts: list[Cost]  # in the order in which a batch passes through them
    unit: str  # "samples" or "batches": what `times_s` counts
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

    def __init__(self, dataset: MapStyle) -> None:
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

    def __init__(self, collate: Callable[..., object]) -> None:
        self._collate, self.seconds = collate, 0.0
        if takes_batches(collate):
            self.collate_batch = lambda *given: self._call(collate.collate_batch, *given)  # type: ignore[attr-defined]  # `takes_batches` has asked

    def __call__(self, samples: object) -> object:
        return self._call(self._collate, samples)

    def _call(self, collate: Callable[..., object], *given: object) -> object:
        start = time.perf_counter()
        batch = collate(*given)
        self.seconds += time.perf_counter() - start
        return batch


def copy_of(batch: object, _samples: object) -> object:
    """Return a copy of `batch`: a collate function that ignores its samples."""
    return copy.deepcopy(batch)


def measure_costs(subject: Subject, engines: list[str], *, seconds: float) -> Costs:
    """Measure the parts one at a time.

    Transport is the extra time to get a batch from one idle worker, compared with making it in
    this process. It is the full cost, even if a training would hide some of it.
    """
    dataset, config = subject.dataset, subject.config
    together = config.collate_fn is None and config.batch_size is not None and reads_batches(dataset)
    one_by_one = not subject.is_stream and not reads_many(dataset) and not reads_batches(dataset)
    timed = TimedSamples(dataset) if one_by_one else dataset
    collate_fn = stack if config.collate_fn is None and config.batch_size is not None else config.collate_fn
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


def _read(loader: Loader, collate: TimedCollate | None, seconds: float) -> tuple[list[float], list[float], object]:
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
        raise ValueError(_NO_BATCHES)
    if len(times_s) > 2:  # the first batch opens files and allocates memory
        del times_s[0], collate_s[0]
    return times_s, collate_s, batch


def _transport(subject: Subject, engines: list[str], batch: object, seconds: float) -> list[Cost]:
    parts = []
    engines = [engine for engine in engines if engine in ("torch", "ring")]
    copy_batch = partial(copy_of, batch)
    limit_s = seconds / (2 * len(engines) + 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # like a worker
    try:
        here_s = _delivery_s(Loader(range(1 << 40), 1, collate_fn=copy_batch), limit_s)
    finally:
        torch.set_num_threads(threads)
    for engine in engines:
        name = f"transport ({engine})"
        loader = Loader(
            range(1 << 40),
            1,
            collate_fn=copy_batch,
            num_workers=1,
            prefetch_factor=1,  # no batch is made ahead
            engine=engine,  # type: ignore[arg-type]  # one of the engines
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
    """Return the 10 % quantile of the time to get a batch, because a busy machine delays some."""
    batches = iter(loader)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 12 or (len(times) < 10 * _ENOUGH and time.perf_counter() < end):
        start = time.perf_counter()
        batch = next(batches)
        times.append(time.perf_counter() - start)
        del batch  # frees its memory for the next one
    return float(np.quantile(times[5:], 0.1))


def _to_cuda(batch: object) -> list[Cost]:
    if not torch.cuda.is_available():
        return [Cost("pin", None, "no CUDA"), Cost("copy", None, "no CUDA")]
    pinned = pin(batch)

    def copied() -> None:
        to_device(pinned, "cuda")
        torch.cuda.synchronize()

    return [Cost("pin", _median_s(lambda: pin(batch))), Cost("copy", _median_s(copied))]


def _median_s(function: Callable[[], object]) -> float:
    times = []
    for _ in range(20):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times[5:])
