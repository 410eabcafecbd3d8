"""How processes start that read a dataset: not by a fork if a library that it uses does not live through one."""

import itertools
from collections import deque
from typing import Any

from loaderkit.system.object_graph import parts_of
from loaderkit.system.pickling import start_method

_OBJECTS, _PARTS, _DEPTH = 400, 16, 5  # that are looked at: in all, in one container, and one within the other
_LEAVES = (str, bytes, int, float, complex, type(None), type)


def survives_fork(data: Any) -> bool:
    """Return whether forked processes may read some data: whether no part of it has a class with `survives_fork = False`.

    Args:
        data: A dataset, which may be made of others.
    """
    seen: set[int] = set()
    waiting = deque([(data, 0)])
    while waiting and len(seen) < _OBJECTS:
        part, depth = waiting.popleft()
        if isinstance(part, _LEAVES) or id(part) in seen:
            continue
        seen.add(id(part))
        if getattr(type(part), "survives_fork", True) is False:
            return False
        if depth < _DEPTH:
            waiting.extend((inner, depth + 1) for _, inner in itertools.islice(parts_of("", part), _PARTS))
    return True


def worker_context(data: Any, context: Any) -> Any:
    """Return the context for workers that read some data: "spawn" if none is given and they must not be forked.

    Args:
        data: What the workers read.
        context: A multiprocessing context, the name of a start method, or None for the platform's default.

    Raises:
        ValueError: If the user asks for a fork that the data does not survive.
    """
    if start_method(context) != "fork" or survives_fork(data):
        return context
    if context is None:
        return "spawn"
    raise ValueError(
        f"loader: multiprocessing_context is 'fork', and {type(data).__name__} reads by a library that does not live through a fork. "
        "Leave it out, or give 'spawn' or 'forkserver'."
    )
