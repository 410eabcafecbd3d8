"""A DeviceLoader reads ahead, but its position is that of the last yielded batch: all laws hold."""

import itertools
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch.utils.data as torch_data
from drawing import Drawing, drawing_collate, draws, equal
from fake_cuda import FakeCuda

import loaderkit as lk
from loaderkit.device import cuda


@pytest.fixture(autouse=True, params=["no streams", "1", "2", "5"])
def depth(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The laws hold without streams, as on the CPU, and with those of the fake, by how many batches are ahead."""
    if request.param == "no streams":
        return 2
    monkeypatch.setitem(cuda.BACKENDS, "cpu", lambda _: FakeCuda("all"))
    return int(request.param)


def read(shard: str, start: int) -> Iterator[int]:
    first, size = map(int, shard.split(":"))
    return iter(range(first + start, first + size))


def make_stream(sizes: tuple[int, ...] = (7, 5, 9, 4), **settings: Any) -> lk.StreamDataset:
    names = [f"{sum(sizes[:number])}:{size}" for number, size in enumerate(sizes)]
    return lk.StreamDataset(names, read, **{"lanes": 2, "window": 4, "shuffle": True, "seed": 5, **settings})


class Plain(torch_data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(17))


def add_draws(batch: Any) -> Any:
    """A transform that draws, for the batch."""
    return batch, draws()


def make_indexed(**settings: Any) -> lk.Loader:
    return lk.Loader(Drawing(13), 3, **{"shuffle": True, "collate_fn": drawing_collate, **settings})


LOADERS: dict[str, Any] = {
    "indexed": make_indexed,
    "by lengths": lambda **s: lk.Loader(
        Drawing(13), plan=lk.TokenBudget([5, 2, 9, 4, 1, 1, 7, 3, 2, 6, 8, 2, 3], 16), **s
    ),
    "stream": lambda **s: lk.Loader(make_stream(), 3, **s),
    "stream with steps": lambda **s: lk.Loader(make_stream(), 3, steps=7, **s),
    "iterable": lambda **s: lk.Loader(Plain(), 3, **s),
}


def on_device(loader: lk.Loader, depth: int = 2, **settings: Any) -> lk.DeviceLoader:
    return lk.DeviceLoader(loader, "cpu", depth=depth, **settings)


@pytest.mark.parametrize("kind", LOADERS)
def test_batches_states_and_lengths_are_those_of_the_loader(kind: str, depth: int) -> None:
    """After each batch of three epochs, and of one that is left in its middle."""
    plain, ahead = LOADERS[kind](), on_device(LOADERS[kind](), depth)

    def look_at(loader: lk.Loader) -> Any:
        try:
            length = len(loader)
        except TypeError:
            length = None
        return loader.state_dict(), loader.cursor, length

    seen = 0
    for limit in (None, 2, None, 1, None):
        assert look_at(plain) == look_at(ahead)
        for wanted, got in zip(itertools.islice(plain, limit), itertools.islice(ahead, limit), strict=True):
            assert equal(wanted, got)
            assert look_at(plain) == look_at(ahead) == look_at(ahead.loader)
            seen += 1
    assert seen >= 12
    assert look_at(plain) == look_at(ahead)
    assert equal(list(plain), list(ahead.loader))  # nothing that was read ahead is lost
    assert (ahead._prefetcher._side is not None) == ("cpu" in cuda.BACKENDS)


@pytest.mark.each_value
@pytest.mark.parametrize("kind", LOADERS)
def test_a_resume_continues_the_uninterrupted_run(kind: str, depth: int) -> None:
    """At every stop point of two epochs, draws of the transform included, by other depths."""

    def make(depth: int) -> lk.DeviceLoader:
        return on_device(LOADERS[kind](), depth, transform=add_draws)

    loader, whole, states = make(depth), [], []
    for _ in range(3):
        states.append(loader.state_dict())
        for batch in loader:
            whole.append(batch)
            states.append(loader.state_dict())
        states.pop()
    states.append(loader.state_dict())
    assert len(whole) + 1 == len(states) >= 12
    assert len({str(draw) for _, draw in whole}) == len(whole)
    for stop, state in enumerate(states[:-1]):
        again = make(1 + stop % 3)
        again.load_state_dict(json.loads(json.dumps(state)))
        rest = list(again)
        assert rest
        assert equal(rest, whole[stop : stop + len(rest)])


def test_the_laws_as_functions(depth: int) -> None:
    lk.testing.assert_exactly_once(
        lambda world: on_device(lk.Loader(list(range(13)), 2, shuffle=True, world=world), depth), worlds=(1, 2, 3)
    )
    lk.testing.assert_generators_untouched(lambda: on_device(make_indexed(), depth, transform=add_draws))


@pytest.mark.parametrize("workers", [{"num_workers": 2}, {"num_workers": 2, "engine": "ring", "timeout": 60}])
def test_workers_do_not_change_a_batch(workers: dict[str, Any], depth: int) -> None:
    wanted = list(on_device(make_indexed(), transform=add_draws))
    loader = on_device(make_indexed(**workers), depth, transform=add_draws)
    got = [pickle.loads(pickle.dumps(batch)) for batch in loader]
    assert len(got) == 5
    assert equal(got, wanted)
    loader.close()


def test_draws_of_the_transform_differ_between_ranks_and_epochs(depth: int) -> None:
    found = []
    for rank in range(2):
        loader = on_device(make_indexed(world=lk.World(rank, 2)), depth, transform=add_draws)
        found += [str(batch[1]) for _ in range(2) for batch in loader]
    assert len(set(found)) == len(found) == 12


def test_a_moved_loader_ends_the_iterator(depth: int) -> None:
    loader = on_device(lk.Loader(list(range(13)), 3), depth)
    for move in (
        lambda: next(iter(loader)),
        lambda: next(iter(loader.loader)),
        lambda: loader.seek(epoch=3),
        lambda: loader.load_state_dict(on_device(lk.Loader(list(range(13)), 3)).state_dict()),
        lambda: loader.close(),
    ):
        old = iter(loader)
        next(old)
        move()
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"this iterator is over.*Call iter\(loader\)"):
                next(old)


def test_a_loader_continues_after_close_and_after_seek(depth: int) -> None:
    loader = on_device(lk.Loader(list(range(13)), 3), depth)
    next(iter(loader))
    loader.close()
    assert loader.cursor == lk.Cursor(samples=3, batches=1)
    loader.seek(epoch=4, samples=6)
    assert [batch.tolist() for batch in loader] == [[6, 7, 8], [9, 10, 11], [12]]
    assert loader.cursor == lk.Cursor(epoch=5)
    assert loader.indices(0, 1).tolist() == [3, 4, 5]


def test_a_used_up_iterator_stays_so(depth: int) -> None:
    loader = on_device(lk.Loader(list(range(13)), 3), depth)
    iterator = iter(loader)
    assert len(list(itertools.islice(iterator, 5))) == 5  # as a Trainer, which never asks for more
    assert loader.cursor == lk.Cursor(epoch=1)
    assert len(list(loader)) == 5
    assert list(iterator) == []


def test_calling_iter_starts_nothing(depth: int) -> None:
    loader = on_device(lk.Loader(list(range(13)), 3), depth)
    unused = [iter(loader) for _ in range(3)]
    assert len(list(loader)) == 5
    assert loader.cursor == lk.Cursor(epoch=1)
    assert len(list(unused[0])) == 5


class Fails(Drawing):
    at = 7

    def __getitem__(self, index: int) -> Any:
        if index == self.at:
            raise OSError("disk")
        return super().__getitem__(index)


@pytest.mark.parametrize("make", [lambda: lk.Loader(Fails(13), 2), lambda: lk.Loader(make_stream(transform=fail), 2)])
def test_an_error_comes_at_its_batch_with_the_state_before_it(make: Any, depth: int) -> None:
    plain, ahead = make(), on_device(make(), depth)
    for loader in (plain, ahead):
        iterator = iter(loader)
        got: list[Any] = []
        with pytest.raises(OSError, match="disk"):
            got.extend(iterator)
        assert len(got) >= 3
        with pytest.raises(RuntimeError, match="this iterator is over"):
            next(iterator)
    assert plain.state_dict() == ahead.state_dict()
    fixed = on_device(make(), depth)
    fixed.load_state_dict(ahead.state_dict())
    with pytest.raises(OSError, match="disk"):
        next(iter(fixed))


def fail(index: int) -> int:
    if index == 20:
        raise OSError("disk")
    return index


def test_an_interrupt_loses_nothing_that_was_read_ahead(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes while a batch is read ahead: the batches before it were not yielded."""

    class Interrupted(Drawing):
        def __getitem__(self, index: int) -> Any:
            if index == 8 and not done:
                done.append(index)
                raise KeyboardInterrupt
            return super().__getitem__(index)

    done: list[int] = []
    loader = on_device(lk.Loader(Interrupted(13), 2), depth)
    got: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        got.extend(loader)
    assert loader.cursor.batches == len(got) <= 4
    again = on_device(lk.Loader(Interrupted(13), 2), depth)
    again.load_state_dict(loader.state_dict())
    assert equal([*got, *again], list(lk.Loader(Drawing(13), 2)))


def test_bad_samples_are_counted_up_to_the_yielded_batch(depth: int) -> None:
    make = lambda: lk.Loader(Fails(13), 2, bad_samples=lk.BadSamples("skip", max_rate=1.0))  # noqa: E731
    plain, ahead = make(), on_device(make(), depth)
    for wanted, got in zip(plain, ahead, strict=True):
        assert equal(wanted, got)
        assert plain.state_dict() == ahead.state_dict()
    assert [bad.index for bad in ahead.bad_samples] == [7]


def test_it_says_how_batches_are_copied(depth: int) -> None:
    found = on_device(make_indexed(), depth).describe()
    assert (found.engine, found.device) == ("inline", "cpu")
    wanted = f"copied up to {depth} ahead" if "cpu" in cuda.BACKENDS else "copied when they are asked for"
    assert f"device: cpu ({wanted}" in str(found)


def test_other_loaders_are_refused(depth: int) -> None:
    with pytest.raises(TypeError, match=r"the loader is a DataLoader, wanted an lk\.Loader"):
        lk.DeviceLoader(torch_data.DataLoader([1, 2]), "cpu")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the loader is a DeviceLoader"):
        on_device(on_device(make_indexed()))
    with pytest.raises(ValueError, match=r"already copies its batches to 'cpu'.*Leave out its device="):
        on_device(make_indexed(device="cpu"))
