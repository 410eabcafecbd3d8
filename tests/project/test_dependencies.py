"""Dependencies say what is used: few are always needed, the others are extras, and errors name their extra."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = {name: [Requirement(line) for line in lines] for name, lines in PROJECT["optional-dependencies"].items()}
QUICKSTARTS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)

# Put before a script: these packages are not found, as in an environment that does not have them.
HIDE = """
import sys
from importlib.machinery import PathFinder

class Hidden:
    def find_spec(self, name, path=None, target=None):
        hidden = name.split(".")[0] in ("torchvision", "torchdata", "PIL")
        return None if hidden else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hidden()
"""


def run_without_extras(script: str, folder: Path) -> str:
    command = [sys.executable, "-W", "ignore", "-c", HIDE + script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def extras_with(package: str) -> set[str]:
    """The extras that bring a package themselves."""
    return {extra for extra, lines in EXTRAS.items() if any(line.name == package for line in lines)}


def test_each_package_that_is_always_needed_is_imported() -> None:
    code = "\n".join(file.read_text() for file in (ROOT / "loaderkit").rglob("*.py"))
    names = {line.name.replace("-", "_") for line in NEEDED}
    assert names == {"lazy_loader", "lightning", "numpy", "torch"}
    assert [name for name in names if not re.search(rf"^ *(import|from) {name}\b", code, re.MULTILINE)] == []


def test_packages_that_few_need_are_extras() -> None:
    assert extras_with("torchdata") == {"bench", "test"}
    assert extras_with("torchvision") == {"images"}
    with_pictures = {extra for extra, lines in EXTRAS.items() if any("images" in line.extras for line in lines)}
    assert with_pictures == {"bench", "demo", "examples", "photographs"}


@pytest.mark.parametrize("package", ["lightning", "pytorch-lightning"])
@pytest.mark.parametrize(("version", "allowed"), [("2.6.1", True), ("2.6.2", False), ("2.6.3", False), ("2.6.4", True)])
def test_the_two_malicious_uploads_of_lightning_are_excluded(package: str, version: str, allowed: bool) -> None:
    found = [line for lines in [NEEDED, *EXTRAS.values()] for line in lines if line.name == package]
    assert found
    assert {version in line.specifier for line in found} == {allowed}


def test_torchtitan_is_capped_below_its_other_way_to_read_data() -> None:
    (line,) = EXTRAS["torchtitan"]
    assert "0.3.0" in line.specifier
    assert "0.4.0" not in line.specifier


def test_each_extra_has_a_row_in_the_table_of_extras() -> None:
    table = (ROOT / "docs" / "index.md").read_text().split("| extra | adds |", 1)[1].split("\n\n", 1)[0]
    assert set(re.findall(r"`([a-z0-9-]+)`", "\n".join(row.split("|")[1] for row in table.splitlines() if row))) == {
        *EXTRAS
    }


def test_the_plain_quickstart_runs_without_extras(tmp_path: Path) -> None:
    code = QUICKSTARTS[1].replace("epoch < 9", "epoch < 1")
    assert "epoch 0 is done" in run_without_extras(code, tmp_path)


@pytest.mark.slow
def test_the_lightning_quickstart_runs_without_extras(tmp_path: Path) -> None:
    run_without_extras(QUICKSTARTS[0].replace("max_epochs=9", "max_epochs=1"), tmp_path)
    assert (tmp_path / "runs" / "digits" / "last.ckpt").exists()


ERRORS = """
import torch
import loaderkit as lk
from loaderkit.datasets.images.torchvision import ToSize

makers = {
    "DetectionCollate": lk.DetectionCollate,
    "ImageDataModule: size=": lambda: ToSize((8, 8)),
    "ImageDataModule: dataset=": lambda: lk.ImageDataModule(".", dataset="CIFAR10"),
}
for name, make in makers.items():
    try:
        make()
    except ImportError as error:
        print(error)
print("torchvision" in sys.modules, "torchdata" in sys.modules)
"""


def test_an_error_names_the_extra_where_torchvision_is_missing(tmp_path: Path) -> None:
    *errors, loaded = run_without_extras(ERRORS, tmp_path).splitlines()
    assert [error.split(" needs torchvision: ")[0] for error in errors] == [
        "DetectionCollate",
        "ImageDataModule: size=",
        "ImageDataModule: dataset=",
    ]
    assert {error.split(" needs torchvision: ")[1] for error in errors} == {
        "pip install '.[images]' in a checkout of loaderkit."
    }
    assert loaded == "False False"
