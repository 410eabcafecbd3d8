"""How commands print: results to standard output, complaints to standard error, one line at a time."""

import sys
import traceback

from loaderkit.system.progress import with_progress

__all__ = ["complain", "complain_of", "say", "with_progress"]


def say(line: str) -> None:
    """Write a line to standard output."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def complain(line: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def complain_of(command: str, error: Exception) -> None:
    """Write an error and its notes.

    Most other errors come from the user's own code: for these the line also names the type and the place.
    """
    plain = isinstance(error, ValueError | FileNotFoundError | ImportError)
    frames = [] if plain else traceback.extract_tb(error.__traceback__)
    where = "".join(f"\n  {one.filename}, line {one.lineno}, in {one.name}" for one in frames[-1:])
    notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
    complain(f"loaderkit {command}: {'' if plain else f'{type(error).__name__}: '}{error}{where}{notes}")
