"""The laws that hold for an ordinary IterableDataset: exact on the same ranks and workers, others refused by name."""

import contextlib
import gc
import json
import multiprocessing
import random
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data
from drawing import drawing_collate, draws, equal
from sealed import reseal
from stream_ranks import on_ranks

import loaderkit as lk
from loaderkit.testing import assert_generators_untouched, assert_resumable

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
SIZE = 41


class Plain(torch_data.IterableDataset[Any]):
    """Splits itself over workers, shuffles by the epoch, and draws."""

    def __init__(self, size: int = SIZE) -> None:
        self.size, self.epoch, self.reads = size, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def numbers(self) -> list[int]:
        info = torch_data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        numbers = list(range(self.size))
        random.Random(self.epoch).shuffle(numbers)
        return numbers[worker::workers]

    def __iter__(self) -> Iterator[Any]:
        for number in self.numbers():
            self.reads += 1
            yield number, draws()


class Stateful(Plain):
    """Has an exact state, and counts its epochs itself."""

    at = 0
    set_epoch = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Any]:
        numbers = self.numbers()
        while self.at < len(numbers):
            self.at += 1
            self.reads += 1
            yield numbers[self.at - 1], draws()
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class OwnIterator(Plain):
    """Is its own iterator, as torchdata's examples are: `iter()` goes to the start, and before it there is no state."""

    order: list[int]

    def __iter__(self) -> Iterator[Any]:
        self.order, self.place = self.numbers(), torch.tensor([0])
        return self

    def __next__(self) -> Any:
        if int(self.place) == len(self.order):
            raise StopIteration
        self.place = self.place + 1
        self.reads += 1
        return self.order[int(self.place) - 1], draws()

    def state_dict(self) -> dict[Any, Any]:
        return {
            "place": self.place,
            7: (bytes(self.order), None),
            "!": {"rng": torch.get_rng_state(), "scale": np.arange(2.0)},
        }

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        self.order[:] = state[7][0]
        self.place = state["place"]
        torch.set_rng_state(state["!"]["rng"])
        assert state["!"]["scale"].tolist() == [0.0, 1.0]


KINDS: list[Any] = [Plain, Stateful, OwnIterator]


def make_loader(kind: Any, workers: int = 0, **settings: Any) -> lk.Loader:
    settings = {"collate_fn": drawing_collate, "seed": 3, "world": lk.World(), **settings}
    return lk.Loader(kind(), settings.pop("batch_size", 4), num_workers=workers, **settings)


def ids(batches: list[Any]) -> list[int]:
    return [value for batch in batches for value in batch[0].tolist()]


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_has_each_sample_once_and_epochs_differ(kind: Any, workers: int) -> None:
    loader = make_loader(kind, workers)
    epochs = [ids(list(loader)) for _ in range(3)]
    assert all(Counter(epoch) == Counter(range(SIZE)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert loader.cursor.epoch == 3


@pytest.mark.each_value
@pytest.mark.parametrize("steps", [None, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_anywhere_resumes_exactly(kind: Any, steps: int | None) -> None:
    """Through JSON, with a second resume one batch later."""
    epochs = 2 if steps is None else 4
    assert_resumable(
        lambda: make_loader(kind, steps=steps), consumers=["loop"], epochs=epochs, ids=lambda b: b[0].tolist()
    )


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_of_resumes_with_workers_is_exact(kind: Any, workers: int) -> None:
    """Stop after 3 batches, then after 1 more again and again, into the next epoch."""
    whole_loader = make_loader(kind, workers)
    whole = [batch for _ in range(2) for batch in list(whole_loader)]
    assert len(whole) > 20
    state, got = None, []
    for count in (3, 1, 1, 5, 1):
        loader = make_loader(kind, workers)
        if state is not None:
            loader.load_state_dict(state)
        iterator = iter(loader)
        got += [next(iterator) for _ in range(count)]
        state = json.loads(json.dumps(loader.state_dict()))
        loader.close()
    loader = make_loader(kind, workers)
    loader.load_state_dict(state or {})
    while loader.cursor.epoch < 2:
        got += list(loader)
    assert equal(got, whole)


def test_one_worker_is_as_none() -> None:
    assert equal(list(make_loader(Plain, 0)), list(make_loader(Plain, 1)))


def test_closing_a_loader_leaves_the_data_as_it_was_found() -> None:
    """Otherwise another loader would start where this one was left."""
    data = Stateful()
    whole = list(lk.Loader(Stateful(), 4, collate_fn=drawing_collate))
    loader = lk.Loader(data, 4, collate_fn=drawing_collate)
    next(iter(loader))
    assert data.state_dict() != Stateful().state_dict()
    loader.close()
    assert equal(list(lk.Loader(data, 4, collate_fn=drawing_collate)), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_its_own_spares_the_reading(kind: Any) -> None:
    first = make_loader(kind)
    iterator = iter(first)
    for _ in range(6):
        next(iterator)
    again = make_loader(kind)
    again.load_state_dict(first.state_dict())
    again.position.dataset.reads = 0
    next(iter(again))
    assert again.position.dataset.reads == (5 if kind is not Plain else 29)  # one sample ahead


@pytest.mark.parametrize("kind", KINDS)
def test_another_batch_size_gives_each_sample_once(kind: Any) -> None:
    first = make_loader(kind)
    iterator = iter(first)
    head = [next(iterator) for _ in range(3)]
    then = make_loader(kind, batch_size=7)
    then.load_state_dict(first.state_dict())
    assert Counter(ids(head) + ids(list(then))) == Counter(range(SIZE))


def test_draws_belong_to_the_sample_and_the_callers_generators_are_left_alone() -> None:
    assert_generators_untouched(lambda: make_loader(Plain))
    small, large = list(make_loader(Plain, batch_size=4)), list(make_loader(Plain, batch_size=9))
    assert torch.equal(torch.cat([batch[1] for batch in small]), torch.cat([batch[1] for batch in large]))
    loader = make_loader(Plain)
    assert not torch.equal(torch.cat([b[1] for b in loader]), torch.cat([b[1] for b in loader]))


@pytest.mark.parametrize(("workers", "ranks"), [(3, 1), (2, 2)])
def test_other_workers_or_ranks_are_refused_with_both_values(workers: int, ranks: int) -> None:
    first = make_loader(Plain, 2)
    next(iter(first))
    other = make_loader(Plain, workers, world=lk.World(0, ranks), steps=None, stop="each" if ranks > 1 else None)
    name, found, wanted = ("workers", 2, 3) if workers == 3 else ("ranks", 1, 2)
    with pytest.raises(ValueError, match=f"the state is for number of {name} {found}, this loader has {wanted}"):
        other.load_state_dict(first.state_dict())


def test_ranks_save_one_state_and_resume_exactly() -> None:
    def stopped(rank: int, store: Any) -> Any:
        loader = make_loader(Stateful, world=lk.World(rank, 2), store=store, steps=6)
        iterator = iter(loader)
        for _ in range(4):
            next(iterator)
        return loader.state_dict(), list(iterator)

    def resumed(rank: int, store: Any) -> Any:
        loader = make_loader(Stateful, world=lk.World(rank, 2), store=store, steps=6)
        loader.load_state_dict(states[rank])
        return list(loader)

    states, rests = zip(*on_ranks(2, stopped), strict=True)
    assert states[0] == states[1]
    assert states[0]["missing"] == []
    assert len(rests[0]) == 2
    assert equal(on_ranks(2, resumed), list(rests))


class Changing(Plain):
    def numbers(self) -> list[int]:
        return super().numbers()[:10]


def test_resuming_into_data_that_has_shrunk_is_a_clear_error() -> None:
    first = make_loader(Plain)
    iterator = iter(first)
    for _ in range(4):
        next(iterator)
    state = first.state_dict()
    state = reseal(state, stream=state["stream"] | {"dataset": "Changing"})
    again = make_loader(Changing)
    again.load_state_dict(state)
    with pytest.raises(ValueError, match="16 samples of rank 0, worker 0 were read before, and now there are 10"):
        next(iter(again))


class Late(torch_data.IterableDataset[Any]):
    """Has a state only after `iter()`, and says at its end that nothing is left, as torch's own examples do."""

    def __init__(self) -> None:
        self.start = 0

    def __iter__(self) -> Iterator[Any]:
        self.at, self.start = self.start, 0
        while self.at < SIZE:
            self.at += 1
            yield self.at - 1, draws()

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["at"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_that_needs_iter_first_resumes_exactly(workers: int) -> None:
    whole = make_loader(Late, workers)
    assert [ids(list(whole)) for _ in range(2)] == [list(range(SIZE))] * 2
    if not workers:
        assert_resumable(lambda: make_loader(Late), consumers=["loop"], epochs=2, ids=lambda b: b[0].tolist())
        return
    first = make_loader(Late, workers)
    batches = iter(first)
    taken = [next(batches) for _ in range(4)]
    then = make_loader(Late, workers)
    then.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert ids(taken) + ids(list(then)) == ids(list(then)) == list(range(SIZE))


class Sized(Plain):
    def __init__(self, size: int = SIZE, told: int = SIZE) -> None:
        super().__init__(size)
        self.told = told

    def __len__(self) -> int:
        return self.told


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize(("batch_size", "tail"), [(4, "keep"), (4, "drop"), (None, "keep"), (60, "keep")])
def test_the_length_of_a_dataset_gives_that_of_its_loader(workers: int, batch_size: Any, tail: Any) -> None:
    loader = lk.Loader(Sized(), batch_size, tail=tail, num_workers=workers, collate_fn=drawing_of(batch_size))
    assert len(loader) == sum(1 for _ in loader) == sum(1 for _ in iter(loader))
    assert len(lk.Loader(Sized(), steps=7)) == 7
    with pytest.raises(TypeError, match="has no length"):
        len(lk.Loader(Plain()))


def drawing_of(batch_size: int | None) -> Any:
    return None if batch_size is None else drawing_collate


def test_a_wrong_length_is_warned_of_only_if_len_was_called() -> None:
    for told, message in ((9, "is 3 batches.* gives 9 samples for this rank and there were 11"), (60, "is 15 batches")):
        loader = lk.Loader(Sized(told=told), 4, collate_fn=drawing_collate)
        for _ in loader:  # nobody has asked for the length
            pass
        assert len(loader) > 0
        with pytest.warns(UserWarning, match=message):
            for _ in loader:
                pass
    loader = lk.Loader(Sized(told=9), 4, collate_fn=drawing_collate)
    for _, _ in zip(range(len(loader)), loader, strict=False):  # as a Trainer: it stops at len()
        pass
    with pytest.warns(
        UserWarning, match="is 3 batches, because Sized.__len__ gives 9 samples for this rank and there are more"
    ):
        next(iter(loader))


class Unplain(Stateful):
    def state_dict(self) -> Any:
        return {"at": Counter()}


def test_a_state_that_is_not_plain_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Unplain.state_dict\(\) returned .* a value of type Counter, wanted numbers"):
        make_loader(Unplain)


class Failing(Plain):
    def numbers(self) -> list[int]:
        return [0, 1, 2]

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()
        raise KeyError("broken")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_names_the_sample(workers: int) -> None:
    loader = make_loader(Failing, workers, batch_size=2)
    with pytest.raises(KeyError) as caught:
        list(loader)
    assert "sample 3 of rank 0, worker 0" in "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


@pytest.mark.parametrize("steps", [None, 3])
@pytest.mark.parametrize("kind", ["iterable", "stream"])
def test_workers_end_with_a_loader_that_is_left(kind: str, steps: int | None) -> None:
    """Rather than when the garbage is collected, which then would wait 5 s for each of them."""
    data = (
        Plain()
        if kind == "iterable"
        else lk.StreamDataset(["a", "b"], lambda _, start: iter(range(start, 20)), lanes=2)
    )
    before = set(multiprocessing.active_children())
    loader = lk.Loader(data, 3, num_workers=2, steps=steps, world=lk.World())
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(3)]
    assert len(set(multiprocessing.active_children()) - before) == 2
    gc.disable()
    try:
        del loader, iterator
        assert set(multiprocessing.active_children()) <= before
    finally:
        gc.enable()
    assert len(batches) == 3


class ForItsOwnLoader(Plain):
    """Its `state_dict` takes what its own loader gives, as those of litdata and MosaicML Streaming do."""

    def state_dict(self, read: int) -> dict[str, int]:
        return {"read": read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise NotImplementedError


class IndexedToo(ForItsOwnLoader):
    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def test_a_state_dict_with_arguments_is_refused() -> None:
    with pytest.raises(TypeError, match=r"ForItsOwnLoader\.state_dict takes arguments .*'read'.*has no state_dict"):
        lk.Loader(ForItsOwnLoader(), batch_size=8)
    with pytest.raises(TypeError, match=r"give the Loader lk\.ConcatDataset\(\[dataset\]\)"):
        lk.Loader(IndexedToo(), batch_size=8)
    read = torch.cat(list(lk.Loader(lk.ConcatDataset([IndexedToo()]), batch_size=8, shuffle=True, num_workers=2)))
    assert sorted(read.tolist()) == list(range(SIZE))


class Shared(Plain):
    """Keeps its epoch in memory that its workers share, and adds the difference, as a stream of Hugging Face does.

    In a worker, `meet` makes the order of events certain: all workers have taken the difference before one adds it.
    """

    def __init__(self, memory: str) -> None:
        super().__init__()
        shared: Any = torch.zeros(1, dtype=torch.int64)
        self.memory: Any = shared.share_memory_() if memory == "tensor" else multiprocessing.RawArray("q", 1)
        self.meet = multiprocessing.get_context("fork").Barrier(2)
        self.met = False

    @property
    def epoch(self) -> int:
        return int(self.memory[0])

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        pass

    def set_epoch(self, epoch: int) -> None:
        difference = epoch - self.memory[0]
        if torch_data.get_worker_info() is not None:
            self.meet.wait(60)
        self.memory[0] += difference
        if torch_data.get_worker_info() is not None:
            self.meet.wait(60)


@pytest.mark.parametrize("memory", ["tensor", "array"])
def test_workers_that_share_the_memory_of_an_epoch_read_the_same_epoch(memory: str) -> None:
    whole, loader = make_loader(Plain, 2), make_loader(lambda: Shared(memory), 2)
    for _ in range(3):
        assert equal(list(loader), list(whole))


class Interrupted(Shared):
    """After a worker has set its epoch, and before it reads, the trainer sets another."""

    def set_epoch(self, epoch: int) -> None:
        self.memory[0] += epoch - self.memory[0]
        if torch_data.get_worker_info() is not None:
            for _ in range(2):
                self.meet.wait(60)


def test_a_trainer_that_sets_the_epoch_of_its_dataset_disturbs_no_worker() -> None:
    data = Interrupted("tensor")

    def disturb() -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            while True:
                data.meet.wait(60)
                data.set_epoch(7)
                data.meet.wait(60)

    thread = threading.Thread(target=disturb)
    thread.start()
    loader, whole = make_loader(lambda: data, 1), make_loader(Plain, 1)
    try:
        for _ in range(2):
            assert equal(list(loader), list(whole))
            assert data.epoch == 7
    finally:
        data.meet.abort()
        thread.join()


class SharedState(Stateful):
    """Keeps its place in memory that its workers share."""

    def __init__(self, wrapped: bool = False) -> None:
        super().__init__()
        self.memory: Any = torch.zeros((), dtype=torch.int64).share_memory_()
        self.held = [{"place": self.memory}] if wrapped else None
        self.level: Any = torch.zeros((), dtype=torch.int64).share_memory_()
        if wrapped:
            del self.memory

    @property
    def at(self) -> int:  # type: ignore[override]
        return int(self.place())

    @at.setter
    def at(self, at: int) -> None:
        self.place().fill_(at)

    def place(self) -> Any:
        return self.memory if self.held is None else self.held[0]["place"]


@pytest.mark.parametrize("wrapped", [False, True])
def test_workers_have_places_of_their_own_in_memory_that_they_share(wrapped: bool) -> None:
    whole, loader = make_loader(Stateful, 2), make_loader(lambda: SharedState(wrapped), 2)
    assert equal([list(loader) for _ in range(2)], [list(whole) for _ in range(2)])
    first = make_loader(lambda: SharedState(wrapped), 2)
    batches = iter(first)
    got = [next(batches) for _ in range(5)]
    again = make_loader(lambda: SharedState(wrapped), 2)
    again.load_state_dict(first.state_dict())
    first.close()
    assert equal(got + list(again), list(make_loader(Stateful, 2)))


class Levelled(SharedState):
    """Its samples tell a number by which the trainer tells its workers something."""

    def __iter__(self) -> Iterator[Any]:
        return ((number, int(self.level)) for number, _ in super().__iter__())


def test_what_a_trainer_shares_with_its_workers_stays_shared() -> None:
    data = Levelled()
    loader = lk.Loader(data, 1, num_workers=1, prefetch_factor=1)
    batches = iter(loader)
    assert int(next(batches)[1]) == 0
    data.level.fill_(5)
    assert int(list(batches)[-1][1]) == 5
