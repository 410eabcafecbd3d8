"""What several tests share: the `loaderkit` command: what it makes, says and leaves behind."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

from loaderkit.cli import main

COMMAND = Path(sys.executable).parent / "loaderkit"

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "PYTHONWARNINGS": "error", "TERM": "xterm"}


def loaderkit(*arguments: object, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run the command: in this process, where its environment is as it is, since a new one takes seconds to import torch."""
    command = [str(COMMAND), *map(str, arguments)]
    if not changes:
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            try:
                code = main(command[1:])
            except SystemExit as end:
                code = int(end.code or 0)
        return subprocess.CompletedProcess(command, code, out.getvalue(), errors.getvalue())
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT | changes)
