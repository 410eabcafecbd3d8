"""Measure batches per second for each setting, in turns, because the machine's load changes over time."""

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loaderkit.cli.bench.subject import NO_BATCHES, Setting, Subject
from loaderkit.loader.loader import Loader

_LEAST_NOISE, _MOST_NOISE = 0.05, 0.25


@dataclass(slots=True)
class Measured:
    """The measurements of a setting."""

    rates: dict[int, float] = field(default_factory=dict)  # batches per second, by round
    first_s: list[float] = field(default_factory=list)  # from making the loader to its first batch
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
        """Return the median ratio over the rounds that both settings have."""
        return float(
            np.median([self.rates[turn] / other.rates[turn] for turn in self.rates.keys() & other.rates.keys()])
        )


@dataclass(frozen=True, slots=True)
class Advice:
    """The recommended setting: the fewest workers whose rate equals the fastest one's within the noise."""

    setting: Setting
    fastest: Setting
    noise: float  # relative differences below it are not significant


def settings_of(engines: Sequence[str], workers: Sequence[int]) -> list[Setting]:
    """Return each engine with each number of workers that it supports."""
    pairs = itertools.product(dict.fromkeys(engines), sorted(set(workers)))
    return [Setting(number, engine) for engine, number in pairs if (engine == "inline") == (number == 0)]


def turns(
    subject: Subject, settings: Sequence[Setting], *, seconds: float, rounds: int
) -> Iterator[dict[Setting, Measured]]:
    """Measure the settings in turns, in a new order each round; yield all measurements after each turn.

    Args:
        subject: The dataset and its loader's settings.
        settings: The settings to measure.
        seconds: Total time; the last turn may exceed it.
        rounds: Turns of each setting.
    """
    draw, end = random.Random(0), time.perf_counter() + seconds
    slice_s = min(5.0, max(0.05, 0.6 * seconds / (rounds * len(settings))))
    found = {setting: Measured() for setting in settings}
    for number in range(rounds):
        for setting in draw.sample(list(settings), len(settings)):
            if time.perf_counter() < end and not found[setting].error:
                _turn(subject, setting, number, slice_s, found[setting])
            yield found


def _turn(subject: Subject, setting: Setting, number: int, slice_s: float, into: Measured) -> None:
    start = time.perf_counter()
    loader = None
    try:
        loader = subject.loader(setting)
        loader.seek(epoch=number)  # start with other samples, which the page cache does not hold
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
        into.first_s.append(first_s)
    except Exception as error:
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        into.error = f"{type(error).__name__}: {error}{notes}"
    finally:
        if loader is not None:
            loader.close()


def _epochs(loader: Loader) -> Iterator[Any]:
    """Yield batches without end.

    Raises:
        ValueError: If an epoch has none.
    """
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
            del batch  # frees its memory for the next one
        if empty:
            raise ValueError(NO_BATCHES)


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
