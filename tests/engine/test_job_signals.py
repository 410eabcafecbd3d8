"""A signal to all processes of a job ends the workers only if it ends the trainer, and workers still end with their trainer."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data as torch_data
from forked import lives

import loaderkit as lk

SIZE = 200
FORK = multiprocessing.get_context("fork")


class Tells:
    """Its samples tell who reads them. A worker hangs after so many of them."""

    hangs_after, reads = SIZE, 0

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        self.reads += 1
        time.sleep(1000 if self.reads > self.hangs_after else 0.001)
        return torch.tensor([index, os.getpid()])


class TellingStream(torch_data.IterableDataset[Any]):
    def __init__(self, data: Tells) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        info: Any = torch_data.get_worker_info()
        return map(self.data.__getitem__, range(info.id, SIZE, info.num_workers))


def read_telling(data: Tells) -> Any:
    return lk.from_start(lambda name: map(data.__getitem__, range("ab".index(name), SIZE, 2)))


def make_loader(kind: str, method: str, *, hangs_after: int = SIZE, **more: Any) -> lk.Loader:
    data: Any = Tells()
    data.hangs_after = hangs_after
    if kind == "iterable":
        data = TellingStream(data)
    elif kind == "stream":
        data = lk.StreamDataset(["a", "b"], read_telling(data), lanes=2)
    else:
        more |= {"engine": kind, "order": lk.ShardOrder([SIZE // 2] * 2, lanes=2)}  # the ring deals it in turn
    return lk.Loader(data, 1, num_workers=2, multiprocessing_context=method, **more)


@contextlib.contextmanager
def trainer_of(function: Any, *arguments: Any) -> Iterator[tuple[Any, Any]]:
    """Run a trainer in a forked process; yield it and a pipe to it. Nothing stays if the test fails."""
    here, there = FORK.Pipe()
    trainer = FORK.Process(target=function, args=(*arguments, there))
    trainer.start()
    there.close()
    try:
        yield trainer, here
    finally:
        here.close()
        if trainer.is_alive():
            trainer.kill()
        trainer.join()


def await_end(pids: set[int]) -> None:
    deadline = time.monotonic() + 30
    while any(map(lives, pids)):
        assert time.monotonic() < deadline, "workers outlive their trainer"
        time.sleep(0.02)


def train(kind: str, method: str, number: int, handled: str, calls: Path, test: Any) -> None:
    """Read all batches, in a session of its own, as a scheduler starts a job."""
    os.setsid()
    signal.alarm(120)  # ends it, if it hangs
    vars(forkserver._forkserver).update(
        _forkserver_pid=None, _forkserver_address=None, _preload_modules=["__main__"]
    )  # a server of the tests is not its child, and imports what the tests need

    def note(*_: Any) -> None:
        with calls.open("a") as file:
            file.write(f"{os.getpid()}\n")

    signal.signal(number, note if handled == "before" else signal.SIG_IGN if handled == "ignored" else signal.SIG_DFL)
    batches = iter(make_loader(kind, method))
    found = []
    while len({pid for _, pid in found}) < 2:
        found.append(next(batches)[0].tolist())
    if handled == "later":
        signal.signal(number, note)
    test.send({pid for _, pid in found})
    test.recv()
    found += [batch[0].tolist() for batch in batches]
    test.send(found)


ENGINES = ["ring", "torch", "iterable", "stream"]
CASES = [
    *[(kind, "fork", signal.SIGTERM, handled) for kind in ENGINES for handled in ("before", "later", "never")],
    *[("ring", "fork", number, "before") for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)],
    ("torch", "fork", signal.SIGUSR1, "later"),
    ("torch", "fork", signal.SIGUSR1, "never"),
    ("ring", "fork", signal.SIGTERM, "ignored"),
    ("ring", "forkserver", signal.SIGUSR1, "before"),
    ("torch", "forkserver", signal.SIGTERM, "before"),
    ("iterable", "forkserver", signal.SIGTERM, "later"),
    ("torch", "forkserver", signal.SIGTERM, "never"),
    ("torch", "spawn", signal.SIGTERM, "before"),
    ("iterable", "spawn", signal.SIGUSR2, "before"),
    ("ring", "spawn", signal.SIGTERM, "never"),
]


@pytest.mark.parametrize(("kind", "method", "number", "handled"), CASES)
def test_workers_live_and_die_with_a_trainer_whose_job_is_signalled(
    kind: str, method: str, number: int, handled: str, tmp_path: Path
) -> None:
    """Whether it handles the signal before or after they start; and only the trainer's own process calls its handler."""
    calls = tmp_path / "calls"
    calls.touch()
    with trainer_of(train, kind, method, number, handled, calls) as (trainer, here):
        workers = here.recv()
        assert len(workers) == 2
        os.killpg(trainer.pid, number)
        if handled == "never":
            trainer.join(60)
            assert trainer.exitcode == -number
        else:
            time.sleep(0.1)
            here.send("the signal has come")
            found = here.recv()
            trainer.join(60)
            assert trainer.exitcode == 0
            assert sorted(index for index, _ in found) == list(range(SIZE))
            assert {pid for _, pid in found} == workers
            assert calls.read_text().split() == ([] if handled == "ignored" else [str(trainer.pid)])
        await_end(workers)


@pytest.mark.parametrize("kind", ENGINES)
def test_a_worker_that_is_terminated_alone_ends_if_its_trainer_would(kind: str) -> None:
    """And it is an error that is no end of the data."""
    batches = iter(make_loader(kind, "fork"))
    worker = int(next(batches)[0, 1])
    with pytest.raises(RuntimeError, match=r"killed by SIGTERM|killed by signal: Terminated|exited unexpectedly"):  # noqa: PT012 - see below
        os.kill(worker, signal.SIGTERM)  # torch raises here if it hears of the worker's end at once
        list(batches)


def stop(kind: str, then: str, test: Any) -> None:
    """Handle SIGTERM, and end with workers that hang."""
    signal.alarm(120)  # ends it, if it hangs
    signal.signal(signal.SIGTERM, lambda *_: None)
    loader = make_loader(kind, "fork", hangs_after=11)  # a stream reads one sample ahead
    batches = iter(loader)
    found = [next(batches)[0].tolist() for _ in range(20)]
    time.sleep(0.5)  # by then both workers hang
    test.send({pid for _, pid in found})
    if then == "close":
        del batches
        loader.close()
        test.send("closed")
        test.recv()
    else:
        global kept
        kept = loader, batches


kept: Any = None


@pytest.mark.parametrize(
    ("kind", "then"),
    [
        *[(kind, "exit") for kind in ENGINES],
        ("ring", "close"),
        *[pytest.param(kind, "close", marks=pytest.mark.slow) for kind in ENGINES[1:]],  # torch waits 5 s
    ],
)
def test_a_trainer_that_handles_sigterm_can_still_stop_its_workers(kind: str, then: str) -> None:
    with trainer_of(stop, kind, then) as (trainer, here):
        workers = here.recv()
        assert len(workers) == 2
        if then == "close":
            assert here.recv() == "closed"
            await_end(workers)
            here.send("go on")
        trainer.join(30)
        assert trainer.exitcode == 0
        await_end(workers)


class StartsProgram(Tells):
    def __getitem__(self, index: int) -> int:
        with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(100)"]) as program:
            time.sleep(0.05)
            program.terminate()
            return program.wait(20)


@pytest.mark.parametrize("engine", ["ring", "torch"])
def test_a_program_that_a_worker_starts_can_be_terminated(engine: Any) -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        loader = lk.Loader(StartsProgram(), 1, num_workers=1, engine=engine, multiprocessing_context="fork")
        assert int(next(iter(loader))) == -signal.SIGTERM
        loader.close()
    finally:
        signal.signal(signal.SIGTERM, before)
