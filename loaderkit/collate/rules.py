"""How one field is collated: small values that say it, and the errors of fields that don't fit."""

import math
from dataclasses import dataclass, field
from numbers import Number
from typing import Any, Literal

import numpy as np

from loaderkit.collate.stack import CollateError

Side = Literal["right", "left"]
TooLong = Literal["error", "truncate_left", "truncate_right"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pad:
    """How one field is padded to the longest of its batch.

    With several `dims`, `multiple_of` and `max_length` may be a tuple with a
    number for each, and lengths have one column for each.

    Args:
        value: Written where a sample has nothing.
        side: Where the padding goes.
        dims: The axes of a sample whose sizes vary, such as (1, 2) for pictures (C, H, W).
        multiple_of: Round the padded length up to this many steps.
        max_length: Of a sample.
        too_long: What is done with a longer one: refused, or cut at its left or right end.
        lengths: Whether to add `<field>_lengths` (B,) int64, after any cut; with several dims (B, D).
        mask: Whether to add `<field>_mask` (B, T), with several dims (B, T_1, ..., T_D): True or "bool" for bool, True
            where the data is; "additive" for float32, 0 where the data is, else -inf.

    Raises:
        TypeError: If a setting is no number, or no integer.
        ValueError: If one is out of range.
    """

    value: float = 0
    side: Side = "right"
    dims: int | tuple[int, ...] = 0
    multiple_of: int | tuple[int, ...] = 1
    max_length: int | tuple[int, ...] | None = None
    too_long: TooLong = "error"
    lengths: bool = False
    mask: bool | Literal["bool", "additive"] = False
    each_dim: tuple[int, ...] = field(init=False, repr=False)
    each_multiple: tuple[int, ...] = field(init=False, repr=False)
    each_max: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        most = math.inf if self.max_length is None else self.max_length
        object.__setattr__(self, "each_dim", self.dims if isinstance(self.dims, tuple) else (self.dims,))
        for name, given in (("each_multiple", self.multiple_of), ("each_max", most)):
            object.__setattr__(self, name, given if isinstance(given, tuple) else (given,) * len(self.each_dim))
        self._check()

    def _check(self) -> None:
        if not isinstance(self.value, Number):
            raise TypeError(f"Pad: value is {self.value!r}, wanted a number.")
        if not all(_is_integer(dim) for dim in self.each_dim):
            raise TypeError(f"Pad: dims is {self.dims!r}, wanted an axis, or a tuple of axes such as (1, 2).")
        for name, value, wanted in (
            ("side", self.side, ("right", "left")),
            ("too_long", self.too_long, ("error", "truncate_left", "truncate_right")),
            ("mask", self.mask, (False, True, "bool", "additive")),
        ):
            if value not in wanted:
                raise ValueError(f"Pad: {name} is {value!r}, wanted one of {wanted}.")
        if not self.each_dim or len(set(self.each_dim)) < len(self.each_dim):
            raise ValueError(f"Pad: dims is {self.dims!r}, wanted one axis or several different ones.")
        for name in ("multiple_of", "max_length"):
            given = getattr(self, name)
            numbers = given if isinstance(given, tuple) else (given,)
            if isinstance(given, tuple) and len(given) != len(self.each_dim):
                raise ValueError(
                    f"Pad: {name} is {given}, wanted a number, or one for each of {len(self.each_dim)} dims."
                )
            if not all(_is_integer(number) for number in numbers if number is not None):
                raise TypeError(f"Pad: {name} is {given!r}, wanted an integer, or a tuple of one for each of the dims.")
            if any(number is not None and number < 1 for number in numbers):
                raise ValueError(f"Pad: {name} is {given}, wanted at least 1.")
        if any(
            most % step for most, step in zip(self.each_max, self.each_multiple, strict=True) if math.isfinite(most)
        ):
            raise ValueError(
                f"Pad: max_length is {self.max_length} and multiple_of {self.multiple_of}, so that a batch would be padded "
                "beyond its maximum. Wanted a maximum that is a multiple."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Jagged:
    """How one field of several lengths is joined, without padding.

    Args:
        nested: Whether as a nested tensor (layout `torch.jagged`), or as a `Ragged`: values and offsets.
    """

    nested: bool = True


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def named(field: str) -> str:
    """Name a field, given by its path, in a message."""
    return f"field '{field}'" if field else "the sample"


def difference(what: str, found: list[object], field: str, collate: str) -> CollateError:
    """Make the error of a batch in which something differs that should not."""
    row = next(row for row, other in enumerate(found) if other != found[0])
    return CollateError(
        f"{collate}: {named(field)} has {what} {found[0]} and {found[row]}, wanted one in a batch", [0, row]
    )
