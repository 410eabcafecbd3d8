"""Kills a run in the middle, resumes it on other workers, and compares every batch with those of a whole run, bit for bit."""

import hashlib
import os
import pickle
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import loaderkit as lk

EPOCHS, SAVE_EVERY = 2, 4
Make = Callable[[int], lk.Loader]  # from a number of workers


def compare(make: Make) -> None:
    """Run three processes, and say whether the killed and the resumed one together read what the whole one did."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("whole", "killed", "resumed")]
        _run(make, 0, paths[0])
        whole, _ = pickle.loads(paths[0].read_bytes())
        kill_after = len(whole) * 3 // 4 // SAVE_EVERY * SAVE_EVERY + 1  # what came after the save is lost
        code = _run(make, 2, paths[1], kill_after=kill_after)
        killed, state = pickle.loads(paths[1].read_bytes())
        print(
            f"whole: {EPOCHS} epochs of {len(whole) // EPOCHS} batches, {len(set(whole))} of them different, no workers"
        )
        print(f"killed after batch {kill_after}, with 2 workers: exit code {code}")
        _run(make, 1, paths[2], state=state)
        resumed, _ = pickle.loads(paths[2].read_bytes())
    is_exact = killed + resumed == whole
    print(f"resumed after batch {len(killed)}, with 1 worker: {len(resumed)} batches")
    print(f"the same as the whole run, bit for bit: {is_exact}")
    sys.exit(0 if is_exact and code == -signal.SIGKILL and len(killed) < len(whole) else 1)


def _run(make: Make, workers: int, path: Path, **settings: Any) -> int:
    """Read in a forked process, and return its exit code."""
    sys.stdout.flush()
    if not (process := os.fork()):
        code = 1
        try:
            _train(make(workers), path, **settings)
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _train(loader: lk.Loader, path: Path, *, kill_after: int = 0, state: Any = None) -> None:
    """Read batches, save now and then, and die where that is asked for."""
    torch.set_num_threads(1)
    seen: list[str] = []
    if state is not None:
        loader.load_state_dict(state)
    while loader.cursor.epoch < EPOCHS:
        for batch in loader:
            seen.append(digest(batch))
            if len(seen) % SAVE_EVERY == 0:
                path.write_bytes(pickle.dumps((seen, loader.state_dict())))
            if len(seen) == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
    path.write_bytes(pickle.dumps((seen, loader.state_dict())))


def digest(batch: Any) -> str:
    """Return a text that differs if one bit of a batch does."""
    made = hashlib.sha256()
    _add(batch, made)
    return made.hexdigest()


def _add(value: Any, made: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if hasattr(value, "to_dict") and not isinstance(value, Mapping):  # PyG's batches
        value = value.to_dict()
    if isinstance(value, np.ndarray):
        made.update(f"{value.dtype}{value.shape}".encode())
        made.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            made.update(str(key).encode())
            _add(value[key], made)
    elif isinstance(value, list | tuple):
        made.update(str(len(value)).encode())
        for each in value:
            _add(each, made)
    else:
        made.update(repr(value).encode())
