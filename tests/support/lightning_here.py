"""What several tests share: under Lightning with copies ahead, by a stand-in for CUDA: the training is the same, and its state is what was learnt."""

import warnings
from pathlib import Path
from typing import Any

import lightning_job as jobs
import torch


def run(job: dict[str, Any]) -> None:
    """Train in this process."""
    threads = torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            jobs.run(job)
    finally:
        torch.set_num_threads(threads)


def job(tmp_path: Path) -> dict[str, Any]:
    return {"dir": str(tmp_path), "name": "whole"}
