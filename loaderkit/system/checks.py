"""Checks of settings that many classes have."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, overload

import numpy as np

from loaderkit.system.suggest import did_you_mean

T = TypeVar("T")


def plain_integer(value: object) -> Any:
    """Return an integer of numpy as one of Python, for states and names; other values as they are."""
    return int(value) if isinstance(value, np.integer) else value


def check_integer(owner: str, name: str, value: object, least: int, also: str = "") -> None:
    """Raise a ValueError unless a setting is an integer of at least `least`; `also` says what else it may be."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{owner}: {name} is {value!r}, wanted an integer of at least {least}{also}.")


def check_choice(owner: str, name: str, value: object, choices: Sequence[str], also: str = "") -> None:
    """Raise a ValueError unless a setting is one of the choices; `also` says what else it may be."""
    if value not in choices:
        hint = did_you_mean(str(value), choices)
        raise ValueError(f"{owner}: {name} is {value!r}, wanted one of {', '.join(map(repr, choices))}{also}.{hint}")


def check_ordered(owner: str, name: str, values: object) -> None:
    """Raise a ValueError for a set: its order differs from process to process, so ranks would read different data."""
    if isinstance(values, set | frozenset):
        raise ValueError(
            f"{owner}: {name} is a {type(values).__name__}, whose order differs from process to process; wanted a list. Of names: "
            f"sorted({name})."
        )


@overload
def listed(owner: str, name: str, values: Iterable[T]) -> list[T]: ...
@overload
def listed(owner: str, name: str, values: Iterable[T] | None) -> list[T] | None: ...
def listed(owner: str, name: str, values: Iterable[T] | None) -> list[T] | None:
    """Return a setting's values as a list, and None as it is.

    Raises:
        ValueError: For a string, whose letters would be taken for the values, and for a set (see `check_ordered`).
    """
    if isinstance(values, str | bytes):
        raise ValueError(f"{owner}: {name} is {values!r}, wanted a list: [{values!r}].")
    check_ordered(owner, name, values)
    return None if values is None else list(values)
