"""The pages of the documentation: their code runs, and they name every public name."""

import re
import runpy
from pathlib import Path

import pytest
import scripts

import loaderkit as lk

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "decisions" not in page.parts]
# Blocks marked `python` run. Code of other libraries is marked `py`, and does not.
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TUTORIALS = [page for page in sorted((DOCS / "tutorials").glob("*.md")) if page.stem != "index"]
WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text())]


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS))


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_a_pages_code_runs(page: Path, tmp_path: Path) -> None:
    """The blocks of a page run one after another, in an empty folder and a process of their own."""
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
