"""The guides for users of other loaders: their tables name every option of theirs, and only names that exist here."""

import ast
import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import loaderkit as lk

MOVING = Path(__file__).parents[2] / "docs/moving"
SETTINGS = {field.name for field in dataclasses.fields(lk.LoaderConfig)}
HEADING = re.compile(r"^### `([\w.]+)`( stages)?$\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
TABLES = [
    pytest.param(*found.groups(), id=f"{page.stem}: {found[1]}")
    for page in sorted(MOVING.glob("*.md"))
    for found in HEADING.finditer(page.read_text())
]


def resolve(path: str) -> Any:
    """Return the object of a dotted path; skip the test if its package is not installed."""
    parts = path.split(".")
    found = pytest.importorskip(parts[0])
    for depth, part in enumerate(parts[1:], 2):
        if not hasattr(found, part):
            importlib.import_module(".".join(parts[:depth]))
        found = getattr(found, part)
    return found


def rows_of(section: str) -> list[list[str]]:
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def name_of(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return None if (owner := name_of(node.value)) is None else f"{owner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def ours(name: str) -> Any:
    found: Any = lk
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found


def exists(name: str) -> bool:
    try:
        ours(name)
    except AttributeError:
        return False
    return True


def unknown_names(code: str) -> list[str]:
    """Return what a cell's code names that loaderkit does not have: settings, attributes and arguments."""
    tree = ast.parse(f"_({code})", mode="eval")
    call = tree.body
    assert isinstance(call, ast.Call)
    wrong = [f"{word.arg}=" for word in call.keywords if word.arg not in SETTINGS]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (name := name_of(node)) and name.startswith("lk.") and not exists(name):
            wrong.append(name)
        if isinstance(node, ast.Call) and (name := name_of(node.func)) and name.startswith("lk.") and exists(name):
            accepted = inspect.signature(ours(name)).parameters
            wrong += [f"{name}({word.arg}=)" for word in node.keywords if word.arg not in accepted]
    return wrong


@pytest.mark.parametrize(("path", "stages", "section"), TABLES)
def test_a_table_names_every_option(path: str, stages: str | None, section: str) -> None:
    found = resolve(path)
    if stages:
        wanted = {name for name in vars(found) if not name.startswith("_")}
    else:
        wanted = set(inspect.signature(found).parameters) - {"self"}
    listed = {row[0].strip("`") for row in rows_of(section)}
    assert wanted
    assert sorted(wanted - listed) == []


@pytest.mark.parametrize(("path", "stages", "section"), TABLES)
def test_what_a_table_gives_in_place_exists(path: str, stages: str | None, section: str) -> None:
    rows = rows_of(section)
    assert rows
    for theirs, instead, *notes in rows:
        assert instead.startswith(("`", "see ", "nothing, because ")), theirs
        code = [text for cell in (instead, *notes) for text in re.findall(r"`([^`]+)`", cell)]
        for text in code:
            if "lk." in text or re.match(r"\w+=", text):
                assert unknown_names(text) == [], theirs
        if instead.startswith("`"):
            assert re.search(r"`(lk\.|\w+=)", instead), theirs


def test_names_that_do_not_exist_are_found() -> None:
    assert unknown_names("shuffel=True") == ["shuffel="]
    assert unknown_names("lk.Storrage(cache_dir=...)") == ["lk.Storrage"]
    assert unknown_names("lk.Storage(cache_dirs=...)") == ["lk.Storage(cache_dirs=)"]
    assert unknown_names("order=lk.ShardOrder(window=..., widow=...)") == ["lk.ShardOrder(widow=)"]


def test_every_guide_has_a_table() -> None:
    pages = {page.stem for page in MOVING.glob("*.md")} - {"index", "comparison"}
    assert len(pages) == 6
    assert {str(table.id).split(":")[0] for table in TABLES} == pages
