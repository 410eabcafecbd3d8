"""The pages of the documentation: their code runs, and they name every public name."""

import re
import runpy
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import scripts

import loaderkit as lk

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "decisions" not in page.parts]
# Blocks marked `python` run. Code of other libraries is marked `py`, and does not.
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TUTORIALS = [page for page in sorted((DOCS / "tutorials").glob("*.md")) if page.stem != "index"]
WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text())]

FIXTURES = DOCS.parent / "tests" / "fixtures"
DATA = {  # of other tools, which a page opens
    "moving/energon.md": {"data": "energon/data"},
    "moving/lhotse.md": {"shar": "shar/data"},
    "moving/litdata.md": {"chunks": "litdata/dicts"},
    "moving/mosaicml-streaming.md": {"mds": "mds/plain"},
}


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS))


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_a_pages_code_runs(page: Path, tmp_path: Path) -> None:
    """The blocks of a page run one after another, in a process of their own and a folder with nothing but the data of the page."""
    for folder, fixture in DATA.get(name_of(page), {}).items():
        shutil.copytree(FIXTURES / fixture, tmp_path / folder)
    script = tmp_path / "page.py"
    script.write_text("\n".join(BLOCK.findall(page.read_text())))
    scripts.run(tmp_path, script)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_is_short(page: Path) -> None:
    assert len(page.read_bytes()) <= 15_000
    assert page.read_text().startswith(("# ", "--8<--"))


def test_every_public_name_is_in_the_reference() -> None:
    text = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    missing = [name for name in lk.__all__ if f"::: loaderkit.{name}\n" not in text + "\n"]
    assert len(lk.__all__) > 90
    assert missing == []


def test_a_link_to_a_name_goes_to_the_page_that_has_it() -> None:
    links = [
        (page, page.parent / place, name)
        for page in DOCS.rglob("*.md")
        for place, name in re.findall(r"\]\(([\w./-]+\.md)#loaderkit\.(\w+)\)", page.read_text())
    ]
    assert len(links) > 50
    assert [link for link in links if f"::: loaderkit.{link[2]}\n" not in link[1].read_text()] == []


def test_the_diagrams_are_those_of_their_source() -> None:
    module = runpy.run_path(str(DOCS / "diagrams" / "draw.py"))
    used = set(re.findall(r"diagrams/(\w+)\.svg", "".join(page.read_text() for page in PAGES)))
    assert used == set(module["DIAGRAMS"])
    for name, diagram in module["DIAGRAMS"].items():
        assert (DOCS / "diagrams" / f"{name}.svg").read_text() == module["draw"](diagram)


@pytest.mark.parametrize("page", TUTORIALS, ids=name_of)
def test_a_notebook_has_the_code_of_its_page(page: Path) -> None:
    """Each python block is a code cell; the rest is prose without links that only the site has."""
    pytest.importorskip("jupytext")
    hooks = runpy.run_path(str(DOCS / "hooks.py"))
    text = page.read_text() + "\n```sh\nls\n```\n"
    cells = hooks["notebook"](text).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert code == [block.strip() for block in BLOCK.findall(text)]
    assert len(code) > 4
    assert prose.startswith("# ")
    assert not re.search(r"\.md|<a |!\[", prose)


@pytest.mark.parametrize("page", TUTORIALS, ids=name_of)
def test_a_link_to_a_notebook_is_only_in_the_site(page: Path) -> None:
    """In the repository it would be dead: the notebooks are made with the site."""
    pytest.importorskip("jupytext")
    assert ".ipynb" not in page.read_text()
    hooks = runpy.run_path(str(DOCS / "hooks.py"))
    shown = hooks["on_page_markdown"](
        page.read_text(), page=SimpleNamespace(meta={}, file=SimpleNamespace(src_uri=name_of(page)))
    )
    assert f'<a href="../{page.stem}.ipynb" download>' in shown
    assert shown.splitlines()[0] == page.read_text().splitlines()[0]


ROOT = DOCS.parent
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def test_the_table_of_extras_has_each_of_them() -> None:
    rows = re.findall(r"^\| ((?:`[\w-]+`(?:, )?)+) \|", (DOCS / "index.md").read_text(), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == EXTRAS


def test_what_is_installed_by_a_command_of_ours_exists() -> None:
    """No package index has a distribution of this name yet, so each command installs from a checkout."""
    files = [ROOT / "README.md", *PAGES, *ROOT.glob("*/README.md"), *(ROOT / "loaderkit").rglob("*.py")]
    files += [*(ROOT / "examples").glob("*.py"), *(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    commands = [(file, found) for file in files for found in re.findall(r"pip install ([^\n]*)", file.read_text())]
    assert len(commands) > 30
    for file, command in commands:
        assert not re.match(r"""(-\S+ )*['"]?loaderkit""", command), file
        for extras in re.findall(r"\.\[([a-z,-]+)\]", command):
            assert set(extras.split(",")) <= EXTRAS, file
    assert [page for page in [ROOT / "README.md", *PAGES] if "loaderkit[" in page.read_text()] == []


def test_no_page_promises_macos() -> None:
    """No test was ever run there."""
    words = " ".join(
        " ".join(page.read_text() for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]).split()
    )
    sentences = [sentence for sentence in re.split(r"(?<=[.!?:|])\s", words) if "macOS" in sentence]
    assert len(sentences) >= 3
    assert all(re.search(r"\b(not|no|never|nor|was)\b", sentence) for sentence in sentences), sentences
