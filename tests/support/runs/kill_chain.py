"""Chains of runs on one host that are killed at random and resumed, until two epochs of a bucket are read."""

import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import loaderkit as lk

RANKS, EPOCHS = 2, 2
FORK = multiprocessing.get_context("fork")
VICTIMS = ("rank", "worker", "downloader")


def drawn(sample: dict[str, Any]) -> tuple[int, str, int]:
    """Return a sample's number, a digest of its bytes, and a random number that belongs to it."""
    return sample["cls"], hashlib.md5(sample["bin"]).hexdigest(), int(lk.sample_rng().integers(1 << 30))


def make_loader(data: Any, rank: int, workers: int, *, shuffle: bool) -> lk.Loader:
    world = lk.World(rank, RANKS)
    return lk.Loader(data, 4, shuffle=shuffle, seed=3, world=world, num_workers=workers, collate_fn=list)


def batches_of(data: Any, rank: int, *, shuffle: bool) -> dict[str, Any]:
    """Return the batches of a rank by epoch and number, from a run without workers and interruptions."""
    loader = make_loader(data, rank, 0, shuffle=shuffle)
    return {f"{epoch}-{number}": batch for epoch in range(EPOCHS) for number, batch in enumerate(_as_json(loader))}


class Chain:
    """Runs over one bucket and one cache, each killed and continued by the next.

    Args:
        make: Returns the data, with `drawn` as its transform, in a new process.
        folder: Where batches and states are written.
        shuffle: Of the loaders.
        seed: Of the kills.
    """

    def __init__(self, make: Callable[[], Any], folder: Path, *, shuffle: bool, seed: str) -> None:
        self._make, self._folder, self._shuffle, self._random = make, folder, shuffle, random.Random(seed)
        self.killed: list[str] = []
        for rank in range(RANKS):
            (folder / str(rank)).mkdir(parents=True)

    def run(self, kills: int) -> None:
        """Run, kill and resume so often, then run to the end."""
        for _ in range(kills):
            self._run(kill=True)
        self._run(kill=False)

    def batches(self, rank: int) -> dict[str, Any]:
        """Return what a rank has read."""
        return {path.stem: json.loads(path.read_text()) for path in (self._folder / str(rank)).glob("*.json")}

    def _run(self, *, kill: bool) -> None:
        state, workers = self._last_common_state(), self._random.choice([0, 1, 2])
        ranks = [FORK.Process(target=self._read, args=(rank, workers, state)) for rank in range(RANKS)]
        for rank in ranks:
            rank.start()
        if kill:
            self._kill([rank.pid or 0 for rank in ranks], self._random.choice(VICTIMS), self._random.randrange(24))
            time.sleep(self._random.uniform(0, 1))  # those that are left go on
            for rank in ranks:
                rank.kill()
        for rank in ranks:
            rank.join(120)
            if not kill and rank.exitcode != 0:
                rank.kill()
                raise AssertionError(f"a rank ended with {rank.exitcode}, after kills of {self.killed}")

    def _read(self, rank: int, workers: int, state: dict[str, Any] | None) -> None:
        """Read as a rank, and write each batch and the state after it."""
        loader = make_loader(self._make(), rank, workers, shuffle=self._shuffle)
        if state is not None:
            loader.load_state_dict(state)
        while loader.cursor.epoch < EPOCHS:
            epoch, number = loader.cursor.epoch, loader.cursor.batches
            for batch in _as_json(loader):
                path = self._folder / str(rank) / f"{epoch}-{number}.json"
                is_other = path.exists() and json.loads(path.read_text()) != batch
                _write(path.with_name(f"{path.stem} differs.json") if is_other else path, batch)
                _write(path.with_suffix(".state"), loader.state_dict())
                number += 1
        loader.close()

    def _written(self) -> int:
        return sum(1 for _ in self._folder.glob("*/*.state"))

    def _last_common_state(self) -> dict[str, Any] | None:
        """Return the state after the last batch that all ranks have read."""
        read = [{path.name for path in (self._folder / str(rank)).glob("*.state")} for rank in range(RANKS)]
        common = sorted(set.intersection(*read), key=lambda name: tuple(map(int, name.split(".")[0].split("-"))))
        return json.loads((self._folder / "0" / common[-1]).read_text()) if common else None

    def _kill(self, ranks: list[int], victim: str, batches: int) -> None:
        """Kill a process of a kind once so many more batches were read; a rank if there is none of that kind for a while."""
        wanted, end = self._written() + batches, time.monotonic() + 20
        while self._written() < wanted and time.monotonic() < end:
            time.sleep(self._random.uniform(0, 0.02))
        end, found = time.monotonic() + 3, []
        while not found and time.monotonic() < end:
            time.sleep(0.005)
            children = [child.pid for rank in ranks for child in _children(rank)]
            found = {"rank": ranks, "worker": children, "downloader": downloaders({*ranks, *children})}[victim]
        self.killed.append(victim if found else "rank")
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._random.choice(sorted(found or ranks)), signal.SIGKILL)


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def downloaders(pids: set[int]) -> list[int]:
    """Return the processes that hold the exclusive lock of a file that they have open as a part."""
    locks = [
        line.split() for line in Path("/proc/locks").read_text().splitlines() if "FLOCK" in line and "WRITE" in line
    ]
    holders = {int(pid) for line in locks for pid in line if pid.isdecimal()} & pids
    return [pid for pid in holders if any(".lkpart" in file for file in _files_of(pid))]


def _files_of(pid: int) -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(str(fd.readlink()))
    return found


def _as_json(batches: Any) -> Any:
    return (json.loads(json.dumps(batch)) for batch in batches)


def _write(path: Path, value: Any) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(value))
    part.replace(path)
