"""Every container keeps its type and attributes in a batch, on a device and in page-locked memory; samples never change."""

import copy
import dataclasses
import enum
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from containers_made import KINDS, LEAVES, Data, Mine, TaggedDict, TaggedList, alike, make_sample, picture
from torch import Tensor
from torchvision import tv_tensors

import loaderkit as lk
from loaderkit.system.nested import pin, to_device
from loaderkit.system.stack import stack


@pytest.fixture(autouse=True)
def pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pin without CUDA: the pinned tensor is another one."""
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor + 100)


def collated(sample: Any) -> Any:
    return stack([sample, sample, sample])


def on_meta(batch: Any) -> Any:
    return to_device(batch, "meta")


@pytest.mark.parametrize("change", [collated, on_meta, pin], ids=["collate", "to_device", "pin"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_container_keeps_type_and_attributes_and_the_sample_stays(kind: str, change: Callable[[Any], Any]) -> None:
    """None of its class's own code runs, and its parts are those of a plain list."""
    _, parts, other, attributes = KINDS[kind]
    for leaf in LEAVES.values():
        sample = make_sample(kind, torch.ones(2), leaf)
        before = picture(sample)
        for _ in range(2):
            batch = change(sample)
            assert type(batch) is (other or type(sample))
            assert all(alike(*pair) for pair in zip(parts(batch), change([torch.ones(2), leaf]), strict=True))
            assert {name: getattr(batch, name) for name in attributes} == attributes
            assert picture(sample) == before


@pytest.mark.parametrize("engine", ["ring", "torch"])
def test_workers_send_each_container_as_it_was_made(engine: Any) -> None:
    """The classes' own code runs in no worker, and not where batches arrive."""
    samples = {kind: make_sample(kind, torch.ones(2), 7) for kind in KINDS}
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


NAN = float("nan")
MISSING: Any = ...
SAME = [1, "m", ["m"], {"a": (1.5, None)}, torch.ones(2), np.array([1.0, NAN]), NAN, torch.tensor([NAN]), None]
OTHER = [
    (1, 2),
    (1, 1.0),
    ("case0", "case1"),
    ({"name": "case0"}, {"name": "case1"}),
    (torch.eye(2), torch.eye(2) * 2),
    (torch.ones(2), torch.ones(2).int()),
    (np.ones(2), np.zeros(2)),
    (np.ones(2), np.ones(3)),
    (NAN, 1.0),
    (object(), object()),
]


def tagged(attributes: dict[str, Any], value: float = 0) -> Any:
    made: Any = torch.full((2,), value).as_subclass(Mine)
    vars(made).update(attributes)
    return made


@pytest.mark.parametrize("pads", [False, True])
@pytest.mark.parametrize("value", SAME, ids=repr)
def test_a_tensor_keeps_attributes_that_are_equal_in_all_samples(value: Any, pads: bool) -> None:
    collate: Any = lk.PadCollate({"x": lk.Pad()}) if pads else stack
    batch = collate([{"x": tagged({"tag": copy.deepcopy(value)}, row)} for row in range(3)])["x"]
    assert type(batch) is Mine
    assert batch.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert repr(batch.tag) == repr(value)


@pytest.mark.parametrize("pads", [False, True])
@pytest.mark.parametrize("row", [1, 2])
@pytest.mark.parametrize(("first", "other"), [*OTHER, (None, MISSING), (MISSING, None)])
def test_a_tensor_never_has_the_attribute_of_another_sample(first: Any, other: Any, row: int, pads: bool) -> None:
    """Samples that differ in one are refused: field, attribute, both values and the way out are named."""
    collate: Any = lk.PadCollate({"x": lk.Pad()}) if pads else stack
    values = [other if number == row else first for number in range(3)]
    samples = [{"x": tagged({"same": 1} | ({} if tag is MISSING else {"tag": tag}))} for tag in values]
    with pytest.raises(
        lk.CollateError,
        match=r"(?s)field 'x' has type Mine, .*attribute 'tag': .* wanted one.*as_subclass\(torch\.Tensor\)",
    ) as caught:
        collate(samples)
    assert caught.value.rows == (0, row)


@pytest.mark.parametrize("difference", [{"format": "XYWH"}, {"canvas_size": (8, 10)}])
def test_boxes_of_two_formats_or_canvases_are_never_one(difference: dict[str, Any]) -> None:
    settings = {"format": "XYXY", "canvas_size": (8, 9)}
    boxes = [tv_tensors.BoundingBoxes(torch.ones(2, 4), **kind) for kind in (settings, settings, settings | difference)]
    assert stack(boxes[:2]).canvas_size == (8, 9)
    with pytest.raises(
        lk.CollateError, match=rf"attribute '{next(iter(difference))}'.*Or pass loaderkit.DetectionCollate"
    ):
        stack(boxes)


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
