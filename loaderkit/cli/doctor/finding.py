"""One line of the doctor's report."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "wrong"]
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check.

    Args:
        level: "ok"; "note", a possible problem; or "wrong", a certain problem.
        what: What the check found, with numbers.
        remedy: What to do about it.
    """

    level: Level
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.level:<5}  {self.what}" + (f"\n       -> {self.remedy}" if self.remedy else "")


def in_units(size: float) -> str:
    """Format a number of bytes in KiB, MiB or GiB."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f} bytes"
