"""Plot what a monitor has measured."""

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loaderkit.monitor.waits import Sums, WaitSummary

_BLUE, _RED, _GREY = "#1f6feb", "#d1603d", "#6e7781"


def draw(path: str | Path, course: list[Sums], skipped: int, summary: WaitSummary) -> None:
    """Write a PNG file: the steps' times above, the share of waiting below.

    `course` has sums over groups of steps, in order. `skipped` is the number of warm-up steps before them.
    """
    steps = np.array([part.steps for part in course])
    ends = skipped + np.cumsum(steps)
    edges = np.concatenate([[skipped], ends])
    step_ms = np.array([part.step_ns for part in course]) / steps / 1e6
    wait_ms = np.array([part.wait_ns for part in course]) / steps / 1e6
    figure = Figure(figsize=(9, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1.5, 1])
    above.stairs(step_ms, edges, fill=True, color=_BLUE, label="computing")
    above.stairs(wait_ms, edges, fill=True, color=_RED, label="waiting for data")
    top = float(step_ms.max())
    usual = float(np.quantile(step_ms, 0.99)) * 1.6
    above.set_ylim(0, min(top * 1.1, usual) or 1)  # a single long step must not flatten the rest
    above.set_ylabel("time of a step (ms)")
    above.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    below.stairs(
        100 * wait_ms / step_ms,
        edges,
        color=_RED,
        linewidth=0.7,
        alpha=0.6,
        label=f"each {steps[0]:,} steps" if steps[0] > 1 else "each step",
    )
    width = max(1, len(course) // 20)
    mean = np.convolve(wait_ms * steps, np.ones(width), "valid") / np.convolve(step_ms * steps, np.ones(width), "valid")
    below.plot(ends[width - 1 :], 100 * mean, color=_GREY, label=f"mean of {width * int(steps[0]):,}")
    below.set_ylim(0, 100)
    below.set_ylabel("waiting (%)")
    below.set_xlabel("step")
    below.set_xlim(edges[0], edges[-1])
    below.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    said = f"{summary.wait_s * 1e3:.3g} of {summary.step_s * 1e3:.3g} ms"
    above.set_title(
        f"{summary.share:.1%} of a step is spent waiting for data: {said}, {summary.steps:,} steps", loc="left"
    )
    if min(top * 1.1, usual) < top:
        above.text(1.005, 0.02, f"longest step:\n{top:.3g} ms", transform=above.transAxes, va="bottom", color=_GREY)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130, format="png")
