"""The guides for users of other loaders: their tables name every option of theirs, and only names that exist here."""

import ast
import dataclasses
import importlib
import inspect
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
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
    assert len(pages) == 9
    assert {str(table.id).split(":")[0] for table in TABLES} == pages


# What the pages say of another library, with the version that they name.


def test_webdatasets_torchrgb8_neither_turns_nor_scales_as_the_page_says() -> None:
    webdataset = pytest.importorskip("webdataset")
    image = pytest.importorskip("PIL.Image")
    turned, exif = io.BytesIO(), image.Exif()
    exif[0x0112] = 6  # a quarter to the right
    image.new("RGB", (4, 2), "red").save(turned, "JPEG", exif=exif)
    grey = io.BytesIO()
    image.fromarray((np.arange(8, dtype=np.uint16) * 8192).reshape(2, 4)).save(grey, "PNG")
    theirs = webdataset.autodecode.imagehandler("torchrgb8")
    assert tuple(theirs("jpg", turned.getvalue()).shape) == (3, 2, 4)
    assert tuple(lk.DECODERS["jpg"](turned.getvalue()).shape) == (3, 4, 2)
    assert theirs("png", grey.getvalue())[0].flatten().tolist() == [0, *[255] * 7]
    assert lk.DECODERS["png"](grey.getvalue())[0].flatten().tolist() == [32 * number for number in range(8)]


@pytest.mark.filterwarnings("ignore")
def test_hugging_faces_torch_format_rounds_a_batch_with_a_null_as_the_page_says() -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"x": [16_777_217, None]})
    formatted = data.with_format("torch")
    assert formatted[0:1]["x"].tolist() == [16_777_217]
    assert formatted[0:2]["x"][0] == 16_777_216
    with pytest.raises(lk.CollateError, match="field 'x' has types"):
        next(iter(lk.Loader(lk.HFDataset(data), batch_size=2)))


FINDINGS = Path(__file__).parents[2] / "findings"


def test_the_page_on_streaming_says_what_the_finding_found() -> None:
    """The package needs an environment of its own, so a script of `findings/` compares the orders."""
    script = (FINDINGS / "mosaicml-order-ignores-batch-size.sh").read_text()
    (version,) = re.findall(r"mosaicml-streaming==(\S+)", script)
    page = " ".join((MOVING / "mosaicml-streaming.md").read_text().split())
    assert f"With mosaicml-streaming {version} the order did not depend on it" in page
