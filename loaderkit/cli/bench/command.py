"""The command's arguments and the order of its measurements."""

import argparse
import contextlib
import sys
import warnings

from loaderkit.cli.arguments import Commands, count
from loaderkit.cli.bench.measure import empty_cache, measure_costs, settings_of, turns
from loaderkit.cli.bench.report import Report, draw, write_csv
from loaderkit.cli.bench.subject import Subject, add_subject, subject_from
from loaderkit.cli.report import say
from loaderkit.system.cpus import Cpus
from loaderkit.system.progress import with_progress
from loaderkit.system.suggest import did_you_mean

_ENGINES = ("inline", "torch", "ring", "threads", "auto")
_DEFAULT = ("inline", "torch", "ring") if sys.platform == "linux" else ("inline", "torch")


def add_to(commands: Commands) -> None:
    """Add the command to a parser's subcommands."""
    parser = commands.add_parser(
        "bench",
        description="Measure how many batches a second each engine delivers, and what each part of a batch costs. "
        "MODULE:FACTORY returns a Loader, a DataModule or a dataset. Run nothing else meanwhile. The training itself is not "
        "measured, and needs a CPU as well. Remote shards are measured from a warm cache, as in the second epoch, unless you ask "
        "for --cache cold. The exit code is 1 if no setting can be recommended.",
        examples=(
            ("loaderkit bench mine:make_loader", "the function make_loader of mine.py returns a Loader"),
            (
                "loaderkit bench photos/ --batch-size 64 --workers 0,2,4 --plot bench.png",
                "a folder of pictures, with a picture of the result",
            ),
        ),
    )
    add_subject(parser)
    parser.add_argument(
        "--workers", type=_numbers, metavar="0,2,4", help="worker counts to try; default: 0 to the number of CPUs"
    )
    parser.add_argument(
        "--engines",
        type=_engines,
        default=list(_DEFAULT),
        metavar="A,B",
        help=f"engines to try, of {','.join(_ENGINES)} ({','.join(_DEFAULT)})",
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="time for all; a round that has begun is finished (%(default)g)",
    )
    parser.add_argument("--rounds", type=count, default=5, metavar="N", help="turns of each setting (%(default)s)")
    parser.add_argument(
        "--cache",
        choices=("warm", "cold"),
        default="warm",
        help="remote shards: read what is in the cache, or begin each turn with an empty one (%(default)s)",
    )
    parser.add_argument("--plot", metavar="FILE.png", help="also draw a picture; needs matplotlib")
    parser.add_argument("--csv", metavar="FILE", help="also write every measurement to a file")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the report and return the exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # idle workers and the like are what the command measures
        found = _measure(subject_from(arguments), arguments)
        for line in found.lines():
            say(line)
        for path, write in ((arguments.csv, write_csv), (arguments.plot, draw)):
            if path is not None:
                write(path, found)
                say(f"\n{path}")
    return 0 if found.advice is not None else 1


def _measure(subject: Subject, arguments: argparse.Namespace) -> Report:
    engines = [name for name in arguments.engines if name in ("inline", "torch") or not subject.is_stream]
    cpus = Cpus.detect().usable
    powers = [1 << power for power in range(cpus.bit_length())]
    settings = settings_of(engines, arguments.workers or [0, *powers, cpus])
    if not settings:
        raise ValueError(
            f"nothing to measure: engines {','.join(engines)} with {arguments.workers} workers. 'inline' needs 0 workers, "
            "the other engines at least 1."
        )
    seconds = arguments.seconds
    cache = arguments.cache if subject.remote is not None else None
    done = turns(subject, settings, seconds=0.75 * seconds, rounds=arguments.rounds, cache=arguments.cache)
    *_, found = with_progress(done, len(settings) * arguments.rounds, "measuring")
    with empty_cache(subject) if cache == "cold" else contextlib.nullcontext():
        costs = measure_costs(subject, engines, seconds=0.25 * seconds)
    return Report(str(subject), subject.samples_per_batch(), arguments.rounds, found, costs, cache)


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
    unknown = [name for name in found if name not in _ENGINES]
    if unknown:
        hint = did_you_mean(unknown[0], _ENGINES)
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}, wanted some of {','.join(_ENGINES)}.{hint}")
    return found


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r}, wanted a number above 0")
    return value
