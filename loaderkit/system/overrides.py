"""Whether a subclass's override disables an inherited fast path or attribute."""

from functools import lru_cache
from typing import Any

_PACKAGE = __name__.partition(".")[0]


def overridden_below(value: Any, quick: str, methods: frozenset[str]) -> bool:
    """Return whether a subclass overrides one of `methods` without its own `quick`.

    `quick` promises something about `methods`: that it does the same faster, or how they behave. The promise does not
    cover methods that a subclass overrides later. An attribute of the object itself counts as the lowest class. Classes
    of this package keep their promises, so only classes outside it are checked.

    Args:
        value: An object that has `quick`.
        quick: The name of the fast path or attribute.
        methods: The names of the methods that the promise is about.
    """
    own = getattr(value, "__dict__", ())
    if quick in own:
        return False
    kind = type(value)
    return any(name in own and hasattr(kind, name) for name in methods) or _is_overridden(kind, quick, methods)  # type: ignore[arg-type]


@lru_cache(maxsize=1024)
def _is_overridden(kind: type, quick: str, methods: frozenset[str]) -> bool:
    for level, base in enumerate(kind.__mro__):
        own = vars(base).keys()
        if quick in own or "__getattr__" in own:
            return False
        if base.__module__.partition(".")[0] == _PACKAGE:
            continue
        # A plain `read` overrides something only if a base class has it too.
        if any(name.startswith("__") or _has(kind.__mro__[level + 1 :], name) for name in methods & own):
            return True
    return False


def _has(kinds: tuple[type, ...], name: str) -> bool:
    return any(name in vars(kind) for kind in kinds)
