"""Where shards lie: paths, globs and URLs, listed in one order on every machine and opened alike."""

import glob
import os
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

# Lists first: a command line takes the first type that fits, and makes a string of anything.
Urls = Sequence[str | os.PathLike[str]] | str | os.PathLike[str]

INDEX_SUFFIX = ".lkindex"  # of the files beside the shards that are none


def expand(urls: Urls, suffixes: Sequence[str]) -> list[str]:
    """List shards.

    Hidden files and folders, and index files, are none.

    Args:
        urls: A file, a folder (its files with one of the suffixes, at any
            depth), a glob, or a URL of those, or several of them.
        suffixes: What the files of a folder end in, with the dot.

    Returns:
        The shards, sorted within each of the urls.

    Raises:
        FileNotFoundError: If a url matches nothing.
        ValueError: If no url is given, or a shard is listed twice.
    """
    given = [urls] if isinstance(urls, str | os.PathLike) else list(urls)
    if not given:
        raise ValueError("no urls given, wanted a path, folder, glob or URL, or a list of them.")
    shards: list[str] = []
    for url in [os.fspath(item) for item in given]:
        found = _expand_remote(url, suffixes) if is_remote(url) else _expand_local(url, suffixes)
        found = [path for path in found if not path.endswith(INDEX_SUFFIX)]
        if not found:
            raise FileNotFoundError(f"no shards at {url!r}, wanted files that end in {', '.join(suffixes)}.")
        shards += sorted(found)
    names = Counter(shard if is_remote(shard) else str(Path(shard).resolve()) for shard in shards)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise ValueError(
            f"{len(twice)} of {len(names)} shards are listed more than once, the first is {twice[0]}; wanted each once. "
            "To read data several times use lk.Mixture or ConcatDataset."
        )
    return shards


def is_remote(url: str) -> bool:
    """Say whether a url goes through fsspec."""
    return "://" in url


def open_file(url: str) -> BinaryIO:
    """Open a shard to read bytes; seekable."""
    if is_remote(url):
        opened: BinaryIO = _filesystem(url).open(url, "rb")
        return opened
    return Path(url).open("rb")


def stat(url: str) -> tuple[int, int]:
    """Return a shard's size in bytes and its time of change in ns (0 where the server does not tell)."""
    if not is_remote(url):
        found = Path(url).stat()
        return found.st_size, found.st_mtime_ns
    info = _filesystem(url).info(url)
    changed = info.get("mtime") or info.get("LastModified") or info.get("last_modified") or 0
    seconds = changed.timestamp() if hasattr(changed, "timestamp") else changed
    return int(info["size"]), int(float(seconds) * 1e9) if isinstance(seconds, int | float) else 0


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all, also after a crash and with other writers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{uuid.uuid4().hex}.part")  # not longer than the name may be
    try:
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _expand_local(url: str, suffixes: Sequence[str]) -> list[str]:
    if Path(url).is_dir():
        files = (path for path in Path(url).rglob("*") if path.name.endswith(tuple(suffixes)) and path.is_file())
        return [str(path) for path in files if not _is_hidden(path.relative_to(url))]
    if Path(url).is_file():
        return [url]
    return [path for path in glob.glob(url, recursive=True) if Path(path).is_file()]  # noqa: PTH207 - of any root


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _expand_remote(url: str, suffixes: Sequence[str]) -> list[str]:
    files = _filesystem(url)
    if any(sign in url for sign in "*?["):
        return [str(files.unstrip_protocol(path)) for path in files.glob(url)]
    if files.isfile(url):
        return [url]
    root = files._strip_protocol(url)
    found = [path for path in files.find(url) if path.endswith(tuple(suffixes))]
    return [str(files.unstrip_protocol(path)) for path in found if not _is_hidden(Path(path.removeprefix(root)))]


def _filesystem(url: str) -> Any:
    try:
        import fsspec
    except ImportError as error:
        raise ImportError(f"{url!r} is remote, which needs fsspec: pip install 'loaderkit[remote]'.") from error
    return fsspec.core.url_to_fs(url)[0]
