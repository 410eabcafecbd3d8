"""Workers are not forked if a library that the data uses does not live through a fork."""

import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest
import torch.utils.data as torch_data

import loaderkit as lk
from loaderkit.system.start import choose_start, survives_fork


class Frail:
    """A dataset whose library does not live through a fork; a sample is how its process was started."""

    survives_fork = False

    def __init__(self, size: int = 8) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> str:
        kind = type(multiprocessing.current_process()).__name__
        return kind if multiprocessing.parent_process() else "main"


class Holder:
    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]  # type: ignore[attr-defined]


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda data: data,
    "map": lambda data: lk.MapDataset(data, str),
    "subset": lambda data: lk.SubsetDataset(data, range(8)),
    "concat": lambda data: lk.ConcatDataset([range(3), data]),
    "zip": lambda data: lk.ZipDataset([data, range(8)]),
    "torch's subset": lambda data: torch_data.Subset(data, range(8)),
    "torch's concat": lambda data: torch_data.ConcatDataset([data]),
    "an own one": lambda data: Holder(inner=data),
    "a dict in an own one": lambda data: Holder(inner={"a": [data]}),
}


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_data_that_dies_in_a_fork_is_found_in_what_is_made_of_it(wrap: str) -> None:
    for context in (None, "spawn", "forkserver"):
        assert choose_start(context, WRAPPERS[wrap](Frail())).method == (context or "spawn")
        assert choose_start(context, WRAPPERS[wrap](range(8))).method == (context or "fork")
    assert choose_start("fork", WRAPPERS[wrap](range(8))).method == "fork"
    assert not survives_fork(WRAPPERS[wrap](Frail()))
    for fork in ("fork", multiprocessing.get_context("fork")):
        with pytest.raises(ValueError, match=r"multiprocessing_context is 'fork', and .*Leave it out, or give 'spawn'"):
            choose_start(fork, WRAPPERS[wrap](Frail()))


@pytest.mark.parametrize("engine", ["ring", "torch"])
def test_a_loader_spawns_its_workers_by_itself(engine: Any) -> None:
    loader = lk.Loader(Frail(), 4, num_workers=1, engine=engine)
    assert "started by spawn" in str(loader.describe())
    assert next(iter(loader)) == ["SpawnProcess"] * 4
    with pytest.raises(ValueError, match="multiprocessing_context is 'fork', and Frail reads by a library"):
        next(iter(lk.Loader(Frail(), 4, num_workers=1, engine=engine, multiprocessing_context="fork")))
    assert next(iter(lk.Loader(Frail(), 4))) == ["main"] * 4


def test_lengths_are_measured_by_spawned_processes() -> None:
    lengths = lk.measure_lengths(Frail(600), len, num_workers=2)
    assert lengths.tolist() == [len("SpawnProcess")] * 600
    assert lk.measure_lengths(Frail(), len).tolist() == [len("main")] * 8
