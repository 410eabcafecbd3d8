"""The words in which a script declares, once, what its CSV file says: targets, lines of the table, speeds and pictures."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from report.results import NotMeasuredError, Results

LOADER, ROWS = "lk.Loader", "lk.Loader(ArrayDataset)"
ORDERS, BOTH, TENSORS = ("in order", "shuffled"), ("0", "2"), ("40000", "400000", "4000000")
LOADERS: tuple[str, ...] = (
    "DataLoader",
    "StatefulDataLoader",
    "torchdata.nodes",
    "grain",
    "spdl",
    "webdataset",
    "litdata",
)
LOADERS += ("mosaicml-streaming", "Hugging Face datasets", "Megatron-Energon")
Where = str | tuple[str, ...]


class Number(float):
    """A number that is printed with three digits, in millions (`m`), or as another format says."""

    def __format__(self, spec: str) -> str:
        value = float(self) / 1e6 if spec == "m" else float(self)
        usual = ",.0f" if value >= 100 else ".2f" if value < 10 else ".1f"
        return format(value, ".1f" if spec == "m" else spec or usual)


class Found(list[float]):
    """Values, and the contender that they are of if it was looked for."""

    name = ""


Values = Callable[[Results], list[float]]
Cell = Callable[[Results], str]


def each(*columns: str, file: str = "", **where: Where) -> Values:
    """Find the columns of the first row with these values, for each product of values that are tuples."""
    given = [one if isinstance(one, tuple) else (one,) for one in where.values()]

    def find(results: Results) -> list[float]:
        rows = [results.of(file).rows(**dict(zip(where, some, strict=True)))[0] for some in product(*given)]
        return [float(row[column] or "nan") for row in rows for column in columns]

    return find


def every(column: str, *, file: str = "", **where: str) -> Values:
    """Find a column in all rows with these values."""
    return lambda results: [float(row[column]) for row in results.of(file).rows(**where)]


def fastest(by: str, *columns: str, without: tuple[str, ...], **where: str) -> Values:
    """Find the columns of the row with the most in another column, without the contenders whose names have these parts."""

    def find(results: Results) -> Found:
        rows = [row for row in results.rows(**where) if not any(part in row["contender"] for part in without)]
        if not rows:
            raise NotMeasuredError
        row = max(rows, key=lambda row: float(row[by]))
        found = Found(float(row[column]) for column in columns)
        found.name = row["contender"]
        return found

    return find


def joined(values: Iterable[Values]) -> Values:
    kept = list(values)
    return lambda results: [one for some in kept for one in some(results)]


def best(of: Callable[[list[float]], float], *values: Values) -> Values:
    """Find the least or the most of some values: one for each argument."""
    return lambda results: [of(one(results)) for one in values]


def over(above: Values, below: Values) -> Values:
    return lambda results: [one / other for one, other in zip(above(results), below(results), strict=True)]


def inverse(values: Values) -> Values:
    return lambda results: [1 / one for one in values(results)]


def percent(values: Values) -> Values:
    return lambda results: [100 * one for one in values(results)]


def cell(text: str, *values: Values) -> Cell:
    """Make a cell: the values in the places of the text, and the contender that was found at `{name}`."""

    def make(results: Results) -> str:
        found = [one(results) for one in values]
        name = next((some.name for some in found if isinstance(some, Found)), "")
        return text.format(*(Number(one) for some in found for one in some), name=name)

    return make


def listed(text: str, *, without: str, **where: str) -> Cell:
    """Make a cell of all rows but one contender's: the columns in the places of the text."""

    def make(results: Results) -> str:
        rows = [row for row in results.rows(**where) if row["contender"] != without]
        numbers = ({key: value if key == "contender" else _number(value) for key, value in row.items()} for row in rows)
        return ", ".join(text.format(**row) for row in numbers)

    return make


def _number(text: str) -> str | Number:
    try:
        return Number(text)
    except ValueError:
        return text


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
    values: Values
    most: float | None = None
    least: float | None = None
    unit: str = ""

    def line(self, results: Results) -> tuple[str, bool | None]:
        """Return the line of the table, and whether the target is met; None if nothing was measured."""
        wanted = f"at most {self.most:g}" if self.least is None else f"at least {self.least:g}"
        try:
            found = [value for value in self.values(results) if value == value]
        except NotMeasuredError:
            found = []
        if not found:
            return f"| {self.text} | {wanted}{self.unit} | not measured | |", None
        met = all((self.most is None or value <= self.most) and value >= (self.least or 0) for value in found)
        shown = ", ".join(f"{value:.4g}" for value in found)
        return f"| {self.text} | {wanted}{self.unit} | {shown}{self.unit} | {'yes' if met else '**no**'} |", met


@dataclass(frozen=True, slots=True)
class Speed:
    """A workload of the summary, which compares all loaders.

    Args:
        name: Name in the summary.
        column: The column to compare.
        where: Values that select the rows.
        ours: Our contender's name.
        names: The other contenders' names, if they do not begin with the loader's.
        more: Whether more is better.
        timed: Whether it is a throughput; otherwise start-up, resume or memory.
    """

    name: str
    column: str
    where: Mapping[str, str]
    ours: str = LOADER
    names: Mapping[str, str] = field(default_factory=dict)
    more: bool = False
    timed: bool = True


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of a CSV file: bars, or lines over the values of a column.

    Args:
        title: Title of the picture.
        columns: What is drawn, and the title of its panels.
        names: There is a bar or a line for each value of these columns.
        panels: There is a panel for each value of these columns.
        x: The column that lines go over; bars without one.
        where: Values that select the rows.
        log: Whether the axis of the values is logarithmic.
        mark: Where a dotted line is, such as a target.
        file: The CSV file, if it is not the script's own.
    """

    title: str
    columns: str | Mapping[str, str]
    names: tuple[str, ...] = ("contender",)
    panels: tuple[str, ...] = ()
    x: str = ""
    where: Mapping[str, str] = field(default_factory=dict)
    log: bool = False
    mark: float | None = None
    file: str = ""


class Report:
    """What a script declares.

    Args:
        minutes: The most that it takes on two cores with nothing else to do.
        arguments: Given to it by the suite.
        group: Of its targets.
    """

    def __init__(self, *, minutes: float, arguments: tuple[str, ...] = (), group: str = "On the host") -> None:
        self.minutes, self.arguments, self.group = minutes, arguments, group
        self.targets: list[Target] = []
        self.lines: list[tuple[str | Cell, ...]] = []
        self.speeds: list[Speed] = []
        self.charts: list[Chart] = []

    def target(self, text: str, values: Values, **bound: Any) -> None:
        self.targets.append(Target(text, values, **bound))

    def line(self, text: str | Cell, ours: str | Cell, theirs: str | Cell = "") -> None:
        """Declare a line of the table of results: what was measured, ours, and theirs."""
        self.lines.append((text, ours, theirs))

    def speed(self, name: str, column: str, where: Mapping[str, str], *names: Any, **kind: Any) -> None:
        self.speeds.append(Speed(name, column, where, *names, **kind))

    def chart(self, title: str, columns: str | Mapping[str, str], **how: Any) -> None:
        self.charts.append(Chart(title, columns, **how))
