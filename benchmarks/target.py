"""A target of the benchmarks: a bound on measured values."""

from collections.abc import Callable
from dataclasses import dataclass

from measured import NotMeasuredError


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on some values.

    Args:
        text: What the values are.
        values: Finds them, or raises NotMeasuredError.
        most: Upper bound.
        least: Lower bound, if there is no upper one.
        unit: Printed after the numbers.
    """

    text: str
    values: Callable[[], list[float]]
    most: float | None = None
    least: float | None = None
    unit: str = ""

    def line(self) -> tuple[str, bool | None]:
        """Return the line of the table, and whether the target is met; None if nothing was measured."""
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
