"""Paths, globs and URLs of shards: listed in the same order on every machine, and opened in the same way."""

import contextlib
import glob
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from loaderkit.datasets.braces import expand_braces
from loaderkit.datasets.errors import ShardError
from loaderkit.datasets.folder_splits import choose_split
from loaderkit.datasets.misread import refuse_misread, refuse_table
from loaderkit.datasets.remote.listing import Stat, has_suffix, is_hidden
from loaderkit.datasets.remote.storage import Storage
from loaderkit.datasets.signatures import describe, find_marks, local_reader
from loaderkit.system.regular_file import open_regular

# Lists first: a command line takes the first type that fits, and everything fits a string.
Urls = Sequence[str | os.PathLike[str]] | str | os.PathLike[str]

INDEX_SUFFIX = ".lkindex"  # of index files
_SMALL = 1 << 24  # bytes of a file that describes a folder, at most


def expand(
    urls: Urls, suffixes: Sequence[str], storage: Storage | None = None, *, split: str | None = None
) -> list[str]:
    """Return the shards at some URLs. As `find_shards`, without their versions."""
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

    Remote shards have their versions where a listing gives them.

    Args:
        urls: A file, a folder (its files with one of the suffixes), a glob, a URL of any of these, or a list of them. Braces stand
            for several: `a_{000..002}.tar`.
        suffixes: Endings of the files of a folder, with the dot.
        storage: How to reach remote files.
        split: Of folders that have splits (DatasetDict, Energon), the one to take.
        left_out: Gets the keys of samples that the split leaves out, by shard.

    Raises:
        FileNotFoundError: If a URL matches nothing.
        ShardError: If a folder is of a format that must not be read file by file, or of one that loaderkit does not read.
        ValueError: If there are no URLs, or a shard is listed twice.
    """
    given = [urls] if isinstance(urls, str | os.PathLike) else list(urls)
    if not given:
        raise ValueError("no urls given, wanted a path, folder, glob or URL, or a list of them.")
    shards: list[tuple[str, Stat | None]] = []
    for url, pattern in _names_of(given):
        remote, marks = is_remote(url), list[str]()
        listed: Mapping[str, Stat | None]
        if remote and pattern and has_suffix(url, tuple(suffixes)) and not any(sign in url for sign in "*?["):
            listed = {url: None}  # of many files a listing each would take long
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
            if not remote and (what := describe(url)) is not None:
                raise ShardError(f"{what} Wanted files that end in {', '.join(suffixes)}.")
            gone = "" if remote or glob.has_magic(url) or Path(url).exists() else " (no such file or folder)"
            braces = f" It is one of the names that {pattern!r} stands for." if pattern else ""
            raise FileNotFoundError(
                f"no shards at {url!r}{gone}, wanted files that end in {', '.join(suffixes)}.{braces}"
            )
        shards += sorted(found.items(), key=lambda item: item[0])
    _refuse_foreign((shard for shard, _ in shards if not is_remote(shard)), tuple(suffixes))
    names = Counter(shard if is_remote(shard) else str(Path(shard).resolve()) for shard, _ in shards)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise ValueError(
            f"{len(twice)} of {len(names)} shards are listed more than once, the first is {twice[0]}; wanted each once. "
            "To read data several times use lk.Mixture or ConcatDataset."
        )
    return dict(shards)


def _names_of(given: Iterable[str | os.PathLike[str]]) -> Iterator[tuple[str, str]]:
    """Yield each URL, and the pattern of braces that it comes from; empty if there are none."""
    for item in given:
        url = os.fspath(item)
        url = url.removeprefix("file://") if url.startswith("file:///") else url
        names = expand_braces(url) if "{" in url and (is_remote(url) or not Path(url).exists()) else [url]
        yield from ((name, "" if names == [url] else url) for name in names)


def is_remote(url: str) -> bool:
    """Return whether a URL goes through fsspec."""
    return "://" in url


def side_folder(folder: str) -> str:
    """Return the hidden folder next to a folder of shards, with their manifest and index: other tools read all that is in the folder.

    A bucket, a repository of Hugging Face or a root has nothing next to it, so its own is inside.
    """
    if is_remote(folder):
        scheme, _, path = folder.rstrip("/").partition("://")
        head, _, name = path.rpartition("/")
        is_root = path.count("/") < (3 if scheme == "hf" else 1)  # hf://datasets/user/name
        return f"{scheme}://{path}/.loaderkit" if is_root else f"{scheme}://{head}/.{name}.loaderkit"
    head, name = os.path.split(folder.rstrip("/"))
    if name in ("", ".", "..") or os.path.islink(folder.rstrip("/")):  # noqa: PTH114 - as `folder` is written
        head, name = os.path.split(os.path.realpath(folder))
    return os.path.join(head, f".{name}.loaderkit" if name else ".loaderkit")  # noqa: PTH118


def shard_name(url: str) -> str:
    """Return the file name of a shard, without folder, query and fragment."""
    return Path(urlsplit(url).path if url.startswith(("http://", "https://")) else url).name


def open_file(url: str, storage: Storage | None = None) -> BinaryIO:
    """Open a shard as a seekable file of bytes."""
    return (storage or Storage()).open(url) if is_remote(url) else open_regular(url)


def stat(url: str, storage: Storage | None = None) -> Stat:
    """Return the version that a shard has now."""
    if is_remote(url):
        return (storage or Storage()).stat(url)
    found = os.stat(url)  # noqa: PTH116 - creating a Path takes longer than the call
    return Stat(found.st_size, found.st_mtime_ns)


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a complete file or nothing, even after a crash or with several writers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{uuid.uuid4().hex}.part")  # short enough for any file system
    try:
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError):  # an error of `write` names no file
            error.filename, error.filename2 = os.fspath(path), None
        raise


def relative_to(folder: str, shard: str) -> str:
    """Return the path of a shard in a folder, of either a path or a URL."""
    if is_remote(folder):
        folder, shard = (name.partition("://")[2].strip("/") for name in (folder, shard))
    else:
        folder = str(Path(folder))
    return shard if folder == "." else shard.removeprefix(folder).lstrip("/")


def read_in(folder: str, storage: Storage | None = None) -> Callable[[str], bytes]:
    """Return a function that reads small files of a folder by their relative paths."""
    if is_remote(folder):
        return lambda name: (storage or Storage()).read_some(f"{folder.rstrip('/')}/{name}", 0, _SMALL)
    return local_reader(folder)


def _refuse_misread(
    url: str, marks: list[str], found: Mapping[str, Stat | None], suffixes: Sequence[str], storage: Storage | None
) -> None:
    if marks:
        names = [relative_to(url, shard) for shard in found]
        refuse_misread(url, marks, names, suffixes, read_in(url, storage))
    if ".parquet" in suffixes and not is_remote(url):
        refuse_table({shard.rpartition("/")[0] for shard in found if shard.endswith(".parquet")})


def _refuse_foreign(shards: Iterable[str], suffixes: tuple[str, ...]) -> None:
    """Raise a ShardError if the first local file without one of the suffixes is of a format that loaderkit does not read."""
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
    """Return the files in a folder with one of the suffixes that are not hidden; add marks of other formats to `marks`."""
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
