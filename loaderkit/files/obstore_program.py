"""The early requests of a process that may fork workers later. A separate program makes them: `obstore_process`."""

import atexit
import contextlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

from loaderkit.files.obstore_process import NOT_FOUND

_MOST = 8  # programs that a process starts at most: for more requests, s3fs is faster
_waiting: list[subprocess.Popen[bytes]] = []  # programs that wait for their next task
_started: list[int] = []  # process numbers of all programs


def ask(task: tuple[object, ...], *, again: bool) -> Any:
    """Return what `obstore_process` answers to a task; None if it can't.

    Args:
        task: The bucket, the store's settings, the call and its arguments.
        again: Whether to keep the program for another task. `end` ends it.

    Raises:
        FileNotFoundError: If there is no such object.
    """
    try:
        program: subprocess.Popen[bytes] | None = _waiting.pop()
    except IndexError:
        program = _start()
    if program is None:
        return None
    kind, result = "", None
    with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
        try:
            _send(program, task)
            kind, result = pickle.load(program.stdout)  # type: ignore[arg-type]  # it is a pipe
        finally:
            if again and kind:
                _waiting.append(program)
            else:
                _end(program)
    if kind == NOT_FOUND:
        raise FileNotFoundError("there is no such object")
    return result


def end() -> None:
    """End the programs that wait for a task."""
    while _waiting:
        with contextlib.suppress(IndexError):  # another thread took it
            _end(_waiting.pop())


def _start() -> subprocess.Popen[bytes] | None:
    if len(_started) >= _MOST or getattr(sys, "frozen", False):
        return None
    command = [sys.executable, "-P", str(Path(__file__).with_name("obstore_process.py"))]
    pipe = subprocess.PIPE
    try:
        program = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
    except OSError:
        return None
    _started.append(program.pid)
    with contextlib.suppress(OSError):  # it has ended already, which `ask` finds
        _send(program, sys.path)
    return program


def _send(program: subprocess.Popen[bytes], content: object) -> None:
    """Send by standard input: a command line would show secrets to other users."""
    pipe: Any = program.stdin
    pickle.dump(content, pipe)
    pipe.flush()


def _end(program: subprocess.Popen[bytes]) -> None:
    program.kill()
    pipes: tuple[Any, Any] = program.stdin, program.stdout
    for pipe in pipes:
        with contextlib.suppress(OSError):  # what it has not read
            pipe.close()
    program.wait()


def _forget() -> None:
    _waiting.clear()  # another thread of the parent may have added one during the fork
    _started.clear()


atexit.register(end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=end, after_in_child=_forget)
