"""Run the ranks of a stream in threads."""

import threading
from collections.abc import Callable
from typing import Any

import torch.distributed as dist


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
