"""What a check finds."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "wrong"]
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the report.

    Args:
        level: "ok"; "note", which may matter; or "wrong", which will.
        what: What was found, with its numbers.
        remedy: What to do about it.
    """

    level: Level
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.level:<5}  {self.what}" + (f"\n       -> {self.remedy}" if self.remedy else "")


def in_units(size: float) -> str:
    """Write a number of bytes as people read it."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f} bytes"
