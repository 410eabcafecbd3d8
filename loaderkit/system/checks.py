"""Checks of settings that many classes have."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from loaderkit.system.suggest import did_you_mean


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
