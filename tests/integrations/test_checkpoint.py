"""torch.distributed.checkpoint: it saves and loads Loaders and DataModules of every kind of data, also on other ranks."""

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.utils.data as torch_data
from gloo_ranks import on_gloo
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard

import loaderkit as lk

pytestmark = pytest.mark.slow

SIZE = 41
LENGTHS = [1 + number * 7 % 13 for number in range(SIZE)]


class Plain(torch_data.IterableDataset[int]):
    """Has no state; splits itself over the ranks."""

    def __iter__(self) -> Iterator[int]:
        world = lk.World.detect()
        yield from range(world.rank, SIZE, world.size)


class Own(Plain):
    """Has a state of its own, with a tensor."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        numbers = list(super().__iter__())
        while self.at < len(numbers):
            self.at += 1
            yield numbers[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": torch.tensor(self.at), "deeper": {"list": [{"a": 1}, 2]}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = int(state["at"])


def read(shard: str, start: int) -> range:
    first, end = map(int, shard.split("-"))
    return range(first + start, end)


def stream() -> lk.StreamDataset:
    return lk.StreamDataset([f"{first}-{min(first + 4, SIZE)}" for first in range(0, SIZE, 4)], read, lanes=6)


def flat(samples: Any) -> list[int]:
    return [number for each in samples for number in (flat(each) if isinstance(each, list) else [int(each)])]


def stages() -> Any:
    """Two stages over two sources, which together have the numbers."""
    parts = [lk.Stage({"a": 2, "b": 1}, 4, samples=24), lk.Stage("b", 2, samples=8)]
    return lk.Stages(parts, {"a": NUMBERS[:30], "b": NUMBERS[30:]})


NUMBERS = list(range(SIZE))
KINDS: dict[str, Callable[..., Any]] = {
    "indexed": lambda **k: lk.Loader(NUMBERS, 4, shuffle=True, **k),
    "packed": lambda **k: lk.Loader(NUMBERS, plan=lk.PackPlan(LENGTHS, 16), collate_fn=flat, **k),
    "by length": lambda **k: lk.Loader(NUMBERS, plan=lk.LengthBuckets(LENGTHS, 4), **k),
    "batch_sampler": lambda **k: lk.Loader(
        NUMBERS, batch_sampler=torch_data.BatchSampler(torch_data.SequentialSampler(NUMBERS), 3, False), tail="pad", **k
    ),
    "stream": lambda **k: lk.Loader(stream(), 2, stop="repeat", **k),
    "iterable": lambda **k: lk.Loader(Plain(), 4, steps=4, **k),
    "iterable with a state": lambda **k: lk.Loader(Own(), 4, steps=4, **k),
    "stages": lambda **k: lk.Loader((plan := stages()).dataset, plan=plan, **k),
    "device": lambda **k: lk.DeviceLoader(lk.Loader(NUMBERS, 4, shuffle=True, **k), "cpu"),
}


def lists(batches: Any) -> list[Any]:
    return [flat(batch) for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_loader_that_was_saved_at_any_batch_loads_into_a_fresh_one(kind: str, workers: int, tmp_path: Path) -> None:
    """A state has the same entries wherever the loader stands, because DCP asks a fresh loader for them."""
    loader = KINDS[kind](num_workers=workers)
    assert isinstance(loader, Stateful)
    batches = iter(loader)
    whole = lists(KINDS[kind](num_workers=workers))
    assert len(whole) >= 4
    for stop in range(3):
        saved = dcp.async_save({"loader": loader}, checkpoint_id=tmp_path / str(stop), no_dist=True)
        again = KINDS[kind](num_workers=workers)
        saved.result()
        dcp.load({"loader": again}, checkpoint_id=tmp_path / str(stop), no_dist=True)
        assert lists(again) == whole[stop:]
        next(batches)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_fresh_loader_gets_the_stretches_that_were_skipped(tmp_path: Path) -> None:
    loader, again = KINDS["indexed"](), KINDS["indexed"]()
    loader.skip(epoch=0, steps=range(2, 4))
    batches = iter(loader)
    next(batches)
    dcp.save({"loader": loader}, checkpoint_id=tmp_path, no_dist=True)
    dcp.load({"loader": again}, checkpoint_id=tmp_path, no_dist=True)
    assert lists(again) == lists(batches) != lists(KINDS["indexed"]())[1:]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_dcp_refuses_is_read_by_way_of_a_file(tmp_path: Path) -> None:
    """DCP knows only that an entry is missing: the states of other kinds of data have others."""
    loader, other = KINDS["indexed"](), KINDS["stream"]()
    batches = iter(loader)
    next(batches)
    dcp.save({"loader": loader}, checkpoint_id=tmp_path / "saved", no_dist=True)
    with pytest.raises(CheckpointException, match=r"Missing key in checkpoint state_dict: loader\.stream"):
        dcp.load({"loader": other}, checkpoint_id=tmp_path / "saved", no_dist=True)
    dcp_to_torch_save(tmp_path / "saved", tmp_path / "saved.pt")
    state = torch.load(tmp_path / "saved.pt", weights_only=True)["loader"]
    assert state == loader.state_dict()
    with pytest.raises(lk.StateError, match="this is not the state of a Loader of a stream"):
        other.load_state_dict(state)


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_datamodule_loads_before_and_after_its_loaders_are_made(made: bool, tmp_path: Path) -> None:
    def make() -> lk.DataModule:
        return lk.DataModule({"a": NUMBERS, "b": NUMBERS[:20]}, loader=lk.LoaderConfig(batch_size=4, shuffle=True))

    data, again = make(), make()
    assert isinstance(data, Stateful)
    loaders = data.train_dataloader()
    for name in "ab":
        next(iter(loaders[name]))
    dcp.save({"data": data}, checkpoint_id=tmp_path, no_dist=True)
    early = again.train_dataloader() if made else None
    dcp.load({"data": again}, checkpoint_id=tmp_path, no_dist=True)
    found = early or again.train_dataloader()
    for name in "ab":
        assert lists(found[name]) == lists(make().train_dataloader()[name])[1:]


ELASTIC = ["indexed", "packed", "by length", "batch_sampler", "stream"]


def save_on_ranks(rank: int, folder: Path) -> Any:
    found = {}
    for kind, make in KINDS.items():
        loader = make()
        batches = iter(loader)
        found[kind] = [flat(next(batches)) for _ in range(3)]
        dcp.async_save({"loader": loader}, checkpoint_id=folder / kind).result()
    return found


def load_on_ranks(rank: int, folder: Path) -> Any:
    found: dict[str, Any] = {}
    for kind, make in KINDS.items():
        loader = make()
        try:
            dcp.load({"loader": loader}, checkpoint_id=folder / kind)
        except Exception as error:
            found[kind] = str(error)
        else:
            found[kind] = lists(loader)
    return found


def test_a_run_on_two_ranks_goes_on_on_two_and_on_three(tmp_path: Path) -> None:
    heads = on_gloo(2, save_on_ranks, tmp_path)
    for ranks in (2, 3):
        rests = on_gloo(ranks, load_on_ranks, tmp_path)
        for kind in KINDS:
            if ranks == 3 and kind.startswith("iterable"):
                assert "the state is for number of ranks 2, this loader has 3" in rests[0][kind]
                continue
            assert all(rest[kind] for rest in rests)
            times = Counter(number for found in (*heads, *rests) for batch in found[kind] for number in batch)
            if kind in ELASTIC:
                assert set(times) == set(NUMBERS)
            assert sum(times.values()) >= 24
            assert ranks == 3 or kind in ("stream", "stages") or max(times.values()) == 1  # these repeat


# --- FSDP2 ------------------------------------------------------------------------------------------------------------

STEPS, EVERY = 14, 3  # of an epoch and a half


class Training:
    """A small model under FSDP2, with dropout, saved asynchronously and completely or not at all."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        columns = torch.arange(3.0 * SIZE).reshape(SIZE, 3) / SIZE
        self.loader = lk.Loader(lk.ArrayDataset(columns), 2, shuffle=True)
        self.saving: Any = None
        self.group = dist.new_group()  # for saves, which run next to the training's collectives
        done = sorted(path.parent for path in folder.glob("step-*/.metadata"))  # written last
        if done:
            dcp.load({"training": self, "loader": self.loader}, checkpoint_id=done[-1])

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    def run(self, kill_at: int | None) -> list[torch.Tensor]:
        per_epoch = len(self.loader)
        while True:
            for batch in self.loader:
                loss = self.model(batch).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                step = self.loader.cursor.epoch * per_epoch + self.loader.cursor.batches
                if step % EVERY == 0:
                    if self.saving is not None:
                        self.saving.result()
                    states = {"training": self, "loader": self.loader}
                    self.saving = dcp.async_save(
                        states, checkpoint_id=self.folder / f"step-{step:03}", process_group=self.group
                    )
                if step == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                if step == STEPS:
                    if self.saving is not None:
                        self.saving.result()
                    return [parameter.full_tensor().detach() for parameter in self.model.parameters()]


def train(rank: int, folder: Path, kill_at: int | None) -> Any:
    return [weights.tolist() for weights in Training(folder).run(kill_at)]


def test_a_killed_run_under_fsdp2_ends_with_the_weights_of_an_uninterrupted_one(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    whole = on_gloo(2, train, tmp_path / "whole", None)
    assert whole[0] == whole[1] != []
    for number in range(request.config.getoption("--kills")):
        kill_at = random.randrange(1, STEPS)
        folder = tmp_path / str(number)
        assert on_gloo(2, train, folder, kill_at) == [None, None]
        assert on_gloo(2, train, folder, None) == whole, f"killed at step {kill_at}"
