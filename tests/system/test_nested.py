"""Batches reach the device with their types kept, and are pinned only on CUDA."""

import dataclasses
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data._utils.pin_memory import pin_memory as torch_pin_memory
from torchvision import tv_tensors

import loaderkit as lk
from loaderkit.engine import torch as torch_engine
from loaderkit.system.nested import pin, should_pin, to_device

Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024


@dataclasses.dataclass(frozen=True)
class Item:
    image: Any
    name: str = ""


@dataclasses.dataclass
class Derived:
    """Has a field that its constructor does not take, and one that is not there."""

    image: Tensor
    mask: Any = dataclasses.field(init=False)
    absent: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.mask = self.image > 0


class Custom:
    """A batch type with its own methods."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.calls: list[Any] = []

    def to(self, device: torch.device) -> "Custom":
        moved = Custom(self.x.to(device))
        moved.calls = [*self.calls, device]
        return moved

    def pin_memory(self) -> "Custom":
        self.calls.append("pinned")
        return self


def on_meta(batch: Any) -> Any:
    """Use meta as the device: it shows which tensors were moved."""
    return to_device(batch, "meta")


def test_tensors_move_and_other_leaves_stay() -> None:
    moved = on_meta(
        {"x": torch.ones(2), "n": 3, "s": "text", "none": None, "type": Tensor, "list": ["a", torch.ones(1)]}
    )
    assert moved["x"].is_meta
    assert moved["list"][1].is_meta
    assert (moved["n"], moved["s"], moved["none"], moved["type"], moved["list"][0]) == (3, "text", None, Tensor, "a")


def test_types_are_kept() -> None:
    x = torch.ones(2)
    mapping: defaultdict[str, Any] = defaultdict(list, a=x)
    for batch in (
        (x, 1),
        [x, 1],
        Pair(x, x),
        Item(x, "n"),
        OrderedDict(a=x),
        UserDict(a=x),
        mapping,
        {"a": (x, Pair(x, 1))},
    ):
        moved = on_meta(batch)
        assert type(moved) is type(batch)
        leaves: list[Any] = []
        stack = [moved]
        while stack:
            part = stack.pop()
            if isinstance(part, Tensor):
                leaves.append(part)
            elif isinstance(part, dict | UserDict):
                stack.extend(part.values())
            elif isinstance(part, tuple | list):
                stack.extend(part)
            elif isinstance(part, Item):
                stack.append(part.image)
        assert leaves
        assert all(leaf.is_meta for leaf in leaves)
    assert on_meta(mapping).default_factory is list
    assert not mapping["a"].is_meta  # the caller's batch is not changed
    image = tv_tensors.Image(torch.ones(3, 2, 2))
    assert type(to_device(image, "cpu")) is tv_tensors.Image


def test_a_dataclass_arrives_with_what_its_constructor_does_not_take() -> None:
    batch = Derived(torch.ones(2))
    batch.mask = torch.tensor([True, False])
    moved = to_device(batch, "cpu")
    assert type(moved) is Derived
    assert moved is not batch
    assert moved.mask.tolist() == [True, False]
    assert on_meta(batch).mask.is_meta
    assert not batch.mask.is_meta  # the caller's batch is not changed


def test_custom_types_move_and_pin_by_their_own_methods() -> None:
    moved = on_meta({"c": Custom(torch.ones(1))})["c"]
    assert moved.x.is_meta
    assert moved.calls == [torch.device("meta")]
    assert pin([Custom(torch.ones(1))])[0].calls == ["pinned"]


def test_a_type_with_a_method_is_asked_before_its_parts() -> None:
    """PackedSequence is a namedtuple whose batch_sizes have to stay on the host."""
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    moved = on_meta((packed,))[0]
    assert moved.data.is_meta
    assert not moved.batch_sizes.is_meta


def test_a_tensor_that_is_on_the_device_is_not_copied() -> None:
    x = torch.ones(2)
    assert to_device({"x": x}, "cpu")["x"] is x


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_yields_batches_on_their_device(workers: int) -> None:
    loader = lk.Loader(lk.ArrayDataset({"x": torch.ones(6, 2)}), 3, device="meta", num_workers=workers)
    assert [batch["x"].is_meta for batch in loader] == [True, True]


@pytest.mark.parametrize(
    ("accelerator", "device", "pinned"),
    [
        ("cuda", None, True),
        ("cuda", "cuda:0", True),
        ("cuda", "cpu", False),
        ("mps", None, False),
        ("mps", "mps", False),
        ("xpu", None, False),
        (None, None, False),
        (None, "cpu", False),
    ],
)
@pytest.mark.parametrize("wish", [True, "auto"])
def test_batches_are_pinned_for_cuda_alone(
    accelerator: str | None, device: str | None, pinned: bool, wish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = None if accelerator is None else torch.device(accelerator)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: found)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: accelerator == "cuda")
    target = None if device is None else torch.device(device)
    assert should_pin(wish, target) is pinned
    assert should_pin(False, target) is False


def torchs_pin_memory(tensor: Tensor) -> Tensor:
    """Torch's `pin_memory`, in ordinary memory: it refuses what torch refuses."""
    assert tensor.device.type == "cpu", "only dense CPU tensors can be pinned"
    end = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    place = torch.UntypedStorage(end * tensor.element_size() if tensor.numel() else 0)
    made: Tensor = torch.empty(0, dtype=tensor.dtype).set_(place, 0, tensor.shape, tensor.stride())  # type: ignore[call-overload]
    return made.copy_(tensor.as_subclass(Tensor)).as_subclass(type(tensor))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(5).expand(3, 5),
        torch.ones(()).expand(4),
        tv_tensors.Image(torch.rand(1, 2, 2).expand(3, 2, 2)),
        torch.arange(6).view(2, 3).t(),
        torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.arange(20)[3:17:2],
        torch.empty(0, 3),
        torch.empty(0).expand(3, 0),
        torch.tensor(1.0),
    ],
)
def test_a_tensor_of_any_layout_can_be_pinned(tensor: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", torchs_pin_memory)
    (pinned,) = pin([tensor])
    assert torch.equal(pinned, tensor)
    assert type(pinned) is type(tensor)
    assert pinned.data_ptr() != tensor.data_ptr() or not tensor.numel()
    if 0 not in tensor.stride():
        assert pinned.stride() == tensor.stride()


def test_a_tensor_on_a_device_is_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", torchs_pin_memory)
    there, here = torch.empty(2, device="meta"), torch.ones(2)
    pinned = pin({"there": there, "here": here})
    assert pinned["there"] is there
    assert pinned["here"] is not here


def test_nothing_is_pinned_in_a_fork_of_a_process_that_uses_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA cannot be used there, whether the loader was made before the fork or after it."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor + 100)
    data = [torch.ones(1)] * 4
    before = lk.Loader(data, 2)
    assert [batch.tolist() for batch in before] == [[[101], [101]]] * 2
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    for loader in (before, lk.Loader(data, 2), lk.Loader(data, 2, pin_memory=True)):
        assert [batch.tolist() for batch in loader] == [[[1], [1]]] * 2


def test_pinning_is_on_off_or_auto() -> None:
    with pytest.raises(ValueError, match="pin_memory is 'maybe', wanted True, False or 'auto'"):
        should_pin("maybe", None)


@pytest.mark.parametrize("workers", [0, 2])
def test_asking_to_pin_without_cuda_warns_of_nothing(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    loader = lk.Loader([torch.ones(1)] * 4, 2, pin_memory=True, num_workers=workers)
    assert len(list(loader)) == 2


@pytest.mark.parametrize("non_blocking", [None, False, True])
def test_the_host_continues_during_a_copy_only_if_told_or_pinned(non_blocking: bool | None) -> None:
    calls: list[dict[str, Any]] = []

    class Spy(Tensor):
        def to(self, *args: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
            calls.append(kwargs)
            return self

    to_device(torch.ones(2).as_subclass(Spy), "cpu", non_blocking=non_blocking)
    assert calls == ([{"non_blocking": True}] if non_blocking else [{}])


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [lambda x: {"x": x}, lambda x: Pair(x, [x]), Item])
def test_batches_for_cuda_are_pinned_and_arrive_equal(make: Any, workers: int) -> None:
    data = [make(torch.full((4,), float(number))) for number in range(6)]
    host = lk.Loader(data, 3, num_workers=workers)
    there = lk.Loader(data, 3, num_workers=workers, device="cuda")
    batches = 0
    for mine, moved in zip(host, there, strict=True):
        x = mine["x"] if isinstance(mine, dict) else mine[0] if isinstance(mine, tuple) else mine.image
        y = moved["x"] if isinstance(moved, dict) else moved[0] if isinstance(moved, tuple) else moved.image
        assert x.is_pinned()
        assert y.is_cuda
        assert torch.equal(x, y.cpu())
        batches += 1
    assert batches == 2


def test_torchs_pin_thread_pins_by_our_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own rules skip dataclasses, and take a PackedSequence apart."""
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor + 100)
    hidden = torch_engine.Hidden([Item(torch.ones(1)), Custom(torch.ones(1))])
    item, custom = torch_pin_memory(hidden).content
    assert item.image.item() == 101
    assert custom.calls == ["pinned"]


@pytest.mark.gpu
def test_copies_from_pinned_memory_do_not_wait() -> None:
    calls: list[dict[str, Any]] = []

    class Spy(Tensor):
        def to(self, *args: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
            calls.append(kwargs)
            return self

    pageable = torch.ones(2)
    for tensor in (pageable, pageable.pin_memory()):
        to_device(tensor.as_subclass(Spy), "cuda")
    assert calls == [{}, {"non_blocking": True}]
