"""The suites of torchdata and Lightning pass with a Loader in place of their loaders, except for the tests listed.

The suites are not part of this repository. Clone them into one folder (CONTRIBUTING.md has the commands), and run
`FOREIGN_SUITES=FOLDER pytest tests/foreign`. Without the folder the tests skip.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SUITES = {
    "torchdata/test_dataloader": "data/test/stateful_dataloader/test_dataloader.py",  # PyTorch's own, adapted by torchdata
    "torchdata/test_state_dict": "data/test/stateful_dataloader/test_state_dict.py",
    "torchdata/test_sampler": "data/test/stateful_dataloader/test_sampler.py",
    "torchdata/test_hugging_face": "data/test/stateful_dataloader/test_hugging_face.py",
    "lightning/test_dataloaders": "pytorch-lightning/tests/tests_pytorch/trainer/test_dataloaders.py",
    "lightning/test_datamodules": "pytorch-lightning/tests/tests_pytorch/core/test_datamodules.py",
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("suite", SUITES)
def test_no_failure_is_unlisted(suite: str, tmp_path: Path) -> None:
    """Each test of a suite passes, or `expected_failures.toml` gives the reason why it cannot."""
    folder = os.environ.get("FOREIGN_SUITES")
    if folder is None:
        pytest.skip("needs clones of pytorch/data and Lightning: set FOREIGN_SUITES to their folder")
    path = Path(folder).resolve() / SUITES[suite]
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    if "state_dict" in suite and importlib.util.find_spec("parameterized") is None:
        pytest.skip("the suite needs the package parameterized")
    listed = tomllib.loads((HERE / "expected_failures.toml").read_text())[suite]

    outcomes = _outcomes_of(path, tmp_path)
    assert len(outcomes) > 3, "the suite did not run"
    failed = {test: reason for test, (outcome, reason) in outcomes.items() if outcome == "failed"}
    unlisted = {test: reason for test, reason in failed.items() if _entry(test, listed) is None}
    assert not unlisted, "\n".join(f"{test}: {reason}" for test, reason in unlisted.items())
    stale = set(listed) - {_entry(test, listed) for test in failed}
    assert not stale, f"listed, but no longer failing: {', '.join(sorted(stale))}"


def _entry(test: str, listed: dict[str, str]) -> str | None:
    """Return the listed name that covers a test: its method, or its class and method."""
    method = test.split("::")[-1].split("[")[0]
    in_class = "::".join([*test.split("::")[:-1], method])
    return next((name for name in (in_class, method) if name in listed), None)


def _outcomes_of(path: Path, tmp_path: Path) -> dict[str, tuple[str, str]]:
    """Run a suite in a process of its own; return the outcome and the reason of each of its tests."""
    report = tmp_path / "outcomes.jsonl"
    roots = [HERE.parents[1], HERE, *[path.parents[2]] * ("tests_pytorch" in path.parts)]
    found = os.environ | {
        "FOREIGN_OUTCOMES": str(report),
        "PYTHONPATH": os.pathsep.join([*map(str, roots), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "foreign_adapter", "-p", "no:cacheprovider"]
    command += ["--timeout", "120", "-c", os.devnull, "--rootdir", str(path.parents[1]), str(path)]
    done = subprocess.run(
        command, cwd=path.parents[2], env=found, capture_output=True, text=True, timeout=840, check=False
    )
    assert report.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    outcomes: dict[str, tuple[str, str]] = {}
    for line in report.read_text().splitlines():
        row = json.loads(line)
        if outcomes.get(row["test"], ("", ""))[0] != "failed":  # subtests report more than once
            outcomes[row["test"]] = row["outcome"], row["reason"]
    return outcomes
