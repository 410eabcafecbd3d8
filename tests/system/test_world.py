"""Who shares the data: given, asked of torch.distributed, or read from torchrun's environment."""

import datetime
import multiprocessing
import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from job_ranks import free_port

import loaderkit as lk
from loaderkit import World


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_a_process_without_others_is_alone() -> None:
    assert World.detect() == World(0, 1)


def test_torchruns_environment_tells_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    assert World.detect() == World(0, 1)  # a rank without a size says nothing
    monkeypatch.setenv("WORLD_SIZE", "5")
    assert World.detect() == World(2, 5)


@pytest.mark.parametrize(("rank", "size"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_lies_in_its_world(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} of {size}"):
        World(rank, size)


def test_a_trainer_tells_the_ranks_that_have_data_of_their_own() -> None:
    strategy = SimpleNamespace(distributed_sampler_kwargs={"rank": 1, "num_replicas": 2})
    assert World.from_trainer(SimpleNamespace(strategy=strategy)) == World(1, 2)
    assert World.from_trainer(SimpleNamespace(strategy=SimpleNamespace())) == World(0, 1)


def share_an_epoch(rank: int, port: str) -> None:
    torch.set_num_threads(1)
    loader = lk.Loader(list(range(21)), 2, shuffle=True)
    before = loader.world
    address, limit = f"tcp://127.0.0.1:{port}", datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2, timeout=limit)
    os.environ.update(RANK="7", WORLD_SIZE="9")  # torch.distributed knows better
    batches = list(loader)
    everyone: list[Any] = [None, None]
    dist.all_gather_object(
        everyone, (loader.state_dict(), len(batches), [index for batch in batches for index in batch])
    )
    (state, count, mine), (other_state, other_count, others) = everyone
    assert before == World(0, 1)
    assert loader.world == World(rank, 2)
    assert state == other_state
    assert count == other_count == len(loader) == 6
    assert sorted(map(int, mine + others)) == list(range(21))
    dist.destroy_process_group()


def test_two_processes_share_an_epoch_through_torch_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The world is found at the first use, after the loader was made."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    port, fork = free_port(), multiprocessing.get_context("fork")
    ranks = [fork.Process(target=share_an_epoch, args=(rank, port)) for rank in range(2)]
    try:
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(120)
        assert [rank.exitcode for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
