"""What a command says: lines as they come."""

import sys

from loaderkit.datasets.progress import with_progress

__all__ = ["complain", "say", "with_progress"]


def say(line: str) -> None:
    """Write a line to standard output."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def complain(line: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
