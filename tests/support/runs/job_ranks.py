"""The ranks of a job script: one process, or two that torch.distributed joins."""

import os
import socket
import sys
from collections.abc import Callable
from typing import Any

import torch


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def run_ranks(work: Callable[[dict[str, Any], int], None], job: dict[str, Any]) -> None:
    """Run `work(job, rank)` on each of the job's ranks. Under torchrun, which has started them, run this one."""
    torch.set_num_threads(1)
    if job.get("ranks", 1) == 1 or "RANK" in os.environ:
        work(job, int(os.environ.get("RANK", 0)))
        return
    os.environ |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": job["port"]}
    child = os.fork()
    rank = int(not child)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    work(job, rank)
    if not child:
        sys.stdout.flush()
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit("rank 1 failed")
