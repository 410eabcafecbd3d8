"""The README's code runs, and what it names is there."""

import re
from pathlib import Path

import pytest
import scripts

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
TESTS = re.findall(r"`(test_\w+\.py)::(test_\w+)`", README + ARCHITECTURE)


def test_the_quickstart_trains_and_goes_on_when_it_is_run_again(tmp_path: Path) -> None:
    quickstart = BLOCKS[0]
    assert "fit(" in quickstart
    assert len([line for line in quickstart.splitlines() if line]) <= 15
    check = "\nimport torch\nprint('step', torch.load('runs/digits/last.ckpt', weights_only=True)['global_step'])\n"
    first = quickstart.replace("max_epochs=9", "max_epochs=2")
    assert "step 100\n" in run(tmp_path, first + check)
    again = run(tmp_path, quickstart.replace("max_epochs=9", "max_epochs=3") + check)
    assert "Restored all states from the checkpoint" in again
    assert "step 160\n" in again


def test_the_other_code_blocks_run_one_after_another(tmp_path: Path) -> None:
    assert len(BLOCKS) >= 9  # else there is nothing to see
    said = run(tmp_path, "\n".join(BLOCKS[1:]))
    assert "UserWarning: interleave" not in said
    assert "UserWarning: Loader" not in said


def run(folder: Path, code: str) -> str:
    script = folder / "script.py"
    script.write_text(code)
    return scripts.run(folder, script)


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_each_test_that_the_documents_name_exists(file: str, name: str) -> None:
    (path,) = (ROOT / "tests").rglob(file)
    assert re.search(rf"^def {name}\(", path.read_text(), re.MULTILINE)


def test_each_law_names_its_tests() -> None:
    rows = re.findall(r"^\| (\d) [^|]+\|[^|]+\|([^|]+)\|$", README, re.MULTILINE)
    assert [number for number, _ in rows] == list("123456789")
    assert all("::test_" in tests for _, tests in rows)


def test_each_file_that_the_readme_links_to_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) > 5
    for link in links:
        assert (ROOT / link).exists(), link


def test_each_file_that_the_architecture_page_names_exists() -> None:
    files = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", ARCHITECTURE)
    assert len(files) > 15
    for file in files:
        assert (ROOT / file).exists() or (ROOT / "loaderkit" / file).exists(), file


def test_the_benchmarks_have_their_place() -> None:
    assert README.count("<!-- benchmarks -->") == README.count("<!-- /benchmarks -->") == 1
