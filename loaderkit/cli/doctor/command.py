"""The command: checks the machine, and a dataset on it."""

import argparse
import warnings
from collections.abc import Iterator
from typing import Any

from loaderkit.cli.arguments import count, number
from loaderkit.cli.bench.subject import add_subject, given_subject
from loaderkit.cli.doctor.data import check_data
from loaderkit.cli.doctor.finding import Finding
from loaderkit.cli.doctor.host import Host, check_host
from loaderkit.cli.report import complain_of, say
from loaderkit.system.cpus import ranks_on_host


def add_to(commands: Any) -> None:
    """Add the command to a parser's subcommands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="say what of this machine, and of a dataset, stands in a loader's way",
        description="Check CPUs, memory, shared memory, open files and how processes start; with a SOURCE, whether its dataset "
        "pickles, keeps random generators or a great many objects, and what its batches take. The exit code is 1 if "
        "something is wrong.",
    )
    add_subject(parser, required=False)
    parser.add_argument(
        "--workers", type=number, metavar="N", help='of each rank; as num_workers="auto" has it if not given'
    )
    parser.add_argument("--ranks", type=count, metavar="N", help="on this machine; torchrun's, else 1, if not given")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check, say what was found, and return the exit code."""
    wrong = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for finding in _findings(arguments):
                say(str(finding))
                wrong |= finding.level == "wrong"
    except Exception as error:  # of the user's own code too
        complain_of("doctor", error)
        return 1
    return int(wrong)


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    host, ranks = Host.detect(), arguments.ranks or ranks_on_host()
    yield from check_host(host, ranks)
    if arguments.source is not None:
        workers = host.cpus.workers(ranks) if arguments.workers is None else arguments.workers
        yield from check_data(given_subject(arguments), host, workers=workers, ranks=ranks)
