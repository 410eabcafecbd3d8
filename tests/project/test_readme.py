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
KILL = "\n        if loader.cursor.epoch == 1 and loader.cursor.batches == 30:\n            os._exit(9)\n"
EPOCH_ENDS = '    print(f"epoch'  # after the last line of the inner loop

NO_PROSE = re.compile(r"^```.*?^```$|^[|#!<][^\n]*$|\]\([^)]*\)", re.MULTILINE | re.DOTALL)


def test_the_readme_is_short() -> None:
    assert len(README.encode()) <= 9000


def test_its_sentences_are_short() -> None:
    blocks = re.split(r"\n\s*\n|\n- ", NO_PROSE.sub("", README))
    sentences = [sentence for block in blocks for sentence in re.split(r"(?<=[.!?:])\s+", block) if sentence.split()]
    assert len(sentences) > 30
    assert [sentence for sentence in sentences if len(sentence.split()) > 25] == []


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", [25, 57, 97])
def test_the_lightning_quickstart_ends_with_the_same_weights_after_a_kill(kill_at: int, tmp_path: Path) -> None:
    """As the README says it: run it, kill it, run it again."""
    own = "import torch; torch.seed()\n"  # as in a fresh interpreter; the tests' processes are forks of one
    code = own + LIGHTNING.replace("max_epochs=9", "max_epochs=2")
    assert "max_epochs=2" in code
    assert len([line for line in LIGHTNING.splitlines() if line]) <= 16
    kill = "    def on_train_batch_start(self, batch, batch_idx):\n"
    kill += f"        if self.global_step == {kill_at}: __import__('os')._exit(9)\n"
    killed_code = code.replace("    def configure_optimizers", kill + "    def configure_optimizers")
    assert killed_code != code
    check = "\nlast = torch.load('runs/digits/last.ckpt', weights_only=True)\n"
    check += "print('end', last['global_step'], *map(float, [w.double().sum() for w in last['state_dict'].values()]))\n"
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    run(killed, killed_code, code=9)
    again = run(killed, code + check)
    assert "Restored all states from the checkpoint" in again
    (end,) = re.findall(r"^end 100 .*", run(whole, code + check), re.MULTILINE)
    assert end in again


@pytest.mark.slow
def test_the_plain_loop_ends_with_the_same_weights_after_a_kill(tmp_path: Path) -> None:
    code = "import torch; torch.seed()\n" + PLAIN.replace("epoch < 9", "epoch < 2")
    assert "epoch < 2" in code
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    run(killed, code.replace(EPOCH_ENDS, KILL + EPOCH_ENDS), code=9)
    assert (killed / "run.pt").exists()
    resumed, never_killed = (run(folder, code + PRINT_WEIGHTS).splitlines() for folder in (killed, whole))
    assert resumed[0] != never_killed[0]  # it says where it starts
    assert resumed[-1] == never_killed[-1]


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FIT = re.compile(r"^```(?:python|py)\n(?:(?!^```).)*?\.fit\([^\n]*ckpt_path=.*?^```$", re.MULTILINE | re.DOTALL)


def test_each_run_that_resumes_seeds_the_weights_it_begins_with() -> None:
    """Else a run that is killed before its first checkpoint, and any copy of the run, ends with other weights."""
    found = [(page, block) for page in PAGES for block in FIT.findall(page.read_text())]
    assert len(found) > 8
    assert [page for page, block in found if "seed_everything(" not in block] == []


# Pages that promise weights for a real trainer, and the tests that kill it.
ELSEWHERE = {
    "accelerate.md": "test_accelerate.py",
    "chats.md": "test_examples.py",
    "other-trainers.md": "test_examples.py",
    "README.md": "test_readme.py",
    "tokenize-on-the-way.md": "test_examples.py",
    "torchtitan.md": "test_torchtitan.py",
}


def test_where_a_page_promises_the_same_weights_its_code_or_a_test_compares_them() -> None:
    pages = [page for page in PAGES if "decisions" not in page.parts and page.name not in ("changelog.md", "limits.md")]
    promising = [page for page in pages if re.search(r"(?i)\bsame (final )?weights\b", page.read_text())]
    assert len(promising) > 5
    for page in promising:
        compares = any(
            "torch.equal(" in block for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
        )
        elsewhere = ELSEWHERE.get(page.name)
        assert compares or (elsewhere and any((ROOT / "tests").rglob(elsewhere))), page


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
    assert len(commands) == 7
    assert all((ROOT / command).exists() for command in commands)
