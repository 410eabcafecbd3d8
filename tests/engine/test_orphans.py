"""A killed trainer leaves no process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SCRIPT = """
import os, sys, time
import loaderkit as lk

class Pids:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return os.getpid()

class Large(Pids):
    def __getitem__(self, index):
        return [os.getpid()] * 100_000  # a batch of it fills the pipe to the trainer

if __name__ == "__main__":
    settings = {"num_workers": 2, "multiprocessing_context": sys.argv[1], "engine": "torch"}
    if sys.argv[2] == "idle":
        loader = lk.Loader(Pids(), 1, persistent_workers=True, **settings)
        pids = {int(batch) for batch in loader}
    else:
        iterator = iter(lk.Loader(Large(), 1, collate_fn=list, **settings))
        pids = {next(iterator)[0][0] for _ in range(2)}
        time.sleep(1)
    print(*pids, flush=True)
    time.sleep(100)
"""


@pytest.mark.parametrize(
    ("method", "doing"), [("fork", "idle"), ("fork", "ahead"), ("forkserver", "idle"), ("spawn", "idle")]
)
def test_workers_end_with_a_killed_trainer(method: str, doing: str, tmp_path: Path) -> None:
    script = tmp_path / "trainer.py"
    script.write_text(SCRIPT)
    trainer = subprocess.Popen(
        [sys.executable, str(script), method, doing], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert trainer.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in trainer.stdout.readline().split()]
        assert len(workers) == 2
        os.kill(trainer.pid, signal.SIGKILL)
        trainer.wait(10)
        deadline = time.monotonic() + 30  # torch's own watch looks every 5 s
        while any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers):
            assert time.monotonic() < deadline, f"{method}: workers outlive their trainer"
            time.sleep(0.1)
    finally:
        trainer.kill()
        trainer.stdout.close()  # type: ignore[union-attr]
