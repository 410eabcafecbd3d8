"""Find the shards at paths, globs and URLs, in the same order on every machine.

Refuse those that must not be read file by file.
"""

import glob
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from loaderkit.datasets.braces import expand_braces
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.folder_splits import choose_split
from loaderkit.datasets.misread import refuse_misread, refuse_table
from loaderkit.files.foreign_formats import describe, find_marks
from loaderkit.files.listing import Stat, has_suffix, is_hidden
from loaderkit.files.storage import Storage
from loaderkit.files.urls import INDEX_SUFFIX, Urls, is_remote, read_in, relative_to
from loaderkit.system.checks import check_ordered


def expand(
    urls: Urls, suffixes: Sequence[str], storage: Storage | None = None, *, split: str | None = None
) -> list[str]:
    """Return the shards at some URLs, as `find_shards` does, but without their versions."""
    return list(find_shards(urls, suffixes, storage, split=split))


def find_shards(
    urls: Urls,
    suffixes: Sequence[str],
    storage: Storage | None = None,
    *,
    split: str | None = None,
    left_out: dict[str, frozenset[str]] | None = None,
) -> dict[str, Stat | None]:
    """Return the shards at some URLs, sorted within each URL, without hidden files and index files.

    Each shard's value is its version (size and time or tag) if it is remote and was listed, else None.

    Args:
        urls: A file, a folder (its files with one of the suffixes), a glob, a URL of any of these, or a list of them.
            Braces are expanded: `a_{000..002}.tar`.
        suffixes: Suffixes of the files to take from a folder, with the dot.
        storage: How to reach remote files.
        split: The split to take, for folders that have splits (DatasetDict, Energon, MDS).
        left_out: A dict to fill: for each shard, the keys of samples that the split leaves out.

    Raises:
        FileNotFoundError: If a URL matches nothing.
        ShardError: If a folder is of a format that must not be read file by file, or of one that loaderkit does not read.
        ValueError: If there are no URLs, or a shard is listed twice.
    """
    check_ordered("dataset", "urls", urls)
    given = [urls] if isinstance(urls, str | os.PathLike) else list(urls)
    if not given:
        raise ValueError("no urls given, wanted a path, folder, glob or URL, or a list of them.")
    shards: list[tuple[str, Stat | None]] = []
    for url, pattern in _names_of(given):
        remote, marks = is_remote(url), list[str]()
        listed: Mapping[str, Stat | None]
        if remote and pattern and has_suffix(url, tuple(suffixes)) and not any(sign in url for sign in "*?["):
            listed = {url: None}  # one listing for each of many files would take long
        elif remote:
            listed = (storage or Storage()).find(url, suffixes, marks)
        else:
            listed = dict.fromkeys(_expand_local(url, suffixes, marks))
        found = {path: version for path, version in listed.items() if not path.endswith(INDEX_SUFFIX)}
        if split is not None:
            inner = {relative_to(url, shard): shard for shard in found}
            chosen = choose_split(url, split, marks, list(inner), read_in(url, storage))
            found = {inner[name]: found[inner[name]] for name in chosen.shards}
            if left_out is not None:
                left_out |= {inner[name]: keys for name, keys in chosen.excluded.items()}
        elif list(found) != [url]:  # a single file is what was asked for
            _refuse_misread(url, marks, found, suffixes, storage)
        if not found:
            raise _nothing_at(url, pattern, suffixes)
        shards += sorted(found.items(), key=lambda item: item[0])
    _refuse_foreign((shard for shard, _ in shards if not is_remote(shard)), tuple(suffixes))
    _refuse_twice(shard for shard, _ in shards)
    return dict(shards)


def _nothing_at(url: str, pattern: str, suffixes: Sequence[str]) -> Exception:
    """Return the error for a URL that matches nothing.

    `pattern` is the text with braces that the URL was expanded from, or empty.
    """
    remote, endings = is_remote(url), ", ".join(suffixes)
    if not remote and (what := describe(url)) is not None:
        return ShardError(f"{what} Wanted files that end in {endings}.")
    gone = "" if remote or glob.has_magic(url) or Path(url).exists() else " (no such file or folder)"
    braces = f" It is one of the names that {pattern!r} stands for." if pattern else ""
    return FileNotFoundError(f"no shards at {url!r}{gone}, wanted files that end in {endings}.{braces}")


def _refuse_twice(shards: Iterable[str]) -> None:
    names = Counter(shard if is_remote(shard) else str(Path(shard).resolve()) for shard in shards)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise ValueError(
            f"{len(twice)} of {len(names)} shards are listed more than once, the first is {twice[0]}; wanted each once. "
            "To read data several times use lk.Mixture or ConcatDataset."
        )


def _names_of(given: Iterable[str | os.PathLike[str]]) -> Iterator[tuple[str, str]]:
    """Yield each URL, and the pattern with braces that it was expanded from; "" if it was given without braces."""
    for item in given:
        url = os.fspath(item)
        url = url.removeprefix("file://") if url.startswith("file:///") else url
        names = expand_braces(url) if "{" in url and (is_remote(url) or not Path(url).exists()) else [url]
        yield from ((name, "" if names == [url] else url) for name in names)


def _refuse_misread(
    url: str, marks: list[str], found: Mapping[str, Stat | None], suffixes: Sequence[str], storage: Storage | None
) -> None:
    if marks:
        names = [relative_to(url, shard) for shard in found]
        refuse_misread(url, marks, names, suffixes, read_in(url, storage))
    if ".parquet" in suffixes and not is_remote(url):
        refuse_table({shard.rpartition("/")[0] for shard in found if shard.endswith(".parquet")})


def _refuse_foreign(shards: Iterable[str], suffixes: tuple[str, ...]) -> None:
    """Raise a ShardError if the first shard without one of the suffixes is of a format that loaderkit does not read."""
    odd = next((shard for shard in shards if not has_suffix(shard, suffixes)), None)
    if odd is not None and (what := describe(odd)) is not None:
        raise ShardError(f"{what} Wanted files that end in {', '.join(suffixes)}.")


def _expand_local(url: str, suffixes: Sequence[str], marks: list[str]) -> list[str]:
    if Path(url).is_dir():
        return _walk(str(Path(url)), tuple(suffixes), marks)
    if Path(url).is_file():
        return [url]
    return [path for path in glob.glob(url, recursive=True) if Path(path).is_file()]  # noqa: PTH207 - of any root


def _walk(root: str, suffixes: tuple[str, ...], marks: list[str]) -> list[str]:
    """Return the files with one of the suffixes in a folder, also in its subfolders, but no hidden ones.

    Add marks of formats to `marks`.
    """
    start = "" if root == "." else root.rstrip("/") + "/"
    found: list[str] = []
    for folder, _, names in os.walk(root):
        inner = folder[len(root) :].lstrip("/")
        inner = inner + "/" if inner else ""
        marks += find_marks(inner + name for name in names)
        if not is_hidden(inner):
            chosen = (start + inner + name for name in names if has_suffix(name, suffixes) and not name.startswith("."))
            found += filter(os.path.isfile, chosen)
    return found
