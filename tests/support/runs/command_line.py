"""Run the `loaderkit` command, in this process or in a new one."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import loaderkit as package
from loaderkit.cli.command import main

COMMAND = [sys.executable, "-m", "loaderkit.cli"]
_FOLDERS = [str(Path(package.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(filter(None, _FOLDERS)),  # this checkout first, also if another one is installed
    "PYTHONWARNINGS": "error",
    "TERM": "xterm",
}


def loaderkit(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command in this process; a new process takes seconds to import torch."""
    command = [str(argument) for argument in arguments]
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = main(command)
        except SystemExit as end:
            code = int(end.code or 0)
    return subprocess.CompletedProcess(command, code, out.getvalue(), errors.getvalue())
