"""Texts, chats and boxes on two ranks: exact on the same ranks, each sample once on others."""

import json
from pathlib import Path
from typing import Any

import lengths_job
import lightning_job as jobs
import pytest

pytestmark = pytest.mark.slow

KINDS = ("buckets", "budget", "packed", "chats", "boxes")
AT, FURTHER = 2, 4  # both in the middle of the first epoch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = {"dir": str(tmp_path_factory.mktemp("ddp")), "name": "all", "kinds": KINDS, "at": (AT, FURTHER)}
    assert jobs.launch(job, lengths_job.run) == 0, jobs.log_of(job)
    return Path(job["dir"])


def steps_of(folder: Path, rank: int) -> list[Any]:
    return [json.loads(line) for line in (folder / f"steps-{rank}.jsonl").read_text().splitlines()]


def ids_of(*runs: list[Any], epoch: int) -> list[int]:
    return sorted(number for steps in runs for step in steps for number in step[1] if step[0] == epoch)


ALL = list(range(1, lengths_job.SIZE + 1))


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_share_each_epoch_and_resume_exactly(folder: Path, kind: str) -> None:
    whole = [steps_of(folder / kind / "whole", rank) for rank in (0, 1)]
    assert len(whole[0]) == len(whole[1]) > 2 * FURTHER
    assert whole[0][AT][0] == 0  # else the law of resuming in the middle is vacuous
    for epoch in range(lengths_job.EPOCHS):
        assert ids_of(*whole, epoch=epoch) == ALL
    for rank in (0, 1):
        assert steps_of(folder / kind / "resumed", rank) == whole[rank][AT:]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_with_one_rank_and_again_with_two(folder: Path, kind: str) -> None:
    whole = [steps_of(folder / kind / "whole", rank)[:AT] for rank in (0, 1)]
    one = steps_of(folder / kind / "one", 0)
    two = [steps_of(folder / kind / "two", rank) for rank in (0, 1)]
    assert one[FURTHER - AT][0] == 0
    for epoch in range(lengths_job.EPOCHS):
        assert ids_of(*whole, one, epoch=epoch) == ALL
        assert ids_of(*whole, one[: FURTHER - AT], *two, epoch=epoch) == ALL
    assert len(two[0]) == len(two[1]) > 0


def test_chats_of_a_killed_run_come_once_on_another_number_of_ranks(folder: Path, tmp_path: Path) -> None:
    """Both ranks kill themselves inside a step: one rank goes on as if they had been stopped there."""
    fit: dict[str, Any] = {"kind": "chats", "ranks": 2, "ckpt": None, "kill_at": AT}
    killed = {"dir": str(tmp_path), "name": "killed", "fit": fit}
    assert jobs.launch(killed, lengths_job.run_one) != 0
    before = [steps_of(tmp_path / "killed", rank) for rank in (0, 1)]
    assert before == [steps_of(folder / "chats" / "whole", rank)[:AT] for rank in (0, 1)]
    saved = tmp_path / "killed" / f"step={AT}.ckpt"
    after = {"dir": str(tmp_path), "name": "after", "fit": {"kind": "chats", "ranks": 1, "ckpt": str(saved)}}
    assert jobs.launch(after, lengths_job.run_one) == 0, jobs.log_of(after)
    one = steps_of(tmp_path / "after", 0)
    assert one == steps_of(folder / "chats" / "one", 0)
    for epoch in range(lengths_job.EPOCHS):
        assert ids_of(*before, one, epoch=epoch) == ALL
