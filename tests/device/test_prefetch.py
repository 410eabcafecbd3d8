"""Batches are copied ahead: whatever the streams do, a batch is whole for as long as it is used."""

import dataclasses
import pickle
import random
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from drawing import draws, equal, generator_states
from fake_cuda import FakeCuda, SlotBatches, wanted
from torch import Tensor

import loaderkit as lk
from loaderkit.device.cuda import BACKENDS, HostBatches
from loaderkit.device.prefetch import Fetched, Prefetcher, prefetch, seeded

Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024
POLICIES = ["all", "none", "side", "consumer", *(f"random {seed}" for seed in range(6))]
Use = Callable[[FakeCuda, Iterator[Any]], list[tuple[int, list[bytes]]]]


@dataclasses.dataclass
class Item:
    image: Any
    name: str = ""


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeCuda], FakeCuda]:
    def install(fake: FakeCuda) -> FakeCuda:
        monkeypatch.setitem(BACKENDS, "cpu", fake)
        return fake

    return install


def make_fake(policy: str, **settings: Any) -> FakeCuda:
    kind, _, seed = policy.partition(" ")
    return FakeCuda(kind, seed=int(seed or 0), **settings)


def both(fake: FakeCuda, number: int, batch: Any) -> list[tuple[int, list[bytes]]]:
    return [(number, fake.read(batch["x"])), (number, fake.read(batch["y"][0]))]


def drop_at_once(fake: FakeCuda, batches: Iterator[Any]) -> list[tuple[int, list[bytes]]]:
    """Use each batch in two queued kernels, then drop it."""
    found = []
    for number, batch in enumerate(batches):
        found += [*both(fake, number, batch), *both(fake, number, batch)]
        del batch
    return found


def keep_some(fake: FakeCuda, batches: Iterator[Any]) -> list[tuple[int, list[bytes]]]:
    """Keep every third batch, or a view of it, and read it again at the end."""
    found, kept = [], []
    for number, batch in enumerate(batches):
        found += both(fake, number, batch)
        if number % 3 == 0:
            kept.append((number, batch if number % 2 else {"x": batch["x"][:], "y": [batch["y"][0][:]]}))
    for number, batch in kept:
        found += both(fake, number, batch)
    return found


def count_wrong(fake: FakeCuda, found: list[tuple[int, list[bytes]]], size: int = 64) -> int:
    fake.run_all()
    assert all(len(content) == 1 for _, content in found)
    halves = ((wanted(number, size)[: 4 * size], wanted(number, size)[4 * size :]) for number, _ in found)
    return sum(content[0] not in pair for (_, content), pair in zip(found, halves, strict=True))


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("consume", [drop_at_once, keep_some])
@pytest.mark.parametrize("policy", POLICIES)
def test_no_batch_is_read_before_it_is_copied_or_after_it_is_overwritten(
    policy: str, consume: Use, depth: int, use: Any
) -> None:
    fake = use(make_fake(policy))
    source = SlotBatches(fake, 40)
    found = consume(fake, prefetch(source, "cpu", depth=depth))
    assert len(found) >= 80
    assert count_wrong(fake, found) == 0
    if consume is drop_at_once:
        assert fake.blocks <= 2 * (depth + 2)  # memory is reused
    assert source.made <= depth + 11  # so are the slots
    assert len(source.free) == source.made  # nothing is held in the end


@pytest.mark.parametrize("broken", ["consumer waits", "side waits", "host is held"])
def test_a_broken_rule_shows(broken: str, use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the law above proves nothing."""
    if broken == "host is held":
        monkeypatch.setattr(HostBatches, "hold", lambda *_: None)
    wrong = 0
    for policy in POLICIES:
        fake = use(make_fake(policy, broken=broken))
        wrong += count_wrong(fake, drop_at_once(fake, prefetch(SlotBatches(fake, 40), "cpu")))
    assert wrong > 20


def test_the_host_waits_only_when_it_is_far_ahead(use: Any) -> None:
    fake = use(FakeCuda("side"))  # a device that computes nothing
    found, batches = [], prefetch(SlotBatches(fake, 40), "cpu")
    found.extend((number, fake.read(next(batches)["x"])) for number in range(6))
    assert fake.waits_of_host == 0
    for _ in range(14):
        next(batches)
    assert fake.waits_of_host > 0  # it must not hold all batches that it has copied
    list(batches)
    eager = use(FakeCuda("all"))
    drop_at_once(eager, prefetch(SlotBatches(eager, 40), "cpu"))
    assert eager.waits_of_host == 0
    assert count_wrong(fake, found) == 0


@pytest.mark.parametrize("policy", ["all", "none", "side", "random 1"])
def test_a_pass_that_is_left_ends_cleanly(policy: str, use: Any) -> None:
    """Batches copied ahead are dropped, and their slots return when nothing reads them any more."""
    fake = use(make_fake(policy))
    source = SlotBatches(fake, 40)
    prefetcher = Prefetcher("cpu", depth=3)
    for _ in range(3):
        batches = iter(source)
        found = []
        for number, fetched in enumerate(prefetcher.run(lambda batches=batches: Fetched(next(batches), 0))):
            found.append((number, fake.read(fetched.batch["x"])))
            if number == 4:
                break
        assert count_wrong(fake, found) == 0
    del fetched, prefetcher
    assert len(source.free) == source.made


def test_the_consumer_may_change_its_stream(use: Any) -> None:
    for seed in range(20):
        fake = use(FakeCuda("random", seed=seed))
        other = fake.new_stream()
        found = []
        for number, batch in enumerate(prefetch(SlotBatches(fake, 30), "cpu")):
            found.append((number, fake.read(batch["x"])))
            del batch
            fake.current = fake.consumer = other if number % 3 == 0 else fake.streams[0]
        assert count_wrong(fake, found) == 0


def test_a_batch_may_have_any_form(use: Any) -> None:
    class Custom:
        def __init__(self, x: Tensor, calls: tuple[Any, ...] = ()) -> None:
            self.x, self.calls = x, calls

        def to(self, device: torch.device) -> "Custom":
            return Custom(self.x.to(device), (*self.calls, "to"))

        def pin_memory(self) -> "Custom":
            return type(self)(self.x, (*self.calls, "pinned"))

    class Asynchronous(Custom):
        def to(self, device: torch.device, non_blocking: bool = False) -> "Asynchronous":
            return Asynchronous(self.x, (*self.calls, non_blocking))

    x = torch.arange(6.0).view(2, 3)
    batch = {
        "pair": Pair(x, [x + 1, "text"]),
        "item": Item(x.to(torch.bfloat16), "n"),
        "sparse": x.to_sparse(),
        "empty": torch.empty(0, 3),
        "custom": Custom(x),
        "asynchronous": Asynchronous(x),
        "number": 3,
        "none": None,
    }
    use(FakeCuda("all"))
    moved = next(prefetch([batch], "cpu"))
    assert type(moved["pair"]) is Pair
    assert torch.equal(moved["pair"].left, x)
    assert moved["pair"].left.data_ptr() != x.data_ptr()
    assert torch.equal(moved["pair"].right[0], x + 1)
    assert torch.equal(moved["item"].image, x.to(torch.bfloat16))
    assert torch.equal(moved["sparse"].to_dense(), x)
    assert moved["empty"].shape == (0, 3)
    assert moved["custom"].calls == ("pinned", "to")
    assert moved["asynchronous"].calls == ("pinned", True)
    assert (moved["number"], moved["none"], moved["item"].name) == (3, None, "n")


@pytest.mark.parametrize("backend", ["none", "fake"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_an_error_is_raised_in_place_of_its_batch(backend: str, depth: int, use: Any) -> None:
    if backend == "fake":
        use(FakeCuda("all"))

    def source() -> Iterator[Tensor]:
        for number in range(5):
            if number == 3:
                raise OSError("disk")
            yield torch.tensor(number)

    def transform(batch: Tensor) -> Tensor:
        if batch == 1:
            raise ValueError("one")
        return batch * 10

    got: list[int] = []
    with pytest.raises(OSError, match="disk"):
        got.extend(int(batch) for batch in prefetch(source(), "cpu", depth=depth))
    assert got == [0, 1, 2]
    got.clear()
    with pytest.raises(ValueError, match="one"):
        got.extend(int(batch) for batch in prefetch(source(), "cpu", depth=depth, transform=transform))
    assert got == [0]


def test_few_batches_and_none(use: Any) -> None:
    use(FakeCuda("all"))
    for count in range(4):
        assert [int(batch) for batch in prefetch(map(torch.tensor, range(count)), "cpu", depth=3)] == list(range(count))


def test_the_first_batch_is_yielded_after_two_were_fetched(use: Any) -> None:
    use(FakeCuda("all"))
    taken = []

    def source() -> Iterator[Tensor]:
        for number in range(20):
            taken.append(number)
            yield torch.tensor(number)

    ahead = []
    for number, _ in enumerate(prefetch(source(), "cpu", depth=4)):
        ahead.append(len(taken) - number - 1)
    assert ahead[:6] == [1, 2, 3, 4, 4, 4]


def test_transforms_draw_from_generators_of_their_own(use: Any) -> None:
    fake = FakeCuda("all")
    for backend in (None, fake):
        if backend is not None:
            use(backend)

        def transform(batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return batch, draws(), torch.rand(2, generator=fake.own)

        def run() -> list[Any]:
            return list(prefetch(map(torch.tensor, range(4)), "cpu", transform=transform, seed=3))

        before, own = generator_states(), fake.own.get_state()
        first = run()
        assert generator_states() == before
        assert backend is None or torch.equal(fake.own.get_state(), own)
        random.seed(5), np.random.seed(5), torch.manual_seed(5), fake.own.manual_seed(5)
        again = run()
        assert equal([row[:2] for row in first], [row[:2] for row in again])
        assert backend is None or equal(first, again)
        assert len({str(row[1]) for row in first}) == 4


def test_a_transform_that_draws_nothing_is_not_seeded() -> None:
    seeds = []

    class Plain:
        draws_nothing = True

        def __call__(self, batch: Any) -> Any:
            seeds.append(torch.initial_seed())
            return batch + 1

        def on_host(self, batch: Any) -> Any:
            return batch * 2

    assert [int(batch) for batch in prefetch(map(torch.tensor, range(3)), "cpu", transform=Plain())] == [1, 3, 5]
    assert seeds == [torch.initial_seed()] * 3


def test_generators_are_restored_after_an_error() -> None:
    before = generator_states()

    def draw() -> None:
        with seeded(3, torch.device("cpu")):
            draws()
            raise ValueError("oh")

    with pytest.raises(ValueError, match="oh"):
        draw()
    assert generator_states() == before


@pytest.mark.parametrize("depth", [0, -1, 1.5, True])
def test_a_depth_below_one_is_refused(depth: Any) -> None:
    with pytest.raises(ValueError, match=r"depth is .*, wanted an integer of at least 1"):
        Prefetcher("cpu", depth=depth)


def test_a_prefetcher_pickles_without_its_streams(use: Any) -> None:
    use(FakeCuda("all"))
    prefetcher = Prefetcher("cpu", depth=4, transform=torch.neg)
    source = iter([torch.ones(1)] * 3)
    next(prefetcher.run(lambda: Fetched(next(source), 0)))
    copy = pickle.loads(pickle.dumps(prefetcher))
    assert (copy.device, copy.depth, copy.transform) == (torch.device("cpu"), 4, torch.neg)
    source = iter([torch.ones(1)] * 3)
    assert next(copy.run(lambda: Fetched(next(source), 0))).batch == -1


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("held", [True, False])
def test_a_loader_with_a_device_holds_what_it_copies(
    policy: str, held: bool, use: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copies are queued on the consumer's stream, and read the host's memory later."""
    fake = use(make_fake(policy))

    class CopiedLater:
        def __init__(self, batch: Any) -> None:
            self.x = batch["x"]

        def to(self, device: torch.device) -> Any:
            x = fake.empty_like(self.x)
            fake.copy(x, self.x)
            return {"x": x}

    if not held:
        monkeypatch.setattr(HostBatches, "hold", lambda *_: None)
    source = SlotBatches(fake, 30)

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(source)

    loader = lk.Loader(Stream(), None, collate_fn=CopiedLater, device="cpu", steps=30, private_generators="leave")
    found = []
    for number, batch in enumerate(loader):
        found.append((number, fake.read(batch["x"])))
        del batch
    assert len(found) == 30
    wrong = count_wrong(fake, found)
    if held:
        assert wrong == 0
    elif policy == "none":
        assert wrong > 10
    assert not held or source.made <= 12
    assert type(pickle.loads(pickle.dumps(HostBatches()))) is HostBatches


@pytest.mark.parametrize("held", [True, False])
def test_slots_of_the_ring_are_not_written_to_before_they_are_copied(
    held: bool, use: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers write to a slot as soon as nothing holds its batch. Here all memory counts as page-locked."""
    if not held:
        monkeypatch.setattr(HostBatches, "hold", lambda *_: None)
    rows = torch.arange(64 * 120).view(120, 64)
    loader = lk.Loader(lk.ArrayDataset(rows), 2, num_workers=2, engine="ring", persistent_workers=True, timeout=60)
    wrong = checked = 0
    for policy in ("none", "side", "random 1", "random 2"):
        fake = use(make_fake(policy, pinned=True))
        found = []
        for batch in lk.DeviceLoader(loader, "cpu"):
            found.append(fake.read(batch))
            del batch
        fake.run_all()
        wanted = (part.numpy().tobytes() for part in rows.split(2))
        wrong += sum(content[0] != part for content, part in zip(found, wanted, strict=True))
        checked += len(found)
    loader.close()
    assert checked == 240
    assert (wrong == 0) == held
