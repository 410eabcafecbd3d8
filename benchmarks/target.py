"""A target of the benchmarks: what is wanted of some values that were measured."""

from collections.abc import Callable
from dataclasses import dataclass

from measured import NotMeasuredError


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on some values.

    Args:
        text: What they are.
        values: Finds them, or raises NotMeasuredError.
        most: The bound above,
        least: or below.
        unit: Behind the numbers.
    """

    text: str
    values: Callable[[], list[float]]
    most: float | None = None
    least: float | None = None
    unit: str = ""

    def line(self) -> tuple[str, bool | None]:
        """Return the line of the table, and whether the target is met: None where nothing was measured."""
        wanted = f"at most {self.most:g}" if self.least is None else f"at least {self.least:g}"
        try:
            found = [value for value in self.values() if value == value]
        except NotMeasuredError:
            found = []
        if not found:
            return f"| {self.text} | {wanted}{self.unit} | not measured | |", None
        met = all((self.most is None or value <= self.most) and value >= (self.least or 0) for value in found)
        shown = ", ".join(f"{value:.4g}" for value in found)
        return f"| {self.text} | {wanted}{self.unit} | {shown}{self.unit} | {'yes' if met else '**no**'} |", met
