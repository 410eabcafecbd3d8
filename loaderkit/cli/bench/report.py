"""The report: tables, a recommendation, a CSV file and a picture."""

import csv
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from loaderkit.cli.bench.measure import Advice, Cache, Costs, Measured, advise, short
from loaderkit.cli.bench.subject import INLINE, Setting
from loaderkit.cli.report import table, two_axes
from loaderkit.system.cpus import Cpus

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NOISY = 0.2
_MEASURED: dict[Cache, str] = {
    "warm": "cache: warm. What was measured had been downloaded before, as in the second and later epochs.",
    "cold": "cache: cold. Each turn began with an empty cache and downloaded its shards, as in the first epoch.",
}
_EPOCHS: dict[Cache, str] = {"warm": " from a warm cache", "cold": " for the first epoch"}
_ENOUGH_ROUNDS = 3  # to tell a difference from noise


@dataclass(frozen=True, slots=True)
class Report:
    """All measurements."""

    subject: str  # describes the dataset and its batches
    samples_per_batch: float  # mean
    rounds: int  # planned
    found: dict[Setting, Measured]
    costs: Costs
    cache: Cache | None = None  # of remote shards

    @property
    def advice(self) -> Advice | None:
        """The recommended setting; None if too little could be measured."""
        return advise(self.found) if self.complete >= self.needed else None

    @property
    def complete(self) -> int:
        """Number of rounds that all settings have, apart from those that failed."""
        return min((len(one.rates) for one in self.found.values() if not one.error), default=0)

    @property
    def needed(self) -> int:
        """Number of rounds that a recommendation needs."""
        return min(self.rounds, _ENOUGH_ROUNDS)

    def lines(self) -> list[str]:
        """Return the report's lines."""
        cpus = Cpus.detect().usable
        lines = [f"{self.subject}; {cpus} CPU{'s' * (cpus > 1)}", *([_MEASURED[self.cache]] if self.cache else []), ""]
        return [*lines, *table(self._throughput()), "", *table(self._parts()), "", *self._hints()]

    def _throughput(self) -> list[list[str]]:
        first = self.found.get(INLINE)
        head = ["engine", "workers", "samples/s", "batches/s", "over inline", "spread", "first batch (ms)"]
        head += ["downloads (MB/s)"] if self.cache == "cold" else []
        rows = [head]
        for setting, one in self.found.items():
            row = [setting.engine, str(setting.workers)]
            if one.error or not one.rates:
                row += ["failed", *[""] * (len(head) - 3)]
            else:
                ratio = f"{one.rate / first.rate:.2f} x" if first is not None and first.rates else ""
                first_ms = sorted(one.first_s)[len(one.first_s) // 2] * 1e3
                row += [f"{one.rate * self.samples_per_batch:,.0f}", f"{one.rate:,.1f}", ratio]
                row += [f"{one.spread:.0%}", short(first_ms)]
                row += [short(median(one.downloads.values()) / 1e6)] if self.cache == "cold" else []
            rows.append(row)
        return rows

    def _parts(self) -> list[list[str]]:
        rows = [["a batch's cost", "a batch", "a sample"]]
        for cost in self.costs.parts:
            each = "" if cost.seconds is None else f"{short(cost.seconds / self.samples_per_batch * 1e6)} us"
            rows.append([cost.part, str(cost), each])
        return rows

    def _hints(self) -> list[str]:
        lines = [f"failed: {setting}: {one.error}" for setting, one in self.found.items() if one.error]
        if 0 < self.complete < self.rounds:
            lines.append(f"{self.complete} of {self.rounds} rounds, then the time was over.")
        advice = self.advice
        if advice is None:
            few = f"{self.needed} rounds are needed. Give more --seconds"
            return [*lines, f"recommended: nothing, because {few if self.complete else 'nothing could be measured'}."]
        chosen, best = self.found[advice.setting], self.found[advice.fastest]
        line = f"recommended{_EPOCHS[self.cache] if self.cache else ''}: {advice.setting}  ({chosen.rate * self.samples_per_batch:,.0f} samples/s)"
        if advice.setting == advice.fastest:
            line += ": the fastest."
        else:
            line += (
                f": the fewest workers within {advice.noise:.0%}, the noise, of the fastest ({advice.fastest}: "
                f"{best.rate * self.samples_per_batch:,.0f} samples/s)."
            )
        lines.append(line)
        if max(chosen.spread, best.spread) > _NOISY:
            lines.append("The measurements vary a lot from round to round: use a quieter machine, or more --seconds.")
        slow = self.costs.stragglers()
        if slow is not None:
            lines.append(
                f"Stragglers: the slowest 5 % of {self.costs.unit} take {slow[0] / slow[1]:.0f} times as long as the median "
                f'({slow[0] * 1e3:.3g} ms, {slow[1] * 1e3:.3g} ms). With engine="ring" the other workers continue meanwhile; a '
                "larger prefetch_factor evens out the delays."
            )
        return lines


def write_csv(path: str, report: Report) -> None:
    """Write one line for each measurement: what, engine, workers, round, value, unit."""
    rows: list[list[object]] = [["what", "engine", "workers", "round", "value", "unit"]]
    for setting, one in report.found.items():
        place = [setting.engine, setting.workers]
        for number, rate in one.rates.items():
            rows.append(["throughput", *place, number, f"{rate:.6g}", "batches/s"])
            rows.append(["throughput", *place, number, f"{rate * report.samples_per_batch:.6g}", "samples/s"])
        rows += [
            ["first batch", *place, number, f"{value:.6g}", "s"]
            for number, value in zip(one.rates, one.first_s, strict=True)
        ]
    for cost in report.costs.parts:
        value = "not measured" if cost.seconds is None else f"{cost.seconds:.6g}"
        rows.append([cost.part, "", "", "", value, "s/batch"])
    with Path(path).open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


_COLOURS = {"inline": "#8c959f", "torch": "#d1603d", "ring": "#1f6feb", "threads": "#2da44e", "auto": "#8a63d2"}
_DARK = "#24292f"


def draw(path: str, report: Report) -> None:
    """Write a PNG: throughput by engine and number of workers, and the parts of a batch's cost."""
    with two_axes(path, height=4.4, widths=(1.25, 1)) as (left, right):
        _draw_throughput(left, report)
        _draw_costs(right, report)
        left.figure.suptitle(report.subject, x=0.01, ha="left", fontsize=10)


def _draw_throughput(axes: "Axes", report: Report) -> None:
    there = {setting: one for setting, one in report.found.items() if one.rates}
    numbers = sorted({setting.workers for setting in there})
    engines = list(dict.fromkeys(setting.engine for setting in there))
    width = 0.8 / max(1, sum(engine != "inline" for engine in engines))
    advice, scale = report.advice, report.samples_per_batch
    top = max(max(one.rates.values()) for one in there.values()) * scale if there else 1.0
    for engine in engines:
        mine = sorted(setting for setting in there if setting.engine == engine)
        row = [name for name in engines if name != "inline"].index(engine) if engine != "inline" else 0
        shift = 0.0 if engine == "inline" else (row + 0.5) * width - 0.4
        places = [numbers.index(setting.workers) + shift for setting in mine]
        rates = [there[setting].rate * scale for setting in mine]
        all_rates = [[rate * scale for rate in there[setting].rates.values()] for setting in mine]
        low = [rate - min(some) for rate, some in zip(rates, all_rates, strict=True)]
        high = [max(some) - rate for rate, some in zip(rates, all_rates, strict=True)]
        bars = axes.bar(places, rates, width=0.92 * width, color=_COLOURS[engine], label=engine)
        axes.errorbar(places, rates, [low, high], fmt="none", ecolor=_DARK, elinewidth=1, capsize=2)
        for setting, bar, place, most in zip(mine, bars, places, map(max, all_rates), strict=True):
            if advice is not None and setting == advice.setting:
                axes.bar(place, bar.get_height(), width=bar.get_width(), color="none", edgecolor=_DARK, linewidth=2)
                axes.text(
                    place, most + 0.02 * top, "recommended", ha="center", va="bottom", fontweight="bold", fontsize=9
                )
    axes.set_ylim(0, 1.15 * top)
    axes.set_xticks(range(len(numbers)), map(str, numbers))
    axes.set_xlim(-0.6, len(numbers) - 0.4)
    axes.set_xlabel("workers")
    axes.set_ylabel("samples a second")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_title("Throughput: median, least and most of the rounds", loc="left", fontsize=10)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, title="engine", title_fontsize=9, fontsize=9)


def _draw_costs(axes: "Axes", report: Report) -> None:
    parts = report.costs.parts
    values = [(part.seconds or 0.0) * 1e3 for part in parts]
    axes.barh(
        [part.part.replace(" (", "\n(").replace(" and", "\nand") for part in parts],
        values,
        color=_COLOURS["ring"],
        height=0.6,
    )
    for row, part in enumerate(parts):
        axes.text(values[row], row, f"  {part}", va="center", fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.35 * max([*values, 1e-6]))
    axes.set_xlabel("ms a batch")
    axes.set_title("A batch's cost", loc="left", fontsize=10)
