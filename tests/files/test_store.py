"""One way to list: a URL names the same files in each store, however it is written."""

from fnmatch import fnmatchcase

import fsspec
import pytest

import loaderkit as lk
from loaderkit.files.listing import Stat
from loaderkit.files.requests import Requests
from loaderkit.files.store import choose_store
from loaderkit.system.shared_counts import SharedCounts

PATHS = ("a.tar", "b.tar", "b.txt", ".c.tar", "in/d.tar", "in/.e/f.tar", "out/g.tar", "part.tar-00001-of-00002")
CONTENT = {path: bytes(range(number, 2 * number)) for number, path in enumerate(PATHS, start=3)}


@pytest.fixture(scope="module", autouse=True)
def files() -> None:
    fsspec.filesystem("memory").pipe({f"/listed/{path}": content for path, content in CONTENT.items()})


def in_folder(path: str) -> bool:
    is_shown = not any(part.startswith(".") for part in path.split("/"))
    return is_shown and (path.endswith(".tar") or ".tar-" in path)


WANTED = {
    "": [path for path in PATHS if in_folder(path)],
    "/": [path for path in PATHS if in_folder(path)],
    "/in": ["in/d.tar"],
    "/b.txt": ["b.txt"],  # a file is what was asked for, whatever its name
    "/*.tar": [path for path in PATHS if "/" not in path and fnmatchcase(path, "*.tar")],
    "/[ab].t??": ["a.tar", "b.tar", "b.txt"],
    "/*/*.tar": ["in/d.tar", "out/g.tar"],
    "/none/*.tar": [],
}


@pytest.mark.parametrize("ending", WANTED)
def test_a_url_names_a_file_a_folder_or_the_matches_of_a_glob(ending: str) -> None:
    listed = lk.Storage(cache_dir=None).find(f"memory://listed{ending}", [".tar"])
    found = {url.rpartition("listed/")[2]: version for url, version in listed.items()}
    assert sorted(found) == sorted(WANTED[ending])
    assert [version.size_bytes for version in found.values() if version is not None] == [
        len(CONTENT[path]) for path in found
    ]


def test_a_folder_tells_the_marks_in_it() -> None:
    fsspec.filesystem("memory").pipe("/marked/index.json", b"{}")
    marks: list[str] = []
    assert lk.Storage(cache_dir=None).find("memory://marked", [".tar"], marks) == {}
    assert marks == ["index.json"]


@pytest.mark.parametrize(
    "url", ["memory://listed/a.tar", "s3://bucket/a.tar", "gs://bucket/a.tar", "https://host/a.tar"]
)
def test_a_store_has_the_four_verbs(url: str) -> None:
    store = choose_store(url, {}, 10)
    assert all(callable(getattr(store, verb)) for verb in ("info", "list", "get", "put"))


def test_what_is_written_is_read_with_or_without_its_size() -> None:
    counts = SharedCounts("bytes")
    requests = Requests(options={}, retry=lk.Retry(attempts=1), timeout_s=10, counts=counts)
    url = "memory://written/x.bin"
    requests.write(url, bytes(range(100)))
    assert requests.stat(url) == Stat(100, requests.stat(url).changed_ns)
    for start, stop in ((0, 100), (7, 8), (40, 60)):
        for size in (100, None):
            assert bytes(requests.read(url, start, stop, size)) == bytes(range(start, stop))
    assert bytes(requests.read(url, 90, 200)) == bytes(range(90, 100))  # the file ends before
    with pytest.raises(OSError, match=r"x\.bin: bytes 90 to 200 of 300: .*got 10 bytes, wanted 110"):
        requests.read(url, 90, 200, 300)
    assert counts.read()["bytes"] == 2 * (100 + 1 + 20) + 10 + 10
