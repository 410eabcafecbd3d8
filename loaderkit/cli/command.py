"""The `loaderkit` command: each subcommand's module has `add_to` and a function from arguments to an exit code.

Only the module of the command that is run is imported, so that the help of all appears at once. Any error that the function raises is reported here, with exit code 1.
"""

import importlib
import sys
from collections.abc import Sequence

import loaderkit
from loaderkit.cli.arguments import Parser
from loaderkit.cli.report import complain_of

COMMANDS = {
    "bench": "measure engines and worker counts, and recommend one",
    "doctor": "find what on this machine or in a dataset will cause trouble",
    "index": "write the index files of shards",
    "inspect": "say where a saved run stands in its data",
    "lengths": "report how long samples are, and how much padding each plan needs",
    "locate": "say which samples were in a training step",
    "preview": "show the first samples of a source",
    "shard": "write a dataset to shards",
    "verify": "check shards that `shard` wrote",
}
_MODULES = {"bench": "bench.command"}  # the modules of other commands have the commands' names
_EXAMPLES = (
    ("loaderkit doctor mine:make_loader", "what on this machine, or in your data, will cause trouble?"),
    ("loaderkit preview 'shards/*.tar' --plot sheet.png", "what is in these shards?"),
    ("loaderkit bench mine:make_loader", "which engine, and how many workers?"),
    ("loaderkit shard photos/ shards/", "write a folder of pictures to tar shards"),
    ("loaderkit inspect last.ckpt", "where does this run stand in its data?"),
    ("loaderkit locate steps.log 'shards/*.tar' --step 4510", "what was in this training step?"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 for success, 1 for a failure, 130 for an interrupt."""
    parser = Parser(
        prog="loaderkit",
        description="Data loading that resumes anywhere. `loaderkit COMMAND --help` has a command's options and examples.",
        examples=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"loaderkit {loaderkit.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    arguments = sys.argv[1:] if arguments is None else arguments
    wanted = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, text in COMMANDS.items():
        if name == wanted:
            importlib.import_module(f"loaderkit.cli.{_MODULES.get(name, name)}").add_to(commands)
        else:
            commands.add_parser(name, help=text, description="", examples=())
    for subparser in commands.choices.values():
        subparser.set_defaults(parser=subparser)
    if not arguments:
        parser.print_help()
        return 0
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        parsed.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code: int = parsed.run(parsed)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # also from the user's code
        complain_of(parsed.parser.prog, error)
        return 1
    return code
