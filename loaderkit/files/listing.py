"""What stores say of files: their versions, and which files a URL names."""

import email.utils
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, TypeVar

from loaderkit.files.signatures import find_marks

T = TypeVar("T")
_PART = re.compile(r"-\d+-of-\d+$")  # as TensorFlow numbers the files of one dataset

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
        """Return whether both are of one content: a listing and a HEAD may give one file's time with other precision."""
        if self.etag and other.etag:
            return self.size_bytes == other.size_bytes and self.etag == other.etag
        return self[:2] == other[:2]


class Entry(NamedTuple):
    """A file in a listing.

    Args:
        path: Path in the folder that was listed.
        stat: Its version; None if the listing has none.
    """

    path: str
    stat: Stat | None


def stat_of(info: Mapping[str, object]) -> Stat:
    """Return the version in what a file system says of a file."""
    changed = next((info[key] for key in _CHANGED if info.get(key)), 0)
    etag = next((info[key] for key in _ETAGS if info.get(key)), "")
    size = info["size"]
    return Stat(
        int(size if isinstance(size, int | float) else str(size)),
        _nanoseconds(changed),
        str(etag).removeprefix("W/").strip('"'),
    )


def refuse_change(url: str, now: Stat, wanted: Stat | None) -> None:
    """Raise ValueError if a file has another version than the wanted one."""
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
    """What a URL asks a store to list: a file, a folder with all that is in it, or the files that match a glob.

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
        """Whether it is a glob that one folder's listing answers."""
        return self.is_glob and not self.is_web and not _has_any(self.folder, "*?[") and "**" not in self.name

    def matching(self, found: Mapping[str, T]) -> dict[str, T]:
        """Return the files of a flat glob among those of its folder."""
        from fsspec.utils import glob_translate

        matches = re.compile(glob_translate(self.name)).match
        return {name: info for name, info in found.items() if matches(name.rpartition("/")[2])}

    def chosen(self, found: Mapping[str, Entry], suffixes: Sequence[str], marks: list[str]) -> dict[str, Stat | None]:
        """Return the files that a user means: of a folder, those that have one of the suffixes and are not hidden.

        Args:
            found: All files at the URL.
            suffixes: Endings of the files of a folder.
            marks: Gets the paths in a folder that may be marks of other formats.
        """
        if not self.is_glob and list(found) != [self.url]:
            marks += find_marks(one.path for one in found.values())
            endings = tuple(suffixes)
            found = {url: one for url, one in found.items() if has_suffix(url, endings) and not is_hidden(one.path)}
        return {url: one.stat for url, one in found.items()}


def _has_any(text: str, signs: str) -> bool:
    return any(sign in text for sign in signs)


def has_suffix(name: str, suffixes: tuple[str, ...]) -> bool:
    """Return whether a file's name ends with one of the suffixes, which a number such as `-00003-of-00010` may follow."""
    return name.endswith(suffixes) or ("-of-" in name and _PART.sub("", name).endswith(suffixes))


def is_hidden(path: str) -> bool:
    """Return whether a path or one of its folders is hidden."""
    return any(part.startswith(".") for part in path.split("/"))
