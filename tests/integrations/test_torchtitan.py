"""torchtitan's loader contract: with the real package where it is installed, else with a recorded one."""

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import itertools
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import titan_recorded
import torch
import torch.distributed.checkpoint as dcp
from gloo_ranks import on_gloo
from torch import nn
from torch.distributed.checkpoint.stateful import Stateful

import loaderkit as lk

SIZE, LENGTH = 47, 4
HAS_TITAN = importlib.util.find_spec("torchtitan") is not None
needs_titan = pytest.mark.skipif(not HAS_TITAN, reason="torchtitan is not installed: it needs an older datasets")


@pytest.fixture(params=["recorded", "recorded later", pytest.param("real", marks=needs_titan)])
def titan(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, over the recorded contract or the real package."""
    if request.param == "real":
        yield importlib.import_module("loaderkit.integrations.torchtitan")
        return
    before = dict(sys.modules)
    titan_recorded.unload()
    sys.modules.update(titan_recorded.modules(later=request.param == "recorded later"))
    yield importlib.import_module("loaderkit.integrations.torchtitan")
    titan_recorded.unload()
    sys.modules.update({name: before[name] for name in before.keys() - sys.modules.keys()})


def rows(tokenizer: Any, length: int) -> lk.ArrayDataset[Any]:
    """Sample i begins with token 100 * i."""
    return lk.ArrayDataset(100 * torch.arange(SIZE)[:, None] + torch.arange(length + 1))


def build(
    titan: Any, rank: int, degree: int, *, make_dataset: Any = rows, infinite: bool = True, **settings: Any
) -> Any:
    config = titan.TitanLoader.Config(
        make_dataset=make_dataset, infinite=infinite, loader=lk.LoaderConfig(**{"shuffle": True, **settings})
    )
    return config.build(
        dp_world_size=degree,
        dp_rank=rank,
        tokenizer=None,
        **titan_recorded.arguments(length=LENGTH, rows=3),
    )


def samples(batches: Any) -> list[int]:
    return [int(number) // 100 for batch, _ in batches for number in batch["input"].reshape(-1, LENGTH)[:, 0]]


def test_a_batch_has_inputs_positions_and_labels_shifted_by_one(titan: Any) -> None:
    inputs, labels = next(iter(build(titan, 0, 1)))
    assert set(inputs) == {"input", "positions"}
    shape = (3 * LENGTH,) if titan_recorded.is_later() else (3, LENGTH)
    assert inputs["input"].shape == inputs["positions"].shape == labels.shape == shape
    assert inputs["input"].dtype == labels.dtype == torch.int64
    assert torch.equal(inputs["input"] + 1, labels)
    assert inputs["positions"].reshape(3, LENGTH).tolist() == 3 * [list(range(LENGTH))]


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_a_run_resumes_on_any_data_parallel_degree(titan: Any, degree: int) -> None:
    loaders = [build(titan, rank, 2) for rank in range(2)]
    assert isinstance(loaders[0], Stateful)
    streams = [iter(loader) for loader in loaders]
    heads = [list(itertools.islice(stream, 3)) for stream in streams]
    states = [loader.state_dict() for loader in loaders]
    assert states[0] == states[1]
    again = [build(titan, rank, degree) for rank in range(degree)]
    rests = []
    for rank, loader in enumerate(again):
        loader.load_state_dict({})  # torchtitan: an empty state is valid
        loader.load_state_dict(json.loads(json.dumps(states[0])))
        rests.append(list(itertools.islice(loader, len(loader.loader) - loader.loader.cursor.batches)))
        assert loader.loader.cursor.epoch == 1
        if degree == 2:
            assert samples(rests[-1]) == samples(itertools.islice(streams[rank], len(rests[-1])))
    counted = Counter(number for part in (*heads, *rests) for number in samples(part))
    assert counted == Counter(range(SIZE))


def read_rows(shard: str, start: int) -> Iterator[torch.Tensor]:
    """Eight samples; sample i begins with token 100 * i."""
    return (100 * (8 * int(shard) + row) + torch.arange(LENGTH + 1) for row in range(start, 8))


def lines(tokenizer: Any, length: int) -> lk.StreamDataset[Any]:
    return lk.StreamDataset(list("012345"), read_rows, lanes=6, shuffle=True, window=3)


def build_stream(titan: Any, rank: int, degree: int, stop: Any) -> Any:
    return build(titan, rank, degree, make_dataset=lines, infinite=False, shuffle=None, stop=stop, meet_timeout_s=30)


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_a_stream_resumes_exactly_on_its_ranks_and_on_others_once(titan: Any, degree: int) -> None:
    loaders = [build_stream(titan, rank, 2, "each") for rank in range(2)]
    streams = [iter(loader) for loader in loaders]
    heads = [list(itertools.islice(stream, 4)) for stream in streams]
    state = lk.merge_states([loader.state_dict() for loader in loaders])
    rests = []
    for rank in range(degree):
        loader = build_stream(titan, rank, degree, "each")
        loader.load_state_dict(json.loads(json.dumps(state)))
        rests.append(list(loader))
    if degree == 2:
        assert [samples(rest) for rest in rests] == [samples(stream) for stream in streams]
    assert Counter(number for part in (*heads, *rests) for number in samples(part)) == Counter(range(48))


def test_a_stream_needs_an_end_on_several_ranks_and_shuffles_itself(titan: Any) -> None:
    with pytest.raises(ValueError, match=r"2 ranks read data of unknown length.*steps=..., stop='shortest'"):
        next(iter(build_stream(titan, 0, 2, None)))
    with pytest.raises(ValueError, match=r"shuffle.*StreamDataset"):
        build(titan, 0, 2, make_dataset=lines, stop="repeat")


def read_a_stream(rank: int, folder: Path) -> list[list[int]]:
    """Read a stream as one of four ranks, two of which share their data, with a save and a load by a new loader."""
    titan = importlib.import_module("loaderkit.integrations.torchtitan")
    whole = samples(build_stream(titan, rank // 2, 2, "shortest"))
    loader = build_stream(titan, rank // 2, 2, "shortest")
    found = samples(itertools.islice(loader, 4))
    dcp.save({"dataloader": loader}, checkpoint_id=folder)
    again = build_stream(titan, rank // 2, 2, "shortest")
    dcp.load({"dataloader": again}, checkpoint_id=folder)
    return [whole, found + samples(again)]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_ranks_that_share_a_stream_read_the_same_and_resume(titan: Any, tmp_path: Path) -> None:
    ranks = on_gloo(4, read_a_stream, tmp_path)
    assert all(whole == resumed for whole, resumed in ranks)
    assert ranks[0] == ranks[1]
    assert ranks[2] == ranks[3]
    assert sorted(ranks[0][0] + ranks[2][0]) == list(range(48))


def test_epochs_follow_one_another_unless_the_data_is_finite(titan: Any) -> None:
    endless = samples(itertools.islice(build(titan, 0, 1), 48))
    assert Counter(endless[:SIZE]) == Counter(endless[SIZE : 2 * SIZE]) == Counter(range(SIZE))
    assert endless[:SIZE] != endless[SIZE : 2 * SIZE]
    finite = build(titan, 0, 1, infinite=False)
    assert sorted(samples(finite)) == list(range(SIZE))
    assert list(finite) == []


@pytest.mark.parametrize("titan", ["recorded later"], indirect=True)
def test_a_later_validator_sets_repeat_and_closes(titan: Any) -> None:
    """It makes its loader from `replace(config, repeat=...)`, and closes it after each validation."""
    config = titan.TitanLoader.Config(make_dataset=rows, loader=lk.LoaderConfig(num_workers=1))
    given = {"dp_world_size": 1, "dp_rank": 0, "tokenizer": None, **titan_recorded.arguments(length=LENGTH, rows=3)}
    assert given.keys() == titan_recorded.LATER_BUILD
    loader = dataclasses.replace(config, repeat=False).build(**given)
    assert samples(loader) == list(range(SIZE))
    loader.close()
    endless = dataclasses.replace(config, repeat=True).build(**given)
    assert len(samples(itertools.islice(endless, 40))) > 2 * SIZE
    endless.close()


@pytest.mark.parametrize("titan", ["recorded later"], indirect=True)
@pytest.mark.parametrize("tokens", [0, 3, 9])
def test_a_later_batch_is_whole_sequences(titan: Any, tokens: int) -> None:
    with pytest.raises(ValueError, match=rf"a batch is {tokens} tokens, wanted a multiple of the context length 4\."):
        titan.TitanLoader.Config(make_dataset=rows).build(
            dp_world_size=1, dp_rank=0, tokenizer=None, max_context_length=4, num_tokens_per_batch=tokens
        )


def test_empty_data_ends(titan: Any) -> None:
    loader = build(titan, 0, 1, make_dataset=lambda tokenizer, length: lk.ArrayDataset(torch.zeros(0, length + 1)))
    with pytest.warns(UserWarning, match="no batches|0 batches|no samples|0 samples"):
        assert list(loader) == []


def test_what_the_trainer_gives_is_not_given_twice(titan: Any) -> None:
    with pytest.raises(ValueError, match=r"make_dataset is None, wanted a function"):
        build(titan, 0, 1, make_dataset=None)
    with pytest.raises(ValueError, match=r"batch_size is 5, and the Trainer's local batch size is 3"):
        build(titan, 0, 1, batch_size=5)
    with pytest.raises(ValueError, match=r"world is World\(rank=0, size=1\), and the Trainer gives its ranks"):
        build(titan, 0, 1, world=lk.World())


@needs_titan
def test_the_recorded_contract_is_the_packages() -> None:
    from torchtitan.components.dataloader import BaseDataLoader

    recorded = titan_recorded.BaseDataLoader
    assert BaseDataLoader.__abstractmethods__ == recorded.__abstractmethods__
    assert issubclass(BaseDataLoader, Stateful)
    fields = [[(f.name, f.default) for f in dataclasses.fields(one.Config)] for one in (BaseDataLoader, recorded)]
    assert fields[0] == fields[1]
    spec = importlib.util.find_spec("torchtitan")
    assert spec is not None
    assert spec.origin is not None
    calls = [
        node
        for node in ast.walk(ast.parse((Path(spec.origin).parent / "trainer.py").read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("dataloader.build")
    ]
    assert [{keyword.arg for keyword in call.keywords} for call in calls] == [titan_recorded.BUILD]


def train(rank: int, folder: Path, steps: int, kill_at: int | None) -> Any:
    """A run with the Trainer's own batch generator and checkpointer; they need no GPU."""
    from torchtitan.components.checkpoint import CheckpointManager
    from torchtitan.trainer import Trainer

    titan = lk.integrations.torchtitan
    torch.manual_seed(0)
    model = nn.Linear(LENGTH, LENGTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    loader = build(titan, rank, 2)
    checkpointer = CheckpointManager.Config(enable=True, interval=3, last_save_model_only=False).build(
        dataloader=loader,
        model_parts=[model],
        optimizers=SimpleNamespace(state_dict=dict, load_state_dict=len),
        lr_schedulers=SimpleNamespace(state_dict=dict, load_state_dict=len),
        states={},
        sd_adapter=None,
        base_folder=str(folder),
    )
    checkpointer.load()
    metrics = SimpleNamespace(ntokens_since_last_log=0, data_loading_times=[])
    batches = Trainer.batch_generator(SimpleNamespace(metrics_processor=metrics), loader)
    position = loader.loader.cursor
    for step in range(1 + (position.epoch * 8 + position.batches) // 2, steps + 1):
        optimizer.zero_grad()
        for _ in range(2):  # accumulation; an epoch has 8 batches
            inputs, labels = next(batches)
            (model(inputs["input"].float()) - labels).square().mean().backward()
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)
        optimizer.step()
        checkpointer.save(step, last_step=step == steps)
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
    return [parameter.tolist() for parameter in model.parameters()]


@needs_titan
@pytest.mark.filterwarnings("ignore")
def test_a_killed_run_with_torchtitans_checkpointer_ends_with_the_same_weights(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    import torchtitan.trainer  # noqa: F401 - once, before the forks

    whole = on_gloo(2, train, tmp_path / "whole", 7, None)
    assert whole[0] == whole[1] != []
    for number in range(request.config.getoption("--kills")):
        kill_at = random.randrange(1, 7)
        folder = tmp_path / str(number)
        assert on_gloo(2, train, folder, 7, kill_at) == [None, None]
        assert on_gloo(2, train, folder, 7, None) == whole, f"killed at step {kill_at}"


@needs_titan
@pytest.mark.filterwarnings("ignore:'set_vital'")
def test_torchtitans_own_loader_refuses_another_degree() -> None:
    """What the documentation says of it."""
    from torchtitan.components.dataloader import ParallelAwareDataloader

    data = torch.utils.data.TensorDataset(torch.arange(8))
    loader = ParallelAwareDataloader(data, dp_rank=0, dp_world_size=2, batch_size=2)
    next(iter(loader))
    with pytest.raises(AssertionError, match="dataloader resharding is not supported yet"):
        ParallelAwareDataloader(data, dp_rank=0, dp_world_size=4, batch_size=2).load_state_dict(loader.state_dict())


def test_the_config_is_built_without_the_trainers_other_arguments(titan: Any) -> None:
    """The validator gives fewer arguments, and later versions may give more."""
    parameters = inspect.signature(titan.TitanLoader.__init__).parameters
    assert parameters["_"].kind is inspect.Parameter.VAR_KEYWORD
    required = {name for name, each in parameters.items() if each.default is each.empty} - {"self", "config", "_"}
    assert required <= titan_recorded.BUILD & titan_recorded.LATER_BUILD
