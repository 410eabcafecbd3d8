"""Copies of containers with other parts: the type and the attributes stay, and nothing is shared with the original's content.

No code of the container's class runs on the new parts: no constructor, no `__post_init__`, no `__setitem__`. A batch of
containers, and a batch on a device, are made this way.
"""

import copy
import dataclasses
import operator
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import cached_property, lru_cache
from types import MappingProxyType, SimpleNamespace
from typing import Any

# In this order, since the first two are dicts.
_BASES: tuple[Any, ...] = (OrderedDict, defaultdict, dict, list, tuple, deque)
_WHOLE = (str, bytes, bytearray, memoryview, range)  # sequences that are values


CONTAINERS = (dict, list, tuple, deque, MappingProxyType)  # `reduced` may change how these are pickled


def is_sequence(value: object) -> bool:
    """Return whether a value is a sequence of parts, such as a list, a tuple or a UserList."""
    return isinstance(value, tuple | list) or (isinstance(value, Sequence) and not isinstance(value, _WHOLE))


@lru_cache(maxsize=256)
def declared_fields(kind: Any) -> tuple[str, ...] | None:
    """Return the fields that a dataclass or attrs class declares; None for other types."""
    if issubclass(kind, Enum):  # its members may be dataclasses, and must not be copied
        return None
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return tuple(field.name for field in kind.__attrs_attrs__) if hasattr(kind, "__attrs_attrs__") else None


def field_names(value: Any) -> list[str] | None:
    """Return the fields that an object has; None for a value without fields.

    Fields are those of dataclasses, attrs classes, pydantic models and SimpleNamespace.
    """
    kind: Any = type(value)
    names: Iterable[str] | None = declared_fields(kind)
    if names is None and hasattr(kind, "__pydantic_validator__"):
        names = *kind.model_fields, *(value.__pydantic_extra__ or ())
    elif names is None and isinstance(value, SimpleNamespace):
        names = vars(value)
    return None if names is None else [name for name in names if hasattr(value, name)]


def with_parts(container: object, parts: Any) -> Any:
    """Return a copy of a container with other parts.

    Args:
        container: A mapping, a sequence, or an object with fields.
        parts: A dict with the container's keys or fields, or a list as long as the sequence. It may become the result.

    Returns:
        The same type with the same attributes. A dict, a tuple or a list if that type cannot hold these parts.
    """
    kind = type(container)
    if kind is dict or kind is list:
        return parts
    if kind is tuple:
        return tuple(parts)
    try:
        same = _rebuild(container, parts)
    except Exception:  # whatever a class raises that cannot be copied, or refuses such parts
        same = None
    if same is not None:
        return same
    if field_names(container) is None and _holds(container, parts):
        return container  # torch.Size, with the integers that it had
    return tuple(parts) if isinstance(container, tuple) else parts


def reduced(container: Any) -> object:
    """Return how to pickle a mapping, list or tuple, as `__reduce__` does; NotImplemented if the usual way is right.

    The usual way calls methods of the class: `__new__` of a tuple, `append` of a list, `__setitem__` of a dict before its
    attributes are there.
    """
    kind: Any = type(container)
    if kind is MappingProxyType:
        return _read_only, (dict(container),)  # its type has no name that pickle finds
    base = _base_to_reduce(kind)
    if base is None:
        return NotImplemented
    parts = dict(base.items(container)) if issubclass(base, dict) else list(base.__iter__(container))
    return _restore, (kind, base, parts, _setting(container, base), shows_items(container), *_state(container))


@lru_cache(maxsize=256)
def _base_to_reduce(kind: Any) -> Any:
    """Return the builtin base of a type; None if its instances pickle as they should."""
    base = next((base for base in _BASES if issubclass(kind, base)), None)
    if base is None or kind in _BASES or hasattr(kind, "__setstate__"):
        return None
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__getstate__ is not object.__getstate__:
        return None
    # The constructor of a namedtuple takes its parts, unless a subclass has another.
    is_named = str(kind.__new__.__module__).startswith("namedtuple_")
    return None if is_named or kind.__reduce__ not in (object.__reduce__, base.__reduce__) else base


def _read_only(parts: dict[object, object]) -> object:
    return MappingProxyType(parts)


def _restore(
    kind: object,
    base: Any,
    parts: object,
    setting: object,
    shows: bool,
    attributes: Mapping[str, object],
    slots: Mapping[str, object],
) -> object:
    same = _bare(kind, base, parts, setting)
    if shows:
        same.__dict__ = same
    if attributes:
        vars(same).update(attributes)
    for name, value in slots.items():
        object.__setattr__(same, name, value)
    return same


def attributes_of(value: object) -> dict[str, Any]:
    """Return an object's attributes: those in its `__dict__` and in its slots."""
    attributes, slots = _state(value)
    return {**attributes, **slots}


def leave_out(value: object, name: str) -> None:
    """Delete an attribute, also of a frozen object."""
    object.__delattr__(value, name)


def is_cached(kind: type, name: str) -> bool:
    """Return whether an attribute is what a `cached_property` has computed from the parts."""
    return isinstance(getattr(kind, name, None), cached_property)


def _state(value: object) -> tuple[dict[str, object], dict[str, Any]]:
    if shows_items(value):
        return {}, {}
    state = object.__getstate__(value)
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    return dict(attributes or {}), dict(slots or {})


def _rebuild(container: Any, parts: Any) -> object:
    """Return the copy; None if it would not hold the parts."""
    base = next((base for base in _BASES if isinstance(container, base)), None)
    if base is not None:
        same = _bare(type(container), base, parts, _setting(container, base))
        _set_attributes(same, container, _mirrors(container, parts) if isinstance(parts, dict) else {})
        return same if _holds(same, parts) else None
    if not isinstance(container, Mapping | Sequence):
        return _set_attributes(_new(type(container)), container, parts)
    attributes = attributes_of(container)
    for name, content in attributes.items():
        # The class keeps its parts in one of its attributes.
        if content is not container and _is_content(content, container, parts):
            inner = with_parts(content, {**content, **parts} if isinstance(container, Mapping) else parts)
            same = _set_attributes(_new(type(container)), container, {name: inner})
            if _holds(same, parts):
                return same
    kind: Any = type(container)
    same = None if attributes else kind(parts)  # a type of C, such as MappingProxyType
    return same if same is not None and _holds(same, parts) else None


def _new(kind: type) -> object:
    return (SimpleNamespace if issubclass(kind, SimpleNamespace) else object).__new__(kind)


def _bare(kind: Any, base: Any, parts: Any, setting: Any) -> Any:
    """Return a container with these parts, made by the methods of its builtin base alone."""
    if base is tuple:
        return tuple.__new__(kind, parts)
    same = base.__new__(kind)
    if base is list:
        list.extend(same, parts)
    elif base is deque:
        deque.__init__(same, parts, setting)
    else:
        if base is defaultdict:
            defaultdict.__init__(same, setting)
        for name, part in parts.items():
            base.__setitem__(same, name, part)
    return same


def _setting(container: Any, base: Any) -> object:
    """Return what a builtin container has besides its parts and attributes."""
    if base is deque:
        return container.maxlen
    return container.default_factory if base is defaultdict else None


def _mirrors(container: Any, parts: Mapping[Any, object]) -> dict[str, object]:
    """Return those new parts that the dict also has as attributes, by name. transformers' ModelOutput is such a dict."""
    attributes = attributes_of(container)
    shown = (name for name in parts if name in attributes and attributes[name] is dict.get(container, name))
    return {name: parts[name] for name in shown}


def _set_attributes(same: Any, container: object, changed: Mapping[str, object]) -> object:
    """Give a new object the attributes of a container, or the values in `changed`, and return it. Cached ones are left out."""
    if shows_items(container):
        same.__dict__ = same
        return same
    kind = type(container)
    attributes, slots = _state(container)
    for name, value in attributes.items():
        if not is_cached(kind, name):
            vars(same)[name] = changed.get(name, value)
    for name, value in slots.items():
        if name.startswith("__pydantic_"):
            value = copy.copy(value)  # a model's own set and dicts
        object.__setattr__(same, name, changed.get(name, value))
    extra = slots.get("__pydantic_extra__") or ()
    for name in changed.keys() - attributes.keys() - slots.keys():
        if name in extra:
            same.__pydantic_extra__[name] = changed[name]
        else:
            object.__setattr__(same, name, changed[name])
    return same


def shows_items(value: object) -> bool:
    """Return whether a value is a dict whose items are its attributes: `self.__dict__ = self`."""
    return isinstance(value, dict) and getattr(value, "__dict__", None) is value


def _is_content(content: Any, container: Any, parts: Any) -> bool:
    """Return whether an attribute's value is a container that holds the same parts as `container`."""
    if isinstance(container, Mapping):
        return isinstance(content, Mapping) and all(
            name in content and content[name] is container[name] for name in parts
        )
    return is_sequence(content) and len(content) == len(parts) and all(map(operator.is_, content, container))


def _holds(container: Any, parts: Any) -> bool:
    if isinstance(container, Mapping):
        return list(container) == list(parts) and all(container[name] is part for name, part in parts.items())
    return len(container) == len(parts) and all(map(operator.is_, container, parts))
