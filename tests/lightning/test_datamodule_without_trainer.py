"""A DataModule without a Trainer: its training loaders behave like any other Loader."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stream_data import make_stream

import loaderkit as lk

CONFIG = lk.LoaderConfig(batch_size=4, seed=5)


def make_data(kind: str) -> Any:
    return torch.arange(22) if kind == "map" else make_stream([9, 0, 14, 3], transform=None)


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_epochs_go_on_as_a_loaders_do(kind: str) -> None:
    loader = lk.DataModule(make_data(kind), loader=CONFIG).train_dataloader()
    alone = lk.Loader.from_config(make_data(kind), CONFIG, shuffle=kind == "map")
    epochs = [[batch.tolist() for batch in loader] for _ in range(3)]
    assert epochs == [[batch.tolist() for batch in alone] for _ in range(3)]
    assert epochs[0] != epochs[1]
    assert loader.cursor.epoch == 3
    assert loader.state_dict() == alone.state_dict()


@pytest.mark.parametrize("kind", ["map", "stream"])
@pytest.mark.parametrize("stop", [0, 1, 3, 9])
def test_its_state_is_what_was_yielded(stop: int, kind: str) -> None:
    """Of the DataModule and of its loader: both resume exactly."""

    def make() -> lk.DataModule:
        return lk.DataModule(make_data(kind), loader=CONFIG)

    def take(loader: Any, count: int) -> list[Any]:
        taken: list[Any] = []
        while len(taken) < count:
            taken += [batch.tolist() for batch in itertools.islice(loader, count - len(taken))]
        return taken

    whole = take(make().train_dataloader(), 14)
    data = make()
    loader = data.train_dataloader()
    assert take(loader, stop) == whole[:stop]
    states = json.loads(json.dumps([data.state_dict(), loader.state_dict()]))
    loads: list[Callable[[lk.DataModule, Any], None]] = [
        lambda data, loader: data.load_state_dict(states[0]),
        lambda data, loader: loader.load_state_dict(states[1]),
    ]
    for load in loads:
        again = make()
        loader = again.train_dataloader()
        load(again, loader)
        assert take(loader, 14 - stop) == whole[stop:]
    early = make()  # as Lightning does: before the loaders are made
    early.load_state_dict(states[0])
    assert take(early.train_dataloader(), 14 - stop) == whole[stop:]


@pytest.mark.parametrize("kind", ["map", "stream"])
@pytest.mark.parametrize("stop", [0, 2])
def test_a_loader_made_for_each_epoch_goes_on_after_a_resume(kind: str, stop: int) -> None:
    """Only the first loader moves to the loaded position."""
    whole = lk.DataModule(make_data(kind), loader=CONFIG).train_dataloader()
    epochs = [[batch.tolist() for batch in whole] for _ in range(3)]
    data = lk.DataModule(make_data(kind), loader=CONFIG)
    first = list(itertools.islice(data.train_dataloader(), stop))
    assert len(first) == stop
    again = lk.DataModule(make_data(kind), loader=CONFIG)
    again.load_state_dict(data.state_dict())
    found = [[batch.tolist() for batch in again.train_dataloader()] for _ in range(3)]
    assert found == [epochs[0][stop:], *epochs[1:]]
