"""Draw the pictures that a script declares, from its CSV files."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.lines import Line2D

from report.declare import Chart
from report.questions import declared, file_of
from report.results import NotMeasuredError, Results, Rows

mpl.use("Agg")
import matplotlib.pyplot as plt

DARK = "#24292f"
OURS, LIMIT, TORCH = ("#1f6feb", "#54aeff", "#0a3069", "#80ccff"), ("#8c959f", "#afb8c1"), ("#d1603d", "#e6a08b")
OTHERS = ("#8a63d2", "#2da44e", "#bf8700", "#0a7e8c", "#d4a72c", "#a40e6a", "#7a4f2a", "#4a5568")
STYLE: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}


def draw(question: str, folder: Path) -> None:
    """Draw a script's pictures as PNG files; those without results are passed over."""
    for chart in declared(question).charts:
        name = chart.file or file_of(question)
        try:
            rows = Results(folder, name).rows(**chart.where)
        except NotMeasuredError:
            continue
        with plt.rc_context(STYLE):
            figure = picture(chart, rows)
            figure.supxlabel(rows[0].get("machine", ""), fontsize=7, color="#6e7781")
            figure.savefig(folder / f"{name}.png", dpi=110)
            plt.close(figure)


def picture(chart: Chart, rows: Rows) -> Any:
    """Return a figure: a panel for each group of rows and each column."""
    columns = {chart.columns: ""} if isinstance(chart.columns, str) else chart.columns
    groups = list(dict.fromkeys(tuple(row[key] for key in chart.panels) for row in rows))
    colours = colours_of(list(dict.fromkeys(label(row, chart) for row in rows)))
    wide = len(columns) if len(columns) > 1 else min(2, len(groups))
    high = -(-len(groups) * len(columns) // wide)
    each = 2.4 if chart.x else 0.7 + 0.2 * len(rows) / len(groups)
    figure = plt.figure(figsize=(10, 0.8 + max(1.2, each) * high), layout="constrained")
    panels = iter(figure.subplots(high, wide, squeeze=False).flat)
    for group in groups:
        mine = [row for row in rows if tuple(row[key] for key in chart.panels) == group]
        said = [in_words(key, value) for key, value in zip(chart.panels, group, strict=True)]
        for column, text in columns.items():
            axes = next(panels)
            there = [row for row in mine if row[column]]
            (lines if chart.x else bars)(axes, chart, there, column, colours)
            if not chart.x and there == mine and column != next(iter(columns)):
                axes.set_yticks([])  # the names are at the left of the line
            axes.set_title(", ".join([text, *said] if text else said), loc="left", fontsize=9)
            if chart.mark is not None:
                (axes.axhline if chart.x else axes.axvline)(
                    chart.mark, color=DARK, linewidth=0.8, linestyle=":", zorder=0
                )
    for axes in panels:
        axes.set_axis_off()
    if chart.x:
        handles = [Line2D([], [], marker="o", color=colour, label=name) for name, colour in colours.items()]
        figure.legend(handles=handles, loc="outside right center", fontsize=7, frameon=False)
    figure.suptitle(f"{chart.title}{'; log scale' if chart.log else ''}", x=0.01, ha="left", fontsize=10)
    return figure


def bars(axes: Any, chart: Chart, rows: Rows, column: str, colours: dict[str, str]) -> None:
    names, values = [label(row, chart) for row in rows], [float(row[column]) for row in rows]
    drawn = axes.barh(range(len(rows)), values, color=[colours[name] for name in names])
    shown = [
        f" {value / 1e6:.3g} M" if value >= 1e6 else f" {value:,.0f}" if value >= 1e3 else f" {value:.3g}"
        for value in values
    ]
    axes.bar_label(drawn, shown, fontsize=7, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.3})
    axes.set_yticks(range(len(rows)), names, fontsize=7)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    if chart.log:
        axes.set_xscale("log")
    else:
        axes.locator_params(axis="x", nbins=5)  # long numbers would meet


def lines(axes: Any, chart: Chart, rows: Rows, column: str, colours: dict[str, str]) -> None:
    for name in dict.fromkeys(label(row, chart) for row in rows):
        mine = [row for row in rows if label(row, chart) == name]
        values = [float(row[column]) for row in mine]
        axes.plot([float(row[chart.x]) for row in mine], values, "o-", color=colours[name], markersize=4)
    if rows and max(float(row[chart.x]) for row in rows) > 20 * max(1e-9, min(float(row[chart.x]) for row in rows)) > 0:
        axes.set_xscale("log")
    axes.set_xlabel(chart.x.replace("_", " "))
    axes.set_yscale("log" if chart.log else "linear")


def label(row: dict[str, str], chart: Chart) -> str:
    return ", ".join(row[key] for key in chart.names if row[key])


def in_words(key: str, value: str) -> str:
    if key in ("workers", "leaves"):
        return f"{value} {'tensors' if key == 'leaves' else key}"
    return f"{key.replace('_', ' ')} {value}" if value.replace(".", "").isdigit() else value


def colours_of(names: list[str]) -> dict[str, str]:
    """Return a colour for each contender: ours are blue, DataLoader's red, limits grey."""
    left: dict[tuple[str, ...], Any] = {family: iter(family * len(names)) for family in (OURS, LIMIT, TORCH, OTHERS)}
    return {name: next(left[family_of(name)]) for name in names}


def family_of(name: str) -> tuple[str, ...]:
    if name.startswith(("lk", "loaderkit", "ShardOrder", "obstore")):
        return OURS
    if any(part in name for part in ("limit", "bare", "reference")):
        return LIMIT
    return TORCH if "DataLoader" in name and "Stateful" not in name else OTHERS
