"""What a stream's state says of later batches holds for what is then read."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

import loaderkit as lk
from loaderkit.loader.streams.locate import locate_in_stream

SIZE, BATCH = 80, 4


def read(shard: str, start: int) -> Iterator[tuple[str, int]]:
    return iter([(shard, number) for number in range(start, SIZE)])


def stream(**settings: Any) -> lk.StreamDataset:
    return lk.StreamDataset(
        [f"shard-{name}" for name in "abcd"], read, **{"lanes": 4, "window": 8, "seed": 3, **settings}
    )


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "kind", [{}, {"shuffle": True}, {"share": 2, "block": 4}, {"share": 2, "block": 4, "shuffle": True}]
)
def test_a_batch_comes_from_where_the_state_says(kind: dict[str, Any], ranks: int) -> None:
    """From each stop, each later batch of the lanes' first shard; each rank, shuffled or not, shared or not."""
    data, checked = stream(**kind), 0
    for stop in range(0, 8, 3):
        loaders = [
            lk.Loader(data, BATCH, world=lk.World(rank, ranks), stop="each", meet_timeout_s=0.01, collate_fn=list)
            for rank in range(ranks)
        ]
        iterators = [iter(loader) for loader in loaders]
        for iterator in iterators:
            for _ in range(stop):
                next(iterator)
        states = [loader.state_dict() for loader in loaders]
        state = json.loads(json.dumps(lk.merge_states(states) if ranks > 1 else states[0]))
        for step in range(stop, stop + 6):
            for rank, each in enumerate(locate_in_stream(data, state, step, BATCH)):
                batch = next(iterators[rank])
                found = re.match(r"(\S+): .*?samples (\d+) to (\d+)", each.where)
                assert found is not None
                shard, first, last = found[1], int(found[2]), int(found[3])
                assert each.rank == rank
                assert {name for name, _ in batch} == {shard}
                numbers = sorted(number for _, number in batch)
                assert first <= numbers[0] <= numbers[-1] <= last
                if not kind:
                    assert numbers == list(range(first, last + 1))
                checked += 1
    assert checked == 18 * ranks


def test_what_cannot_be_known_is_said() -> None:
    plain = stream()
    filtered = plain.filter(lambda sample: sample[1] % 2)
    chained = lk.chain(plain.map(str), stream(seed=3).map(repr))
    for data, words in (
        (filtered, "from sample 0 on; the filter decides which"),
        (chained, "not known: the lane reads other streams"),
    ):
        loader = lk.Loader(data, BATCH, collate_fn=list)
        [found] = locate_in_stream(data, loader.state_dict(), 0, BATCH)
        assert words in found.where
    loader = lk.Loader(plain, BATCH, collate_fn=list)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    with pytest.raises(
        ValueError, match=r"step 0 is before this state, which is at batch 1.*Name an earlier checkpoint"
    ):
        list(locate_in_stream(plain, state, 0, BATCH))
    [short] = locate_in_stream(plain, state, 1 + 4 * 10, BATCH)
    assert short.where.endswith("if it has fewer, the lane ends")
    half = lk.Loader(plain, BATCH, world=lk.World(0, 2), stop="shortest", meet_timeout_s=0.01)
    assert [each.where for each in locate_in_stream(plain, half.state_dict(), 0, BATCH)][
        1
    ] == "not known: the state lacks this rank"
