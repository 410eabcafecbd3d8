"""A quick way to do what a slower method does, and a class of one's own that has another such method: which of them counts."""

from functools import lru_cache
from typing import Any

_PACKAGE = __name__.partition(".")[0]


def overridden_below(value: Any, quick: str, methods: frozenset[str]) -> bool:
    """Say whether to take `value.quick` would pass over a method that was overridden.

    The nearest class decides: `quick` counts for a class, and for those below it until one overrides any of the
    methods and brings no `quick` of its own. What an object has itself comes before its class. Classes
    of this package agree with each other, so that only those of others are asked.

    Args:
        value: An object of the class.
        quick: The name of what does the same quicker.
        methods: Names of what it does the same as.
    """
    own = getattr(value, "__dict__", ())
    if quick in own:
        return False
    kind = type(value)
    return any(name in own and hasattr(kind, name) for name in methods) or _is_overridden(kind, quick, methods)  # type: ignore[arg-type]


@lru_cache(maxsize=1024)
def _is_overridden(kind: type, quick: str, methods: frozenset[str]) -> bool:
    for place, base in enumerate(kind.__mro__):
        own = vars(base).keys()
        if quick in own or "__getattr__" in own:
            return False
        if base.__module__.partition(".")[0] == _PACKAGE:
            continue
        # What is indexed or called is what it defines; a `read` may be something else, unless a base has it.
        if any(name.startswith("__") or _has(kind.__mro__[place + 1 :], name) for name in methods & own):
            return True
    return False


def _has(kinds: tuple[type, ...], name: str) -> bool:
    return any(name in vars(kind) for kind in kinds)
