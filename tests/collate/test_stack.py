"""The default collate gives the results of torch's, keeps types, and its errors say what differs."""

import dataclasses
import datetime
import decimal
import enum
import fractions
import pathlib
import uuid
from collections import Counter, OrderedDict, UserDict, defaultdict, namedtuple
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import PIL.Image
import pytest
import torch
from drawing import equal
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate
from torchvision import tv_tensors

import loaderkit as lk
from loaderkit.system.stack import CollateError, stack


class Point(NamedTuple):
    x: Any
    y: Any


Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024


@dataclasses.dataclass(frozen=True)
class Item:
    image: Any
    label: Any = 0


@dataclasses.dataclass(frozen=True)
class Measured:
    image: Any
    mean: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", float(self.image.mean()))


class Graph:
    """Collates itself."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes

    @staticmethod
    def collate(graphs: list["Graph"]) -> "Graph":
        return Graph(sum(graph.nodes for graph in graphs))


LEAVES = [
    torch.arange(6.0).reshape(2, 3),
    torch.tensor(3, dtype=torch.int16),
    torch.tensor([True, False]),
    torch.ones(2, dtype=torch.bfloat16),
    np.arange(4, dtype=np.uint8),
    np.float32(1.5),
    np.int64(-2),
    np.bool_(True),
    1,
    2.5,
    True,
    "text",
    b"bytes",
    np.array([1.5, 2.5], dtype=np.float16)[::-1],
    np.array(2.5),
    np.ones((2, 3, 1))[:, ::2, ::-1],
]


@pytest.mark.parametrize("leaf", LEAVES, ids=repr)
def test_a_leaf_is_collated_as_torch_does(leaf: Any) -> None:
    for count in (1, 3):
        stacked = stack([leaf] * count)
        wanted = default_collate([listed(leaf)] * count)
        assert equal(stacked, wanted)
        assert len(stacked) == count


leaves = st.sampled_from(range(len(LEAVES))).map(LEAVES.__getitem__)
structures = st.recursive(
    leaves,
    lambda inner: (
        st.dictionaries(st.text(max_size=3), inner, min_size=1, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Point, inner, inner)
        | st.builds(OrderedDict, st.dictionaries(st.text(max_size=3), inner, min_size=1, max_size=2))
    ),
    max_leaves=6,
)


def listed(value: Any) -> Any:
    """Turn tuples into lists, which is what torch's collate returns."""
    if isinstance(value, dict):
        return type(value)({name: listed(inner) for name, inner in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(listed, value))
    if isinstance(value, tuple | list):
        return [listed(inner) for inner in value]
    if isinstance(value, np.bool_):
        return bool(value)  # torch 2.8 cannot collate numpy's own
    return value.copy() if isinstance(value, np.ndarray) else value


@given(structures, st.integers(1, 4))
def test_nested_samples_are_collated_as_torch_does_but_tuples_stay_tuples(sample: Any, count: int) -> None:
    stacked = stack([sample] * count)
    assert equal(listed(stacked), listed(default_collate([listed(sample)] * count)))
    if isinstance(sample, dict | tuple):
        assert type(stacked) is type(sample)


def test_types_are_kept() -> None:
    lists: defaultdict[str, Any] = defaultdict(list, a=1)
    for sample in (
        Point(1, 2),
        Pair(1, 2),
        Item(torch.ones(2)),
        (1, 2),
        [1, 2],
        OrderedDict(a=1),
        UserDict(a=1),
        lists,
    ):
        stacked = stack([sample, sample])
        assert type(stacked) is type(sample)
    assert stack([Point(1, "a"), Point(2, "b")]).y == ["a", "b"]
    assert stack([Item(np.zeros(2), 1), Item(np.ones(2), 2)]).label.tolist() == [1, 2]
    assert stack([Measured(torch.zeros(2)), Measured(torch.ones(2))]).mean.tolist() == [0, 1]  # each sample's own
    assert stack([lists, lists]).default_factory is list
    assert stack([Counter(a=2), Counter(a=3)])["a"].tolist() == [2, 3]
    assert stack([MappingProxyType({"a": 1})])["a"].tolist() == [1]


def test_a_custom_type_collates_itself_and_none_stays() -> None:
    assert stack([(Graph(2), None), (Graph(3), None)])[0].nodes == 5
    assert stack([(1, None), (2, None)])[1] == [None, None]


def test_tensor_subclasses_stay_what_they_are() -> None:
    images = stack([tv_tensors.Image(torch.full((3, 4, 4), value, dtype=torch.uint8)) for value in (1, 2)])
    assert type(images) is tv_tensors.Image
    assert images.shape == (2, 3, 4, 4)
    boxes = [tv_tensors.BoundingBoxes(torch.ones(2, 4), format="XYXY", canvas_size=(8, 9)) for _ in range(2)]
    stacked = stack([{"boxes": box} for box in boxes])["boxes"]
    assert type(stacked) is tv_tensors.BoundingBoxes
    assert stacked.canvas_size == (8, 9)
    assert stacked.format == boxes[0].format


def test_a_field_of_integers_and_floats_becomes_floats() -> None:
    assert stack([1, 2.5]).tolist() == [1.0, 2.5]
    assert stack([2.5, 1]).dtype == torch.float64
    assert stack([True, 2]).tolist() == [1, 2]
    assert stack([np.float32(1), 2.5]).tolist() == [1.0, 2.5]
    assert stack([1, np.float32(2.5)]).tolist() == [1.0, 2.5]
    assert stack([2**24 + 1, np.float32(2.5)]).tolist() == [2**24 + 1, 2.5]  # as in the other order


def test_arrays_of_the_other_byte_order_are_stacked() -> None:
    assert equal(stack([np.arange(3, dtype=order) for order in (">i2", "<i2")]), torch.tensor([[0, 1, 2]] * 2).short())


def test_samples_are_not_changed_nor_shared() -> None:
    array = np.zeros(3)
    stacked = stack([array])
    stacked += 1
    assert array.sum() == 0


@pytest.mark.parametrize(
    ("samples", "message", "rows"),
    [
        ([torch.ones(2), torch.ones(2), torch.ones(3)], r"the sample has shapes \(2,\) and \(3,\).*PadCollate", (0, 2)),
        ([{"a": torch.ones(2)}, {"a": torch.ones(2).int()}], "'a' has dtypes torch.float32 and torch.int32", (0, 1)),
        ([torch.ones(2), torch.ones(2).int()], "Cast them to one in the dataset", (0, 1)),
        ([torch.ones(3, 5, 4), torch.ones(3, 6, 4)], "Resize, crop or pad them in the dataset", (0, 1)),
        ([torch.ones(5, 4), torch.ones(6, 4)], "use loaderkit.PadCollate", (0, 1)),
        ([torch.tensor(1.0), torch.ones(2)], "Resize, crop or pad them in the dataset", (0, 1)),
        ([{"a": (1, np.ones(2))}, {"a": (1, np.ones(3))}], r"field 'a.1' has shapes", (0, 1)),
        ([{"a": 1}, {"a": 1}, {"b": 1}], r"keys \['a'\] and \['b'\]", (0, 2)),
        ([Item(Point(1, [1, 2])), Item(Point(1, [1]))], "field 'image.y' has 2 and 1 parts", (0, 1)),
        ([("a", 1), ("b", "c")], r"field '1' has types \['int', 'str'\]", (0, 1)),
        ([{"a": 1}, {"a": 2**63}], "field 'a' is 9223372036854775808, wanted integers of 64 bits", (1,)),
        ([1, None], r"the sample has types \['NoneType', 'int'\]", (0, 1)),
    ],
)
def test_samples_that_do_not_fit_are_named(samples: list[Any], message: str, rows: tuple[int, ...]) -> None:
    with pytest.raises(CollateError, match=message) as caught:
        stack(samples)
    assert caught.value.rows == rows


def test_types_that_cannot_be_stacked_are_refused_with_the_way_out() -> None:
    with pytest.raises(TypeError, match=r"field 'a' has type Plain.*static method collate\(samples\)"):
        stack([{"a": type("Plain", (), {})()}])


class Color(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "found", "ways"),
    [
        (np.datetime64("2020-01-01", "D"), r"datetime64\[D\]", ["value.astype('int64')", "str(value)"]),
        (np.array(["2020"], "M8[s]"), r"datetime64\[s\]", ["value.astype('int64')", "str(value)"]),
        (np.timedelta64(3, "s"), r"timedelta64\[s\]", ["value.astype('int64')", "str(value)"]),
        (np.array([1, 2.5], object), "object", ["value.astype('float32')", "value.tolist()"]),
        (np.array(["a", "b"]), "<U1", ["value.tolist()"]),
        (np.array([b"a"]), r"\|S1", ["value.tolist()"]),
        (
            np.array([(1, 2.0)], [("a", "i4"), ("b", "f4")]),
            r"\[\('a', '<i4'\), \('b', '<f4'\)\]",
            ["{name: value[name] for name in value.dtype.names}"],
        ),
        (np.void(b"ab"), r"\|V2", ["value.tolist()"]),
        (np.zeros(2, np.longdouble), "float128", ["value.astype('float64')"]),
        (np.longdouble(2), "float128", ["value.astype('float64')"]),
        (np.zeros(2, np.clongdouble), "complex256", ["value.astype('complex128')"]),
        (datetime.datetime(2020, 1, 1), "datetime", ["value.timestamp()", "str(value)"]),
        (datetime.date(2020, 1, 1), "date", ["value.toordinal()", "str(value)"]),
        (datetime.timedelta(1), "timedelta", ["value.total_seconds()", "str(value)"]),
        (datetime.time(1), "time", ["str(value)"]),
        (decimal.Decimal(1), "Decimal", ["float(value)", "str(value)"]),
        (fractions.Fraction(1, 2), "Fraction", ["float(value)", "str(value)"]),
        (uuid.UUID(int=1), "UUID", ["str(value)"]),
        (pathlib.PurePosixPath("a"), "PurePosixPath", ["str(value)"]),
        (Color.RED, "Color", ["value.value", "value.name"]),
        ({2, 1}, "set", ["sorted(value)"]),
        (frozenset([1]), "frozenset", ["sorted(value)"]),
        (PIL.Image.new("RGB", (2, 3)), "Image", ["numpy.array(value)"]),
        (pd.Series([1, 2]), "Series", ["numpy.array(value)"]),
        (pd.DataFrame({"a": [1]}), "DataFrame", ["numpy.array(value)"]),
        (pd.Timestamp("2020"), "Timestamp", ["value.timestamp()", "str(value)"]),
    ],
)
def test_the_advice_for_a_value_that_does_not_stack_can_be_followed(value: Any, found: str, ways: list[str]) -> None:
    """The error has a line to write in the dataset, and what that gives stacks."""
    with pytest.raises(
        TypeError, match=rf"collate: field 'f.1' has type {found}, wanted .*or pass collate_fn\.$"
    ) as caught:
        stack([{"f": (1, value)}] * 2)
    assert "static method" not in str(caught.value)  # nobody can give these classes one
    for way in ways:
        assert way in str(caught.value)
        followed = eval(way, {"value": value, "numpy": np})
        assert stack([{"f": followed}] * 2).keys() == {"f"}


@pytest.mark.parametrize("value", [print, slice(1), object(), int])
def test_a_builtin_that_does_not_stack_is_refused_by_its_field(value: Any) -> None:
    with pytest.raises(
        TypeError, match=r"field 'f' has type .*Make it one of these in the dataset, or pass collate_fn\.$"
    ):
        stack([{"f": value}] * 2)


MASKED = np.ma.array([1.0, 2.0], mask=[False, True])


@pytest.mark.parametrize(
    "collate",
    [
        stack,
        lk.PadCollate({"x": lk.Pad()}),
        lk.PadCollate({"x": lk.Pad(dims=(0,), max_length=9)}),
        lk.RaggedCollate(["x"]),
        lambda samples: lk.ArrayDataset({"x": np.ma.stack([sample["x"] for sample in samples])}),
    ],
)
def test_masked_values_are_never_read_as_data(collate: Any) -> None:
    whole = np.ma.array([1.0, 2.0], mask=[False, False])
    assert collate([{"x": whole}] * 2) is not None
    with pytest.raises(
        ValueError, match=r"masked values, and a tensor has no mask.*filled\(value\).*np.ma.getmaskarray"
    ):
        collate([{"x": whole}, {"x": MASKED}])


def test_the_sample_with_masked_values_is_named() -> None:
    with pytest.raises(lk.CollateError, match=r"field 'x' has masked values.*\(samples 2\)"):
        next(iter(lk.Loader([{"x": np.ma.array([1.0, 2.0])}] * 2 + [{"x": MASKED}], 3)))


def test_numbers_beyond_64_bits_are_named_among_bools() -> None:
    with pytest.raises(CollateError, match="field 'a' is 9223372036854775808, wanted integers of 64 bits"):
        stack([{"a": True}, {"a": 2**63}])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", [RuntimeError, ValueError, TypeError])
def test_nested_samples_say_what_to_do_whatever_torch_raises(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch 2.8 checks jagged tensors by a schema, whose errors are ValueErrors."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise kind("NestedTensor stack(tensors: any, dim: any): expected tensors to be a jagged tensor")

    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    monkeypatch.setattr(torch, "stack", refuse)
    with pytest.raises(CollateError, match=r"has nested tensors that torch cannot stack.*RaggedCollate"):
        stack([nested, nested])


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch, when its own queue receives the first one
@pytest.mark.parametrize("engine", [{}, {"num_workers": 1}, {"num_workers": 1, "engine": "torch"}])
def test_sparse_samples_stack_or_say_what_to_do(engine: dict[str, Any]) -> None:
    """COO tensors stack with every engine. Other layouts and nested tensors name the way out."""
    coo = torch.eye(3).to_sparse()
    batch = next(iter(lk.Loader([coo, 2 * coo], 2, **engine)))
    assert torch.equal(batch.to_dense(), torch.stack([torch.eye(3), 2 * torch.eye(3)]))
    with pytest.raises(lk.CollateError, match=r"tensors of layout torch.sparse_csr .*to_sparse_coo"):
        next(iter(lk.Loader([torch.eye(3).to_sparse_csr()] * 2, 2, **engine)))
    parts = [torch.ones(2), torch.ones(3)]
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor(parts, layout=layout)
        with pytest.raises(lk.CollateError, match=r"has nested tensors that torch cannot stack.*RaggedCollate"):
            next(iter(lk.Loader([nested] * 2, 2, **engine)))
