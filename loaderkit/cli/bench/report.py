"""The report: tables, a recommendation, and a CSV file."""

import csv
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loaderkit.cli.bench.costs import Costs, short
from loaderkit.cli.bench.subject import Setting
from loaderkit.cli.bench.throughput import Advice, Measured, advise
from loaderkit.system.process_pool import usable_cpus

_NOISY = 0.2


@dataclass(frozen=True, slots=True)
class Report:
    """All measurements.

    Args:
        subject: Description of the dataset and its batches.
        samples_per_batch: Mean number of samples in a batch.
        rounds: Number of rounds that were planned.
        found: Throughput of each setting.
        costs: The parts of a batch's cost.
    """

    subject: str
    samples_per_batch: float
    rounds: int
    found: dict[Setting, Measured]
    costs: Costs

    @property
    def advice(self) -> Advice | None:
        """The recommended setting; None if nothing could be measured."""
        return advise(self.found)

    def lines(self) -> list[str]:
        """Return the report's lines."""
        cpus = usable_cpus()
        lines = [f"{self.subject}; {cpus} CPU{'s' * (cpus > 1)}", ""]
        return [*lines, *table(self._throughput()), "", *table(self._parts()), "", *self._hints()]

    def _throughput(self) -> list[list[str]]:
        first = self.found.get(Setting(0, "inline"))
        head = ["engine", "workers", "samples/s", "batches/s", "over inline", "spread", "first batch (ms)"]
        rows = [head]
        for setting, one in self.found.items():
            row = [setting.engine, str(setting.workers)]
            if one.error or not one.rates:
                row += ["failed" if one.error else "not measured", *[""] * 4]
            else:
                ratio = f"{one.ratio_to(first):.2f} x" if first is not None and first.rates else ""
                first_ms = sorted(one.first_s)[len(one.first_s) // 2] * 1e3
                row += [f"{one.rate * self.samples_per_batch:,.0f}", f"{one.rate:,.1f}", ratio]
                row += [f"{one.spread:.0%}", short(first_ms)]
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
        late = [str(setting) for setting, one in self.found.items() if not one.rates and not one.error]
        if late:
            lines.append(f"not measured, because the time was over: {'; '.join(late)}.")
        fewest = min((len(one.rates) for one in self.found.values() if one.rates), default=self.rounds)
        if fewest < self.rounds:
            lines.append(f"{fewest} of {self.rounds} rounds, then the time was over. Give more --seconds.")
        advice = self.advice
        if advice is None:
            return [*lines, "recommended: nothing, because nothing could be measured."]
        chosen, best = self.found[advice.setting], self.found[advice.fastest]
        line = f"recommended: {advice.setting}  ({chosen.rate * self.samples_per_batch:,.0f} samples/s)"
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


def table(rows: list[list[str]]) -> list[str]:
    """Return a table's lines, with rich on a terminal and plain elsewhere. The first row is the head."""
    if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        return _rich(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def _rich(rows: list[list[str]]) -> list[str]:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(rows[0]):
        drawn.add_column(name, justify="right" if number else "left")
    for row in rows[1:]:
        drawn.add_row(*row)
    console = Console(file=sys.stdout)
    with console.capture() as capture:
        console.print(drawn)
    return [line.rstrip() for line in capture.get().splitlines() if line.strip()]


def write_csv(path: str, report: Report) -> None:
    """Write one line for each measurement: what, engine, workers, round, value, unit."""
    rows: list[list[Any]] = [["what", "engine", "workers", "round", "value", "unit"]]
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
