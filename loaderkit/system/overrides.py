"""Decide which abilities and declarations of an object hold.

Those that a wrapper forwards do not, nor inherited ones if a subclass overrides the methods that they are about.
"""

from functools import lru_cache
from typing import Any

_PACKAGE = __name__.partition(".")[0]


def own_attribute(value: object, name: str, methods: frozenset[str] = frozenset()) -> Any:
    """Return an attribute that holds for the object itself; None if there is none, or if it is about another object or method.

    An ability such as `read_batch`, or a declaration such as `draws_nothing`, promises something about the object's
    `methods`: that it does the same faster, or how they behave. The promise does not hold

    - if the attribute only comes from a `__getattr__` that forwards to another object, as in many wrappers;
    - if `functools.wraps` copied it from the function that is wrapped;
    - if a subclass overrides one of `methods` and not the attribute. An attribute of the object itself counts as the lowest class.

    Classes of this package keep their promises, so only classes outside it are checked.

    Args:
        value: Any object.
        name: The name of the ability or declaration.
        methods: The names of the methods that it is about.
    """
    mine, kind = getattr(value, "__dict__", {}), type(value)
    if name in mine:
        return None if _is_copied(mine, name) else getattr(value, name)
    if any(method in mine and hasattr(kind, method) for method in methods):
        return None
    if not _brings(kind, name, methods):  # type: ignore[arg-type]  # mypy takes a type for unhashable
        return None
    return getattr(value, name, None)


def defines(value: object, *names: str) -> bool:
    """Return whether an object has attributes of these names itself; a `__getattr__` that answers any name does not count."""
    mine, kind = getattr(value, "__dict__", {}), type(value)
    return all(name in mine or hasattr(kind, name) for name in names)


def is_map_style(value: object) -> bool:
    """Return whether an object has a length and samples by index, as `len(value)` and `value[index]` find them."""
    return hasattr(type(value), "__len__") and hasattr(type(value), "__getitem__")


def _is_copied(mine: dict[str, object], name: str) -> bool:
    """Return whether `functools.wraps` copied an attribute; it copies the `__dict__` of what it wraps."""
    inner = getattr(mine.get("__wrapped__"), "__dict__", {})
    return name in inner and inner[name] is mine[name]


@lru_cache(maxsize=1024)
def _brings(kind: type, name: str, methods: frozenset[str]) -> bool:
    """Return whether a class or a base has an attribute, or a `__getattr__` of this package, that no class before it overrides.

    "Before" is in the method resolution order. A class that defines one of `methods` overrides what comes after it.
    """
    forwards = False
    for level, base in enumerate(kind.__mro__):
        defined = vars(base).keys()
        if name in defined:
            return True
        if base.__module__.partition(".")[0] == _PACKAGE:
            if "__getattr__" in defined:
                return not forwards
            continue
        forwards |= "__getattr__" in defined
        # A plain `read` overrides something only if a base class has it too.
        if any(method.startswith("__") or _has(kind.__mro__[level + 1 :], method) for method in methods & defined):
            return False
    return False


def _has(kinds: tuple[type, ...], name: str) -> bool:
    return any(name in vars(kind) for kind in kinds)
