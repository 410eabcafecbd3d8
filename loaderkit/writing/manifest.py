"""What lies in a folder of shards: its plan, what is finished, and at the end the manifest.

While shards are written, `.shards/` holds the plan and a record of each shard; the record is there before its shard is visible,
so that a shard that can be seen is finished. The manifest replaces them when all are.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from loaderkit.datasets.remote.urls import INDEX_SUFFIX, write_atomically
from loaderkit.writing.format import WriteError

VERSION = 1
MANIFEST = "manifest.json"
_STATE = ".shards"
_PART = ".loaderkit-shard."
_INDEX_PART = re.compile(r"[.][0-9a-f]{32}[.]part")
_LOCK_WAIT_S = 10.0  # processes of a killed run end within that


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A file that was written."""

    name: str
    size_bytes: int
    blake2b: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A shard that is finished: its own file, those beside it, and what it counts."""

    file: Piece
    sides: list[Piece] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Record":
        sides = [Piece(**side) for side in value["sides"]]
        return cls(file=Piece(**value["file"]), sides=sides, counts=value["counts"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is to be written: two runs of one plan write the same bytes."""

    format: str
    source: dict[str, Any]
    settings: dict[str, Any]
    shards: int
    learned: Any = None
    version: int = VERSION


class Folder:
    """The destination."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other writers out.

        Raises:
            WriteError: If another one is at work.
        """
        until = time.monotonic() + _LOCK_WAIT_S
        while (lock := self._lock()) is None:
            if time.monotonic() > until:
                raise WriteError(f"{self.path}: another process writes shards here. Wait for it, or end it.")
            time.sleep(0.05)
        with lock:
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    self.sweep()
                    if not (self.path / _STATE / "plan.json").exists():
                        shutil.rmtree(self.path / _STATE, ignore_errors=True)

    def _lock(self) -> IO[str] | None:
        """Take the lock; None if another writer has it, or has removed it meanwhile."""
        path = self.path / _STATE / "lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as opened, contextlib.suppress(BlockingIOError, FileNotFoundError):
            lock = opened.enter_context(path.open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                opened.pop_all()
                return lock
        return None

    def plan(self) -> Plan | None:
        """Return what this folder is for, if that is known."""
        for path in (self.path / MANIFEST, self.path / _STATE / "plan.json"):
            with contextlib.suppress(FileNotFoundError):
                return read_plan(path)
        return None

    def begin(self, plan: Plan) -> dict[int, Record]:
        """Take up a plan: return the shards that are finished.

        Raises:
            WriteError: If other shards lie here.
        """
        found = self.plan()
        if found is None:
            foreign = sorted(path.name for path in self.path.iterdir() if not path.name.startswith("."))
            if foreign:
                raise WriteError(
                    f"{self.path}: holds {len(foreign)} files that are not ours, the first is {foreign[0]}. "
                    "Give an empty folder."
                )
            self._write("plan.json", asdict(plan))
        elif asdict(found) != json.loads(json.dumps(asdict(plan))):
            raise WriteError(
                f"{self.path}: has shards of another source or with other settings: {_difference(asdict(found), asdict(plan))}. "
                "Give another folder, or remove this one."
            )
        self.sweep()
        return self._finished()

    def _finished(self) -> dict[int, Record]:
        records: dict[int, Record] = {}
        with contextlib.suppress(FileNotFoundError):
            records |= dict(enumerate(read_records(self.path / MANIFEST)))
        for path in (self.path / _STATE).glob("[0-9]*.json"):
            records[int(path.stem)] = Record.from_json(json.loads(path.read_text()))
        return {number: record for number, record in sorted(records.items()) if self._is_there(record)}

    def _is_there(self, record: Record) -> bool:
        try:
            return all((self.path / it.name).stat().st_size == it.size_bytes for it in (record.file, *record.sides))
        except FileNotFoundError:
            return False

    def sweep(self) -> None:
        """Remove what runs that were killed left half-written."""
        for path in self.path.glob(".*"):
            if path.name.startswith(_PART) or _INDEX_PART.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def part(self, token: str) -> Path:
        """Return a name for a file that is being written; hidden."""
        return self.path / f"{_PART}{token}"

    def keep(self, number: int, record: Record) -> None:
        """Note that a shard is about to be visible."""
        self._write(f"{number}.json", asdict(record))

    def finish(self, plan: Plan, records: dict[int, Record], more: dict[str, Any]) -> Path:
        """Write the manifest, and remove what led to it."""
        path = self.path / MANIFEST
        totals: dict[str, int] = {}
        for record in records.values():
            for name, count in record.counts.items():
                totals[name] = totals.get(name, 0) + count
        shards = [asdict(records[number]) for number in range(plan.shards)]
        content = {"kind": "loaderkit-shards", **asdict(plan), **more, "counts": totals, "files": shards}
        text = json.dumps(content, indent=1) + "\n"
        if not path.exists() or path.read_text() != text:
            write_atomically(path, text.encode())
            sync_folder(self.path)
        shutil.rmtree(self.path / _STATE, ignore_errors=True)
        return path

    def _write(self, name: str, value: dict[str, Any]) -> None:
        write_atomically(self.path / _STATE / name, json.dumps(value).encode())


def read_plan(path: Path) -> Plan:
    """Read the plan in a manifest.

    Raises:
        WriteError: If it is none of ours.
    """
    value = _read(path)
    return Plan(**{name: value[name] for name in ("format", "source", "settings", "shards", "learned", "version")})


def read_records(path: Path) -> list[Record]:
    """Read a manifest's shards."""
    return [Record.from_json(value) for value in _read(path)["files"]]


def is_ours(name: str) -> bool:
    """Say whether a file needs no entry in a manifest."""
    return name.startswith(".") or name == MANIFEST or name.endswith(INDEX_SUFFIX)


def sync_folder(path: Path) -> None:
    """Make a folder's entries last."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
        version = value["version"]
        if version != VERSION:
            raise WriteError(f"{path}: of version {version}, this loaderkit reads {VERSION}.")
        Plan(**{name: value[name] for name in ("format", "source", "settings", "shards", "learned")})
    except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise WriteError(f"{path}: not a manifest of `loaderkit shard`: {type(error).__name__} {error}.") from error
    result: dict[str, Any] = value
    return result


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    said = []
    for name, mine in wanted.items():
        theirs = found[name]
        if isinstance(mine, dict) and isinstance(theirs, dict):
            said += [_difference(theirs | dict.fromkeys(mine.keys() - theirs.keys()), mine)] if mine != theirs else []
        elif mine != theirs and name not in ("learned", "shards"):
            said.append(f"{name} is {theirs!r} there, {mine!r} here")
    return "; ".join(filter(None, said)) or "other types of fields"
