"""Run trainings described by a dict (see lightning_job), resume them, and compare them with the uninterrupted run."""

import json
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import lightning_job as jobs
import torch
import torchmetrics

TWO_RANKS = {"strategy": "ddp_fork", "devices": 2}
SHARDS = [9, 0, 14, 3, 1, 8, 15]  # sizes of a stream's shards
JOBS_PER_PROCESS = 8  # starting a process takes a third of a job's time


def run_in_process(job: dict[str, Any]) -> None:
    """Run a job in a new process."""
    code = jobs.launch(job)
    assert code == 0, f"exit code {code}:\n{jobs.log_of(job)}"


def run_here(job: dict[str, Any]) -> None:
    """Run a job in this process."""
    threads = torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            jobs.run(job)
    finally:
        torch.set_num_threads(threads)


def checkpoints_of(whole: dict[str, Any]) -> list[Path]:
    """Return the checkpoints that a job saved."""
    return sorted(Path(whole["dir"], f"saved-{whole['name']}").iterdir())


def resume_everywhere(whole: dict[str, Any], checkpoints: list[Path], name: str = "resumed") -> list[int]:
    """Resume from each checkpoint in a new process, check the result, and return how many steps each run had left."""
    resumes = [resumed_job(whole, path, f"{name}-{number}") for number, path in enumerate(checkpoints)]
    for start in range(0, len(resumes), JOBS_PER_PROCESS):
        job = {"dir": whole["dir"], "name": f"{name}-from-{start}", "jobs": resumes[start : start + JOBS_PER_PROCESS]}
        assert jobs.launch(job, jobs.run_each) == 0, jobs.log_of(job)
    return [check_same_end(whole, resumed) for resumed in resumes]


def newest(folder: Path, pattern: str) -> Path:
    """Return the checkpoint that was saved last."""
    return max(folder.glob(pattern), key=lambda path: path.stat().st_mtime_ns)


def resumed_job(whole: dict[str, Any], ckpt: Path, name: str = "resumed", **changes: Any) -> dict[str, Any]:
    """Return a job that resumes another from a checkpoint and saves none itself."""
    unsaved = {setting: value for setting, value in whole.items() if setting != "save_every"}
    return {**unsaved, "name": name, "ckpt": str(ckpt), **changes}


def check_same_end(
    whole: dict[str, Any], resumed: dict[str, Any], *, begins_at: int | None = None, ranks: int = 1
) -> int:
    """Check that a resumed job continued like the whole one, and return how many steps it had left."""
    for rank in range(ranks):
        expected, found = jobs.steps_of(whole, rank), jobs.steps_of(resumed, rank)
        assert len(expected) >= 9  # else the law is vacuous
        start = len(expected) - len(found)
        assert begins_at in (None, start)
        assert found == expected[start:]  # ids, order, augmentation and dropout (through the loss)
    end, wanted = jobs.final_of(resumed), jobs.final_of(whole)
    assert all(torch.equal(end["weights"][name], wanted["weights"][name]) for name in wanted["weights"])
    if found:
        assert end["counts"] == wanted["counts"]
    return len(found)


def ids_of(steps: list[dict[str, Any]], epoch: int) -> list[int]:
    """Return the ids of an epoch's samples, in the order of the steps."""
    return [index for step in steps if step["epoch"] == epoch for index in step["ids"][0]]


class RecordingModel(pl.LightningModule):
    """Writes the ids of its evaluation batches to a file, and logs a mean over samples."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder
        # `self.log(..., sync_dist=True)` of Lightning 2.6.6 rounds the mean number of samples a rank down.
        self.mean = torchmetrics.MeanMetric().set_dtype(torch.float64)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.mean.update(batch["x"].sum(dim=1).double())
        self.log("metric", self.mean, on_epoch=True)
        self.write(batch)

    def predict_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.write(batch)
        ids: torch.Tensor = batch["id"]
        return ids

    def write(self, batch: Any) -> None:
        with Path(self.folder, f"seen-{self.global_rank}.jsonl").open("a") as file:
            file.write(json.dumps(batch["id"].tolist()) + "\n")

    def on_validation_end(self) -> None:
        Path(self.folder, "metric.txt").write_text(repr(float(self.trainer.callback_metrics["metric"])))


def recorded_ids(folder: Path, rank: int) -> list[list[int]]:
    """Return the ids of each evaluation batch that a RecordingModel wrote."""
    return [json.loads(line) for line in (folder / f"seen-{rank}.jsonl").read_text().splitlines()]


def quiet_trainer(folder: Path | str, **settings: Any) -> pl.Trainer:
    """Return a Trainer without output and, unless the settings say so, without checkpoints."""
    off = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False)
    return pl.Trainer(**{"accelerator": "cpu", "default_root_dir": folder, **off, **settings})
