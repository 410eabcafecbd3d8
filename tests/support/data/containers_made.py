"""Samples of every kind of container that users bring, and what must hold of their copies."""

import collections
import collections.abc
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import attrs
import numpy as np
import pydantic
import torch
from torch import Tensor


class CodeRanError(RuntimeError):
    """Raised by code that must not run on a batch."""


class Guarded:
    """Its classes' own code runs only while `open` is set: when a sample is made."""

    open = False

    @classmethod
    def check(cls) -> None:
        if not cls.open:
            raise CodeRanError


class TaggedList(list[Any]):
    pass


class OwnList(list[Any]):
    def __init__(self, parts: Any, tag: str) -> None:
        Guarded.check()
        super().__init__(parts)
        self.tag = tag

    def append(self, part: Any) -> None:
        raise CodeRanError

    extend = append


class OwnTuple(tuple[Any, ...]):
    def __new__(cls, x: Any, y: Any) -> Self:
        Guarded.check()
        return super().__new__(cls, (x, y))


class Pair(NamedTuple):
    x: Any
    y: Any


class OwnPair(Pair):
    def __new__(cls, x: Any) -> Self:
        Guarded.check()
        return super().__new__(cls, *x)


class TaggedDict(dict[str, Any]):
    pass


class OwnDict(dict[str, Any]):
    def __init__(self, path: str, **parts: Any) -> None:
        Guarded.check()
        self.path = path
        super().__init__(parts)

    def __setitem__(self, name: str, part: Any) -> None:
        raise CodeRanError


class OwnOrdered(collections.OrderedDict[str, Any]):
    def __init__(self, path: str, parts: Any) -> None:
        Guarded.check()
        self.path = path
        super().__init__(parts)


class Shown(dict[str, Any]):
    """The usual recipe of a dict with attributes."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.__dict__ = self


class Mirrored(dict[str, Any]):
    """A dict that has its items as attributes, too."""

    def __setitem__(self, name: str, part: Any) -> None:
        super().__setitem__(name, part)
        setattr(self, name, part)


class Record(collections.abc.Mapping[str, Any]):
    def __init__(self, path: str, fields: dict[str, Any]) -> None:
        Guarded.check()
        self.path, self.fields = path, fields

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)


class Store(Record, collections.abc.MutableMapping[str, Any]):
    """Its copy shares its content."""

    def __setitem__(self, name: str, part: Any) -> None:
        raise CodeRanError

    def __delitem__(self, name: str) -> None:
        raise CodeRanError


class Slotted(Record):
    __slots__ = ("__hidden",)

    def __init__(self, fields: dict[str, Any]) -> None:
        self.__hidden = fields

    def __getattr__(self, name: str) -> Any:
        if name == "fields":
            return self.__hidden
        raise AttributeError(name)


class Computed(Record):
    """Nothing that it gives is in it."""

    def __getitem__(self, name: str) -> Any:
        part = self.fields[name]
        return part.clone() if isinstance(part, Tensor) else part


class Rows(collections.abc.Sequence[Any]):
    def __init__(self, path: str, rows: list[Any]) -> None:
        Guarded.check()
        self.path, self.rows = path, rows

    def __getitem__(self, row: Any) -> Any:
        return self.rows[row]

    def __len__(self) -> int:
        return len(self.rows)


@dataclasses.dataclass
class Data:
    x: Any
    y: Any

    def __post_init__(self) -> None:
        Guarded.check()


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    y: Any

    def __post_init__(self) -> None:
        Guarded.check()


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    x: Any
    y: Any

    def __post_init__(self) -> None:
        Guarded.check()


@dataclasses.dataclass
class WithInitVar:
    x: Any
    y: Any = dataclasses.field(init=False)
    unset: Any = dataclasses.field(init=False)
    given: dataclasses.InitVar[Any] = None

    def __post_init__(self, given: Any) -> None:
        Guarded.check()
        self.y = given


@dataclasses.dataclass(init=False)
class OwnInit:
    x: Any
    y: Any

    def __init__(self, pair: Any) -> None:
        Guarded.check()
        self.x, self.y = pair


@dataclasses.dataclass
class Described:
    """Has what is computed from its fields, once."""

    x: Any
    y: Any

    @functools.cached_property
    def first(self) -> Any:
        return self.x


@attrs.define
class Attrs:
    x: Any
    y: Any

    def __attrs_post_init__(self) -> None:
        Guarded.check()


@attrs.frozen(slots=False)
class FrozenAttrs(Attrs):
    pass


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", frozen=True)
    x: Any
    _note: str = pydantic.PrivateAttr("note")

    def model_post_init(self, context: Any) -> None:
        Guarded.check()
        super().model_post_init(context)


def tagged(value: Any) -> Any:
    value.tag = "m"
    return value


def described(x: Any, y: Any) -> Described:
    made = Described(x, y)
    assert made.first is x  # it is kept in the object now
    return made


def mirrored(x: Any, y: Any) -> Mirrored:
    made = Mirrored()
    made["x"], made["y"] = x, y
    return made


def of_attributes(value: Any) -> list[Any]:
    return [value.x, value.y]


def of_items(value: Any) -> list[Any]:
    return [value["x"], value["y"]]


# How a sample is made of two parts; the parts of a batch; its type, if it is another; its attributes.
KINDS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], list[Any]], type | None, dict[str, Any]]] = {
    "dict": (lambda x, y: {"x": x, "y": y}, of_items, None, {}),
    "list": (lambda x, y: [x, y], list, None, {}),
    "tuple": (lambda x, y: (x, y), list, None, {}),
    "OrderedDict": (lambda x, y: collections.OrderedDict(y=y, x=x), of_items, None, {}),
    "defaultdict": (
        lambda x, y: collections.defaultdict(list, x=x, y=y),
        of_items,
        None,
        {"default_factory": list},
    ),
    "Counter": (lambda x, y: collections.Counter({"x": x, "y": y}), of_items, None, {}),
    "TaggedDict": (lambda x, y: tagged(TaggedDict(x=x, y=y)), of_items, None, {"tag": "m"}),
    "OwnDict": (lambda x, y: OwnDict("a", x=x, y=y), of_items, None, {"path": "a"}),
    "OwnOrdered": (lambda x, y: OwnOrdered("a", [("x", x), ("y", y)]), of_items, None, {"path": "a"}),
    "Shown": (lambda x, y: Shown(x=x, y=y), of_attributes, None, {}),
    "Shown's items": (lambda x, y: Shown(x=x, y=y), of_items, None, {}),
    "Mirrored": (mirrored, of_attributes, None, {}),
    "Mirrored's items": (mirrored, of_items, None, {}),
    "TaggedList": (lambda x, y: tagged(TaggedList([x, y])), list, None, {"tag": "m"}),
    "OwnList": (lambda x, y: OwnList([x, y], "m"), list, None, {"tag": "m"}),
    "OwnTuple": (OwnTuple, list, None, {}),
    "tagged OwnTuple": (lambda x, y: tagged(OwnTuple(x, y)), list, None, {"tag": "m"}),
    "namedtuple": (Pair, of_attributes, None, {}),
    "OwnPair": (lambda x, y: OwnPair((x, y)), of_attributes, None, {}),
    "deque": (lambda x, y: collections.deque([x, y], maxlen=3), list, None, {"maxlen": 3}),
    "UserDict": (lambda x, y: tagged(collections.UserDict(x=x, y=y)), of_items, None, {"tag": "m"}),
    "UserList": (lambda x, y: tagged(collections.UserList([x, y])), list, None, {"tag": "m"}),
    "MappingProxyType": (lambda x, y: types.MappingProxyType({"x": x, "y": y}), of_items, None, {}),
    "Record": (lambda x, y: Record("a", {"x": x, "y": y}), of_items, None, {"path": "a"}),
    "Store": (lambda x, y: Store("a", {"x": x, "y": y}), of_items, None, {"path": "a"}),
    "Slotted": (lambda x, y: Slotted({"x": x, "y": y}), of_items, None, {}),
    "Computed": (lambda x, y: Computed("a", {"x": x, "y": y}), of_items, dict, {}),
    "Rows": (lambda x, y: Rows("a", [x, y]), list, None, {"path": "a"}),
    "dataclass": (Data, of_attributes, None, {}),
    "tagged dataclass": (lambda x, y: tagged(Data(x, y)), of_attributes, None, {"tag": "m"}),
    "Frozen": (Frozen, of_attributes, None, {}),
    "FrozenSlots": (FrozenSlots, of_attributes, None, {}),
    "WithInitVar": (lambda x, y: WithInitVar(x, y), of_attributes, None, {}),
    "OwnInit": (lambda x, y: OwnInit((x, y)), of_attributes, None, {}),
    "Described": (described, of_attributes, None, {}),
    "Described's own": (described, lambda value: [value.first, value.y], None, {}),
    "attrs": (Attrs, of_attributes, None, {}),
    "FrozenAttrs": (FrozenAttrs, of_attributes, None, {}),
    "Model": (lambda x, y: Model(x=x, y=y), of_attributes, None, {"_note": "note"}),
    "SimpleNamespace": (lambda x, y: types.SimpleNamespace(x=x, y=y), of_attributes, None, {}),
}


class Mine(Tensor):
    pass


LEAVES: dict[str, Any] = {
    "tensor": torch.arange(3.0),
    "subclass": tagged(torch.arange(3.0).as_subclass(Mine)),
    "array": np.arange(3, dtype=np.int16),
    "integer": 7,
    "float": 2.5,
    "bool": True,
    "text": "text",
    "bytes": b"bytes",
    "none": None,
    "nested": {"in": [torch.ones(2), "a"], "shape": torch.ones(2, 3).shape},
}


def make_sample(kind: str, x: Any, y: Any) -> Any:
    """Make a sample with two parts, by its class's own code."""
    Guarded.open = True
    try:
        return KINDS[kind][0](x, y)
    finally:
        Guarded.open = False


def picture(value: Any) -> Any:
    """All of a value: its type, its content, its attributes, and which leaves they are."""
    if isinstance(value, Tensor):
        return type(value), id(value), value.tolist(), dict(vars(value))
    of: list[Any] = [id(value), type(value)]
    if getattr(value, "__dict__", value) is not value or hasattr(type(value), "__slots__"):
        state = object.__getstate__(value)
        for attributes in state if isinstance(state, tuple) else (state,):
            of += [(name, picture(part)) for name, part in (attributes or {}).items()]
    if isinstance(value, dict):
        return of, [(name, picture(part)) for name, part in dict.items(value)]
    return (of, [picture(part) for part in value]) if isinstance(value, list | tuple | collections.deque) else of


def alike(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor) and not left.is_meta:
        return type(left) is type(right) and left.dtype == right.dtype and left.tolist() == right.tolist()
    if isinstance(left, Tensor):
        return type(left) is type(right) and left.shape == right.shape and bool(right.is_meta)
    if isinstance(left, dict):
        return list(left) == list(right) and all(alike(left[name], right[name]) for name in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(alike, left, right))
    return left is right or (type(left) is type(right) and bool(np.array_equal(left, right)))
