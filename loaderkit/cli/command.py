"""The command line: one file a command, each with `add_to` and a function from arguments to an exit code."""

import argparse
from collections.abc import Sequence

import loaderkit
from loaderkit.cli import bench, doctor, index, lengths, shard, verify

COMMANDS = (bench, doctor, index, lengths, shard, verify)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return 0 if all went well, 1 if something failed, 130 if it was interrupted."""
    parser = argparse.ArgumentParser(prog="loaderkit", description="Data loading that resumes anywhere.")
    parser.add_argument("--version", action="version", version=f"loaderkit {loaderkit.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_to(commands)
    parsed = parser.parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
    except KeyboardInterrupt:
        return 130
    return code
