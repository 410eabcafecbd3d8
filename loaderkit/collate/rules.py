"""The rules that say how to collate one field: `Pad` and `Jagged`."""

import math
from dataclasses import dataclass, field
from numbers import Number
from typing import Literal

import numpy as np
import torch

Side = Literal["right", "left"]
TooLong = Literal["error", "truncate_left", "truncate_right"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pad:
    """Pad one field to the longest sample of its batch.

    With several `dims`, `multiple_of` and `max_length` may be tuples with one number for each dim.

    Args:
        value: The number to pad with.
        dtype: The result's dtype, such as torch.int64 for tokens of uint16. None keeps the dtype.
        side: The side to pad.
        dims: The axes of a sample that vary in size, such as (1, 2) for images (C, H, W).
        multiple_of: Round the padded length up to this many steps.
        max_length: The longest sample allowed, in steps.
        too_long: What happens to longer samples: an error, or a cut at the left or right end.
        lengths: Whether to add `<field>_lengths` (B,) int64, counted after a cut; with D dims (B, D).
        mask: Whether to add `<field>_mask` (B, T), with D dims (B, T_1, ..., T_D). True or "bool": bool, true at data.
            "additive": float32, 0 at data and -inf elsewhere.

    Raises:
        TypeError: If a setting is not a number, or not an integer where one is needed.
        ValueError: If a setting is out of range.

    Examples:
        >>> collate = lk.PadCollate({"tokens": lk.Pad(value=-1, side="left", multiple_of=4)})
        >>> collate([{"tokens": [1, 2]}, {"tokens": [3]}])["tokens"].tolist()
        [[-1, -1, 1, 2], [-1, -1, -1, 3]]
    """

    value: float = 0
    side: Side = "right"
    dims: int | tuple[int, ...] = 0
    multiple_of: int | tuple[int, ...] = 1
    max_length: int | tuple[int, ...] | None = None
    too_long: TooLong = "error"
    lengths: bool = False
    mask: bool | Literal["bool", "additive"] = False
    dtype: torch.dtype | None = None
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
        check_dtype(self.dtype, "Pad")
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
                raise TypeError(f"Pad: {name} is {given!r}, wanted an integer, or a tuple with one for each dim.")
            if any(number is not None and number < 1 for number in numbers):
                raise ValueError(f"Pad: {name} is {given}, wanted at least 1.")
        limits = zip(self.each_max, self.each_multiple, strict=True)
        if any(most % step for most, step in limits if math.isfinite(most)):
            raise ValueError(
                f"Pad: max_length is {self.max_length} and multiple_of is {self.multiple_of}, which pads a batch beyond its "
                "maximum. Wanted a max_length that is a multiple of it."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Jagged:
    """Join the sequences of one field without padding.

    Args:
        nested: True makes a nested tensor (layout `torch.jagged`), False a `Ragged` of values and offsets.

    Examples:
        >>> collate = lk.MultimodalCollate({"sound": lk.Jagged(nested=False)})
        >>> values, offsets = collate([{"sound": [1, 2]}, {"sound": [3]}])["sound"]
        >>> values.tolist(), offsets.tolist()
        ([1, 2, 3], [0, 2, 3])
    """

    nested: bool = True


def check_dtype(dtype: object, name: str) -> None:
    """Raise a TypeError unless `dtype` is a torch.dtype or None. `name` is the rule's name, for the message."""
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name}: dtype is {dtype!r}, wanted a dtype of torch, such as torch.int64.")


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
