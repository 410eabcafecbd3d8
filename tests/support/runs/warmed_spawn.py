"""Processes that multiprocessing spawns, forked from its fork server: a new interpreter imports torch for 2 s of CPU time.

They get what they need by pickle, as spawned ones do. What they do not get is this process's environment of the moment.
"""

from multiprocessing.context import SpawnProcess
from multiprocessing.popen_forkserver import Popen
from multiprocessing.process import BaseProcess
from typing import Any

_spawn: Any = SpawnProcess._Popen


def use(warm: bool) -> None:
    """Choose how processes are spawned from now on: from the server, or as Python does."""
    SpawnProcess._Popen = staticmethod(_from_server if warm else _spawn)  # type: ignore[method-assign]


def _from_server(process: BaseProcess) -> Any:
    return Popen(process)
