"""Under Accelerate: accumulation, metrics, and runs that are killed and resumed."""

import json
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from killed_runs import PRELOAD, Runs, Survives, check_survives, count_exact, survivor

import loaderkit as lk

pytestmark = pytest.mark.slow

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed: pip install '.[accelerate]'")

EXAMPLE = Path(__file__).parents[2] / "examples" / "accelerate_loop.py"
JOB, SIZE, BATCH, STEPS = "accelerate_job.py", 43, 4, 4
DROPOUT = {"accumulate": 2, "dropout": 0.3, "save_every": 1}
# Each with the batches of a rank in which it may be killed, all after its first checkpoint.
CASES: dict[str, tuple[range, dict[str, Any]]] = {
    "two ranks, accumulation": (range(4, 12), {"ranks": 2, **DROPOUT}),
    "one rank": (range(4, 22), {}),
    "accumulation": (range(4, 22), DROPOUT),
    "saved inside accumulations": (range(4, 22), {"accumulate": 4}),
    "workers": (range(4, 22), {"workers": 2, "dropout": 0.3}),
    "StreamDataset": (range(4, 24), {"data": "stream"}),
    "StreamDataset, two ranks": (range(4, 12), {"data": "stream", "ranks": 2}),
}


@pytest.fixture
def accelerator() -> Iterator[Any]:
    yield accelerate.Accelerator(cpu=True, gradient_accumulation_steps=STEPS)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def data() -> Any:
    return lk.ArrayDataset(torch.arange(SIZE))


def prepared(accelerator: Any, **settings: Any) -> Any:
    return lk.integrations.accelerate.prepare(accelerator, lk.Loader(data(), BATCH, shuffle=True, **settings))


def accumulate(accelerator: Any, loader: Any) -> list[bool]:
    """The batches at which an optimizer would step."""
    found = []
    for _ in loader:
        with accelerator.accumulate():
            found.append(accelerator.sync_gradients)
    return found


def test_the_optimizer_steps_at_the_batches_of_a_dataloader(accelerator: Any) -> None:
    """Also in the second epoch, and from the middle of an epoch."""
    own = accelerator.prepare(torch.utils.data.DataLoader(list(range(SIZE)), BATCH))
    loader = prepared(accelerator)
    wanted = accumulate(accelerator, own)
    assert wanted == [False, False, False, True, False, False, False, True, False, False, True]
    assert [accumulate(accelerator, loader) for _ in range(2)] == [wanted, wanted]
    lk.integrations.accelerate.skip_first_batches(loader, 4)
    assert accumulate(accelerator, loader) == wanted[4:]


@pytest.mark.parametrize("stop", range(12))
def test_a_state_saved_inside_an_accumulation_stands_at_its_start(stop: int, accelerator: Any, tmp_path: Path) -> None:
    loader = prepared(accelerator)
    whole = [batch.tolist() for batch in loader]
    loader.seek(epoch=0)
    for _, _ in zip(range(stop), loader, strict=False):
        with accelerator.accumulate():
            pass
    learnt = stop - stop % STEPS if stop < len(whole) else stop
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        accelerator.save_state(str(tmp_path))
    assert ["after batch" in str(each.message) for each in found if "loaderkit" in each.filename] == []
    assert any(f"after batch {stop % STEPS} of a gradient" in str(each.message) for each in found) == (learnt != stop)
    accelerator.load_state(str(tmp_path))
    assert accelerator.step % STEPS == 0
    again = [batch.tolist() for batch in loader]
    assert again == whole[learnt:] or (learnt == len(whole) == len(again) and loader.cursor.epoch == 2)


@pytest.mark.parametrize("steps", [2, 8])
def test_a_program_may_change_the_length_of_accumulations(steps: int, accelerator: Any, tmp_path: Path) -> None:
    loader = prepared(accelerator)
    whole = [batch.tolist() for batch in loader]
    loader.seek(epoch=0)
    accelerator.gradient_accumulation_steps = steps
    for _, _ in zip(range(7), loader, strict=False):
        with accelerator.accumulate():
            pass
    with pytest.warns(UserWarning, match=rf"after batch {7 % steps} of a gradient accumulation of {steps}"):
        accelerator.save_state(str(tmp_path))
    accelerator.load_state(str(tmp_path))
    assert [batch.tolist() for batch in loader] == whole[7 - 7 % steps :]


def test_batches_come_on_the_accelerators_device(accelerator: Any) -> None:
    accelerator.state.device = torch.device("meta")
    assert [batch.device.type for batch in prepared(accelerator)] == ["meta"] * 11


def test_a_loader_that_is_not_prepared_is_warned_of(accelerator: Any) -> None:
    loader = accelerator.prepare(lk.Loader(data(), BATCH))
    with pytest.warns(UserWarning, match=r"Accelerator\.prepare returns a Loader as it is"):
        next(iter(loader))


def test_what_cannot_be_exact_is_refused(accelerator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, skip = lk.integrations.accelerate.prepare, lk.integrations.accelerate.skip_first_batches
    stream = lk.Loader(lk.StreamDataset(["a"], lk.from_start(lambda name: range(9))), BATCH)
    two = {"world": lk.World(0, 2)}
    for loader in (prepared(accelerator), prepare(accelerator, stream)):
        with pytest.raises(AttributeError, match=r"After accelerator\.load_state there is nothing to skip"):
            accelerator.skip_first_batches(loader, 2)
    with pytest.raises(TypeError, match="a stream finds its place by reading"):
        skip(stream, 2)
    with pytest.raises(TypeError, match=r"found a list, wanted an lk\.Loader"):
        prepare(accelerator, [1])
    plan = lk.LengthBuckets([1] * SIZE, batch_size=BATCH)
    with pytest.raises(TypeError, match="a plan has others"):
        prepare(accelerator, lk.Loader(data(), plan=plan, **two), evaluation=True)
    ahead = lk.DeviceLoader(lk.Loader(data(), BATCH, **two), "cpu")
    with pytest.raises(TypeError, match="Give its Loader tail='pad'"):
        prepare(accelerator, ahead, evaluation=True)
    with pytest.warns(UserWarning, match="the last step repeats 5 samples"):
        prepare(accelerator, lk.Loader(data(), BATCH, **two))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="reads for 2 ranks, and the Accelerator has 1"):
        prepared(accelerator)
    accelerator.dataloader_config.split_batches = True
    with pytest.raises(ValueError, match="batch_size=4 of a Loader is for each rank"):
        prepared(accelerator)


def test_gather_for_metrics_gives_each_sample_once(tmp_path: Path) -> None:
    Runs(tmp_path, JOB, evaluate=True, ranks=2).start("unused", "found.json")
    assert json.loads((tmp_path / "found.json").read_text()) == list(range(SIZE))


@pytest.fixture(scope="module")
def survives(tmp_path_factory: pytest.TempPathFactory) -> Survives:
    return survivor(tmp_path_factory, JOB, CASES)


def test_a_killed_run_resumes_to_the_same_weights(survives: Survives, pytestconfig: pytest.Config) -> None:
    """By default on two ranks; `--kills` takes one case after another, and counts what Accelerate's own loader does."""
    check_survives(survives, CASES, pytestconfig.getoption("kills"), own_data=(None,), still=0)


def test_the_example_is_killed_and_resumes_to_the_same_weights(tmp_path: Path) -> None:
    assert count_exact(tmp_path, EXAMPLE, steps=90, kills=1, preload=PRELOAD) == 1


def test_another_number_of_ranks_reads_the_rest_of_the_epoch(tmp_path: Path) -> None:
    runs = Runs(tmp_path, JOB, save_every=1)
    runs.start("two", "two.pt", ranks=2, kill_at=3, code=-9)
    runs.start("two", "one.pt")
    lines = runs.log("two.pt", 2) + [line for line in runs.log("one.pt", 1) if line[0] == 0]
    assert Counter(number for *_, numbers in lines for number in numbers) == Counter(range(SIZE))
