"""What file systems say of files: their versions, and which files a listing has."""

import email.utils
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

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


def stat_of(info: Mapping[str, Any]) -> Stat:
    """Return the version in what a file system says of a file."""
    changed = next((info[key] for key in _CHANGED if info.get(key)), 0)
    etag = next((info[key] for key in _ETAGS if info.get(key)), "")
    return Stat(int(info["size"]), _nanoseconds(changed), str(etag).removeprefix("W/").strip('"'))


def refuse_change(url: str, now: Stat, wanted: Stat | None) -> None:
    """Raise ValueError if a file has another version than the wanted one."""
    if wanted is not None and not now.is_same(wanted):
        raise ValueError(
            f"{url}: changed while it was in use: is {_described(now)}, was {_described(wanted)}. Create the dataset again."
        )


def _described(found: Stat) -> str:
    return f"{found.size_bytes:,} bytes, ETag {found.etag or 'unknown'}, time {found.changed_ns / 1e9:.0f}"


def _nanoseconds(changed: Any) -> int:
    if isinstance(changed, str):
        try:
            changed = email.utils.parsedate_to_datetime(changed)  # as HTTP writes it
        except ValueError:
            changed = datetime.fromisoformat(changed)
    seconds = changed.timestamp() if isinstance(changed, datetime) else float(changed)
    return int(seconds * 1e9)


def with_stats(files: Any, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Stat | None]:
    """Return files by URL, with the versions that a listing has. A web server's listing has none."""
    known = {name: info.get("size") is not None and info.get("type") != "directory" for name, info in found.items()}
    return {str(files.unstrip_protocol(name)): stat_of(info) if known[name] else None for name, info in found.items()}


def matching(found: Mapping[str, T], pattern: str) -> dict[str, T]:
    """Return the files whose name without folder matches a glob."""
    from fsspec.utils import glob_translate

    matches = re.compile(glob_translate(pattern)).match
    return {name: info for name, info in found.items() if matches(name.rpartition("/")[2])}


def shown(
    found: Mapping[str, Any], root: str, suffixes: tuple[str, ...], marks: list[str] | None = None
) -> dict[str, Any]:
    """Return the files of a folder that have one of the suffixes and are not hidden; add marks of other formats to `marks`."""
    if marks is not None:
        marks += find_marks(name.removeprefix(root) for name in found)
    names = [name for name in found if has_suffix(name, suffixes) and not is_hidden(name.removeprefix(root))]
    return {name: found[name] for name in names}


def has_suffix(name: str, suffixes: tuple[str, ...]) -> bool:
    """Return whether a file's name ends with one of the suffixes, which a number such as `-00003-of-00010` may follow."""
    return name.endswith(suffixes) or ("-of-" in name and _PART.sub("", name).endswith(suffixes))


def is_hidden(path: str) -> bool:
    """Return whether a path or one of its folders is hidden."""
    return any(part.startswith(".") for part in path.split("/"))
