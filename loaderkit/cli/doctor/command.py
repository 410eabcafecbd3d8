"""The command's arguments and the order of its checks."""

import argparse
import warnings
from collections.abc import Iterator
from typing import Any

from loaderkit.cli.arguments import count, number
from loaderkit.cli.bench import add_subject, subject_from
from loaderkit.cli.doctor.data import check_data
from loaderkit.cli.doctor.finding import Finding
from loaderkit.cli.doctor.host import Host, check_host
from loaderkit.cli.report import complain_of, say
from loaderkit.system.cpus import ranks_on_host


def add_to(commands: Any) -> None:
    """Add the command to a parser's subcommands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="find what on this machine or in a dataset will cause trouble",
        description="Check CPUs, memory, shared memory, the limit of open files and the start method of processes. With a "
        "SOURCE, also check whether its dataset pickles, keeps random generators or very many objects, and how much "
        "memory its batches need. The exit code is 1 if something is wrong.",
    )
    add_subject(parser, required=False)
    parser.add_argument("--workers", type=number, metavar="N", help='workers of each rank; default: num_workers="auto"')
    parser.add_argument("--ranks", type=count, metavar="N", help="ranks on this machine; default: torchrun's, or 1")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the findings and return the exit code."""
    wrong = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for finding in _findings(arguments):
                say(str(finding))
                wrong |= finding.level == "wrong"
    except Exception as error:  # also from the user's code
        complain_of("doctor", error)
        return 1
    return int(wrong)


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    host, ranks = Host.detect(), arguments.ranks or ranks_on_host()
    yield from check_host(host, ranks)
    if arguments.source is not None:
        workers = host.cpus.workers(ranks) if arguments.workers is None else arguments.workers
        yield from check_data(subject_from(arguments), host, workers=workers, ranks=ranks)
