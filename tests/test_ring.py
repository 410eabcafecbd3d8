"""The ring: batches as views of memory that is used again, and whatever happens to a worker, nothing left behind."""

import faulthandler
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
import torch

import loaderkit as lk

RING: dict[str, Any] = {"engine": "ring", "num_workers": 2, "timeout": 60}


class Pair(NamedTuple):
    image: torch.Tensor
    name: str


class Mixed:
    """Samples with all kinds of leaves."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "float": torch.full((3, 5), float(index)),
            "bfloat16": torch.full((2,), index, dtype=torch.bfloat16),
            "empty": torch.empty(0, 4),
            "number": index,
            "text": f"sample {index}",
            "pair": Pair(torch.arange(index), "p"),
            "array": np.arange(3) + index,
            "grad": torch.full((2,), float(index), requires_grad=True),
        }


def keep(samples: list[Any]) -> list[Any]:
    return samples


def left_behind() -> tuple[int, int, int]:
    """Child processes, open files and names in /dev/shm of this process."""
    gc.collect()
    me = psutil.Process()
    names = len(list(Path("/dev/shm").glob(f"*{me.pid}*")))
    return len(me.children(recursive=True)), me.num_fds(), names


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Any:
    list(lk.Loader(Mixed(), 8, collate_fn=keep, **RING))  # what an interpreter opens once and for all
    before = left_behind()
    yield
    deadline = time.monotonic() + 10
    while (now := left_behind()) != before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert now == before


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right) and left.dtype == right.dtype
    if isinstance(left, np.ndarray):
        return np.array_equal(left, right) and left.dtype == right.dtype
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@pytest.mark.parametrize("collate", [None, keep])
def test_all_kinds_of_leaves_travel(collate: Any) -> None:
    data: Any = Mixed() if collate else [Mixed()[3] | {"pair": 1, "grad": 0, "name": str(n)} for n in range(40)]
    alone = list(lk.Loader(data, 7, collate_fn=collate))
    found = list(lk.Loader(data, 7, collate_fn=collate, **RING))
    assert len(alone) == 6
    assert same(found, alone)
    if collate is None:
        assert found[0]["float"].data_ptr() % 64 == 0


class Numbers:
    """Rows of one number: any that was overwritten shows."""

    def __init__(self, size: int, width: int = 1000) -> None:
        self.size, self.width = size, width

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.width,), index)


@pytest.mark.parametrize("kept", [0, 1, 3, 10, 1000])
def test_a_batch_that_is_kept_stays_as_it_was(kept: int) -> None:
    held: list[tuple[int, torch.Tensor]] = []
    for number, batch in enumerate(lk.Loader(Numbers(400), 4, **RING)):
        batch_view = batch[1:, 5:]  # a part of it holds the whole
        del batch
        held.append((number, batch_view))
        held = held[-kept:] if kept else []
        for old, view in held:
            assert torch.equal(view[:, 0], torch.arange(4 * old + 1, 4 * old + 4))
            assert (view == view[:, :1]).all()
    assert number == 99


def test_memory_is_used_again_and_grows_with_the_batches() -> None:
    places = {batch.data_ptr() for batch in lk.Loader(Numbers(400), 2, **RING)}
    assert len(places) <= 2 * 4 + 4  # slots
    growing = [Numbers(1, 10**n)[0] for n in range(6)] * 3
    found = list(lk.Loader(growing, None, **RING))
    assert same(found, growing)


def test_a_batch_may_be_written_to() -> None:
    for number, batch in enumerate(lk.Loader(Numbers(100), 4, **RING)):
        assert (batch[:, 0] == torch.arange(4 * number, 4 * number + 4)).all()
        batch += 1


def test_without_memory_batches_go_through_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loaderkit.engine.ring.slots.LARGEST", 4096)  # seen by workers that are forked
    found = list(lk.Loader(Numbers(40), 4, **RING))
    assert same(torch.cat(found)[:, 0], torch.arange(40))


class Failing(Numbers):
    def __init__(self, how: str) -> None:
        super().__init__(40)
        self.how = how

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 17:
            if self.how == "raise":
                raise LookupError("no such thing")
            if self.how == "hang":
                time.sleep(100)
            if self.how == "exit":
                os._exit(3)
            if self.how == "crash":
                faulthandler.disable()  # its report would go to the terminal
                os.kill(os.getpid(), signal.SIGSEGV)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("raise", LookupError, r"(?s)no such thing.*raised while reading sample 17 "),
        ("hang", RuntimeError, r"no batch in 2 s .timeout.: a worker hangs, or samples \[16, 17, 18, 19\]"),
        ("exit", RuntimeError, r"ended by itself, with exit code 3"),
        ("crash", RuntimeError, r"killed by SIGSEGV: a crash in native code"),
        ("kill", RuntimeError, r"killed by SIGKILL \(by the system, if memory ran out\)"),
    ],
)
def test_a_worker_that_fails_is_an_error_within_seconds(how: str, error: Any, message: str, persistent: bool) -> None:
    settings = RING | {"timeout": 2 if how == "hang" else 60, "persistent_workers": persistent}
    loader = lk.Loader(Failing(how), 4, **settings)
    start = time.monotonic()
    seen: list[int] = []
    with pytest.raises(error, match=message):
        seen.extend(int(batch[0, 0]) for batch in loader)
    assert seen == sorted(seen)
    assert set(seen) <= {0, 4, 8, 12}
    if how in ("raise", "hang"):
        assert seen == [0, 4, 8, 12]
    assert time.monotonic() - start < 15
    loader.close()


class Pids(Numbers):
    def __getitem__(self, index: int) -> int:  # type: ignore[override]
        return os.getpid()


def test_a_worker_killed_from_outside_is_an_error() -> None:
    loader = lk.Loader(Pids(4000), 4, persistent_workers=True, **RING)
    batches = iter(loader)
    victim = int(next(batches)[0])
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=f"worker process {victim} was killed by SIGKILL"):
        list(batches)
    assert sum(len(batch) for batch in loader) == 4000  # the next pass has new workers
    loader.close()


def broken_init(worker: int) -> None:
    raise OSError("no licence")


def test_an_error_at_the_start_of_a_worker_is_raised() -> None:
    with pytest.raises(OSError, match=r"(?s)process ., when it started.*no licence"):
        next(iter(lk.Loader(Numbers(40), 4, worker_init_fn=broken_init, **RING)))


def test_passes_that_are_left_do_not_disturb_the_next() -> None:
    loader = lk.Loader(Numbers(400), 4, persistent_workers=True, **RING)
    for left_at in (1, 7, 2, 30):
        loader.seek(epoch=0)
        for number, batch in enumerate(loader):
            assert int(batch[0, 0]) == 4 * number
            if number == left_at:
                break
    assert sum(len(batch) for batch in loader) == 400
    loader.close()


def test_nothing_grows_over_many_epochs() -> None:
    loader = lk.Loader(Numbers(40), 4, persistent_workers=True, **RING)
    for _ in range(10):
        list(loader)  # by then each slot was in use
    before = left_behind()
    for _ in range(200):
        assert len(list(loader)) == 10
    assert left_behind() == before
    loader.close()


SCRIPT = """
import os, signal, sys, time
import loaderkit as lk, torch

class Slow:
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.tensor([index, os.getpid()])

if __name__ == "__main__":
    loader = lk.Loader(Slow(), 4, num_workers=2, engine="ring", multiprocessing_context=sys.argv[1])
    pids = set()
    for batch in loader:
        pids |= set(batch[:, 1].tolist())
        if len(pids) == 2:
            print(*pids, flush=True)
            pids = set()
"""


@pytest.mark.parametrize(
    ("method", "how"),
    [
        ("fork", signal.SIGINT),
        ("fork", signal.SIGTERM),
        ("fork", signal.SIGKILL),
        ("forkserver", signal.SIGKILL),
        ("spawn", signal.SIGINT),
    ],
)
def test_workers_end_with_their_trainer(how: signal.Signals, method: str, tmp_path: Path) -> None:
    script = tmp_path / "trainer.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), method]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as trainer:
        assert trainer.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in trainer.stdout.readline().split()]
        assert len(workers) == 2
        if how is signal.SIGINT:
            os.killpg(trainer.pid, how)  # as a terminal does
        else:
            trainer.send_signal(how)
        trainer.wait(20)
    _, alive = psutil.wait_procs(workers, timeout=20)
    for worker in alive:
        worker.kill()
    assert not alive
