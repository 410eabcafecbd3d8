"""The `loaderkit` command: each subcommand's module has `add_to` and a function from arguments to an exit code."""

from collections.abc import Sequence

import loaderkit
from loaderkit.cli import doctor, index, lengths, shard, verify
from loaderkit.cli.arguments import Parser
from loaderkit.cli.bench import command as bench

COMMANDS = (bench, doctor, index, lengths, shard, verify)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 for success, 1 for a failure, 130 for an interrupt."""
    parser = Parser(prog="loaderkit", description="Data loading that resumes anywhere.")
    parser.add_argument("--version", action="version", version=f"loaderkit {loaderkit.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_to(commands)
    for subparser in commands.choices.values():
        subparser.set_defaults(parser=subparser)
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        parsed.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code: int = parsed.run(parsed)
    except KeyboardInterrupt:
        return 130
    return code
