"""More shards than a process may open are read as a whole, with every engine."""

from pathlib import Path

import pytest
from scripts import run

SCRIPT = """
import resource
import sys
import warnings
from pathlib import Path

import numpy as np
import torch

import loaderkit as lk


class Listed:
    draws_nothing = True

    def __call__(self, samples):
        return list(samples)


engine, limit = sys.argv[1], int(sys.argv[2])
shards, rows = 160, 2
Path("docs").mkdir(exist_ok=True)
for shard in range(shards):
    numbers = np.arange(rows * shard, rows * (shard + 1), dtype="uint16")
    np.save(f"a{shard:03}.npy", numbers)
    Path(f"a{shard:03}.jsonl").write_text("".join(f"{number}\\n" for number in numbers))
    numbers.tofile(f"docs/a{shard:03}.ds")
    np.arange(1, rows + 1, dtype="uint64").tofile(f"docs/a{shard:03}.ds.index")
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
kept = [
    lk.TokenDataset("a*.npy", length=1),
    lk.JsonlDataset("a*.jsonl", max_open=1024),
    lk.DocumentDataset("docs"),
]
workers = 0 if engine == "inline" else 3
for data in kept:
    order = np.random.default_rng(0).permutation(len(data))
    for first in (0, 1):  # also in this process before workers fork
        found = [data[int(index)] for index in order] if first == 0 else [
            one for batch in lk.Loader(data, 8, order=order, engine=engine, num_workers=workers,
                                       collate_fn=Listed()) for one in batch
        ]
        assert [int(np.asarray(one).reshape(())) for one in found] == order.tolist(), engine
print("whole")
"""


@pytest.mark.parametrize("engine", ["inline", "threads", "ring", "torch"])
def test_more_shards_than_files_that_may_be_open(engine: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    assert run(tmp_path, tmp_path / "script.py", engine, 128).endswith("whole\n")


FULL = """
import os
import resource
from pathlib import Path

import loaderkit as lk

Path("a.jsonl").write_text("1\\n2\\n")
Path("b.jsonl").write_text("3\\n")
data = lk.JsonlDataset(".", max_open=7)
reader = lk.Loader(data, 1, bad_samples=lk.BadSamples("skip"))
used = max(map(int, os.listdir("/proc/self/fd")))
resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, used + 1))
taken = []
try:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
try:
    list(reader)
    text = "no error"
except Exception as error:
    text = f"{type(error).__name__} {error} {error.__cause__}"
for fd in taken:
    os.close(fd)
print(text)
"""


def test_an_error_names_the_setting_and_the_limit(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FULL)
    text = run(tmp_path, tmp_path / "script.py")
    assert "too many files are open in this process" in text
    assert "ulimit -n" in text
    assert "max_open=7" in text
