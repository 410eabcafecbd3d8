"""What `loaderkit lengths` says, as a picture."""

from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loaderkit.sampling.by_length.summary import PlanSummary

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
    found = {name: one for name, one in found.items() if one.tokens}  # the others have no ratio
    names = [name.replace("(", "\n(").replace(", b", ",\nb") for name in found]
    ratios = [one.padded_to_real for one in found.values()]
    right.barh(names, ratios, color=_RED, label="padding")
    right.barh(names, [1] * len(names), color=_GREY, label="tokens")
    for row, one in enumerate(found.values()):
        ratio, batches = one.padded_to_real, "batch" if one.batches == 1 else "batches"
        right.text(ratio, row, f" {ratio:.4g}\n {one.batches:,} {batches}", va="center")
    right.invert_yaxis()
    right.set_xlim(0, max(ratios, default=1) * 1.25)
    right.set_xlabel("computed tokens for each real one")
    ranks = max((one.ranks for one in found.values()), default=1)
    right.set_title("Padding, and batches" + (f" on each of {ranks} ranks" if ranks > 1 else ""), loc="left")
    if found:
        right.legend(loc="lower right", frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130, format="png")
