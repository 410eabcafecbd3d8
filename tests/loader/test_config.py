"""Settings that are out of range or contradict each other are refused."""

import dataclasses
import inspect
import pickle
from typing import Any

import pytest

from loaderkit import Loader, LoaderConfig, Sequential
from loaderkit.sampling.batch_plan import BatchPlan

PLAN = BatchPlan(order=Sequential(4), batch_size=2)

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size is 0, wanted an integer of at least 1"),
    ({"batch_size": 2.0}, "batch_size is 2.0"),
    ({"batch_size": True}, "batch_size is True"),
    ({"seed": "a"}, "seed is 'a', wanted an integer"),
    ({"num_workers": -1}, "num_workers is -1"),
    ({"num_workers": "all"}, "num_workers is 'all', wanted an integer of at least 0, or 'auto'"),
    ({"num_workers": "auto", "engine": "inline"}, "engine='inline' has no workers, num_workers is 'auto'"),
    ({"tail": "wrap"}, "tail is 'wrap', wanted one of 'keep', 'drop', 'pad'"),
    ({"drop_last": True, "tail": "pad"}, "drop_last=True and tail='pad' contradict"),
    ({"engine": "ring2"}, "engine is 'ring2'"),
    ({"engine": "inline", "num_workers": 2}, "engine='inline' has no workers"),
    ({"shuffle": True, "order": Sequential(4)}, "shuffle=True and order= contradict"),
    ({"shuffle": True, "plan": PLAN}, "plan= has its own order"),
    ({"order": Sequential(4), "plan": PLAN}, "plan= has its own order"),
    ({"prefetch_factor": 2}, "prefetch_factor is for workers"),
    ({"persistent_workers": True}, "persistent_workers is for workers"),
    ({"multiprocessing_context": "fork"}, "multiprocessing_context is for workers"),
    ({"timeout": 3}, "timeout is for workers"),
    ({"num_workers": True}, "num_workers is True"),
    ({"num_workers": 1, "prefetch_factor": 0}, "prefetch_factor is 0, wanted an integer of at least 1"),
    ({"num_workers": 1, "prefetch_factor": -3}, "prefetch_factor is -3"),
    ({"num_workers": 1, "timeout": -1}, "timeout is -1, wanted seconds, or 0"),
    (
        {"num_workers": 1, "multiprocessing_context": "thread"},
        "multiprocessing_context is 'thread', wanted one of 'fork', 'forkserver', .*'spawn'",
    ),
    ({"num_workers": 1, "worker_init_fn": 3}, "worker_init_fn is 3, wanted a function"),
    ({"collate_fn": "pad"}, "collate_fn is 'pad', wanted a function"),
    ({"shuffle": "False"}, "shuffle is 'False', wanted True or False"),
    ({"drop_last": "no"}, "drop_last is 'no', wanted True or False"),
    ({"world": (0, 2)}, r"world is \(0, 2\), wanted a World such as loaderkit.World\(0, 2\)"),
    ({"plan": [[0, 1], [2, 3]]}, "plan is of type list, wanted a loaderkit.Plan.*give its sampler as order="),
    ({"pin_memory": "yes"}, "pin_memory is 'yes'"),
    ({"bad_samples": "skip"}, r"bad_samples is 'skip', wanted a BadSamples such as loaderkit.BadSamples\('skip'\)"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_setting_out_of_range_is_refused(settings: dict[str, Any], message: str) -> None:
    for make in (LoaderConfig, lambda **given: Loader([1, 2, 3, 4], **given)):
        with pytest.raises(ValueError, match=message):
            make(**settings)


def test_the_ring_is_for_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LoaderConfig(engine="ring", num_workers="auto").engine == "ring"
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(ValueError, match=r"engine='ring' needs Linux, and this is darwin. Give engine='auto'"):
        LoaderConfig(engine="ring", num_workers=2)


def test_drop_last_is_the_tail_drop() -> None:
    assert LoaderConfig(drop_last=True).tail_policy == "drop"
    assert LoaderConfig(tail="pad").tail_policy == "pad"


def test_the_config_has_the_loaders_settings_and_defaults() -> None:
    parameters = dict(inspect.signature(Loader).parameters)
    del parameters["dataset"], parameters["unknown"]
    fields = {field.name: field.default for field in dataclasses.fields(LoaderConfig)}
    assert list(fields) == list(parameters)
    assert len(fields) > 15
    differing = [name for name, value in fields.items() if parameters[name].default != value]
    assert differing == ["shuffle"]  # None there: a DataModule decides


def test_a_loader_made_from_a_config_has_its_settings() -> None:
    config = LoaderConfig(batch_size=3, shuffle=True, seed=5, tail="drop")
    loader = Loader.from_config(list(range(10)), config, seed=6)
    assert loader.config == dataclasses.replace(config, seed=6)
    assert pickle.loads(pickle.dumps(config)) == config
