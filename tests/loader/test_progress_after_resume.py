"""Progress bars and logs after a resume, as the guide shows them."""

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from tqdm import tqdm

import loaderkit as lk

BATCHES = 5


def lines(shard: str, start: int) -> Iterator[int]:
    yield from range(start, 2 * BATCHES)


def indexed() -> Any:
    return lk.Loader(range(2 * BATCHES), batch_size=2, shuffle=True)


def packed() -> Any:
    return lk.Loader([[1] * 4] * BATCHES, plan=lk.PackPlan([4] * BATCHES, row_length=4, batch_size=1), collate_fn=list)


def stream() -> Any:
    return lk.Loader(lk.StreamDataset(["a"], lines, lanes=1), batch_size=2, steps=BATCHES)


def resumed(make: Any, stop: int) -> Any:
    """Return a loader that continues after `stop` batches of epoch 1."""
    loader = make()
    loader.seek(epoch=1)
    for _ in zip(range(stop), loader, strict=False):
        pass
    again = make()
    again.load_state_dict(loader.state_dict())
    return again


@pytest.mark.parametrize("make", [indexed, packed, stream])
@pytest.mark.parametrize("stop", range(BATCHES + 1))
def test_a_bar_with_the_cursors_batches_ends_at_the_whole_epoch(make: Any, stop: int) -> None:
    loader = resumed(make, stop)
    for epoch in (1 + stop // BATCHES, 2 + stop // BATCHES):
        assert loader.cursor.epoch == epoch
        bar = tqdm(loader, initial=loader.cursor.batches, file=io.StringIO())
        for _ in bar:
            pass
        assert bar.n == bar.total == BATCHES
        assert loader.cursor.epoch == epoch + 1


@pytest.mark.parametrize("make", [indexed, packed, stream])
@pytest.mark.parametrize("stop", range(BATCHES + 1))
def test_a_resume_is_logged_once_with_its_place(make: Any, stop: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "loaderkit")
    assert list(make())
    assert caplog.messages == []
    loader = resumed(make, stop)
    loader.load_state_dict(loader.state_dict())  # as a Trainer does
    assert caplog.messages == []
    for _ in range(2):
        assert list(loader)
    (found,) = caplog.messages
    place = f"resumed in epoch {1 + stop // BATCHES}, after {stop % BATCHES} batches"
    assert found.split(" and ")[0] == place
    assert ("samples of all ranks" in found) == (make is not stream and stop % BATCHES > 0)


def test_only_rank_0_logs_a_resume(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "loaderkit")
    for rank in (0, 1):
        loader = lk.Loader(range(8), batch_size=2, world=lk.World(rank, 2))
        loader.load_state_dict(loader.state_dict())
        next(iter(loader))
        assert len(caplog.messages) == 1
