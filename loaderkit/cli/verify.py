"""`loaderkit verify`: read every shard and compare it with the manifest."""

import argparse
import sys
from pathlib import Path

from loaderkit.cli.arguments import Commands, add_jobs, executor_of
from loaderkit.cli.report import complain, say
from loaderkit.system.progress import with_progress
from loaderkit.system.terminal import coloured
from loaderkit.writing.check import Claim, check_each, check_local, claims_of
from loaderkit.writing.format import WriteError


def add_to(commands: Commands) -> None:
    """Add the command to a parser's subcommands."""
    parser = commands.add_parser(
        "verify",
        description="Read every shard and compare it with the manifest: missing and extra files, sizes, checksums and "
        "sample counts. Each sample is decoded. The exit code is 1 if something is wrong.",
        examples=(
            ("loaderkit verify shards/", "check the shards of a folder"),
            ("loaderkit verify train/ validation/ --jobs 8", "check two folders with 8 processes"),
        ),
    )
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="a folder that `loaderkit shard` wrote, or its manifest"
    )
    add_jobs(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check the shards, print each error and one line for each path; return the exit code."""
    claims: list[Claim] = []
    owners: dict[int, str] = {}
    wrong: dict[str, int] = dict.fromkeys(arguments.paths, 0)
    for path in wrong:
        try:
            check_local(path)
            # Workers of an executor run in other folders.
            folder = Path(path) if arguments.executor is None else Path(path).absolute()
            mine, extra = claims_of(folder)
        except (WriteError, OSError) as error:
            _complain(str(error))
            wrong[path] += 1
            continue
        for name in extra:
            _complain(f"{Path(path) / name}: is not in the manifest.")
        wrong[path] += len(extra)
        claims += mine
        owners |= dict.fromkeys(map(id, mine), path)
    samples = dict.fromkeys(wrong, 0)
    with executor_of(arguments) as (jobs, executor):
        done = check_each(claims, jobs=jobs, executor=executor)
        for claim, result in with_progress(done, len(claims), "verifying"):
            path = owners[id(claim)]
            if isinstance(result, Exception):
                _complain(str(result))
                wrong[path] += 1
            else:
                samples[path] += result
    shards = {path: sum(owner == path for owner in owners.values()) for path in wrong}
    width = max(map(len, wrong))
    for path, number in wrong.items():
        verdict = coloured(f"{number:,} wrong", "bold red", sys.stdout) if number else "all right"
        say(f"{path:<{width}}  {shards[path]:>8,} shards  {samples[path]:>12,} samples  {verdict}")
    return 1 if any(wrong.values()) else 0


def _complain(what: str) -> None:
    complain(f"{coloured('wrong', 'bold red', sys.stderr)}   {what}")
