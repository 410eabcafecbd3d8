"""Suggest the name that a misspelt one probably means."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is closest to a misspelt one; None if no name is close."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?", or an empty string if no known name is close.

    If the name ends several known names, as "transform" ends "train_transform" and "eval_transform", all of them are named.
    """
    known = list(known)
    longer = [repr(one) for one in known if one.endswith(f"_{name}")]
    if len(longer) > 1:
        return f" Did you mean {' or '.join(longer)}?"
    close = closest(name, known)
    return f" Did you mean {close!r}?" if close else ""


def suggest_argument(function: Callable[..., object], names: Iterable[str]) -> str:
    """Return what `did_you_mean` says of the first name that is no argument of the function."""
    known = inspect.signature(function).parameters
    return next((did_you_mean(name, known) for name in names if name not in known), "")


def suggest_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate an `__init__` to answer an unknown keyword with the closest known one."""
    known = list(inspect.signature(function).parameters)[1:]
    owner = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        unknown = next((name for name in kwargs if name not in known), None)
        if unknown is not None:
            hint = did_you_mean(unknown, known) or f" It takes {', '.join(known)}."
            raise TypeError(f"{owner}: unknown argument {unknown!r}.{hint}")
        return function(*args, **kwargs)

    return checked
