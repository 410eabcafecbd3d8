"""Runs scripts, each in a process forked from a server that has imported what they import: Lightning takes seconds of CPU.

A script is its process's main program, and the process ends as an interpreter does. What all share with the server is the
seed of hashes, so a script that should have its own runs in a fresh interpreter.
"""

import atexit
import contextlib
import functools
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

TIMEOUT_S = 240  # each takes well under a minute on two free cores
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
PRELOAD = ("lightning.pytorch.cli", "sklearn.datasets", "torchvision.transforms.v2", "loaderkit", "matplotlib.pyplot")


def run(
    folder: Path, *command: str | Path, code: int = 0, fresh: bool = False, preload: tuple[str, ...] = PRELOAD
) -> str:
    """Run a Python script in a folder and return what it printed; nothing that it started is left behind.

    There is one server for each `preload`.
    """
    output = folder / "output.txt"
    words = list(map(str, command))
    found = _run_fresh(folder, words, output) if fresh else _run_forked(folder, words, output, preload)
    text = output.read_text()
    assert found == code, text[-5000:]
    return text


def _run_fresh(folder: Path, command: list[str], output: Path) -> int:
    environment = {**os.environ, **ENVIRONMENT}
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        return process.wait(TIMEOUT_S)
    finally:
        _end_all(process.pid)
        process.wait()


def _run_forked(folder: Path, command: list[str], output: Path, preload: tuple[str, ...]) -> int:
    server = _server(preload)
    _tell(server, {"folder": str(folder), "command": command, "output": str(output)})
    pid = _answer(server)
    try:
        return _answer(server)
    except TimeoutError:
        _end_all(pid)
        _answer(server)
        raise
    finally:
        _end_all(pid)


def _end_all(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # all have ended
        os.killpg(group, signal.SIGKILL)


@functools.cache
def _server(preload: tuple[str, ...]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **ENVIRONMENT}
    server = subprocess.Popen(
        [sys.executable, __file__, *preload], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment
    )
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[bytes]) -> None:
    server.kill()
    server.communicate()


def _tell(server: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
    assert server.stdin is not None
    server.stdin.write(json.dumps(message).encode() + b"\n")


def _answer(server: subprocess.Popen[bytes]) -> int:
    assert server.stdout is not None
    if not select.select([server.stdout], [], [], TIMEOUT_S)[0]:
        raise TimeoutError(f"the script took more than {TIMEOUT_S} s")
    return int(server.stdout.readline())


def _serve() -> dict[str, Any]:
    """Fork a process for each message and answer with its id, then its exit code; return the message in the process."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    while line := sys.stdin.readline():
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            return json.loads(line)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    sys.exit()


def _become(message: dict[str, Any]) -> None:
    """Be the script."""
    import numpy as np

    np.random.seed()  # a fork has its parent's state
    os.setsid()
    output = os.open(message["output"], os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    for number, descriptor in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
        os.dup2(descriptor, number)
    os.chdir(message["folder"])
    sys.argv = message["command"]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    _become(_serve())
