"""The command's arguments and what it does in which order."""

import argparse
import sys
import warnings
from typing import Any

from loaderkit.cli.arguments import count
from loaderkit.cli.bench.costs import measure_costs
from loaderkit.cli.bench.report import Report, write_csv
from loaderkit.cli.bench.subject import Subject, add_subject, given_subject
from loaderkit.cli.bench.throughput import settings_of, turns
from loaderkit.cli.report import complain_of, say, with_progress
from loaderkit.system.process_pool import usable_cpus

_ENGINES = ("inline", "torch", "ring", "threads", "auto")
_DEFAULT = ("inline", "torch", "ring") if sys.platform == "linux" else ("inline", "torch")


def add_to(commands: Any) -> None:
    """Add the command to a parser's subcommands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="measure engines and numbers of workers, and say which to take",
        description="Measure how fast batches come, and from what their cost is made up. MODULE:FACTORY gives a Loader, a "
        "DataModule or a dataset. Nothing else should run meanwhile: the training's own work is not measured, and needs a "
        "CPU as well.",
    )
    add_subject(parser)
    parser.add_argument("--workers", type=_numbers, metavar="0,2,4", help="to try; from 0 to one a CPU if not given")
    parser.add_argument(
        "--engines",
        type=_engines,
        default=list(_DEFAULT),
        metavar="A,B",
        help=f"to try, of {','.join(_ENGINES)} ({','.join(_DEFAULT)})",
    )
    parser.add_argument("--seconds", type=_seconds, default=30.0, metavar="S", help="for all, about (%(default)g)")
    parser.add_argument("--rounds", type=count, default=5, metavar="N", help="turns of each setting (%(default)s)")
    parser.add_argument("--plot", metavar="FILE.png", help="also draw it; needs matplotlib")
    parser.add_argument("--csv", metavar="FILE", help="also write each number that was measured")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, say what came of it, and return the exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of idle workers and the like: that is what is measured here
        try:
            found = _measure(given_subject(arguments), arguments)
            for line in found.lines():
                say(line)
            if arguments.csv is not None:
                write_csv(arguments.csv, found)
                say(f"\n{arguments.csv}")
            if arguments.plot is not None:
                from loaderkit.cli.bench.picture import draw  # matplotlib is needed only here

                draw(arguments.plot, found)
                say(f"\n{arguments.plot}")
        except Exception as error:  # of the user's own code too
            complain_of("bench", error)
            return 1
    return 0 if found.advice is not None else 1


def _measure(subject: Subject, arguments: argparse.Namespace) -> Report:
    engines = [name for name in arguments.engines if name in ("inline", "torch") or not subject.is_stream]
    settings = settings_of(engines, arguments.workers or _up_to(usable_cpus()))
    if not settings:
        raise ValueError(
            f"nothing to measure: engines {','.join(engines)} with {arguments.workers} workers. 'inline' has 0, the "
            "others at least 1."
        )
    seconds = arguments.seconds
    costs = measure_costs(subject, engines, seconds=0.25 * seconds)
    done = turns(subject, settings, seconds=0.75 * seconds, rounds=arguments.rounds)
    *_, found = with_progress(done, len(settings) * arguments.rounds, "measuring")
    return Report(str(subject), subject.samples_per_batch(), arguments.rounds, found, costs)


def _up_to(cpus: int) -> list[int]:
    """Return 0, 1, 2, and powers of two up to the number of CPUs, and that number."""
    return sorted({0, cpus} | {1 << power for power in range(cpus.bit_length()) if 1 << power <= cpus})


def _numbers(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [-1]
    if min(found) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}, wanted numbers of workers such as 0,2,4")
    return found


def _engines(text: str) -> list[str]:
    found = text.split(",")
    if not set(found) <= set(_ENGINES):
        raise argparse.ArgumentTypeError(f"{text!r}, wanted some of {','.join(_ENGINES)}")
    return found


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r}, wanted a number above 0")
    return value
