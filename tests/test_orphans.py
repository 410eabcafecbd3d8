"""Nothing is left behind by a killed trainer."""

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

if __name__ == "__main__":
    loader = lk.Loader(Pids(), 1, num_workers=2, multiprocessing_context=sys.argv[1], persistent_workers=True)
    pids = {int(batch) for batch in loader}
    print(*pids, flush=True)
    time.sleep(100)
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_end_with_a_killed_trainer(method: str, tmp_path: Path) -> None:
    script = tmp_path / "trainer.py"
    script.write_text(SCRIPT)
    trainer = subprocess.Popen([sys.executable, str(script), method], stdout=subprocess.PIPE, start_new_session=True)
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
