"""Each record of a decision has a status, a date, what it replaces, a package and what was rejected; an index lists them by package."""

import re
from datetime import date
from pathlib import Path

import pytest

import loaderkit as lk

DECISIONS = Path(__file__).parents[2] / "docs" / "decisions"
RECORDS = sorted(DECISIONS.glob("0*.md"))
INDEX = (DECISIONS / "README.md").read_text()
META = re.compile(
    r"Status: (?P<status>accepted(, its [a-z]+ replaced by \[\d{4}\]\(\S+\.md\))?|replaced by \[\d{4}\]\(\S+\.md\))\. "
    r"Date: (?P<date>\d{4}-\d\d-\d\d)\. "
    r"Replaces: (?P<replaces>nothing|record \d+|(the [a-z]+ of )?\[\d{4}\]\(\S+\.md\))\. "
    r"Package: `(?P<package>[a-z]+)`\."
)
PARTS = ("**Context.**", "**Decision.**", "**Rejected.**")


def title_of(record: Path) -> str:
    return record.read_text().splitlines()[0]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_record_has_its_form(record: Path) -> None:
    text = record.read_text()
    head, empty, meta, *_ = text.splitlines()
    assert re.fullmatch(rf"# {int(record.stem[:4])}\. \S.+", head)
    assert empty == ""
    found = META.fullmatch(meta)
    assert found, meta
    assert date.fromisoformat(found["date"]) <= date.today()
    packages = {path.name for path in Path(lk.__file__).parent.iterdir() if path.is_dir()} | {"loaderkit"}
    assert found["package"] in packages
    assert [text.count(part) for part in PARTS] == [1, 1, 1]
    assert len(text.partition("**Rejected.**")[2].split("\n\n")[0].split()) > 4
    for link in re.findall(r"\]\((\d{4}-\S+?\.md)\)", text):
        assert (DECISIONS / link).exists(), link


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_the_index_lists_a_record_under_its_package(record: Path) -> None:
    found = META.search(record.read_text())
    assert found
    (section,) = re.findall(rf"(?ms)^## `{found['package']}`\n(.*?)(?=^## |\Z)", INDEX)
    title = title_of(record).partition(". ")[2]
    assert f"- [{record.stem[:4]}]({record.name}) {title}\n" in section


def test_each_number_has_a_record_or_a_line_that_says_why_not() -> None:
    numbers = {int(record.stem[:4]) for record in RECORDS}
    assert len(numbers) == len(RECORDS) > 60
    missing = set(range(1, max(numbers) + 1)) - numbers
    explained = INDEX.partition("## Numbers without a record")[2]
    assert missing == {int(number) for number in re.findall(r"(?m)(?<=[-,] )(\d{4})(?=[,:])", explained)}
    assert INDEX.count("- [0") == len(RECORDS)
