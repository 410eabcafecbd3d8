"""The report as a picture."""

from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loaderkit.cli.bench.report import Report

_COLOURS = {"inline": "#8c959f", "torch": "#d1603d", "ring": "#1f6feb", "threads": "#2da44e", "auto": "#8a63d2"}
_DARK = "#24292f"


def draw(path: str, report: Report) -> None:
    """Write a PNG: throughput by engine and number of workers, and the parts of a batch's cost."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    _draw_throughput(left, report)
    _draw_costs(right, report)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(report.subject, x=0.01, ha="left", fontsize=10)
    figure.savefig(path, dpi=130, format="png")


def _draw_throughput(axes: Any, report: Report) -> None:
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


def _draw_costs(axes: Any, report: Report) -> None:
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
