"""Versions of files, and the files that a URL names: one file, a folder, or a glob."""

import email.utils
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, TypeVar

from loaderkit.files.foreign_formats import find_marks

T = TypeVar("T")
_PART = re.compile(r"-\d+-of-\d+$")  # TensorFlow's ending for file number of total

# Names that file systems give to the time of the last change, and to the entity tag.
_CHANGED = ("mtime", "LastModified", "last_modified", "Last-Modified", "updated", "created")
_ETAGS = ("ETag", "etag", "md5Hash", "Content-MD5")


class Stat(NamedTuple):
    """The version of a file.

    Args:
        size_bytes: Size of the file.
        changed_ns: Time of the last change in ns; 0 if unknown.
        etag: The server's name for this content; empty if it has none.
    """

    size_bytes: int
    changed_ns: int
    etag: str = ""

    def is_same(self, other: "Stat") -> bool:
        """Return whether two versions have the same content.

        If both have an entity tag, the time is ignored: a listing and a HEAD request may round it differently.
        """
        if self.etag and other.etag:
            return self.size_bytes == other.size_bytes and self.etag == other.etag
        return self[:2] == other[:2]


class Entry(NamedTuple):
    """A file in a listing.

    Args:
        path: The file's path relative to the listed folder.
        stat: The file's version; None if the listing has none.
    """

    path: str
    stat: Stat | None


def stat_of(info: Mapping[str, object]) -> Stat:
    """Return a file's version from the info that an fsspec file system gives."""
    changed = next((info[key] for key in _CHANGED if info.get(key)), 0)
    etag = next((info[key] for key in _ETAGS if info.get(key)), "")
    size = info["size"]
    return Stat(
        int(size if isinstance(size, int | float) else str(size)),
        _nanoseconds(changed),
        str(etag).removeprefix("W/").strip('"'),
    )


def refuse_change(url: str, now: Stat, wanted: Stat | None) -> None:
    """Raise a ValueError if a file's version `now` is not the wanted one; None wants any."""
    if wanted is not None and not now.is_same(wanted):
        raise ValueError(
            f"{url}: changed while it was in use: is {_described(now)}, was {_described(wanted)}. Create the dataset again."
        )


def _described(found: Stat) -> str:
    return f"{found.size_bytes:,} bytes, ETag {found.etag or 'unknown'}, time {found.changed_ns / 1e9:.0f}"


def _nanoseconds(changed: object) -> int:
    moment = _moment(changed) if isinstance(changed, str) else changed
    seconds = moment.timestamp() if isinstance(moment, datetime) else float(str(moment))
    return int(seconds * 1e9)


def _moment(text: str) -> datetime:
    try:
        return email.utils.parsedate_to_datetime(text)  # as HTTP writes it
    except ValueError:
        return datetime.fromisoformat(text)


class Wanted:
    """What a URL names: a file, a folder with all files below it, or the files that match a glob.

    Args:
        url: The URL.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_web = url.startswith(("http://", "https://"))
        rest = url.partition("://")[2]
        self.is_glob = _has_any(rest.partition("/")[2], "*[") if self.is_web else _has_any(rest, "*?[")
        self.folder, _, self.name = url.rpartition("/")

    @property
    def is_flat(self) -> bool:
        """Whether the URL is a glob with wildcards only in the file name, so that listing one folder answers it."""
        return self.is_glob and not self.is_web and not _has_any(self.folder, "*?[") and "**" not in self.name

    def matching(self, found: Mapping[str, T]) -> dict[str, T]:
        """Return the files that match a flat glob, out of all files in its folder."""
        from fsspec.utils import glob_translate

        matches = re.compile(glob_translate(self.name)).match
        return {name: info for name, info in found.items() if matches(name.rpartition("/")[2])}

    def chosen(self, found: Mapping[str, Entry], suffixes: Sequence[str], marks: list[str]) -> dict[str, Stat | None]:
        """Return the chosen files' versions by URL. Of a folder, hidden files and other suffixes are left out.

        Args:
            found: All files at the URL.
            suffixes: Suffixes to choose in a folder. One file and a glob's matches are chosen whatever their suffix.
            marks: For a folder, the paths that may be marks of other formats are appended to it (see `find_marks`).
        """
        if not self.is_glob and list(found) != [self.url]:
            marks += find_marks(one.path for one in found.values())
            endings = tuple(suffixes)
            found = {url: one for url, one in found.items() if has_suffix(url, endings) and not is_hidden(one.path)}
        return {url: one.stat for url, one in found.items()}


def _has_any(text: str, signs: str) -> bool:
    return any(sign in text for sign in signs)


def has_suffix(name: str, suffixes: tuple[str, ...]) -> bool:
    """Return whether a file name has one of the suffixes. A number such as `-00003-of-00010` may follow the suffix."""
    return name.endswith(suffixes) or ("-of-" in name and _PART.sub("", name).endswith(suffixes))


def is_hidden(path: str) -> bool:
    """Return whether a part of a path begins with a dot."""
    return any(part.startswith(".") for part in path.split("/"))
