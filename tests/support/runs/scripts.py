"""Runs scripts, each in a process forked from a server that has imported what they import: Lightning takes seconds of CPU.

A script is its process's main program, and the process ends as an interpreter does. What all share with the server is the
seed of hashes, so a script that should have its own runs in a fresh interpreter.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import itertools
import json
import os
import re
import runpy
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import frameworks

BEGIN_S = 60  # for a forked process to begin
TIMEOUT_S = 600  # each takes a minute or less on two free cores, up to four at load 10
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
CORE = ("warmed_core",)  # for scripts that import no large library
TORCH = ("torch",)  # for scripts that import loaderkit anew
PRELOAD = ("lightning.pytorch.cli", "sklearn.datasets", "torchvision.transforms.v2", "matplotlib.pyplot", "warmed")


_IGNORED = re.compile(
    r"^Exception ignored.*\n(?:(?:Traceback |[ \t]|[\w.]+(?:Error|Exception|Warning)\b).*(?:\n|$))*", re.MULTILINE
)


def without_triton(text: str) -> str:
    """Leave out exceptions that Python ignored, with their tracebacks, if triton raised them."""
    return _IGNORED.sub(lambda found: "" if "triton" in found[0] else found[0], text)


def run(
    folder: Path,
    *command: str | Path,
    code: int = 0,
    fresh: bool = False,
    alone: bool = False,
    preload: tuple[str, ...] | None = None,
) -> str:
    """Run a Python script in a folder and return what it printed; nothing that it started is left behind.

    Args:
        folder: The script's current folder.
        command: The script and its arguments.
        code: The exit code that it must have.
        fresh: Whether it needs an interpreter of its own.
        alone: Whether the script itself must end all processes that it started.
        preload: What the server has imported: `CORE`, or `PRELOAD` if the script imports large libraries, unless it is
            given. There is one server for each `preload`.
    """
    with _fresh(folder, *command) if fresh else start(folder, *command, preload=preload) as process:
        found = process.wait()
    assert found == code, process.output()[-5000:]
    assert not (alone and process.left_others), "a process is left behind"
    return process.output()


def run_code(
    folder: Path,
    text: str,
    *arguments: str | Path,
    code: int = 0,
    alone: bool = False,
    fresh: bool = False,
    preload: tuple[str, ...] | None = None,
) -> str:
    """Run a script that is given as text; see `run`."""
    return run(folder, saved(folder, text), *arguments, code=code, alone=alone, fresh=fresh, preload=preload)


def saved(folder: Path, text: str) -> Path:
    """Return the path of a new script."""
    path = folder / "script.py"
    path.write_text(text)
    return path


class Started:
    """A script that runs."""

    def __init__(self, pid: int, output: Path, wait: Callable[[], int]) -> None:
        self.pid, self._output, self._wait = pid, output, wait
        self.ended: int | None = None
        self.left_others = False

    def wait(self) -> int:
        """Return the exit code: the signal that ended it, if it is negative."""
        if self.ended is None:
            self.ended = self._wait()
        return self.ended

    def output(self) -> str:
        """Return what it has printed, errors too, but for what triton prints at exit under some versions of Python."""
        return without_triton(self._output.read_text()) if self._output.exists() else ""

    def first_line(self) -> str:
        """Wait for its first line, and return it."""
        deadline = time.monotonic() + TIMEOUT_S
        while "\n" not in (text := self.output()):
            assert time.monotonic() < deadline, "the script printed nothing"
            time.sleep(0.01)
        return text.partition("\n")[0]

    def end(self) -> None:
        """Kill it, and all that it started."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:  # all have ended
            self.left_others = False
        else:
            self.left_others = self.ended is not None
        self.wait()


@contextlib.contextmanager
def start(folder: Path, *command: str | Path, preload: tuple[str, ...] | None = None) -> Iterator[Started]:
    """Start a Python script in a folder, in a group of processes of its own, which is killed on leaving."""
    output = folder / "output.txt"
    output.unlink(missing_ok=True)
    server = _server(preload or (PRELOAD if frameworks.uses(folder / command[0]) else CORE))
    number = next(_numbers)
    _tell(server, {"number": number, "folder": str(folder), "command": list(map(str, command)), "output": str(output)})
    started = Started(_answer(server, number), output, lambda: _answer(server, number))
    try:
        yield started
    finally:
        started.end()


@contextlib.contextmanager
def _fresh(folder: Path, *command: str | Path) -> Iterator[Started]:
    output = folder / "output.txt"
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=folder,
            env={**os.environ, **ENVIRONMENT},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    started = Started(process.pid, output, lambda: process.wait(TIMEOUT_S))
    try:
        yield started
    finally:
        started.end()


_numbers = itertools.count()


def warm(preload: tuple[str, ...]) -> None:
    """Start the server, so that it is not counted among what a test leaves behind."""
    _server(preload)


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


def _answer(server: subprocess.Popen[bytes], number: int) -> int:
    """Return what the server says of a script, and pass over what it says late of earlier ones."""
    assert server.stdout is not None
    while select.select([server.stdout], [], [], TIMEOUT_S)[0]:
        about, value = map(int, server.stdout.readline().split())
        if about == number:
            return value
    raise TimeoutError(f"the script took more than {TIMEOUT_S} s")


def _serve() -> dict[str, Any]:
    """Fork a process for each message and answer with its id, then its exit code, each after the message's number.

    Return the message in the process.
    """
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else each process looks at all that was imported when it ends
    while line := sys.stdin.readline():
        sys.stdout.flush()
        message = json.loads(line)
        while (pid := _forked()) is None:
            pass
        if not pid:
            return message
        print(message["number"], pid, flush=True)
        print(message["number"], os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    sys.exit()


def _forked() -> int | None:
    """Fork; return 0 in the process. Return None if it did not begin: some library's thread held a lock, whose copy stays locked."""
    pid = os.fork()
    if not pid:
        os.setsid()
        return 0
    deadline = time.monotonic() + BEGIN_S
    while os.getsid(pid) != pid:  # before that its group cannot be killed
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(1e-3)
    return pid


def _become(message: dict[str, Any]) -> None:
    """Be the script."""
    import numpy as np

    np.random.seed()  # a fork has its parent's state
    output = os.open(message["output"], os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    for number, descriptor in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
        os.dup2(descriptor, number)
    os.chdir(message["folder"])
    sys.argv = message["command"]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    _become(_serve())
