"""`loaderkit lengths`: how long samples are, and what padding costs with each plan."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loaderkit.cli.arguments import count, named, number
from loaderkit.cli.report import complain, say
from loaderkit.cli.source import add_source, given_source
from loaderkit.loader.measure_lengths import measure_lengths
from loaderkit.sampling.by_length.packing import PackPlan
from loaderkit.sampling.by_length.plans import LengthBuckets, TokenBudget
from loaderkit.sampling.by_length.summary import BatchCounts, PlanSummary, longest_times_count, summarise
from loaderkit.sampling.order import Shuffled
from loaderkit.system.arrays import Int64Array
from loaderkit.system.process_pool import usable_cpus
from loaderkit.system.world import World

_BINS, _BAR = 16, 40


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many samples have which length, in bins that grow with the length.

    Args:
        edges: Where bins begin, and the last one ends (B + 1,).
        counts: Samples in each (B,).
    """

    edges: Int64Array
    counts: Int64Array


def add_to(commands: Any) -> None:
    """Add the command to a parser's subcommands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "lengths",
        help="say how long samples are, and what padding costs with each plan",
        description="Measure the lengths of samples, and say how much of an epoch is padding: with random batches, with "
        "buckets, under a budget of tokens, and packed.",
    )
    add_source(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--column", metavar="FIELD", help="the field (or its place) whose length counts, or that is one")
    how.add_argument("--length", metavar="MODULE:FUNCTION", help="from a sample to its length, such as a tokenizer's")
    parser.add_argument("--batch-size", type=count, default=32, metavar="N", help="samples a batch (%(default)s)")
    parser.add_argument(
        "--max-tokens", type=count, metavar="N", help="budget of a batch; that of BATCH_SIZE mean samples if not given"
    )
    parser.add_argument(
        "--row-length", type=count, metavar="N", help="of a packed row; that of the longest sample if not given"
    )
    parser.add_argument(
        "--window",
        type=count,
        metavar="N",
        help="samples arranged at once; half of them, from 1,024 to 32,768, if not given",
    )
    parser.add_argument("--ranks", type=count, default=1, metavar="N", help="that share the data (%(default)s)")
    parser.add_argument("--epoch", type=number, default=0, metavar="N", help="which (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the order (%(default)s)")
    parser.add_argument("--plot", metavar="FILE.png", help="also draw it; needs matplotlib")
    parser.add_argument("--cache", metavar="FILE", help="keeps the lengths for the next time")
    parser.add_argument("--jobs", type=count, default=usable_cpus(), help="parallel processes (%(default)s)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, say what came of it, and return the exit code."""
    try:
        if arguments.plot is not None and not Path(arguments.plot).absolute().parent.is_dir():
            raise FileNotFoundError(f"no folder for --plot {arguments.plot}.")
        source, method = given_source(arguments)
        _check_fields(source, arguments)
        lengths = measure_lengths(
            source,
            _length(arguments),
            num_workers=arguments.jobs,
            cache=arguments.cache,
            multiprocessing_context=method,
        )
        if not len(lengths):
            raise ValueError("the source has no samples.")
        histogram = histogram_of(lengths)
        say(_about(lengths))
        say("")
        for line in _bars(histogram):
            say(line)
        found = summaries(lengths, arguments)
        say("")
        for line in _table(found):
            say(line)
        if arguments.plot is not None:
            from loaderkit.cli.lengths_picture import draw  # matplotlib is needed only here

            draw(arguments.plot, histogram, found)
            say(f"\n{arguments.plot}")
    except (ValueError, TypeError, KeyError, RuntimeError, OSError, ImportError) as error:
        complain(f"loaderkit lengths: {error}")
        return 1
    return 0


def _check_fields(source: Any, arguments: argparse.Namespace) -> None:
    """Say which fields there are, where the one that counts is not named or not among them."""
    sample = source[0] if len(source) and arguments.length is None else None
    if not isinstance(sample, Mapping) or arguments.column in sample:
        return
    found = ", ".join(map(str, sample))
    if arguments.column is None:
        raise ValueError(
            f"samples have the fields {found}: say which counts, --column FIELD or --length MODULE:FUNCTION."
        )
    raise ValueError(f"samples have no field {arguments.column!r}, wanted one of {found} (--column).")


def _length(arguments: argparse.Namespace) -> Any:
    if arguments.length is not None:
        return named(arguments.length)
    column: str | None = arguments.column
    return int(column) if column is not None and column.isdecimal() else column


def summaries(lengths: Int64Array, arguments: argparse.Namespace) -> dict[str, PlanSummary]:
    """Return what random batches and each plan make of an epoch, by the call that makes the plan."""
    longest, size = int(lengths.max()), arguments.batch_size
    budget = arguments.max_tokens or max(round(float(lengths.mean()) * size), longest, 1)
    row_length = arguments.row_length or max(longest, 1)
    rows = max(1, round(budget / row_length))
    more: dict[str, Any] = {"window": arguments.window, "seed": arguments.seed}
    # With few samples the ranks can't always share the last ones: left out, the plan is still comparable.
    plans = {
        f"LengthBuckets(batch_size={size})": LengthBuckets(lengths, size, tail="drop", **more),
        f"TokenBudget(max_tokens={budget:,})": TokenBudget(lengths, budget, tail="drop", too_long="drop", **more),
        f"PackPlan(row_length={row_length:,}, batch_size={rows})": PackPlan(
            lengths, row_length, rows, tail="drop", too_long="drop", **more
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


def histogram_of(lengths: Int64Array) -> Histogram:
    """Count lengths in at most 16 bins, each a constant factor larger than the one before."""
    low, high = max(1, int(lengths.min())), int(lengths.max()) + 1
    edges = np.unique(np.geomspace(low, max(high, low + 1), _BINS + 1).round().astype(np.int64))
    if lengths.min() == 0:
        edges = np.concatenate([[0], edges])
    return Histogram(edges, np.histogram(lengths, edges)[0].astype(np.int64))


def _about(lengths: Int64Array) -> str:
    return (
        f"{len(lengths):,} samples, {int(lengths.sum()):,} tokens: shortest {int(lengths.min()):,}, median "
        f"{float(np.median(lengths)):,.0f}, mean {float(lengths.mean()):,.1f}, longest {int(lengths.max()):,}"
    )


def _bars(histogram: Histogram) -> list[str]:
    most = int(histogram.counts.max())
    rows = []
    for low, high, samples in zip(histogram.edges, histogram.edges[1:], histogram.counts.tolist(), strict=False):
        name = f"{low:,}" if high == low + 1 else f"{low:,} to {high - 1:,}"
        rows.append((name, samples, "#" * -(-_BAR * samples // most)))
    width = max(len(name) for name, _, _ in rows)
    return [f"{name:>{width}}  {bar:<{_BAR}}  {samples:,}".rstrip() for name, samples, bar in rows]


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
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
