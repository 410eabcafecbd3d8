"""`loaderkit lengths`: report how long samples are, and how much padding each plan needs."""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from loaderkit.cli.arguments import Commands, add_jobs, count, executor_of, named, number
from loaderkit.cli.report import check_plot, say, table, two_axes
from loaderkit.cli.source import add_source, source_from
from loaderkit.reading.lengths import measure_lengths
from loaderkit.sampling.by_length.packing import PackPlan
from loaderkit.sampling.by_length.plans import LengthBuckets, TokenBudget
from loaderkit.sampling.by_length.summary import BatchCounts, PlanSummary, longest_times_count, summarise
from loaderkit.sampling.order import Shuffled
from loaderkit.system.arrays import Int64Array
from loaderkit.system.suggest import did_you_mean
from loaderkit.system.world import World

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS, _BAR_WIDTH = 16, 40
_BLUE, _GREY, _RED = "#1f6feb", "#d0d7de", "#d1603d"


def add_to(commands: Commands) -> None:
    """Add the command to a parser's subcommands."""
    parser = commands.add_parser(
        "lengths",
        description="Measure the lengths of samples. Report how much of an epoch is padding with random batches, with "
        "length buckets, under a token budget, and with packing.",
        examples=(
            ("loaderkit lengths texts.jsonl --column text", "how long are the texts?"),
            (
                "loaderkit lengths texts.jsonl --length mine:count_tokens --max-tokens 8192 --plot lengths.png",
                "count tokens, and compare plans under a budget",
            ),
        ),
    )
    add_source(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--column", metavar="FIELD", help="field name or number: its length counts, or it is the length")
    how.add_argument("--length", metavar="MODULE:FUNCTION", help="returns a sample's length, such as a token count")
    parser.add_argument("--batch-size", type=count, default=32, metavar="N", help="samples in a batch (%(default)s)")
    parser.add_argument(
        "--max-tokens",
        type=count,
        metavar="N",
        help="token budget of a batch; default: BATCH_SIZE times the mean length",
    )
    parser.add_argument(
        "--row-length", type=count, metavar="N", help="length of a packed row; default: the longest sample"
    )
    parser.add_argument(
        "--window",
        type=count,
        metavar="N",
        help="samples that a plan arranges together; default: half of the data, from 1,024 to 32,768",
    )
    parser.add_argument("--ranks", type=count, default=1, metavar="N", help="ranks that share the data (%(default)s)")
    parser.add_argument("--epoch", type=number, default=0, metavar="N", help="epoch to report (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order (%(default)s)")
    parser.add_argument("--plot", metavar="FILE.png", help="also draw a picture; needs matplotlib")
    parser.add_argument("--cache", metavar="FILE", help="file that keeps the lengths for the next run")
    add_jobs(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the report and return the exit code."""
    check_plot(arguments.plot)
    source, method = source_from(arguments)
    _check_fields(source, arguments)
    with executor_of(arguments) as (jobs, executor):
        lengths = measure_lengths(
            source,
            _length(arguments),
            num_workers=jobs,
            executor=executor,
            cache=arguments.cache,
            multiprocessing_context=method,
        )
    if not len(lengths):
        raise ValueError("the source has no samples.")
    (edges, counts), found = _histogram(lengths), _summaries(lengths, arguments)
    say("\n".join([_overview(lengths), "", *_bars(edges, counts), "", *_table(found), *_cuts(lengths, arguments)]))
    if arguments.plot is not None:
        _draw(arguments.plot, edges, counts, found)
        say(f"\n{arguments.plot}")
    return 0


def _check_fields(source: Any, arguments: argparse.Namespace) -> None:
    """Raise ValueError if samples have several fields and --column names none of them."""
    sample = source[0] if len(source) and arguments.length is None else None
    if not isinstance(sample, Mapping) or arguments.column in sample:
        return
    found = ", ".join(map(str, sample))
    if arguments.column is None:
        raise ValueError(
            f"samples have the fields {found}: say which one counts, --column FIELD or --length MODULE:FUNCTION."
        )
    hint = did_you_mean(arguments.column, map(str, sample))
    raise ValueError(f"samples have no field {arguments.column!r}, wanted one of {found} (--column).{hint}")


def _length(arguments: argparse.Namespace) -> Any:
    if arguments.length is not None:
        return named(arguments.length)
    column: str | None = arguments.column
    return int(column) if column is not None and column.isdecimal() else column


def _summaries(lengths: Int64Array, arguments: argparse.Namespace) -> dict[str, PlanSummary]:
    """Return an epoch's summary for random batches and for each plan, keyed by the plan's constructor call."""
    longest, size = int(lengths.max()), arguments.batch_size
    budget = arguments.max_tokens or max(round(float(lengths.mean()) * size), longest, 1)
    row_length = arguments.row_length or max(longest, 1)
    rows = max(1, round(budget / row_length))
    cuts = ', too_long="split"' if longest > row_length else ""
    more: dict[str, Any] = {"window": arguments.window, "seed": arguments.seed}
    # With few samples the ranks can't always share the last batch; without it plans are still comparable.
    plans = {
        f"LengthBuckets(batch_size={size})": LengthBuckets(lengths, size, tail="drop", **more),
        f"TokenBudget(max_tokens={budget:,})": TokenBudget(lengths, budget, tail="drop", too_long="drop", **more),
        f"PackPlan(row_length={row_length:,}, batch_size={rows}{cuts})": PackPlan(
            lengths, row_length, rows, tail="drop", too_long="split" if cuts else "error", **more
        ),
    }
    world = World(0, arguments.ranks)
    found = {"random batches": _random(lengths, size, arguments)}
    return found | {name: plan.with_world(world).summary(arguments.epoch) for name, plan in plans.items()}


def _random(lengths: Int64Array, batch_size: int, arguments: argparse.Namespace) -> PlanSummary:
    ranks, epoch = arguments.ranks, arguments.epoch
    taken = len(lengths) // (ranks * batch_size) * ranks * batch_size
    indices = Shuffled(len(lengths), seed=arguments.seed).indices(epoch, 0, taken)
    bounds = np.arange(0, taken + 1, batch_size, dtype=np.int64)
    batches = BatchCounts(longest_times_count(lengths[indices], bounds), int(lengths[indices].sum()), taken, 0)
    return summarise([batches], epoch=epoch, ranks=ranks, size=len(lengths))


def _histogram(lengths: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Count lengths in bins of geometrically growing width: the bins' edges (bins + 1,) and their counts (bins,)."""
    low, high = max(1, int(lengths.min())), int(lengths.max()) + 1
    edges = np.unique(np.geomspace(low, max(high, low + 1), _BINS + 1).round().astype(np.int64))
    if lengths.min() == 0:
        edges = np.concatenate([[0], edges])
    return edges, np.histogram(lengths, edges)[0].astype(np.int64)


def _overview(lengths: Int64Array) -> str:
    return (
        f"{len(lengths):,} samples, {int(lengths.sum()):,} tokens: shortest {int(lengths.min()):,}, median "
        f"{float(np.median(lengths)):,.0f}, mean {float(lengths.mean()):,.1f}, longest {int(lengths.max()):,}"
    )


def _bars(edges: Int64Array, counts: Int64Array) -> list[str]:
    most = int(counts.max())
    rows = []
    for low, high, samples in zip(edges, edges[1:], counts.tolist(), strict=False):
        name = f"{low:,}" if high == low + 1 else f"{low:,} to {high - 1:,}"
        rows.append((name, samples, "#" * -(-_BAR_WIDTH * samples // most)))
    width = max(len(name) for name, _, _ in rows)
    return [f"{name:>{width}}  {bar:<{_BAR_WIDTH}}  {samples:,}".rstrip() for name, samples, bar in rows]


def _table(found: dict[str, PlanSummary]) -> list[str]:
    head = ["", "padded/real", "batches a rank", "tokens a batch", "largest", "samples left out", "rank spread"]
    rows = [head] + [
        [
            name,
            f"{one.padded_to_real:.4f}" if one.tokens else "-",
            f"{one.batches:,}",
            f"{one.mean_batch:,.0f}",
            f"{one.max_batch:,}",
            f"{one.left_out:,}",
            f"{one.rank_spread:.2%}",
        ]
        for name, one in found.items()
    ]
    return table(rows)


def _cuts(lengths: Int64Array, arguments: argparse.Namespace) -> list[str]:
    """Say how many samples are longer than a row, and what it costs to drop them."""
    longer = lengths[lengths > (arguments.row_length or lengths.max())]
    if not len(longer):
        return []
    counted = "1 sample is" if len(longer) == 1 else f"{len(longer):,} samples are"
    share = longer.sum() / lengths.sum()
    return [
        "",
        f'{counted} longer than a row. too_long="split" cuts them into pieces, which PackPlan counts as samples; '
        f'too_long="drop" would lose {share:.1%} of the tokens.',
    ]


def _draw(path: str, edges: Int64Array, counts: Int64Array, found: dict[str, PlanSummary]) -> None:
    """Write a PNG: the histogram of lengths, and each plan's ratio of padded to real tokens."""
    with two_axes(path, height=4.2, widths=(1, 1.1)) as (left, right):
        left.bar(range(len(counts)), counts, width=0.9, color=_BLUE)
        left.set_xticks([edge - 0.5 for edge in range(len(edges))], [f"{edge:,}" for edge in edges])
        left.tick_params(axis="x", rotation=60)
        left.set_xlabel("length")
        left.set_ylabel("samples")
        left.set_title("Lengths", loc="left")
        _draw_padding(right, {name: one for name, one in found.items() if one.tokens})  # others have no ratio


def _draw_padding(right: "Axes", found: dict[str, PlanSummary]) -> None:
    names = [name.replace("(", "\n(").replace(", ", ",\n") for name in found]
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
