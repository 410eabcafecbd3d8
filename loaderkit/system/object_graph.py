"""Find the objects that an object refers to, by attributes, containers and functions."""

import functools
import sys
import types
from collections import deque
from collections.abc import Iterator
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch.utils.data as torch_data
from torch import Tensor

ENTRIES = 1_000  # the most entries of a container to search
_FEW = 64  # a container with more entries holds data: it is searched last
_OBJECTS = 20_000  # the most objects to search
_OF_DATA = 2_000  # the most of them in containers that hold data: all annotations in memory would take half a second
_OWN = ("loaderkit.loader.loader", "loaderkit.sampling.")  # modules of loaders and orders, which are not searched
_LIBRARIES = sys.stdlib_module_names | {"loaderkit"}
_BUILTIN: frozenset[type] = frozenset({dict, list, tuple, set, frozenset})
_PLAIN: frozenset[type] = frozenset({str, bytes, int, float, bool, type(None)})
_LEAVES = (str, bytes, bytearray, int, float, complex, type(None), np.ndarray, Tensor, types.ModuleType)


class Reached(NamedTuple):
    """An object that data refers to, the path to it, and the object that it was found in (None for the data itself)."""

    path: str
    value: Any
    owner: object


def reachable(root: object, name: str, wanted: tuple[type, ...] = ()) -> Iterator[Reached]:
    """Yield the data and each object that it refers to, each once, those with short paths first.

    Objects are found in attributes (also of classes), containers, closures and partials, and among the globals that functions
    name. Large containers are searched last. Loaders and samplers are left out, with all that they hold. The order and the paths
    are the same in each process.

    Args:
        root: The data.
        name: The data's name in the paths.
        wanted: Types. Of what classes and functions of installed packages name, only values of these types are yielded.
    """
    near, far = deque([Reached(name, root, None)]), deque[Reached]()
    seen: dict[int, object] = {}  # holds the objects, so that no id is reused
    most = _OBJECTS
    while (near or far) and len(seen) < most:
        if not near and most == _OBJECTS:
            most = min(_OBJECTS, len(seen) + _OF_DATA)
        path, value, _ = found = (near or far).popleft()
        if type(value) in _BUILTIN:  # data has many of them, and they have nothing but entries
            if id(value) not in seen:
                seen[id(value)] = value
                yield found
                queue = far if len(value) > _FEW else near
                queue.extend(Reached(*part, value) for part in _contents(path, value, _PLAIN))
            continue
        if isinstance(value, _LEAVES) or id(value) in seen or _keeps_its_own(value):
            continue
        seen[id(value)] = value
        yield found
        holds_data = isinstance(value, dict | list | tuple | deque | set | frozenset) and len(value) > _FEW
        queue = far if holds_data else near
        if not isinstance(value, type):
            queue.extend(Reached(*part, value) for part in _entries(path, value))
            # By name: the order in which an object sets its attributes may depend on what it read first.
            named = sorted(_attributes(value), key=itemgetter(0))
            queue.extend(Reached(f"{path}.{name}", entry, value) for name, entry in named)
        queue.extend(Reached(*part, value) for part in _of_code(path, value, wanted))


def parts_of(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the path and the value of each entry and attribute of an object."""
    yield from _entries(path, value)
    for attribute, entry in _attributes(value):
        yield f"{path}.{attribute}", entry


def _entries(path: str, value: object) -> Iterator[tuple[str, object]]:
    yield from _contents(path, value)
    if isinstance(value, functools.partial):
        yield f"{path}.func", value.func
        yield f"{path}.args", value.args
        yield f"{path}.keywords", value.keywords
    elif isinstance(value, (types.MethodType, types.BuiltinMethodType)):
        yield f"{path}.__self__", value.__self__
    elif isinstance(value, types.FunctionType):
        for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield f"{path}.<{variable}>", cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        yield f"{path}.__defaults__", value.__defaults__
        yield f"{path}.__kwdefaults__", value.__kwdefaults__


def _contents(path: str, value: object, without: frozenset[type] = frozenset()) -> Iterator[tuple[str, object]]:
    """Yield path and value of a container's first entries, except values whose type is in `without`."""
    # Not any Mapping or Sequence: some read a file for each entry.
    if isinstance(value, dict):
        for number, (key, entry) in enumerate(islice(value.items(), ENTRIES)):
            if type(entry) not in without:
                yield f"{path}[{_key(key, number)}]", entry
    elif isinstance(value, (list, tuple, deque)):
        for index, entry in enumerate(islice(value, ENTRIES)):
            if type(entry) not in without:
                yield f"{path}[{index}]", entry
    elif isinstance(value, (set, frozenset)):
        for entry in islice(value, ENTRIES):
            if type(entry) not in without:
                yield f"{path}{{...}}", entry


def _key(key: object, number: int) -> str:
    """Return the name of a dict's entry, the same in each process: the repr of an object may have its memory address."""
    return repr(key) if isinstance(key, str | bytes | int | float | None) else f"{type(key).__name__} {number}"


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    found = getattr(value, "__dict__", None)
    if isinstance(found, dict):
        yield from ((str(name), entry) for name, entry in list(found.items()))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if isinstance(kind.__dict__.get(name), types.MemberDescriptorType) and hasattr(value, name):
                yield name, getattr(value, name)


def _of_code(path: str, value: object, wanted: tuple[type, ...]) -> Iterator[tuple[str, object]]:
    """Yield path and value of what an object's code names: attributes of its class, or globals of a function.

    For the code of libraries, only values of the types `wanted`: all that it names would be too much.
    """
    if isinstance(value, types.FunctionType):
        is_own = not _is_library(value.__module__)
        for name, entry in _globals(value):
            if is_own or isinstance(entry, wanted):
                yield f"{path}.<global {name}>", entry
        return
    if isinstance(value, types.MethodType):
        yield f"{path}.__func__", value.__func__
    for kind in (value if isinstance(value, type) else type(value)).__mro__:
        is_own = not _is_library(kind.__module__)
        for name, entry in _in_class(kind) if is_own else _wanted_in_class(kind, wanted):
            yield f"{path}.<class {kind.__name__}>.{name}", entry


def _in_class(kind: type) -> Iterator[tuple[str, object]]:
    for name, entry in sorted(vars(kind).items()):
        if isinstance(entry, staticmethod | classmethod):
            entry = entry.__func__
        elif isinstance(entry, property):
            entry = entry.fget
        if isinstance(entry, types.FunctionType) or not name.startswith("__"):
            yield name, entry


@functools.lru_cache(maxsize=4_096)
def _wanted_in_class(kind: type, wanted: tuple[type, ...]) -> tuple[tuple[str, object], ...]:
    return tuple(sorted((name, entry) for name, entry in vars(kind).items() if isinstance(entry, wanted)))


def _globals(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the globals that a function names. For a global that is a module, yield its attributes that the function names."""
    names = _names(function.__code__)
    for name in names:
        if name not in function.__globals__:
            continue
        entry = function.__globals__[name]
        if not isinstance(entry, types.ModuleType):
            yield name, entry
        elif not _is_library(entry.__name__):
            yield from ((f"{name}.{each}", vars(entry)[each]) for each in names if each in vars(entry))


@functools.lru_cache(maxsize=4_096)
def _names(code: types.CodeType) -> tuple[str, ...]:
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))  # of lambdas and comprehensions
    return tuple(dict.fromkeys((*code.co_names, *(name for each in inner for name in _names(each)))))


@functools.lru_cache(maxsize=4_096)
def _is_library(module: str | None) -> bool:
    """Return whether a module is installed or Python's own, and so not a user's."""
    if module is None or module.partition(".")[0] in _LIBRARIES:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and any(part in ("site-packages", "dist-packages") for part in Path(file).parts)


def _keeps_its_own(value: object) -> bool:
    return isinstance(value, torch_data.Sampler | torch_data.DataLoader) or any(
        kind.__module__.startswith(_OWN) for kind in type(value).__mro__
    )
