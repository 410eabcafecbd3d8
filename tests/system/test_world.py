"""Who shares the data: given, asked of torch.distributed, or read from torchrun's environment."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from job_ranks import free_port

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


RANK_JOB = """
import os, sys, datetime
import torch.distributed as dist
import loaderkit as lk
rank, port = int(sys.argv[1]), sys.argv[2]
loader = lk.Loader(list(range(21)), 2, shuffle=True)
before = loader.world
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2,
                        timeout=datetime.timedelta(seconds=60))
os.environ.update(RANK="7", WORLD_SIZE="9")  # torch.distributed knows better
batches = list(loader)
everyone = [None, None]
dist.all_gather_object(everyone, (loader.state_dict(), len(batches), sum(map(list, batches), [])))
(state, count, mine), (other_state, other_count, others) = everyone
assert before == lk.World(0, 1), before
assert loader.world == lk.World(rank, 2), loader.world
assert state == other_state and count == other_count == len(loader) == 6
assert sorted(map(int, mine + others)) == list(range(21))
dist.destroy_process_group()
print("right", rank)
"""


def test_two_processes_share_an_epoch_through_torch_distributed() -> None:
    """The world is found at the first use, after the loader was made."""
    port = free_port()
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", RANK_JOB, str(rank), port],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        outputs = [job.communicate() for job in jobs]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    for rank, (job, (out, err)) in enumerate(zip(jobs, outputs, strict=True)):
        assert job.returncode == 0, err
        assert f"right {rank}" in out
