"""What several commands take as arguments."""

import argparse
import importlib
import json
import re
from typing import Any

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def count(text: str) -> int:
    """Parse a number of at least 1."""
    return _whole(text, 1)


def number(text: str) -> int:
    """Parse a number of at least 0."""
    return _whole(text, 0)


def size(text: str) -> int:
    """Parse a number of bytes, such as 256M."""
    found = re.fullmatch(r"([0-9]+)([KMGT]?)(iB|B)?", text)
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r}, wanted a number of bytes such as 256M")
    return int(found[1]) * _UNITS[found[2]]


def option(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE; the value as JSON, or as it stands."""
    name, sign, value = text.partition("=")
    if not name.isidentifier() or not sign:
        raise argparse.ArgumentTypeError(f"{text!r}, wanted NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def add_settings(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """Add an argument that is given once for each setting, as NAME=VALUE.

    Args:
        parser: Of the command.
        name: Such as "--option".
        text: Says what the settings are of.
    """
    parser.add_argument(name, type=option, action="append", default=[], metavar="NAME=VALUE", help=text)


def named(text: str) -> Any:
    """Return what MODULE:NAME names.

    Raises:
        ValueError: If there is none.
    """
    module, _, names = text.partition(":")
    try:
        found: Any = importlib.import_module(module)
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
