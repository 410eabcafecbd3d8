"""Workers end with their trainer, whatever ends it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from forked import lives

SCRIPT = """
import os, sys, time
import loaderkit as lk

class Slow:
    size = 1
    def __len__(self):
        return 1000 if doing == "busy" else 64
    def __getitem__(self, index):
        time.sleep(0.01)
        return [os.getpid()] * self.size

engine, method, doing = sys.argv[1:]
if __name__ == "__main__":
    data = Slow()
    data.size = 100_000 if doing == "ahead" else 1  # a batch then fills the pipe to the trainer
    settings = {"engine": engine, "multiprocessing_context": method, "persistent_workers": doing == "idle"}
    batches, pids = iter(lk.Loader(data, 1, num_workers=2, collate_fn=list, **settings)), set()
    while len(pids) < 2:
        pids.add(next(batches)[0][0])
    bystander = os.fork() if engine == "ring" else -1  # has the trainer's ends of all pipes
    if bystander:
        print(*pids, bystander, flush=True)
        for batch in batches if doing != "ahead" else ():
            pass
    time.sleep(100)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "method", "doing", "how"),
    [
        ("torch", "fork", "idle", signal.SIGKILL),
        ("torch", "fork", "ahead", signal.SIGKILL),
        ("torch", "forkserver", "idle", signal.SIGKILL),
        ("ring", "fork", "busy", signal.SIGINT),
        ("ring", "fork", "busy", signal.SIGKILL),
        ("ring", "forkserver", "busy", signal.SIGKILL),
        ("ring", "spawn", "busy", signal.SIGINT),
    ],
)
def test_workers_end_with_their_trainer(
    engine: str, method: str, doing: str, how: signal.Signals, tmp_path: Path
) -> None:
    script = tmp_path / "trainer.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), engine, method, doing]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as trainer:
        assert trainer.stdout is not None
        *pids, bystander = map(int, trainer.stdout.readline().split())
        workers = [psutil.Process(pid) for pid in pids]
        assert len(workers) == 2
        if (engine, method) == ("ring", "forkserver"):  # the server has imported it once, for all
            assert "libtorch" in Path(f"/proc/{workers[0].ppid()}/maps").read_text()
        time.sleep(0.5)  # by then the workers wait, or work ahead
        if how is signal.SIGINT:
            os.killpg(trainer.pid, how)  # as a terminal does
        else:
            trainer.send_signal(how)
        trainer.wait(60)
    deadline = time.monotonic() + 30  # torch's own watch looks every 5 s
    try:
        while any(map(lives, pids)):
            assert time.monotonic() < deadline, "workers outlive their trainer"
            time.sleep(0.1)
    finally:
        for pid in [*pids, bystander] if bystander > 0 else pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
