"""Argument types that several commands share, and a parser that suggests the right spelling."""

import argparse
import contextlib
import importlib
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NoReturn, Protocol

from loaderkit.system.cpus import Cpus
from loaderkit.system.suggest import did_you_mean
from loaderkit.system.terminal import coloured

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


_HEADING = re.compile(r"^(\w[\w ]*:)", re.MULTILINE)


class Commands(Protocol):
    """The subcommands of a parser."""

    def add_parser(
        self, name: str, *, description: str, examples: Sequence[tuple[str, str]], **settings: object
    ) -> argparse.ArgumentParser:
        """Return the parser of a new subcommand."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors suggest the closest option or choice, and whose help has examples."""

    def __init__(self, *, description: str, examples: Sequence[tuple[str, str]], **settings: Any) -> None:
        """Make a parser whose help ends with `examples`: pairs of a command and what it does."""
        super().__init__(
            description=textwrap.fill(description, shutil.get_terminal_size().columns - 2),
            epilog="\n".join(["examples:", *(f"  # {what}\n  {command}" for command, what in examples)]),
            formatter_class=argparse.RawDescriptionHelpFormatter,  # one line for each example
            **settings,
        )

    def print_help(self, file: Any = None) -> None:
        """Print the help, with bold headings on a terminal."""
        file = sys.stdout if file is None else file
        file.write(_HEADING.sub(lambda found: coloured(found[1], "bold", file), self.format_help()))

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error with a suggestion, and exit with code 2."""
        if wrong := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            message += did_you_mean(wrong[1], re.findall(r"[\w-]+", wrong[2]))
        elif wrong := re.search(r"unrecognized arguments: .*?(--[\w-]+)", message):
            message += "." + did_you_mean(wrong[1], re.findall(r"--[\w-]+", self.format_usage()))
        self.print_usage(sys.stderr)
        self.exit(2, f"{coloured(f'{self.prog}: error:', 'bold red', sys.stderr)} {message}\n")


def count(text: str) -> int:
    """Parse a whole number of at least 1."""
    return _whole(text, 1)


def number(text: str) -> int:
    """Parse a whole number of at least 0."""
    return _whole(text, 0)


def size(text: str) -> int:
    """Parse a number of bytes, such as 256M."""
    found = re.fullmatch(r"([0-9]+)([KMGT]?)(iB|B)?", text)
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r}, wanted a number of bytes such as 256M")
    return int(found[1]) * _UNITS[found[2]]


def option(text: str) -> tuple[str, object]:
    """Parse NAME=VALUE, where VALUE is JSON or plain text."""
    name, sign, value = text.partition("=")
    if not name.isidentifier() or not sign:
        raise argparse.ArgumentTypeError(f"{text!r}, wanted NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def add_settings(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """Add an option that can be repeated, each time with one NAME=VALUE; `text` is its help."""
    parser.add_argument(name, type=option, action="append", default=[], metavar="NAME=VALUE", help=text)


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add the number of processes (default: one for each usable CPU), or an executor in their place."""
    who = parser.add_mutually_exclusive_group()
    # No default: argparse does not see that an option is given whose value is its default.
    who.add_argument("--jobs", type=count, help=f"parallel processes ({Cpus.detect().usable})")
    who.add_argument(
        "--executor",
        metavar="MODULE:FUNCTION",
        help="returns a concurrent.futures.Executor that does the work, on a cluster for example",
    )


@contextlib.contextmanager
def executor_of(arguments: argparse.Namespace) -> Iterator[tuple[int, Executor | None]]:
    """Yield the number of processes and the executor to use instead, if one is named. Shut it down at the end."""
    if arguments.executor is None:
        yield arguments.jobs or Cpus.detect().usable, None
        return
    with named(arguments.executor)() as executor:
        yield 1, executor


def see_own_modules() -> None:
    """Make modules of the current folder importable, as `python -m` does."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def named(text: str) -> Any:
    """Import and return the object that MODULE:NAME names."""
    see_own_modules()
    module, _, names = text.partition(":")
    try:
        found: object = importlib.import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{text!r} can't be loaded: {error}.") from error
    return found


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}, wanted a whole number") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"{value}, wanted at least {least}")
    return value
