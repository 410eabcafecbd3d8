"""Under Lightning: streams in a DataModule, with a known length and without: stopped in any way, resumed exactly."""

import functools
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning_job as jobs
import pytest
import tier
import torch
from lightning_runs import (
    SHARDS,
    TWO_RANKS,
    RecordingModel,
    check_same_end,
    checkpoints_of,
    ids_of,
    newest,
    quiet_trainer,
    recorded_ids,
    resume_everywhere,
    resumed_job,
    run_in_process,
)

import loaderkit as lk

KINDS: dict[str, dict[str, Any]] = {
    "steps": {"shards": SHARDS, "loader": {"steps": 13}},
    "no length": {"shards": SHARDS},
    "sharded": {"data": "sharded"},
    "iterable": {"data": "iterable"},
    "stateful": {"data": "stateful"},
}
# Which of Trainer's options is in force.
CASES: dict[str, dict[str, Any]] = {
    "accumulation": {"trainer": {"accumulate_grad_batches": 3}},
    "validation within the epoch": {"trainer": {"val_check_interval": 5}, "save_in_validation": True},
    "limit": {"trainer": {"limit_train_batches": 7}, "save_in_validation": True},
    "max_steps": {"trainer": {"max_steps": 30, "max_epochs": -1}, "save_in_validation": True},
    "beside other data": {"sizes": {"a": 18}},
    "reload every epoch": {"trainer": {"reload_dataloaders_every_n_epochs": 1}},
}
Whole = Callable[..., dict[str, Any]]


def job(folder: Path, kind: str, case: dict[str, Any] | None = None, **loader: Any) -> dict[str, Any]:
    base: dict[str, Any] = {"dir": str(folder), "name": "whole", **KINDS[kind], **(case or {})}
    return {**base, "loader": {**base.get("loader", {}), **loader}}


def epochs_of(steps: list[dict[str, Any]]) -> list[int]:
    """Return how many batches each epoch has."""
    return list(Counter(step["epoch"] for step in steps).values())


@pytest.fixture(scope="module")
def whole_of(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Run a job without a stop, once for each kind and accumulation."""

    @functools.cache
    def make(kind: str, accumulate: int) -> dict[str, Any]:
        whole = job(tmp_path_factory.mktemp("whole"), kind, {"trainer": {"accumulate_grad_batches": accumulate}})
        run_in_process(whole)
        return whole

    return make


@pytest.mark.parametrize(
    ("kind", "case"),
    [*(("no length", case) for case in CASES), *(("steps", case) for case in tier.some(list(CASES)[2:]))],
)
def test_a_stream_resumes_from_its_checkpoints(kind: str, case: str, tmp_path: Path) -> None:
    """In the middle of an epoch, on its last batches, at its end, in and after validation."""
    whole = {**job(tmp_path, kind, CASES[case]), "save_every": 1}
    run_in_process(whole)
    checkpoints = checkpoints_of(whole)
    assert len(checkpoints) > 12
    first = epochs_of(jobs.steps_of(whole))[0] // whole.get("trainer", {}).get("accumulate_grad_batches", 1)
    steps = {1, first - 1, first, first + 1}
    at_steps = [path for path in checkpoints if path.stem.startswith("step") and int(path.stem.split("=")[1]) in steps]
    others = [path for path in checkpoints if not path.stem.startswith("step")]
    assert len(at_steps) == 4
    left = resume_everywhere(whole, [*at_steps, *others[1:3]])
    assert len(set(left)) > 3


STOPS = [  # by what, where, of how many accumulated batches and with how many workers
    ("SIGKILL", "in_step", 3, 2),
    ("exception", "in_step", 1, 2),
    ("exception", "after_step", 3, 0),
    ("SIGTERM", "in_step", 3, 0),
    ("SIGUSR1", "in_step", 1, 2),
    ("SIGUSR1", "in_step", 3, 0),
]
CODES = {"SIGKILL": -9, "exception": 1, "SIGTERM": 0, "SIGUSR1": -9}


@pytest.mark.parametrize(
    ("kind", "by", "where", "accumulate", "workers"),
    [
        *((kind, *how) for kind in ("steps", "no length") for how in (STOPS if kind == "steps" else tier.some(STOPS))),
        ("sharded", "SIGUSR1", "in_step", 3, 2),
        ("iterable", "exception", "in_step", 3, 1),
        ("stateful", "SIGUSR1", "in_step", 1, 1),
    ],
)
def test_a_stopped_stream_goes_on_with_what_was_not_learnt(
    kind: str, by: str, where: str, accumulate: int, workers: int, tmp_path: Path, whole_of: Whole
) -> None:
    """On an epoch's last batch, where the next may be fetched already; then in the middle, as a second resume."""
    whole = whole_of(kind, accumulate)
    batches = epochs_of(jobs.steps_of(whole))
    ckpt = None
    for number, place in enumerate(([0, batches[0] - 1], [1, 4])):
        stopped = {**whole, "dir": str(tmp_path), "name": f"stopped-{number}", "ckpt": ckpt}
        stopped["loader"] = {**whole["loader"], "num_workers": workers}
        stopped["stop"] = {"where": where, "at": place, "by": by}
        if by == "SIGKILL":
            stopped["save_every"] = 1
        assert jobs.launch(stopped) == CODES[by], jobs.log_of(stopped)
        found = {"SIGKILL": f"saved-{stopped['name']}/*", "SIGUSR1": "hpc_ckpt_*.ckpt"}.get(by, "stopped*.ckpt")
        saved = newest(tmp_path, found)
        # The next run writes its own, under the same name.
        ckpt = str(saved.rename(tmp_path / f"signal-{number}.ckpt") if by == "SIGUSR1" else saved)
    resumed = {**whole, "dir": str(tmp_path), "name": "resumed", "ckpt": ckpt}
    run_in_process(resumed)
    learnt = 4 + (where == "after_step" or by == "SIGTERM")
    check_same_end(whole, resumed, begins_at=batches[0] + learnt - learnt % accumulate)


@pytest.mark.parametrize("stop", ["steps", "shortest", "repeat"])
@pytest.mark.slow
def test_ranks_of_a_stream_resume_exactly(stop: str, tmp_path: Path) -> None:
    """Kill both in the middle of an epoch: each goes on with its own lanes, bit for bit."""
    setting: dict[str, Any] = {"steps": 7} if stop == "steps" else {"stop": stop}
    whole: dict[str, Any] = {"dir": str(tmp_path), "name": "whole", "trainer": TWO_RANKS, "shards": SHARDS}
    whole["loader"] = {"num_workers": 1, **setting}
    run_in_process(whole)
    steps = [jobs.steps_of(whole, rank) for rank in (0, 1)]
    assert len(steps[0]) == len(steps[1]) > 12
    first = epochs_of(steps[0])[0]
    stopped = {**whole, "name": "stopped", "save_every": 1}
    stopped["stop"] = {"where": "in_step", "at": [1, 3], "by": "SIGKILL"}
    assert jobs.launch(stopped) != 0
    resumed = resumed_job(whole, newest(tmp_path, "saved-stopped/step-*"))
    run_in_process(resumed)
    check_same_end(whole, resumed, begins_at=first + 3, ranks=2)


@pytest.mark.parametrize(("before", "after", "at"), [(2, 1, 3), (2, 1, 8), (1, 2, 4), (1, 2, 18)])
def test_a_stream_resumes_on_another_number_of_ranks(before: int, after: int, at: int, tmp_path: Path) -> None:
    """Each epoch has each sample once."""
    base: dict[str, Any] = {"dir": str(tmp_path), "shards": [6] * 8, "stream": {"lanes": 8}}
    base["loader"] = {"batch_size": 3, "stop": "repeat"}
    trainers: dict[int, dict[str, Any]] = {1: {}, 2: TWO_RANKS}
    first = {**base, "name": "first", "save_every": 1, "trainer": trainers[before]}
    run_in_process(first)
    second = {**base, "name": "second", "trainer": trainers[after]}
    second["ckpt"] = str(tmp_path / "saved-first" / f"step-step={at}.ckpt")
    run_in_process(second)
    old = [jobs.steps_of(first, rank)[:at] for rank in range(before)]
    new = [jobs.steps_of(second, rank) for rank in range(after)]
    for epoch in range(jobs.EPOCHS):
        found = [index for steps in (*old, *new) for index in ids_of(steps, epoch)]
        assert sorted(found) == list(range(48)), epoch
    counts = jobs.final_of(second)["counts"]
    assert counts["global_step"] == counts["batches"] == counts["log_steps"] == at + len(new[0])
    assert counts["epoch"] == jobs.EPOCHS


def test_fewer_steps_than_are_done_end_the_epoch(tmp_path: Path) -> None:
    first = {**job(tmp_path, "steps"), "name": "first", "save_every": 1}
    run_in_process(first)
    second = {**first, "name": "second", "ckpt": str(tmp_path / "saved-first" / "step-step=6.ckpt")}
    second["loader"] = {"steps": 5}
    run_in_process(second)
    assert [(step["epoch"], step["batch"]) for step in jobs.steps_of(second)] == [
        (e, b) for e in (1, 2) for b in range(5)
    ]


def evaluate(job: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    trainer = quiet_trainer(job["dir"], devices=job["ranks"], strategy="ddp_fork")
    data = lk.DataModule(val=jobs.make_stream(SHARDS, shuffle=True), loader=lk.LoaderConfig(batch_size=4))
    model = RecordingModel(job["dir"])
    if job.get("buffers"):
        model.norm = torch.nn.BatchNorm1d(8)
    trainer.validate(model, datamodule=data, verbose=False)
    trainer.validate(model, datamodule=data, verbose=False)


def test_evaluation_of_a_stream_gives_each_sample_once_and_one_metric(tmp_path: Path) -> None:
    """Twice the same, on any number of ranks; the ranks have unequal numbers of batches."""
    metrics = []
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        job = {"dir": str(folder), "name": "eval", "ranks": ranks}
        assert jobs.launch(job, evaluate) == 0, jobs.log_of(job)
        parts = [recorded_ids(folder, rank) for rank in range(ranks)]
        for part in parts:
            assert part[: len(part) // 2] == part[len(part) // 2 :]
        assert Counter(i for part in parts for batch in part for i in batch) == Counter([*range(50), *range(50)])
        metrics.append(float((folder / "metric.txt").read_text()))
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-6)


def test_ranks_that_would_wait_for_each_other_are_refused(tmp_path: Path) -> None:
    job = {"dir": str(tmp_path), "name": "eval", "ranks": 2, "buffers": True}
    assert jobs.launch(job, evaluate) != 0
    assert "DDP broadcasts the model's buffers (norm.running_mean, " in jobs.log_of(job)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore:You defined a `validation_step`")
def test_what_a_stream_cannot_do_in_a_datamodule_is_said(tmp_path: Path) -> None:
    trainer = quiet_trainer(tmp_path, overfit_batches=2, max_epochs=1, num_sanity_val_steps=0)
    data = lk.DataModule(jobs.make_stream(SHARDS))
    with pytest.raises(ValueError, match="overfit_batches needs the same batches in each epoch"):
        trainer.fit(jobs.Model({"dir": str(tmp_path), "name": "over"}), datamodule=data)
