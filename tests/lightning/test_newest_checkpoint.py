"""A requeued job goes on from the checkpoint that was written last, whoever wrote it."""

import os
import shutil
from pathlib import Path
from typing import Any

import fsspec
import lightning_job as jobs
import pytest
import torch
from lightning_runs import check_same_end, run_in_process

import loaderkit as lk

NAMES = ("hpc_ckpt_1.ckpt", "hpc_ckpt_2.ckpt", "last.ckpt", "deep/er/epoch=1-step=3.ckpt", "sharded.ckpt/meta.pt")


def save(path: Path, time: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"global_step": 1}, path)
    os.utime(path, (time, time))


@pytest.mark.parametrize("newest", NAMES)
@pytest.mark.parametrize("second", NAMES)
def test_the_one_that_was_written_last_is_taken_whatever_its_name(newest: str, second: str, tmp_path: Path) -> None:
    for number, name in enumerate(NAMES):
        save(tmp_path / name, 1000 + number)
    (tmp_path / "sharded.ckpt" / "__0_0.distcp").touch()
    os.utime(tmp_path / "sharded.ckpt" / "__0_0.distcp", (1, 1))
    (tmp_path / "other.pt").write_bytes(b"newer, and no checkpoint")
    save(tmp_path / second, 2000)
    save(tmp_path / newest, 3000)
    wanted = str(tmp_path / newest.removesuffix("/meta.pt"))
    assert lk.newest_checkpoint(tmp_path) == wanted
    assert lk.newest_checkpoint(str(tmp_path) + "/", tmp_path / "no-such-folder") == wanted
    folders = {str((tmp_path / name).parent) for name in NAMES[:4]}
    assert lk.newest_checkpoint(*folders) == wanted


def test_at_the_same_time_the_signals_counts(tmp_path: Path) -> None:
    """Clocks of shared file systems may show whole seconds."""
    for name in ("last.ckpt", "hpc_ckpt_1.ckpt", "step=3.ckpt", "hpc_ckpt_2.ckpt"):
        save(tmp_path / name, 1000)
    assert lk.newest_checkpoint(tmp_path) == str(tmp_path / "hpc_ckpt_2.ckpt")


@pytest.mark.parametrize("size", [0, 1, 100, -1])
def test_one_without_its_end_is_left_out_and_named(size: int, tmp_path: Path) -> None:
    save(tmp_path / "last.ckpt", 1000)
    whole = (tmp_path / "last.ckpt").read_bytes()
    (tmp_path / "hpc_ckpt_1.ckpt").write_bytes(whole[:size])
    with pytest.warns(UserWarning, match=r"hpc_ckpt_1\.ckpt is incomplete"):
        assert lk.newest_checkpoint(tmp_path) == str(tmp_path / "last.ckpt")


def test_a_folder_of_shards_without_its_last_file_is_left_out(tmp_path: Path) -> None:
    save(tmp_path / "last.ckpt", 1000)
    shard = tmp_path / "step=5.ckpt" / "__0_0.distcp"
    save(shard, 2000)
    with pytest.warns(UserWarning, match=r"step=5\.ckpt is incomplete"):
        assert lk.newest_checkpoint(tmp_path) == str(tmp_path / "last.ckpt")
    save(shard.parent / "meta.pt", 1500)
    assert lk.newest_checkpoint(tmp_path) == str(shard.parent)


def test_a_url_is_a_folder_too() -> None:
    files = fsspec.filesystem("memory")
    with files.open("memory://run/hpc_ckpt_1.ckpt", "wb") as file:
        torch.save({}, file)
    assert lk.newest_checkpoint("memory://run") == "memory:///run/hpc_ckpt_1.ckpt"
    assert lk.newest_checkpoint("memory://no-run") is None


def test_a_new_run_has_none_and_no_folder_is_an_error(tmp_path: Path) -> None:
    assert lk.newest_checkpoint(tmp_path, tmp_path / "none") is None
    with pytest.raises(ValueError, match="Give the Trainer's default_root_dir"):
        lk.newest_checkpoint()


STOPS: dict[str, list[dict[str, Any]]] = {
    # What ends each job, and the step of the whole run at which the next one begins. It saves at each third step of an epoch.
    "signal, then kill, then signal": [
        {"where": "in_step", "at": [0, 5], "by": "SIGUSR1", "next": 5},
        {"where": "in_step", "at": [1, 7], "by": "SIGKILL", "next": 18},
        {"where": "in_step", "at": [2, 1], "by": "SIGUSR1", "next": 27},
    ],
    "signal before any other checkpoint": [
        {"where": "in_step", "at": [0, 1], "by": "SIGUSR1", "next": 1},
        {"where": "in_step", "at": [0, 2], "by": "SIGUSR1", "next": 2},
    ],
    "killed while the signal's is written": [
        {"where": "in_step", "at": [0, 5], "by": "SIGUSR1", "next": 3, "cut": True},
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("chain", STOPS)
def test_a_job_that_is_requeued_again_and_again_trains_as_the_uninterrupted_one(chain: str, tmp_path: Path) -> None:
    """Each job is started alike, in an environment of SLURM, and gets the newest of all checkpoints."""
    base: dict[str, Any] = {"dir": str(tmp_path), "requeued": True, "save_every": 3}
    whole = {**base, "name": "whole", "dir": str(tmp_path / "whole")}
    Path(whole["dir"]).mkdir()
    run_in_process(whole)
    expected = jobs.steps_of(whole)
    shutil.rmtree(tmp_path / "whole" / "saved-whole")
    begins = 0
    for number, stop in enumerate(STOPS[chain]):
        job = {**base, "name": f"job-{number}", "stop": stop}
        assert jobs.launch(job) == -9, jobs.log_of(job)
        found = jobs.steps_of(job)
        assert found == expected[begins : begins + len(found)]
        begins = stop["next"]
        if stop.get("cut"):
            (saved,) = tmp_path.glob("hpc_ckpt_*")
            saved.write_bytes(saved.read_bytes()[:-10])
    last = {**base, "name": "last"}
    run_in_process(last)
    check_same_end(whole, last, begins_at=begins)
