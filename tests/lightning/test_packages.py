"""DataModules and callbacks under both packages of Lightning: `lightning.pytorch` and `pytorch_lightning`."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import lightning.pytorch as pl
import pytest
import scripts
import torch
from killed_runs import count_exact
from lightning.pytorch.demos.boring_classes import BoringModel

import loaderkit as lk

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PRELOAD = ("pytorch_lightning.cli", "sklearn.datasets", "torchmetrics", "torchvision", "warmed")


@pytest.fixture(autouse=True)
def _has_the_other_package() -> None:
    pytest.importorskip("pytorch_lightning", reason="pytorch_lightning is not installed: pip install '.[test]'")


def test_a_killed_run_under_pytorch_lightning_ends_with_the_same_weights(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """With `--kills 10` it also counts how often torch's DataLoader does."""
    count = pytestconfig.getoption("--kills")
    script = ROOT / "examples" / "pytorch_lightning_digits.py"
    assert count_exact(tmp_path, script, steps=94, kills=count, preload=PRELOAD) == count
    if count > 1:
        folder = tmp_path / "torch"
        folder.mkdir()
        own = count_exact(folder, script, "--torch-loader", steps=94, kills=count, preload=PRELOAD)
        print(f"pytorch_lightning: Loader {count} of {count} exact, DataLoader {own}")
        assert own < count


def test_everything_works_under_pytorch_lightning_and_lightning_is_not_imported(tmp_path: Path) -> None:
    script = ROOT / "tests" / "support" / "runs" / "pytorch_lightning_job.py"
    assert "under pytorch_lightning alone" in scripts.run(tmp_path, script, preload=PRELOAD)


ONE_INSTALLED = """
import sys
import loaderkit as lk

try:
    lk.SeedSteps
except ModuleNotFoundError as error:
    print(error)
sys.path.append("one")  # which has pytorch_lightning
print(lk.DataModule.__mro__[1].__module__, "lightning" in sys.modules)
data = lk.DataModule([1, 2, 3], loader=lk.LoaderConfig(batch_size=2))
print(list(data.train_dataloader())[0].shape)
"""


def test_the_package_that_is_installed_is_taken(tmp_path: Path) -> None:
    """The process finds copies of the installed packages: first without any Lightning, then with pytorch_lightning."""
    installed = Path(sysconfig.get_paths()["purelib"])
    for name in ("none", "one"):
        (tmp_path / name).mkdir()
    for path in installed.iterdir():
        if not path.name.startswith(("lightning-", "pytorch_lightning", "__")) and path.name != "lightning":
            (tmp_path / "none" / path.name).symlink_to(path)
    (tmp_path / "one" / "pytorch_lightning").symlink_to(installed / "pytorch_lightning")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["none", str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-S", "-c", ONE_INSTALLED],
        capture_output=True,
        text=True,
        timeout=scripts.TIMEOUT_S,
        cwd=tmp_path,
        env=environment,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    assert "neither lightning nor pytorch_lightning is installed. Run pip install lightning" in lines[0]
    assert lines[1:] == ["pytorch_lightning.core.datamodule False", "torch.Size([2])"]


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_a_trainer_of_the_package_that_came_second_is_refused(tmp_path: Path) -> None:
    assert issubclass(lk.DataModule, pl.LightningDataModule)
    from pytorch_lightning import Trainer
    from pytorch_lightning.demos import boring_classes

    off = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False)
    settings = {"accelerator": "cpu", "max_steps": 2, "default_root_dir": tmp_path, **off}
    data = lk.DataModule(lk.ArrayDataset(torch.ones(8, 32)))
    way_out = "Import pytorch_lightning before it, and before you use a DataModule of loaderkit"
    with pytest.raises(
        TypeError, match=rf"the Trainer is of pytorch_lightning, .* are of lightning.pytorch.*{way_out}"
    ):
        Trainer(**settings).fit(boring_classes.BoringModel(), datamodule=data)
    with pytest.raises(RuntimeError, match=rf"it has loaders, and is none.*{way_out}"):
        Trainer(**settings).fit(boring_classes.BoringModel(), data)
    trainer = pl.Trainer(**settings)
    trainer.fit(BoringModel(), data)
    assert trainer.global_step == 2
