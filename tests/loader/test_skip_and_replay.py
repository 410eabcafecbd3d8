"""Leave out steps from now on, and make a batch again: exact wherever the run stands, and on other ranks."""

import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data

import loaderkit as lk

SIZE = 30


class Drawing:
    """Samples with their index and numbers that are drawn in all ways."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = [index, torch.rand(()).item(), np.random.rand(), lk.sample_rng().random()]
        return torch.tensor(drawn, dtype=torch.float64)


def make(world: lk.World | None = None, batch_size: int = 3, **settings: Any) -> lk.Loader:
    settings = {"shuffle": True, "seed": 4, **settings}
    return lk.Loader(settings.pop("dataset", Drawing()), batch_size, world=world or lk.World(), **settings)


def take(loader: lk.Loader, batches: int) -> list[torch.Tensor]:
    return list(itertools.islice(loader, batches))


def rows(batches: list[torch.Tensor]) -> list[list[float]]:
    return [row for batch in batches for row in batch.tolist()]


WHOLE = {epoch: rows(list(lk.Loader(Drawing(), 3, shuffle=True, seed=4))) for epoch in (0,)}[0]


@pytest.mark.parametrize("stop", range(8))
@pytest.mark.parametrize("gap", [(0, 6), (7, 8), (9, 15), (24, 30)])
def test_a_skip_holds_from_now_on_after_any_batch_and_after_a_resume(stop: int, gap: tuple[int, int]) -> None:
    """What was delivered before stays; the rest comes once, with the random numbers that it has without the gap."""
    start, end = gap
    here, other = make(), make()
    first = rows(take(here, stop))
    if 3 * stop > start and (min(end, max(start, 3 * stop)) - end) % 3:
        pytest.skip("a gap that is cut to a part of a step")
    here.skip(epoch=0, samples=range(start, end))
    state = json.loads(json.dumps(here.state_dict()))
    other.load_state_dict(state)
    left_out = set(range(max(start, 3 * stop), end))
    wanted = [row for position, row in enumerate(WHOLE) if position not in left_out]
    assert len(wanted) >= SIZE - (end - start)  # else the law is vacuous
    length = len(here)
    rest = rows(list(here))
    assert first + rest == wanted
    assert rows(list(other)) == rest
    assert length == stop + -(-(len(wanted) - 3 * stop) // 3)
    assert here.cursor == other.cursor == lk.Cursor(epoch=1)
    assert len(list(here)) == len(here) == 10  # the next epoch is whole
    assert here.state_dict()["skipped"] == []


@pytest.mark.parametrize("stop", [1, 3, 4])
@pytest.mark.parametrize(("ranks", "batch_size"), [(1, 3), (2, 2), (3, 1), (4, 3)])
def test_a_skip_holds_on_other_ranks_and_batch_sizes(stop: int, ranks: int, batch_size: int) -> None:
    two = [make(lk.World(rank, 2)) for rank in range(2)]
    for loader in two:
        loader.skip(epoch=0, steps=[range(1, 2), range(4, 5)])
        assert len(loader) == 3
    stop = min(stop, 2)
    first = [row for loader in two for row in rows(take(loader, stop))]
    state = two[0].state_dict()
    assert state == two[1].state_dict()
    others = [make(lk.World(rank, ranks), batch_size, num_workers=0) for rank in range(ranks)]
    for loader in others:
        loader.load_state_dict(state)
    parts = [list(loader) for loader in others]
    assert len({len(part) for part in parts}) == 1  # every rank gets the same number
    rest = [row for part in parts for row in rows(part)]
    wanted = [row for position, row in enumerate(WHOLE) if not 6 <= position < 12 and not 24 <= position < 30]
    assert sorted(first + rest) == sorted(wanted)
    assert len(rest) == len(wanted) - 6 * stop > 0


def test_a_skip_twice_or_in_another_loader_is_the_same() -> None:
    """A program that calls it at each start leaves out no more, whatever state it loads."""
    once, twice = make(), make()
    for loader in (once, twice):
        loader.skip(epoch=0, steps=range(2, 4))
    twice.skip(epoch=0, steps=range(2, 4))
    assert once.skips == twice.skips == ((0, 6, 12),)
    take(once, 4)
    twice.load_state_dict(once.state_dict())
    twice.skip(epoch=0, steps=range(2, 4))
    assert twice.skips == ((0, 6, 12),)
    before = make()
    take(before, 1)
    twice.load_state_dict(before.state_dict())  # back to before the gap: it is still left out
    assert rows(list(twice)) == WHOLE[3:6] + WHOLE[12:]


def test_a_running_iterator_is_over_and_the_next_one_continues() -> None:
    loader = make(num_workers=2)
    batches = iter(loader)
    first = [next(batches) for _ in range(2)]
    loader.skip(epoch=0, steps=range(2, 4))
    with pytest.raises(RuntimeError, match="this iterator is over"):
        next(batches)
    assert rows(first) + rows(list(loader)) == WHOLE[:6] + WHOLE[12:]


def test_a_loader_that_reads_ahead_skips_what_it_has_not_yielded() -> None:
    loader = lk.DeviceLoader(make(), "cpu")
    first = list(itertools.islice(loader, 2))
    loader.skip(epoch=0, steps=range(1, 4))  # step 1 is delivered
    assert rows(first) + rows(list(loader)) == WHOLE[:6] + WHOLE[12:]


def test_no_replacement_of_a_bad_sample_comes_from_what_is_left_out() -> None:
    class Few:
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> int:
            if index in (1, 5):
                raise ValueError(index)
            return index

    loader = make(dataset=Few(), shuffle=False, bad_samples=lk.BadSamples("replace", max_rate=1.0))
    loader.skip(epoch=0, samples=range(6, 11))
    found = torch.cat(list(loader)).tolist()
    assert len(found) == 7
    assert set(found) <= {0, 2, 3, 4, 11}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_replayed_batch_is_the_same_bit_for_bit_and_nothing_moves(workers: int) -> None:
    for rank in range(2):
        loader = make(lk.World(rank, 2), num_workers=workers)
        before = lk.Cursor()
        cursors, batches = [before], []
        for batch in loader:
            batches.append(batch)
            cursors.append(loader.cursor)
        assert len(batches) == 5
        state, drawn = loader.state_dict(), torch.get_rng_state()
        for number, batch in enumerate(batches):
            assert torch.equal(loader.replay(cursors[number]), batch)
            assert torch.equal(loader.replay(lk.Cursor(epoch=0), ahead=number), batch)
        assert loader.state_dict() == state
        assert torch.equal(torch.get_rng_state(), drawn)
        running = iter(loader)
        one = next(running)
        loader.replay(lk.Cursor(epoch=7))
        assert torch.equal(torch.stack([one, next(running)]), torch.stack(take_epoch(rank, 1)[:2]))


def take_epoch(rank: int, epoch: int) -> list[torch.Tensor]:
    loader = make(lk.World(rank, 2))
    loader.seek(epoch=epoch)
    return list(loader)


def test_a_replay_on_a_device_has_the_transforms_draws() -> None:
    def noisy(batch: torch.Tensor) -> torch.Tensor:
        return batch + torch.rand(()).double()

    loader = lk.DeviceLoader(make(), "cpu", transform=noisy)
    batches = list(loader)
    assert len({float(batch[0, 1]) for batch in batches}) == len(batches)
    for number, batch in enumerate(batches):
        assert torch.equal(loader.replay(lk.Cursor(), ahead=number), batch)


@pytest.mark.parametrize("plan", ["buckets", "packed", "batch sampler"])
def test_a_replay_follows_any_plan_and_a_skip_refuses_it(plan: str) -> None:
    lengths = [1 + index % 7 for index in range(SIZE)]
    settings: dict[str, Any] = {
        "buckets": {"plan": lk.LengthBuckets(lengths, 4, window=12)},
        "packed": {"plan": lk.PackPlan(lengths, 14, 2, window=12), "collate_fn": lambda found: found},
        "batch sampler": {"batch_sampler": torch_data.BatchSampler(range(SIZE), 4, drop_last=False)},
    }[plan]
    loader = make(batch_size=1, shuffle=False, dataset=list(range(SIZE)), **settings)
    batches = list(loader)
    assert len(batches) > 4
    for number, batch in enumerate(batches):
        again = loader.replay(lk.Cursor(), ahead=number)
        assert torch.equal(again, batch) if isinstance(batch, torch.Tensor) else again == batch
    with pytest.raises(
        ValueError, match=r"cannot leave out a stretch of the order.*bad_samples=lk.BadSamples\('skip'\)"
    ):
        loader.skip(epoch=3, samples=range(4))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epoch": -1, "steps": range(3)}, "skip in epoch -1, wanted an integer from 0"),
        ({"epoch": 0}, "skip of nothing, wanted steps=range"),
        ({"epoch": 0, "steps": range(3, 3)}, r"skip of range\(3, 3\), wanted a range that ascends by 1"),
        ({"epoch": 0, "samples": range(0, 9, 2)}, "wanted a range that ascends by 1"),
        ({"epoch": 0, "steps": range(8, 11)}, r"skip of range\(8, 11\), wanted steps of the 10 of epoch 0"),
        ({"epoch": 0, "samples": range(20, 31)}, "wanted samples of the 30 of epoch 0"),
        ({"epoch": 2, "steps": range(10)}, r"skip leaves no step of epoch 2.*loader.seek\(epoch=3\)"),
    ],
)
def test_a_skip_that_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    loader = make()
    with pytest.raises(ValueError, match=message):
        loader.skip(**given)
    assert loader.skips == ()
    assert rows(list(loader)) == WHOLE


def test_a_skip_wants_ranges() -> None:
    with pytest.raises(TypeError, match=r"skip of 3, wanted a range of numbers, such as range\(100, 110\)"):
        make().skip(epoch=0, steps=[3])  # type: ignore[list-item]


def test_a_skip_that_would_change_the_batches_done_is_refused() -> None:
    """After a change of the batch size in the epoch; a Trainer has counted the batches."""
    loader, other = make(), make(batch_size=4)
    take(loader, 1)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match=r"\d batches would be done after this skip, and 1 are counted.*4 samples"):
        other.skip(epoch=0, samples=range(8, 10))
    other.skip(epoch=0, samples=range(8, 16))
    assert rows(list(other)) == WHOLE[3:8] + WHOLE[16:]


def test_streams_say_what_to_do_instead() -> None:
    stream = lk.StreamDataset(["ab", "cd"], lambda shard, start: iter(shard[start:]), lanes=1)
    loader = lk.Loader(stream, 1, world=lk.World())
    with pytest.raises(TypeError, match=r"skip\(\) is for data with an index.*stream.filter"):
        loader.skip(epoch=0, steps=range(1))
    with pytest.raises(TypeError, match=r"replay\(\) is for data with an index.*Load the last state"):
        loader.replay(lk.Cursor())
    assert loader.skips == ()
