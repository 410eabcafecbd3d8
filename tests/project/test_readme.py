"""The README is short, its code runs, and what the documents name is there."""

import re
from pathlib import Path

import pytest
import scripts

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LIGHTNING, PLAIN = BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
GUARANTEES = (ROOT / "docs" / "concepts" / "guarantees.md").read_text()
TESTS = re.findall(r"`(test_\w+\.py)::(test_\w+)`", GUARANTEES + ARCHITECTURE)
PRINT_WEIGHTS = "\nimport hashlib\nprint(hashlib.md5(model.weight.detach().numpy().tobytes()).hexdigest())\n"
KILL = "        if loader.cursor.epoch == 1 and loader.cursor.batches == 30:\n            os._exit(9)\n"


NO_PROSE = re.compile(r"^```.*?^```$|^[|#!<][^\n]*$|\]\([^)]*\)", re.MULTILINE | re.DOTALL)


def test_the_readme_is_short() -> None:
    assert len(README.encode()) <= 9000


def test_its_sentences_are_short() -> None:
    blocks = re.split(r"\n\s*\n|\n- ", NO_PROSE.sub("", README))
    sentences = [sentence for block in blocks for sentence in re.split(r"(?<=[.!?:])\s+", block) if sentence.split()]
    assert len(sentences) > 30
    assert [sentence for sentence in sentences if len(sentence.split()) > 25] == []


@pytest.mark.slow
def test_the_quickstart_trains_and_goes_on_when_it_is_run_again(tmp_path: Path) -> None:
    assert "fit(" in LIGHTNING
    assert len([line for line in LIGHTNING.splitlines() if line]) <= 15
    check = "\nimport torch\nprint('step', torch.load('runs/digits/last.ckpt', weights_only=True)['global_step'])\n"
    first = LIGHTNING.replace("max_epochs=9", "max_epochs=2")
    assert "step 100\n" in run(tmp_path, first + check)
    again = run(tmp_path, LIGHTNING.replace("max_epochs=9", "max_epochs=3") + check)
    assert "Restored all states from the checkpoint" in again
    assert "step 160\n" in again


@pytest.mark.slow
def test_the_plain_loop_ends_with_the_same_weights_after_a_kill(tmp_path: Path) -> None:
    code = PLAIN.replace("epoch < 9", "epoch < 2")
    assert code != PLAIN
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    after_a_step = code.index('    print(f"epoch')  # the loop's last line is of the epoch
    run(killed, code[:after_a_step] + KILL + code[after_a_step:], code=9)
    assert (killed / "run.pt").exists()
    resumed, never_killed = (run(folder, code + PRINT_WEIGHTS).splitlines() for folder in (killed, whole))
    assert resumed[0] != never_killed[0]  # it says where it starts
    assert resumed[-1] == never_killed[-1]


def run(folder: Path, text: str, code: int = 0) -> str:
    script = folder / "script.py"
    script.write_text(text)
    return scripts.run(folder, script, code=code)


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_each_test_that_the_documents_name_exists(file: str, name: str) -> None:
    (path,) = (ROOT / "tests").rglob(file)
    assert re.search(rf"^def {name}\(", path.read_text(), re.MULTILINE)


def test_each_law_names_its_tests() -> None:
    rows = re.findall(r"^\| (\d) [^|]+\|([^|]+)\|$", GUARANTEES, re.MULTILINE)
    assert [number for number, _ in rows] == list("123456789")
    assert all("::test_" in tests for _, tests in rows)


@pytest.mark.parametrize("page", ["README.md", "examples/README.md", "benchmarks/README.md"])
def test_each_file_that_a_readme_links_to_exists(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\(([^)#]+)\)", path.read_text())
    assert links
    for link in links:
        assert (path.parent / link).exists(), link


def test_each_file_that_the_architecture_page_names_exists() -> None:
    files = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", ARCHITECTURE)
    assert len(files) > 15
    for file in files:
        assert (ROOT / file).exists() or (ROOT / "loaderkit" / file).exists(), file


@pytest.mark.parametrize("page", ["README.md", "docs/benchmarks.md"])
def test_the_benchmarks_have_their_place(page: str) -> None:
    text = (ROOT / page).read_text()
    assert text.count("<!-- benchmarks -->") == text.count("<!-- /benchmarks -->") == 1


def test_the_readmes_benchmarks_are_the_measured_ones() -> None:
    commands = re.findall(r"\| `python (benchmarks/\S+\.py)` \|$", README, re.MULTILINE)
    assert len(commands) == 5
    assert all((ROOT / command).exists() for command in commands)
