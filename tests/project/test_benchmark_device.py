"""The benchmark of copies to the device works where there is none, as far as it can."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "device.py"


@pytest.mark.slow
def test_the_script_runs_without_cuda_and_says_not_measured() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--quick"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ("not measured" in done.stdout) == (not torch.cuda.is_available())
    for column in ("of_pinned", "step_over_limit", "samples_per_s", "registered slot", "padded there"):
        assert column in done.stdout
