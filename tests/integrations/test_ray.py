"""Ray Train: Loaders prepared for its workers, which are killed and started again.

Two tests start clusters. The others use Ray's local mode.
"""

import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import scripts
import torch

import loaderkit as lk

pytestmark = pytest.mark.slow

pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
pytest.importorskip("tensorboardX", reason="Ray Train is not installed: pip install '.[ray]'")

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "ray_train_digits.py"
EPOCH = 19  # steps on two workers
SAMPLES = 601
RAY_STARTED = "Started a local Ray instance"  # in its log


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs a script, again if Ray itself did not start: it gives its own processes 15 s, busy or not."""

    def run_when_ray_starts(*command: str | Path, **options: Any) -> str:
        for _ in range(3):
            try:
                text = scripts.run(tmp_path, *command, fresh=True, **options)
            except AssertionError:
                text = (tmp_path / "output.txt").read_text()
                if RAY_STARTED in text:
                    raise
            if RAY_STARTED in text:
                return text
        raise AssertionError(f"Ray did not start: {text[-5000:]}")

    return run_when_ray_starts


def results(text: str) -> tuple[str, str, str]:
    """The final weights, and the metrics of the workers and of one process."""
    [weights] = re.findall("final weights: .*", text)
    metrics = dict(re.findall("test set, by (.*?): (.*)", text))
    return weights, metrics["the workers"], metrics["one process"]


@pytest.mark.timeout(1800)
def test_a_run_whose_workers_are_killed_ends_with_the_same_weights(
    run: Callable[..., str], pytestconfig: pytest.Config
) -> None:
    """Killed at `--kills` random steps. With more than one, torch's DataLoader and `prepare_data_loader` are tried too."""
    count = pytestconfig.getoption("--kills")
    kills = [str(step) for step in random.Random(0).sample(range(1, 3 * EPOCH), count)]

    def whole_and_killed(name: str, script: Path) -> list[tuple[str, str, str]]:
        whole = run(script, "--folder", f"{name}-whole")
        killed = run(script, "--folder", f"{name}-killed", "--kill-after", *kills)
        assert f"{count} kills, " in killed
        return [results(whole), results(killed)]

    whole, killed = whole_and_killed("Loader", SCRIPT)
    assert whole == killed
    assert whole[1] == whole[2]
    assert " of 595 are right" in whole[1]
    if count > 1:
        whole, killed = whole_and_killed("DataLoader", ROOT / "tests" / "support" / "runs" / "ray_torch_loader.py")
        print(f"Ray Train, {count} kills in one run, DataLoader: {whole} and {killed}")
        assert whole[0] != killed[0]
        assert " of 596 are right" in whole[1]  # one sample counts twice


@pytest.mark.timeout(1800)
def test_other_workers_train_on_the_samples_that_were_left(run: Callable[..., str], tmp_path: Path) -> None:
    folder, stopped = tmp_path / "run", tmp_path / "stopped"
    run(SCRIPT, "--folder", "run", "--epochs", "1", "--kill-after", "18", "--max-failures", "0", code=1)
    before = take_steps(folder)
    folder.rename(stopped)
    for workers in (1, 3):
        shutil.copytree(stopped, folder)
        text = run(SCRIPT, "--folder", "run", "--epochs", "1", "--workers", str(workers))
        assert "1 kills, " in text
        _, by_workers, alone = results(text)
        assert by_workers == alone
        assert " of 595 are right" in alone
        after = take_steps(folder)
        first = min(step["step"] for step in after)
        assert 1 < first <= 16
        learnt = [step for step in before if step["step"] < first] + after
        times = Counter(index for step in learnt for index in step["ids"])
        assert sorted(times) == list(range(SAMPLES))
        assert set(times.values()) == {1}
        shutil.rmtree(folder)


def take_steps(folder: Path) -> list[dict[str, Any]]:
    """Return the steps that the workers wrote down, and delete them."""
    paths = list(folder.glob("rank-*.jsonl"))
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    for path in paths:
        path.unlink()
    return lines


def in_local_mode(train: Callable[[], None]) -> None:
    """Run a function as Ray Train does without a cluster."""
    import ray.train.torch

    ray.train.torch.TorchTrainer(train, scaling_config=ray.train.ScalingConfig(num_workers=0)).fit()


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_loader_is_prepared_for_a_worker_and_keeps_its_place() -> None:
    found: dict[str, Any] = {}

    def train() -> None:
        loader = lk.Loader(torch.arange(10), 4, shuffle=True)
        found["whole"] = [batch.tolist() for batch in loader]
        loader.seek(epoch=0, samples=4)
        prepared = lk.integrations.ray.prepare(loader)
        found["rest"] = [batch.tolist() for batch in prepared]
        found["device"], found["world"] = prepared.device, prepared.config.world
        own = lk.Loader(torch.arange(10), world=lk.World(1, 3))
        found["own"] = lk.integrations.ray.prepare(own, move_to_device=False) is own

    in_local_mode(train)
    assert found["rest"] == found["whole"][1:]
    assert len(found["rest"]) == 2
    assert (found["device"], found["world"], found["own"]) == (torch.device("cpu"), lk.World(0, 1), True)


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_what_ray_does_to_a_loader_without_this() -> None:
    """On several workers it asks for the worker_init_fn, whose error names the way out; on one it reads a batch ahead."""
    found = {}

    def train() -> None:
        import ray.train.torch

        loader = lk.Loader(torch.arange(10), 2)
        next(iter(ray.train.torch.prepare_data_loader(loader)))
        found["batches"] = loader.cursor.batches
        with pytest.raises(TypeError, match=r"is a DataLoader, wanted an lk.Loader.*call ray.train.torch.prepare_data"):
            lk.integrations.ray.prepare(torch.utils.data.DataLoader(torch.arange(3)))

    in_local_mode(train)
    assert found["batches"] == 2
    way_out = "In Ray Train give the Loader to loaderkit.integrations.ray.prepare, not to prepare_data_loader"
    with pytest.raises(AttributeError, match=way_out):
        lk.Loader(torch.arange(10)).worker_init_fn  # noqa: B018
