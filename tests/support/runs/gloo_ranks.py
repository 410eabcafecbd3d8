"""Run a function on ranks of torch.distributed, in forked processes on this host."""

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist
from job_ranks import free_port

TIMEOUT_S = 120


def on_gloo(ranks: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return `work(rank, *arguments)` of each rank. A rank that is killed gives None; an error fails the test."""
    port = int(free_port())
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(ranks)]
    processes = [
        context.Process(target=_run, args=(rank, ranks, port, there, work, arguments))
        for rank, (_, there) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for _, there in pipes:
        there.close()
    deadline = time.monotonic() + TIMEOUT_S
    try:
        found = [
            _result(here, process, deadline - time.monotonic())
            for (here, _), process in zip(pipes, processes, strict=True)
        ]
        assert not any(error for _, error in found), "\n".join(error for _, error in found if error)
        return [result for result, _ in found]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _run(rank: int, ranks: int, port: int, there: Connection, work: Callable[..., Any], arguments: Any) -> None:
    os.environ.update(GLOO_SOCKET_IFNAME="lo", LOCAL_WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    try:
        address, limit = f"tcp://127.0.0.1:{port}", timedelta(seconds=TIMEOUT_S)
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks, timeout=limit)
        result = work(rank, *arguments)
        dist.barrier()
        dist.destroy_process_group()
        there.send((result, None))
    except BaseException:
        there.send((None, traceback.format_exc()))


def _result(here: Connection, process: Any, seconds: float) -> Any:
    if not wait([here, process.sentinel], max(0, seconds)):
        return None, f"a rank took more than {TIMEOUT_S} s"
    if here.poll():
        with contextlib.suppress(EOFError):
            return here.recv()
    process.join()
    return None, None if process.exitcode == -signal.SIGKILL else f"a rank ended with {process.exitcode}"
