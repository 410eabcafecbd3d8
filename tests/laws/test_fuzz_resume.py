"""Any run that is killed and resumed, also on other ranks and workers, is the uninterrupted run."""

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data as torch_data
from fake_cuda import FakeCuda
from fuzz_resume import Fuzzer

import loaderkit as lk
from loaderkit.device import cuda

PARTS = 3  # tests that share the time, so that processes of pytest can share the work


@pytest.fixture(autouse=True)
def _ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a DeviceLoader take batches ahead without a GPU."""
    monkeypatch.setitem(cuda.BACKENDS, "cpu", lambda _: FakeCuda("all"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "part" in metafunc.fixturenames:
        limit = pytest.mark.timeout(300 + metafunc.config.getoption("--fuzz-seconds"))
        metafunc.parametrize("part", [pytest.param(part, marks=limit) for part in range(PARTS)])


def test_killed_runs_are_the_uninterrupted_run(part: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    seed, _, only = request.config.getoption("--fuzz-seed").partition(":")
    fuzzer = Fuzzer(tmp_path)
    if only:
        if part:
            pytest.skip("one case is run by part 0")
        assert fuzzer.run(int(seed), iter([int(only)]), 0) == 1
        return
    seconds = request.config.getoption("--fuzz-seconds") / PARTS
    cases = fuzzer.run(int(seed), itertools.count(part, PARTS), seconds)
    print(f"{cases} cases, {fuzzer.resumes} legs")
    assert fuzzer.resumes > cases > 0


class _Forgetful(lk.Loader):
    """Leaves out a sample after a resume with workers, in the middle of an epoch."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        cursor = self.cursor
        if self.config.num_workers and cursor.samples and not isinstance(self.dataset, torch_data.IterableDataset):
            self.seek(epoch=cursor.epoch, samples=cursor.samples + 1)


def test_the_fuzzer_finds_a_fault(tmp_path: Path) -> None:
    fuzzer = Fuzzer(tmp_path, _Forgetful)
    with pytest.raises(AssertionError, match=r"repeat it: .* --fuzz-seed=0:\d+\nsimplest found: Case\(") as found:
        fuzzer.run(0, itertools.count(), 120)
    number = int(re.findall(r"--fuzz-seed=0:(\d+)", str(found.value))[0])
    with pytest.raises(AssertionError, match=f"--fuzz-seed=0:{number}\n"):
        fuzzer.run(0, iter([number]), 0)
    Fuzzer(tmp_path).run(0, iter([number]), 0)
