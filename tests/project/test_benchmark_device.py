"""The benchmark of copies to the device works where there is none, as far as it can."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPT = BENCHMARKS / "device.py"


@pytest.mark.slow
def test_the_script_runs_without_cuda_and_says_not_measured() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--quick"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ("not measured" in done.stdout) == (not torch.cuda.is_available())
    for column in ("of_pinned", "step_over_limit", "samples_per_s", "registered slot", "padded there"):
        assert column in done.stdout


@pytest.mark.slow
def test_training_steps_run_without_cuda_and_say_not_measured() -> None:
    done = subprocess.run([sys.executable, BENCHMARKS / "device_step.py", "--quick"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ("not measured" in done.stdout) == (not torch.cuda.is_available())
    for column in ("step_over_limit", "lk.DeviceLoader, workers", "DataLoader, pinned", "ms_each", "host, one thread"):
        assert column in done.stdout


@pytest.mark.slow
def test_the_script_for_a_machine_with_a_gpu_refuses_one_without(tmp_path: Path) -> None:
    """Measurements on the CPU must not pass for the GPU's."""
    if torch.cuda.is_available():
        pytest.skip("there is one")
    script = BENCHMARKS / "gpu.sh"
    done = subprocess.run(
        ["sh", script, tmp_path / "out"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHON": sys.executable, "CPU": ""},
    )
    assert done.returncode == 1
    assert "torch.cuda.is_available() is False" in done.stdout
    assert not list((tmp_path / "out").glob("*.csv"))
