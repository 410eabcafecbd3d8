"""Names of functions and classes."""

import functools


def function_name(function: object) -> str:
    """Return a function's short name, with the arguments if it is a partial; for another callable, the name of its type."""
    if isinstance(function, functools.partial):
        given = [*map(repr, function.args), *(f"{name}={value!r}" for name, value in function.keywords.items())]
        return f"partial({', '.join([function_name(function.func), *given])})"
    return str(getattr(function, "__name__", type(function).__name__))


def has_class(value: object, name: str) -> bool:
    """Return whether a value is of a class such as "torchio.data.queue.Queue" or of a subclass, without importing its library."""
    return any(f"{kind.__module__}.{kind.__qualname__}" == name for kind in type(value).__mro__)
