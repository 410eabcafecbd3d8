"""When output is drawn and coloured: on a terminal, if rich is installed. `NO_COLOR` turns colours off."""

import importlib.util
from typing import Any, TextIO


def console(stream: TextIO) -> Any | None:
    """Return a rich Console, or None if the stream is not a terminal or rich is not installed.

    Its `no_color` is True if the environment has `NO_COLOR`.
    """
    if not stream.isatty() or importlib.util.find_spec("rich") is None:
        return None
    from rich.console import Console

    return Console(file=stream)


def coloured(text: str, style: str, stream: TextIO) -> str:
    """Return a text in a rich style such as "bold red", or unchanged where `stream` has no colours."""
    drawn = console(stream)
    if drawn is None or drawn.no_color:
        return text
    from rich.text import Text

    with drawn.capture() as capture:
        drawn.print(Text(text, style), end="", soft_wrap=True)
    found: str = capture.get()
    return found
