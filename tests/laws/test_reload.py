"""A restart inside the process: a state is loaded into the same Loader a hundred times, and nothing is left over.

Trainers that survive a failure in place (torchft, a retry around the step) do this: they keep the Loader.
"""

import gc
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import leftovers
import pytest
import torch.utils.data as torch_data
from iterables import Numbers, StatefulNumbers

import loaderkit as lk

SIZE = 48
NUMBERS = list(range(SIZE))
LENGTHS = [1 + number * 7 % 13 for number in range(SIZE)]


def read(shard: str, start: int) -> range:
    return range(8 * int(shard) + start, 8 * int(shard) + 8)


def as_list(rows: list[Any]) -> list[Any]:
    return rows


as_list.draws_nothing = True  # type: ignore[attr-defined]


def sampler() -> Any:
    return torch_data.BatchSampler(torch_data.RandomSampler(NUMBERS), 4, False)


INDEXED: dict[str, Callable[..., Any]] = {
    "indexed": lambda **k: lk.Loader(NUMBERS, 4, shuffle=True, **k),
    "packed": lambda **k: lk.Loader(NUMBERS, plan=lk.PackPlan(LENGTHS, 16), collate_fn=as_list, **k),
    "batch_sampler": lambda **k: lk.Loader(NUMBERS, batch_sampler=sampler(), **k),
}
STREAMS: dict[str, Callable[..., Any]] = {
    "stream": lambda **k: lk.Loader(lk.StreamDataset(list("012345"), read, shuffle=True, lanes=2), 4, **k),
    "iterable": lambda **k: lk.Loader(Numbers(SIZE), 4, **k),
    "iterable with a state": lambda **k: lk.Loader(StatefulNumbers(SIZE), 4, **k),
}
ENGINES: dict[str, dict[str, Any]] = {
    "inline": {},
    "threads": {"engine": "threads", "num_workers": 2},
    "ring": {"engine": "ring", "num_workers": 2},
    "torch": {"engine": "torch", "num_workers": 2},
}
CASES = [(kind, engine) for kind in INDEXED for engine in ("inline", "threads")] + [
    ("indexed", "ring"),
    ("indexed", "torch"),
    *((kind, engine) for kind in STREAMS for engine in ("inline", "torch")),
]


def memory() -> int:
    """Bytes that this process alone has in memory."""
    gc.collect()
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "engine"), CASES)
def test_a_state_is_loaded_a_hundred_times_into_one_loader(
    kind: str, engine: str, request: pytest.FixtureRequest
) -> None:
    """With worker processes, which each pass starts, 20 times by default; `--kills 5` makes that a hundred."""
    times = 100 if engine in ("inline", "threads") else min(100, 20 * request.config.getoption("--kills"))
    make = {**INDEXED, **STREAMS}[kind]
    before = leftovers.found({os.getpid()})["processes"]
    with leftovers.nothing_left():
        loader = make(**ENGINES[engine])
        batches = iter(loader)
        states, wanted = [], []
        for _ in range(6):
            states.append(loader.state_dict())
            wanted.append(str(next(batches)))
        assert len(set(wanted)) == 6
        found_at, memory_at = [], []
        for number in range(times):
            place = number % 5
            loader.load_state_dict(states[place])
            assert loader.state_dict() == states[place]
            found = [str(batch) for batch in itertools.islice(loader, 1 + number % 2)]
            assert found == wanted[place : place + 1 + number % 2]
            if (number + 1) % (times // 5) == 0:
                found_at.append(leftovers.found({os.getpid()}))
                memory_at.append(memory())
        assert len(found_at[-1]["processes"] - before) <= ENGINES[engine].get("num_workers", 0)
        first = found_at[0]["files"]
        deadline = time.monotonic() + 5  # threads of torch's queues close theirs when they end
        while (files := leftovers.found({os.getpid()})["files"]).total() > first.total() + 2:
            assert time.monotonic() < deadline, f"open files {files}, at first {first}"
            time.sleep(0.02)
        growth = [late - early for early, late in itertools.pairwise(memory_at)]
        assert min(growth) < 2**19, f"grew in each of four parts, by {growth} bytes"  # one part may also grow by chance
        del batches, loader
