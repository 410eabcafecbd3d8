"""Run the ranks of a stream: in threads, or one after another."""

import json
import threading
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

import loaderkit as lk


def on_ranks(ranks: int, work: Callable[[int, Any], Any]) -> list[Any]:
    """Run each rank in a thread, with one store for all."""
    store, results = dist.HashStore(), [None] * ranks
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank, store)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    if errors:
        raise errors[0]
    return results


def values(batches: list[Any]) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def over_changed_ranks(make: Callable[..., Any], old: int, new: int, stop: int, *, batch_size: int = 1) -> list[Any]:
    """Return the batches of some ranks, stopped after `stop` each, and those of as many other ranks that go on.

    `make(size, rank, ranks)` makes the loader of a rank. Its batches have `batch_size` samples before the stop, and 3 after.
    """
    batches, states = [], []
    for rank in range(old):
        loader = make(batch_size, rank, old)
        iterator = iter(loader)
        batches += [next(iterator) for _ in range(stop)]
        states.append(loader.state_dict())
    state = json.loads(json.dumps(lk.merge_states(states)))
    for rank in range(new):
        loader = make(3, rank, new)
        loader.load_state_dict(state)
        batches += list(loader)
        assert loader.cursor.epoch == 1
    return batches
