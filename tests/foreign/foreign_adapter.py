"""A pytest plugin that gives the suites of other projects a Loader under the names of their own loaders.

`test_foreign_suites.py` runs each suite in a process of its own with `-p foreign_adapter`.
"""

import json
import os
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest
import torch
from torch.utils.data import IterDataPipe

import loaderkit as lk

_IGNORED = ("snapshot_every_n_steps", "generator", "pin_memory_device", "in_order")
_RENAMED = {"sampler": "order"}


Batch = TypeVar("Batch")


class ForeignLoader(lk.Loader[Batch], Generic[Batch]):
    """A Loader that takes the arguments of DataLoader and StatefulDataLoader.

    `generator` and `snapshot_every_n_steps` are dropped: a Loader has a seed, and its state is exact at each batch.
    """

    def __init__(self, dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None, **options: Any) -> None:
        for name in _IGNORED:
            options.pop(name, None)
        settings = {_RENAMED.get(name, name): value for name, value in options.items()}
        if settings.get("batch_sampler") is not None:
            batch_size = 1
        shuffle = bool(shuffle) and not isinstance(dataset, IterDataPipe)  # a pipe shuffles itself
        super().__init__(dataset, batch_size, shuffle=shuffle, **settings)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the Loader in the place of the loader that each test module imported."""
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        for name in ("DataLoader", "StatefulDataLoader"):
            if isinstance(getattr(module, name, None), type):
                setattr(module, name, ForeignLoader)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Append each outcome to the file that the environment names."""
    if report.when == "call" or report.outcome != "passed":
        reason = ""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message[:400] if crash else str(report.longrepr)[-400:]
        line = {"test": report.nodeid.split("::", 1)[-1], "outcome": report.outcome, "reason": reason}
        with Path(os.environ["FOREIGN_OUTCOMES"]).open("a") as file:
            file.write(json.dumps(line) + "\n")


torch.set_num_threads(1)
