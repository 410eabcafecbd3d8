"""A store that outlives killed attempts: the ranks of each attempt meet, and each sample comes once over all of them."""

import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import stream_attempts_job as job
import torch.distributed as dist
from stream_ranks import on_ranks

import loaderkit as lk

JOIN_S = 120  # each rank imports torch, which takes long on a busy machine


def check_each_came_once(folder: Path) -> None:
    given = [json.loads(file.read_text()) for file in folder.glob("given-*.json")]
    found = [sample for part in given for sample in part]
    assert len(found) == job.LANES * job.BATCHES * job.BATCH_SIZE
    assert len(set(found)) == len(found)
    assert len(given) == 3 + 2 + 4


def start_rank(attempt: int, rank: int, port: int, folder: Path) -> None:
    job.run_rank(attempt, rank, job.connect("127.0.0.1", port), folder)


@pytest.mark.slow
def test_attempts_share_a_store_that_the_parent_holds(tmp_path: Path) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("forkserver")
    for attempt, plan in enumerate(job.ATTEMPTS):
        ranks: Any = plan["ranks"]
        processes: list[Any] = [
            context.Process(target=start_rank, args=(attempt, rank, store.port, tmp_path)) for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        try:
            if "killed" in plan:
                killed: Any = plan["killed"]
                processes[killed].join(JOIN_S)
                assert processes[killed].exitcode == -9
                time.sleep(0.3)  # the others meet, or wait to
            else:
                for process in processes:
                    process.join(JOIN_S)
                    assert process.exitcode == 0
        finally:
            for process in processes:
                process.kill()
                process.join()
    check_each_came_once(tmp_path)


@pytest.mark.slow
def test_attempts_share_the_store_of_torchruns_agent(tmp_path: Path) -> None:
    most = max(int(str(plan["ranks"])) for plan in job.ATTEMPTS)
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={most}"),
        *(f"--max-restarts={len(job.ATTEMPTS) - 1}", "--monitor-interval=0.1", job.__file__, str(tmp_path)),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr[-5000:]
    check_each_came_once(tmp_path)


def stream_of(rank: int, ranks: int, store: Any, **settings: Any) -> Any:
    stream = lk.StreamDataset(["0", "1", "2", "3"], job.read, lanes=4)
    return lk.Loader(stream, 2, world=lk.World(rank, ranks), store=store, stop="shortest", **settings)


@pytest.mark.parametrize("dead", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)], ids=str)
def test_ranks_meet_whatever_a_dead_attempt_left(dead: tuple[int, ...]) -> None:
    """Ranks of an earlier attempt got some way into their first meeting, and are never heard of again."""
    all_stuck = threading.Barrier(3)

    def attempt(rank: int, store: Any) -> list[Any]:
        if len(dead) == 3:
            next(iter(stream_of(rank, 3, store)))
        elif rank in dead:
            with pytest.raises(RuntimeError, match="did not say in time"):
                next(iter(stream_of(rank, 3, store, meet_timeout_s=0.2)))
        all_stuck.wait(20)
        return [batch.tolist() for batch in stream_of(rank, 3, store, meet_timeout_s=20)]

    parts = on_ranks(3, attempt)
    assert all(parts)
    found = [sample for part in parts for batch in part for sample in batch]
    assert len(set(found)) == len(found)


def test_two_loaders_of_one_name_do_not_mix() -> None:
    """Also if one rank is at the second loader while another is at the first."""

    def work(rank: int, store: Any) -> list[Any]:
        first, second = (stream_of(rank, 2, store) for _ in range(2))
        time.sleep(0.05 * rank)
        return [[batch.tolist() for batch in loader] for loader in (first, second, first)]

    for part in on_ranks(2, work):
        assert part[0] == part[1]
        assert len(part[0]) == len(part[2]) == 12
