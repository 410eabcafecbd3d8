"""Every container keeps its type and attributes in a batch, on a device and in page-locked memory; samples never change."""

import collections
import collections.abc
import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import attrs
import numpy as np
import pydantic
import pytest
import torch
from torch import Tensor

import loaderkit as lk
from loaderkit.collate import stack
from loaderkit.system import pin, to_device


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


@pytest.fixture(autouse=True)
def pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pin without CUDA: the pinned tensor is another one."""
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor + 100)


def make_sample(kind: str, leaf: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(Guarded, "open", True)
        return KINDS[kind][0](torch.ones(2), leaf)


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


def collated(sample: Any) -> Any:
    return stack([sample, sample, sample])


def on_meta(batch: Any) -> Any:
    return to_device(batch, "meta")


@pytest.mark.parametrize("change", [collated, on_meta, pin], ids=["collate", "to_device", "pin"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_container_keeps_type_and_attributes_and_the_sample_stays(
    kind: str, change: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of its class's own code runs, and its parts are those of a plain list."""
    _, parts, other, attributes = KINDS[kind]
    for leaf in LEAVES.values():
        sample = make_sample(kind, leaf, monkeypatch)
        before = picture(sample)
        for _ in range(2):
            batch = change(sample)
            assert type(batch) is (other or type(sample))
            assert all(alike(*pair) for pair in zip(parts(batch), change([torch.ones(2), leaf]), strict=True))
            assert {name: getattr(batch, name) for name in attributes} == attributes
            assert picture(sample) == before


@pytest.mark.parametrize("engine", ["ring", "torch"])
def test_workers_send_each_container_as_it_was_made(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The classes' own code runs in no worker, and not where batches arrive."""
    samples = {kind: make_sample(kind, 7, monkeypatch) for kind in KINDS}
    (batch,) = lk.Loader([samples], 1, num_workers=1, engine=engine)
    for kind, container in stack([samples]).items():
        parts, attributes = KINDS[kind][1], KINDS[kind][3]
        assert type(batch[kind]) is type(container)
        assert all(map(alike, parts(batch[kind]), parts(container)))
        assert {name: getattr(batch[kind], name) for name in attributes} == attributes


def test_a_field_of_a_shape_is_a_tuple() -> None:
    x = torch.ones(2, 3)
    batch = stack([{"x": x, "shape": x.shape}] * 2)
    assert type(batch["shape"]) is tuple
    assert [part.tolist() for part in batch["shape"]] == [[2, 2], [3, 3]]
    assert to_device({"shape": x.shape}, "meta")["shape"] == x.shape
    assert type(to_device({"shape": x.shape}, "meta")["shape"]) is torch.Size


def test_a_type_that_cannot_hold_a_batch_becomes_a_plain_one() -> None:
    assert [part.tolist() for part in stack([range(2), range(2)])] == [[0, 0], [1, 1]]
    assert type(stack([range(2)])) is list


class Split(enum.Enum):
    TRAIN = Data.__name__


def test_what_is_no_container_stays() -> None:
    for leaf in (Split.TRAIN, {1, 2}, range(3), bytearray(b"a"), np.arange(2), object(), Data, print):
        assert to_device([leaf], "meta")[0] is leaf


@dataclasses.dataclass
class Maybe:
    x: Any
    y: Any = dataclasses.field(init=False)


def test_samples_with_other_fields_are_named() -> None:
    samples = [Maybe(1), Maybe(2)]
    samples[1].y = 3
    for pair in (samples, samples[::-1], [types.SimpleNamespace(a=1), types.SimpleNamespace(b=1)]):
        with pytest.raises(lk.CollateError, match=r"field 'f' has fields \[.*wanted the same in a batch"):
            stack([{"f": sample} for sample in pair])


@pytest.mark.parametrize("make", [lambda: TaggedList([1]), lambda: TaggedDict(a=1), lambda: Maybe(1)])
def test_an_attribute_that_samples_do_not_share_is_left_out_and_said(make: Callable[[], Any]) -> None:
    samples = [make() for _ in range(3)]
    for number, sample in enumerate(samples):
        sample.tag, sample.same, sample._own = f"case{number}", [torch.ones(2)], number
    with pytest.warns(UserWarning, match=r"field 'f' has type \w+, .*differ in its attributes .*without \['tag'\]"):
        batch = stack([{"f": sample} for sample in samples])["f"]
    assert not hasattr(batch, "tag")
    assert batch.same is samples[0].same
    assert batch._own == 0  # its class may need it
    assert [sample.tag for sample in samples] == ["case0", "case1", "case2"]


class Needy(Tensor):
    """Cannot be without its attribute, like torchvision's BoundingBoxes."""

    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(function, kinds, args, kwargs or {})
        if function is Tensor.clone:
            result.size = args[0].size_of
        return result


@pytest.mark.parametrize("pads", [False, True])
def test_a_tensor_has_the_attributes_that_all_samples_share(pads: bool) -> None:
    collate: Any = lk.PadCollate({"x": lk.Pad()}) if pads else stack

    def make(kind: type[Tensor], number: int) -> dict[str, Any]:
        made: Any = torch.full((2,), float(number)).as_subclass(kind)
        made.size_of, made.tag = number, ["m"]
        return {"x": made}

    same = collate([make(Mine, 1), make(Mine, 1)])["x"]
    assert (type(same), same.size_of, same.tag) == (Mine, 1, ["m"])
    with pytest.warns(
        UserWarning, match=r"field 'x' has type Mine.*differ in its attributes \['size_of'\].*without them"
    ):
        mixed = collate([make(Mine, 1), make(Mine, 2)])["x"]
    assert (type(mixed), mixed.tag, hasattr(mixed, "size_of")) == (Mine, ["m"], False)
    with pytest.warns(UserWarning, match="is a plain Tensor"):
        plain = collate([make(Needy, 1), make(Needy, 2)])["x"]
    assert type(plain) is Tensor
    assert plain.tolist() == [[1, 1], [2, 2]]


class Batched:
    """Stacks itself, as TensorDict does."""

    def __init__(self, size: int) -> None:
        self.size = size

    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not torch.stack or len({one.size for one in args[0]}) > 1:
            raise RuntimeError("sizes differ")
        return cls(len(args[0]))


def test_a_class_of_torch_stacks_itself() -> None:
    assert stack([{"f": Batched(0)}] * 4)["f"].size == 4
    with pytest.raises(
        lk.CollateError, match=r"field 'f' has type Batched, which torch\.stack cannot stack: sizes differ"
    ):
        stack([{"f": Batched(0)}, {"f": Batched(1)}])


def test_a_tensordict_has_a_batch_size_and_moves_itself() -> None:
    tensordict = pytest.importorskip("tensordict")
    batch = stack([{"d": tensordict.TensorDict({"x": torch.ones(3, 2)}, [3])}] * 4)["d"]
    assert batch.batch_size == torch.Size([4, 3])
    assert to_device(batch, "meta").batch_size == torch.Size([4, 3])
    assert to_device(batch, "meta")["x"].is_meta


def test_outputs_of_transformers_keep_their_types() -> None:
    transformers = pytest.importorskip("transformers")
    x = torch.ones(2)
    encoded = transformers.BatchEncoding({"ids": x})
    outputs = pytest.importorskip("transformers.modeling_outputs").BaseModelOutput(last_hidden_state=x)
    for change, shape in ((collated, (3, 2)), (pin, (2,)), (on_meta, (2,))):
        encoding, output = change(encoded), change(outputs)
        assert (type(encoding), type(output)) == (type(encoded), type(outputs))
        assert encoding["ids"].shape == output.last_hidden_state.shape == shape
        assert output["last_hidden_state"] is output.last_hidden_state
        assert outputs.last_hidden_state is x
        assert encoded["ids"] is x
