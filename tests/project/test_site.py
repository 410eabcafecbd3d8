"""The built site: what a reader types finds its page, and the reference has signatures and short pages."""

import inspect
import re
import subprocess
import sys
from collections import Counter
from html import unescape
from pathlib import Path

import pytest
from site_search import SiteSearch

import loaderkit as lk

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

# What people type, and the page that should come first.
WORDS = {
    "hdf5": "howto/databases/",
    "sqlite": "howto/databases/",
    "lmdb": "howto/databases/",
    "curriculum": "howto/stages/",
    "out of memory": "howto/troubleshooting/",
    "troubleshooting": "howto/troubleshooting/",
    "hangs": "howto/troubleshooting/",
    "tqdm": "howto/plain-loop/",
    "faq": "howto/troubleshooting/",
    "slurm": "howto/preemption/",
    "preemption": "howto/preemption/",
    "fsdp": "howto/distributed/",
    "ddp": "howto/distributed/",
    "s3": "howto/train-from-a-bucket/",
    "bad samples": "howto/bad-samples/",
    "loss spike": "howto/loss-spike/",
    "mixture": "howto/mixtures/",
    "webdataset": "moving/webdataset/",
    "litdata": "moving/litdata/",
    "accelerate": "howto/accelerate/",
    "seed": "concepts/seeds/",
    "upgrade": "concepts/versions/",
    "cheat sheet": "howto/cheat-sheet/",
    "padding": "howto/variable-lengths/",
    "video": "howto/audio-and-video/",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return target


def test_what_people_type_finds_its_page_first(site: Path) -> None:
    search = SiteSearch(site / "search" / "search_index.json")
    found = {words: (search.pages(words) or ["nothing"])[0] for words in WORDS}
    wrong = {words: page for words, page in found.items() if page != WORDS[words]}
    assert len(WORDS) == 25
    assert len(wrong) <= 2, wrong


def test_records_of_the_past_are_not_searched(site: Path) -> None:
    places = SiteSearch(site / "search" / "search_index.json").places
    assert len(places) > 300
    assert not [place for place in places if place.startswith(("decisions/0", "changelog/"))]


def test_no_page_of_the_reference_is_long(site: Path) -> None:
    search = SiteSearch(site / "search" / "search_index.json")
    words: Counter[str] = Counter()
    for place, sizes in zip(search.places, search.sizes["text"], strict=True):
        if place.startswith("reference/"):
            words[place.split("#")[0]] += sizes
    assert len(words) > 20
    assert {page: count for page, count in words.items() if count > 2500} == {}


@pytest.mark.parametrize("name", ["Loader", "ParquetDataset", "PackPlan", "split", "DataModule"])
def test_the_reference_has_signatures(site: Path, name: str) -> None:
    pages = [page.read_text() for page in (site / "reference").rglob("index.html")]
    (page,) = [page for page in pages if f'id="loaderkit.{name}"' in page]
    text = unescape(re.sub(r"<[^>]+>", "", page[page.index(f'id="loaderkit.{name}"') :]))
    signature = re.sub(r"\s+", "", text)
    for parameter in inspect.signature(getattr(lk, name)).parameters:
        assert re.search(rf"[(,*]{parameter}[:=,]", signature[:6000]), parameter


def test_the_site_shows_its_version_and_the_next_page(site: Path) -> None:
    page = (site / "howto" / "plain-loop" / "index.html").read_text()
    assert f"loaderkit {lk.__version__}" in page
    assert "md-footer__link--next" in page
    assert "md-footer__link--prev" in page
