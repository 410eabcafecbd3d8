"""The two parts of the tests: with and without large libraries."""

import subprocess
import sys
from pathlib import Path

import frameworks
import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("text", "large"),
    [
        ("import torch\nimport numpy as np", False),
        ("import lightning.pytorch as pl", True),
        ("def test() -> None:\n    import pandas as pd", True),
        ("def test() -> None:\n    pytest.importorskip('trl')", True),
        ("import lightning_job as jobs", True),  # a helper that imports it
        ("import scripts", False),
        ("data = lk.ImageDataModule(1)", True),
        ("# import lightning", False),
    ],
)
def test_a_file_is_told_by_what_it_imports(text: str, large: bool, tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(text)
    assert frameworks.uses(file) == large


def test_each_test_file_is_in_one_part() -> None:
    files = list(TESTS.rglob("test_*.py"))
    large = [file for file in files if frameworks.uses(file)]
    assert 50 < len(large) < len(files) - 50


def test_scripts_without_large_libraries_import_none() -> None:
    """Else each of their processes would be as dear as those of the other part."""
    code = f"import sys; import warmed_core; print(sorted(set(sys.modules) & {set(frameworks.LARGE)!r}))"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=TESTS / "support" / "runs", capture_output=True, text=True, check=True
    )
    assert found.stdout == "[]\n"


def test_the_helpers_lie_in_four_folders_with_names_of_their_own() -> None:
    """All folders are on the path, so two helpers of one name would hide each other."""
    helpers = list((TESTS / "support").rglob("*.py"))
    assert {helper.parent.name for helper in helpers} == {"checks", "data", "runs", "stand_ins"}
    assert {helper.parents[1].name for helper in helpers} == {"support"}
    assert len({helper.name for helper in helpers}) == len(helpers) > 50
