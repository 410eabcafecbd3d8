"""What `loaderkit lengths` says, as a picture."""

from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loaderkit.plan_summary import PlanSummary

if TYPE_CHECKING:
    from loaderkit.cli.lengths import Histogram

_BLUE, _GREY, _RED = "#1f6feb", "#d0d7de", "#d1603d"


def draw(path: str, histogram: "Histogram", found: dict[str, PlanSummary]) -> None:
    """Write a PNG: the histogram of lengths, and for each plan its tokens with and without padding."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.1])
    places = range(len(histogram.counts))
    left.bar(places, histogram.counts, width=0.9, color=_BLUE)
    left.set_xticks([place - 0.5 for place in range(len(histogram.edges))], [f"{edge:,}" for edge in histogram.edges])
    left.tick_params(axis="x", rotation=60)
    left.set_xlabel("length")
    left.set_ylabel("samples")
    left.set_title("Lengths", loc="left")
    names = [name.replace("(", "\n(").replace(", b", ",\nb") for name in found]
    ratios = [one.padded_to_real for one in found.values()]
    right.barh(names, ratios, color=_RED, label="padding")
    right.barh(names, [1] * len(names), color=_GREY, label="tokens")
    for row, ratio in enumerate(ratios):
        right.text(ratio, row, f" {ratio:.4g}", va="center")
    right.invert_yaxis()
    right.set_xlim(0, max(ratios) * 1.15)
    right.set_xlabel("computed tokens for each real one")
    ranks = next(iter(found.values())).ranks
    right.set_title("Padding" + (f", {ranks} ranks" if ranks > 1 else ""), loc="left")
    right.legend(loc="lower right", frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130, format="png")
