"""The demo's picture: which samples were trained on, batch by batch, before and after the kill."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

KEPT, LOST, RESUMED, TWICE, NEVER = "#4c78a8", "#b8b8b8", "#2a9d5c", "#d62728", "#f28e2b"
GAP = 3  # batches' widths between the two processes


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The killed epoch. A sample goes by its position in the uninterrupted run's epoch."""

    kept: list[list[int]]  # by batch, up to the checkpoint
    lost: list[list[int]]  # trained after the checkpoint, forgotten with the process
    resumed: list[list[int]]
    twice: list[int]
    never: list[int]
    same_weights: bool


def draw(timelines: Mapping[str, Timeline], path: Path) -> None:
    """Draw one timeline above the other and save them as a PNG."""
    figure, rows = plt.subplots(len(timelines), 1, figsize=(10, 3.9 * len(timelines)), sharex=True, sharey=True)
    for axes, (name, timeline) in zip(rows, timelines.items(), strict=True):
        _draw_one(axes, name, timeline)
    rows[-1].set_xlabel("batches of the killed epoch, in the order in which they were trained")
    handles = {label: handle for axes in rows for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=3, frameon=False, markerscale=3)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_one(axes: Any, name: str, timeline: Timeline) -> None:
    twice = set(timeline.twice)
    kill = len(timeline.kept) + len(timeline.lost)
    resume = kill + GAP
    end = resume + len(timeline.resumed)
    _dots(axes, timeline.kept, 0, KEPT, "trained, in the checkpoint")
    _dots(axes, timeline.lost, len(timeline.kept), LOST, "trained after the checkpoint, lost with the process")
    fresh = [[position for position in batch if position not in twice] for batch in timeline.resumed]
    again = [[position for position in batch if position in twice] for batch in timeline.resumed]
    _dots(axes, fresh, resume, RESUMED, "trained after the resume")
    _dots(axes, again, resume, TWICE, "trained a second time")
    axes.scatter(
        [end + 2] * len(timeline.never), timeline.never, marker="_", s=90, linewidths=0.5, color=NEVER,
        label="never trained in this epoch",
    )  # fmt: skip
    top = max(max(batch) for batch in timeline.kept + timeline.lost + timeline.resumed)
    axes.axvspan(kill - 0.5, resume - 0.5, color="black", alpha=0.06, linewidth=0)
    axes.axvline(kill - 0.5, color="black", linewidth=1.2)
    axes.axvline(resume - 0.5, color="black", linewidth=1.2)
    axes.axvline(len(timeline.kept) - 0.5, color="gray", linewidth=0.8, linestyle=":")
    _say(axes, len(timeline.kept) - 0.8, 0.97 * top, "checkpoint", "right", "gray")
    _say(axes, kill - 0.8, 0.87 * top, "SIGKILL", "right", "black")
    _say(axes, resume - 0.2, 0.03 * top, "new process", "left", "black")
    weights = "bit-identical" if timeline.same_weights else "different"
    axes.set_title(
        f"{name}: {len(timeline.twice)} trained twice, {len(timeline.never)} never, final weights {weights}",
        loc="left",
        fontweight="bold",
    )
    axes.set_ylabel("sample's position in the\nuninterrupted run's epoch")
    axes.set_xlim(-1, end + 4)
    axes.spines[["top", "right"]].set_visible(False)


def _say(axes: Any, x: float, y: float, text: str, side: str, color: str) -> None:
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2}
    axes.text(x, y, text, ha=side, va="center", fontsize=10, fontweight="bold", color=color, bbox=box)


def _dots(axes: Any, batches: list[list[int]], start: int, color: str, label: str) -> None:
    points = [(start + row, position) for row, batch in enumerate(batches) for position in batch]
    axes.scatter([x for x, _ in points], [y for _, y in points], s=4, color=color, label=label)
