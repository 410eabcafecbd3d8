"""Ranks that share the data but read other data, another order or from another place are told so."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.utils.data as torch_data
from gloo_ranks import on_gloo

import loaderkit as lk
from loaderkit.loader.same_on_ranks import _begun

DATA = lk.ArrayDataset(torch.arange(12))
NAMES = ["a", "b"]


def stream(names: list[str], **settings: Any) -> lk.StreamDataset:
    return lk.StreamDataset(names, lambda shard, start: range(start, 4), lanes=2, **settings)


def resumed(rank: int) -> lk.Loader:
    """A state is loaded on rank 0 alone."""
    loader = lk.Loader(DATA, 2)
    state = lk.Loader(DATA, 2).state_dict()
    ahead = lk.Loader(DATA, 2)
    ahead.seek(epoch=0, samples=4)
    loader.load_state_dict(ahead.state_dict() if rank == 0 else state)
    return loader


def said(rank: int, make: Callable[[int], lk.Loader], times: int) -> list[str]:
    """Return what first batches warn of, and the keys that they leave in the store."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaders = [make(rank) for _ in range(times)]
        for loader in loaders:
            next(iter(loader))
    dist.barrier()
    store, begun = dist.distributed_c10d._get_default_store(), _begun.get(dist.group.WORLD, {})  # type: ignore[call-overload]
    keys = [f"loaderkit/same/{meeting}/{number + 1}" for meeting, count in begun.items() for number in range(count)]
    said = [str(each.message) for each in caught if "share the data" in str(each.message)]
    return [*said, *(key for key in keys if store.check([key]))]


SAME: dict[str, Callable[[int], lk.Loader]] = {
    "in order": lambda _: lk.Loader(DATA, 2),
    "shuffled": lambda _: lk.Loader(DATA, 2, shuffle=True, seed=3),
    "a plan": lambda _: lk.Loader(DATA, plan=lk.TokenBudget([1] * 12, 3)),
    "a stream": lambda _: lk.Loader(stream(NAMES), 2, steps=2),
    "another world": lambda rank: lk.Loader(lk.ArrayDataset(torch.arange(12) + rank), 2, world=lk.World()),
    "seeds of an order that draws nothing": lambda rank: lk.Loader(DATA, 2, seed=rank),
}


@pytest.mark.parametrize("case", SAME)
def test_ranks_that_agree_are_told_nothing(case: str) -> None:
    assert on_gloo(2, said, SAME[case], 3) == [[], []]


OTHER: dict[str, tuple[Callable[[int], lk.Loader], str]] = {
    "data": (lambda rank: lk.Loader(lk.ArrayDataset(torch.arange(12) + rank), 2), "data "),
    "a sample more": (lambda rank: lk.Loader(lk.ArrayDataset(torch.arange(12 + 2 * rank)), 2), "data "),
    "seeds": (lambda rank: lk.Loader(DATA, 2, shuffle=True, seed=rank), "order shuffled"),
    "an order": (lambda rank: lk.Loader(DATA, 2, order=lk.Subset(range(rank, 8 + rank))), "order subset"),
    "a sampler without a seed": (lambda rank: lk.Loader(DATA, 2, order=permuted(rank)), "order "),
    "a state": (resumed, "position epoch 0, sample "),
    "shards by glob": (lambda rank: lk.Loader(stream(NAMES[:: 1 - 2 * rank]), 2, steps=2), "shards "),
    "a stream's seed": (lambda rank: lk.Loader(stream(NAMES, shuffle=True, seed=rank), 2, steps=2), "order "),
}


def permuted(rank: int) -> torch_data.Sampler[int]:
    generator = torch.Generator().manual_seed(rank)
    return torch_data.SubsetRandomSampler(torch.randperm(12, generator=generator).tolist())  # type: ignore[arg-type]


@pytest.mark.parametrize("case", OTHER)
def test_ranks_that_differ_are_told_how(case: str) -> None:
    make, wanted = OTHER[case]
    found = on_gloo(2, said, make, 1)
    late = [each for each in found if each]  # the rank that came second
    assert len(late) == 1, found
    assert "so samples come twice or never" in late[0][0]
    assert f"Here: {wanted}" in late[0][0]
