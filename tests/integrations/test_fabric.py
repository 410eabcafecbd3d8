"""Lightning Fabric: Loaders set up for a fabric, saved and loaded by it."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import scripts
import torch
from fabric_mesh_job import stream
from killed_runs import count_exact
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy

import loaderkit as lk

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "fabric_digits.py"
STEPS = 76
KILLED = 1  # the exit code of the process that started the ranks
SAMPLES = 1201


def alone() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


def test_killed_ranks_end_with_the_same_weights(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """With gradient accumulation. With `--kills 10` it also counts how often torch's DataLoader does."""
    count = pytestconfig.getoption("--kills")
    assert count_exact(tmp_path, SCRIPT, steps=STEPS, kills=count, code=KILLED) == count
    if count > 1:
        (tmp_path / "torch").mkdir()
        script = ROOT / "tests" / "support" / "runs" / "fabric_torch_loader.py"
        own = count_exact(tmp_path / "torch", script, steps=STEPS, kills=count, code=KILLED)
        print(f"Fabric: Loader {count} of {count} exact, DataLoader {own}")
        assert own < count


def test_other_ranks_train_on_the_samples_that_were_left_and_evaluate_alike(tmp_path: Path) -> None:
    scripts.run(tmp_path, SCRIPT, "--folder", "killed", "--kill-after", "53", code=KILLED)
    for ranks in (1, 3):
        folder = f"{ranks}"
        shutil.copytree(tmp_path / "killed", tmp_path / folder)
        text = scripts.run(tmp_path, SCRIPT, "--folder", folder, "--ranks", f"{ranks}")
        assert "resumed after step 50, epoch 1, batch" in text
        before = [step for step in steps_of(tmp_path / folder, 2) if step["step"] < 50]
        after = steps_of(tmp_path / folder, ranks)
        for epoch in (0, 1):
            times = Counter(index for step in before + after if step["epoch"] == epoch for index in step["ids"])
            assert sorted(times) == list(range(SAMPLES))
            assert set(times.values()) == {1}
        assert {step["epoch"] for step in before} == {0, 1}
    # The last checkpoint is at the end, so this evaluates the same weights on one rank.
    again = scripts.run(tmp_path, SCRIPT, "--folder", "3", "--ranks", "1")
    results = [re.findall(r"\d+ of 596 are right|weights: \w+", output) for output in (text, again)]
    assert results[0] == results[1]
    assert len(results[0]) == 2


def steps_of(folder: Path, ranks: int) -> list[dict[str, Any]]:
    paths = [folder / f"rank-{rank}-of-{ranks}.jsonl" for rank in range(ranks)]
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def test_ranks_of_a_model_parallel_group_read_the_same_and_resume(tmp_path: Path) -> None:
    """Four ranks, two groups, saved and loaded in the middle of the epoch with FSDP2 and a DCP checkpoint; a stream too."""
    scripts.run(tmp_path, ROOT / "tests" / "support" / "runs" / "fabric_mesh_job.py")
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(4)]
    assert [found["world"] for found in ranks] == [2] * 4
    assert ranks[0]["seen"] == ranks[1]["seen"]
    assert ranks[2]["seen"] == ranks[3]["seen"]
    whole = [list(lk.Loader(torch.arange(42), 4, shuffle=True, world=lk.World(group, 2))) for group in (0, 1)]
    assert [ranks[0]["seen"], ranks[2]["seen"]] == [[batch.tolist() for batch in group] for group in whole]
    assert len(whole[0]) == 6
    assert ranks[0]["lines"] == ranks[1]["lines"]
    assert ranks[2]["lines"] == ranks[3]["lines"]
    lines = [list(lk.Loader(stream(), 4, stop="each", world=lk.World(group, 2))) for group in (0, 1)]
    assert [ranks[0]["lines"], ranks[2]["lines"]] == [[batch.tolist() for batch in group] for group in lines]
    assert sorted(torch.cat(lines[0] + lines[1]).tolist()) == list(range(48))


@pytest.mark.parametrize("stop", range(1, 4))
def test_a_loader_resumes_through_a_fabrics_checkpoint(stop: int, tmp_path: Path) -> None:
    def make() -> dict[str, Any]:
        return {"loader": lk.integrations.fabric.setup(alone(), lk.Loader(torch.arange(12), 4, shuffle=True))}

    whole = torch.stack(list(make()["loader"]))
    assert len(whole) == 3
    state = make()
    for _, batch in zip(range(stop), state["loader"], strict=False):
        assert batch.device == alone().device
    alone().save(tmp_path / "last.ckpt", state)
    for load in (Fabric.load, lk.integrations.fabric.load):
        again = make()
        assert load(alone(), tmp_path / "last.ckpt", again) == {}
        assert again["loader"].state_dict() == state["loader"].state_dict()
        if stop < 3:
            assert torch.equal(torch.stack(list(again["loader"])), whole[stop:])


def test_a_loader_keeps_its_place_and_its_own_world() -> None:
    loader = lk.Loader(torch.arange(12), 2, seed=3, shuffle=True)
    loader.seek(epoch=2, samples=4)
    placed = lk.integrations.fabric.setup(alone(), loader)
    assert isinstance(placed, lk.DeviceLoader)
    assert placed.cursor == loader.cursor
    own = lk.Loader(torch.arange(12), 2, world=lk.World(1, 3))
    assert lk.integrations.fabric.setup(alone(), own).world == lk.World(1, 3)
    on_host = lk.integrations.fabric.setup(alone(), own, move_to_device=False)
    assert on_host is own


def test_what_cannot_be_set_up_is_refused() -> None:
    loader = lk.Loader(torch.arange(4))
    with pytest.raises(TypeError, match=r"is a DataLoader, wanted an lk.Loader.*call fabric.setup_dataloaders"):
        lk.integrations.fabric.setup(alone(), torch.utils.data.DataLoader(torch.arange(4)))
    with pytest.raises(TypeError, match=r"is a DeviceLoader, wanted an lk.Loader.*give its loader"):
        lk.integrations.fabric.setup(alone(), lk.DeviceLoader(loader, "cpu"))
    two = Fabric(accelerator="cpu", devices=2, strategy=DDPStrategy())
    with pytest.raises(RuntimeError, match=r"has 2 processes and is not launched.*Call fabric.launch\(\) before"):
        lk.integrations.fabric.setup(two, loader)
    with pytest.raises(TypeError, match="Only PyTorch DataLoader are currently supported"):
        alone().setup_dataloaders(loader)  # Fabric's own; if it changes, `setup` may go


@pytest.mark.parametrize(
    "wrap", [lambda loader: {"train": loader}, lambda loader: [loader], lambda loader: {"all": (loader,)}]
)
def test_a_loader_that_fabric_would_not_restore_is_named(wrap: Any, tmp_path: Path) -> None:
    state = {"step": 1, "loaders": wrap(lk.Loader(torch.arange(4)))}
    with pytest.raises(
        TypeError, match=r"state\['loaders'\] is a .* with a Loader in it.*Give each Loader a name of its own"
    ):
        lk.integrations.fabric.load(alone(), tmp_path / "none.ckpt", state)
