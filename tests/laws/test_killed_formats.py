"""A run over files that another writer made is killed and resumed with other workers, then ranks: each sample comes once."""

import io
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from drawing import equal
from formats_own import OWN

import loaderkit as lk

BATCH, EPOCHS = 2, 2
Pairs = Iterator[tuple[Any, Any]]


def rest(data: Any, workers: int, state: Any, world: lk.World | None = None) -> Pairs:
    """Yield the rest of two epochs: each batch with the state after it."""
    loader = lk.Loader(data, BATCH, shuffle=True, seed=7, num_workers=workers, collate_fn=list, world=world)
    if state is not None:
        loader.load_state_dict(state)
    while loader.cursor.epoch < EPOCHS:
        for batch in loader:
            yield batch, loader.state_dict()


def write(path: Path, found: Pairs) -> None:
    """Append each entry to a file, which a kill may cut anywhere."""
    with path.open("ab", buffering=0) as file:
        for pair in found:
            content = io.BytesIO()
            torch.save(pair, content)  # unlike pickle, it knows all dtypes
            file.write(content.tell().to_bytes(8, "little"))
            file.write(content.getvalue())


def read(path: Path) -> list[tuple[Any, Any]]:
    """Return a file's whole entries."""
    content, found = path.read_bytes(), []
    while len(content) >= 8 and len(content) >= (end := 8 + int.from_bytes(content[:8], "little")):
        found.append(torch.load(io.BytesIO(content[8:end]), weights_only=False))
        content = content[end:]
    return found


def killed(path: Path, found: Callable[[], Pairs], size: int) -> list[tuple[Any, Any]]:
    """Write the entries in a process that is killed when its file has at least `size` bytes; return the whole ones."""
    path.touch()
    process = os.fork()
    if not process:
        try:
            write(path, found())
        finally:
            os._exit(0)
    until = time.monotonic() + 120
    while path.stat().st_size < size:
        if os.waitpid(process, os.WNOHANG) != (0, 0):  # it has written all of it meanwhile
            return read(path)
        assert time.monotonic() < until
        time.sleep(1e-3)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return read(path)


SPAWNED = [
    pytest.param(name, marks=pytest.mark.slow) for name in ("ArrayRecord", "Lance")
]  # their libraries die in forks


@pytest.mark.parametrize("name", [*(name for name in OWN if name not in ("ArrayRecord", "Lance")), *SPAWNED])
def test_each_sample_comes_once_after_kills(name: str, tmp_path: Path) -> None:
    write_files, make = OWN[name]
    (folder := tmp_path / "data").mkdir()
    write_files(folder)
    data = make(folder)
    wanted = list(rest(data, 0, None))
    write(tmp_path / "whole", iter(wanted))
    written, draw = (tmp_path / "whole").stat().st_size, random.Random(name)
    got: list[tuple[Any, Any]] = []
    for number, workers in enumerate((0, 2, 1)):
        state = got[-1][1] if got else None
        got += killed(tmp_path / f"{number}", lambda: rest(make(folder), workers, state), draw.randrange(written // 4))  # noqa: B023
    assert equal([batch for batch, _ in got], [batch for batch, _ in wanted[: len(got)]])
    # Then ranks read what is left, in their own batches: two, unless only one sample of the epoch is left for them.
    state = got[-1][1] if got else None
    size = 1 if sum(len(batch) for batch, _ in got) % len(data) == len(data) - 1 else 2
    ranks = [[batch for batch, _ in rest(make(folder), 0, state, lk.World(rank, size))] for rank in range(size)]
    left = sorted(repr(sample) for batch, _ in wanted[len(got) :] for sample in batch)
    assert sorted(repr(sample) for each in ranks for batch in each for sample in batch) == left
