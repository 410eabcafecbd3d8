"""A folder of shards: its plan, a record of each finished shard, and the manifest at the end.

During writing, `.shards/` holds the plan, the records and the shards' indexes. A shard's record is written before the
shard becomes visible, so each visible shard is finished. The manifest replaces the plan and the records once all shards
are finished. It lies next to the folder, in `.NAME.loaderkit/`: most tools that read a folder of shards read all its
files. While a run goes on, `.shards/` also has a file named after the run. A task of a run that has ended finds no such
file, and writes nothing.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from loaderkit.datasets.shards.folder_index import FOLDER_INDEX
from loaderkit.datasets.shards.index import ShardIndex, read_index
from loaderkit.files.atomic import sync_folder, write_atomically
from loaderkit.files.urls import INDEX_SUFFIX, side_folder
from loaderkit.system.types import Json
from loaderkit.writing.format import WriteError

VERSION = 1
MANIFEST = "manifest.json"
_STATE = ".shards"
_RUN = ".run"
_PART = re.compile(r"[.][0-9a-f]{32}[.]part")  # names by `Folder.part` and `write_atomically`
_SIDE = re.compile(r"[.].+[.]loaderkit")  # names by `side_folder`
LOCK_TIMEOUT_S = 10.0  # the processes of a killed run end within that time


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A written file: its name, size and BLAKE2b checksum."""

    name: str
    size_bytes: int
    blake2b: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A finished shard: its file, the files that belong to it, and its counts."""

    file: Piece
    sides: list[Piece] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Record":
        sides = [Piece(**side) for side in value["sides"]]
        return cls(file=Piece(**value["file"]), sides=sides, counts=value["counts"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to write: the format, the source, the settings and the number of shards. Equal plans write equal bytes."""

    format: str
    source: Mapping[str, Json]
    settings: Mapping[str, Any]
    shards: int
    learned: Json = None
    version: int = VERSION


class Folder:
    """The folder that shards are written to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def side(self) -> Path:
        """The hidden folder that holds the manifest, `.NAME.loaderkit/`."""
        return Path(side_folder(str(self.path)))

    @contextmanager
    def locked(self, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
        """Hold the lock that keeps other writers out.

        Raises:
            WriteError: If another writer does not end within `timeout_s`.
        """
        until = time.monotonic() + timeout_s
        while (lock := self._lock()) is None:
            if time.monotonic() > until:
                raise WriteError(f"{self.path}: another process writes shards here. Wait until it ends, or end it.")
            time.sleep(0.05)
        with lock:
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    self._end_runs()
                    self.sweep()
                    if not (self.path / _STATE / "plan.json").exists():
                        shutil.rmtree(self.path / _STATE, ignore_errors=True)
                    self.side.rmdir()  # if nothing is in it

    def _lock(self) -> IO[str] | None:
        """Take the lock. Return None if another writer holds it, or just removed it."""
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
        """Return what a writer planned for this folder, from its manifest; None if no writer has begun here."""
        holds = self.path.is_dir() and any(not path.name.startswith(".") for path in self.path.iterdir())
        manifests = (self.side / MANIFEST, self.path / MANIFEST) if holds else ()  # else the user removed the shards
        for path in (*manifests, self.path / _STATE / "plan.json"):
            with contextlib.suppress(FileNotFoundError):
                return read_plan(path)
        return None

    def begin(self, plan: Plan, run: str) -> dict[int, Record]:
        """Start or continue a plan, and return the finished shards by number. Only tasks of `run` may write now.

        Raises:
            WriteError: If the folder holds other shards.
        """
        self._make_side()
        found = self.plan()
        if found is None:
            foreign = sorted(path.name for path in self.path.iterdir() if not path.name.startswith("."))
            if foreign:
                raise WriteError(
                    f"{self.path}: holds {len(foreign)} files that are not shards, such as {foreign[0]}; or {self.side} is "
                    "missing, which has their manifest. Give an empty folder."
                )
            for name in (MANIFEST, FOLDER_INDEX):  # of shards that are gone
                (self.side / name).unlink(missing_ok=True)
            self._write("plan.json", asdict(plan))
        elif asdict(found) != json.loads(json.dumps(asdict(plan))):
            raise WriteError(
                f"{self.path}: has shards of another source or with other settings: {_difference(asdict(found), asdict(plan))}. "
                "Give another folder, or remove this one."
            )
        self._end_runs()
        self._run(run).touch()
        self.sweep()
        return self._finished()

    def _make_side(self) -> None:
        """Create the manifest's folder. Raise a WriteError before shards are written if that fails."""
        try:
            self.side.mkdir(exist_ok=True)
            sync_folder(self.side.parent)
        except OSError as error:
            raise WriteError(
                f"{self.side}: can't be made: {error.strerror or error}. The manifest lies there, next to the shards. "
                f"Give a folder whose parent can be written to, such as {self.path / 'shards'}."
            ) from error

    def check_run(self, run: str) -> None:
        """Raise an error in a task whose run has ended.

        Raises:
            WriteError: If `run` is not the one that writes here.
        """
        try:
            self._run(run).open().close()  # on NFS opening a file asks the server, looking for it may not
        except FileNotFoundError:
            raise WriteError(f"{self.path}: the run that this task belongs to has ended.") from None

    def _run(self, run: str) -> Path:
        """Return the path of a run's file. Each run has a new name: NFS may still report an old one as missing."""
        return self.path / _STATE / (run + _RUN)

    def _end_runs(self) -> None:
        for path in (self.path / _STATE).glob("*" + _RUN):
            path.unlink(missing_ok=True)

    def _finished(self) -> dict[int, Record]:
        records: dict[int, Record] = {}
        with contextlib.suppress(FileNotFoundError):
            records |= dict(enumerate(read_records(manifest_of(self.path))))
        for path in (self.path / _STATE).glob("[0-9]*.json"):
            records[int(path.stem)] = Record.from_json(json.loads(path.read_text()))
        return {number: record for number, record in sorted(records.items()) if self._is_there(record)}

    def _is_there(self, record: Record) -> bool:
        try:
            return all((self.path / it.name).stat().st_size == it.size_bytes for it in (record.file, *record.sides))
        except FileNotFoundError:
            return False

    def sweep(self) -> None:
        """Remove the partial files of killed runs."""
        for path in self.path.glob(".*"):
            if _PART.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def part(self) -> Path:
        """Return a new hidden name for a file during writing."""
        return self.path / f".{uuid.uuid4().hex}.part"

    def keep(self, number: int, record: Record) -> None:
        """Write the record of shard `number`, which is about to become visible."""
        self._write(f"{number}.json", asdict(record))

    def keep_index(self, name: str, index: ShardIndex) -> None:
        """Store the index of a shard until all shards are finished."""
        write_atomically(self.path / _STATE / (name + INDEX_SUFFIX), index.to_bytes())

    def kept_index(self, name: str) -> ShardIndex | None:
        """Return the index that `keep_index` stored for a shard; None if there is none.

        It also looks next to the shard, where earlier versions wrote it.
        """
        for path in (self.path / _STATE / (name + INDEX_SUFFIX), self.path / (name + INDEX_SUFFIX)):
            with contextlib.suppress(FileNotFoundError):
                return read_index(path)
        return None

    def finish(self, plan: Plan, records: dict[int, Record], more: Mapping[str, object]) -> Path:
        """Write the manifest and return its path. Remove `.shards/`, and the manifest of an earlier version."""
        path = self.side / MANIFEST
        totals: Counter[str] = Counter()
        for record in records.values():
            totals.update(record.counts)
        shards = [asdict(records[number]) for number in range(plan.shards)]
        content = {"kind": "loaderkit-shards", **asdict(plan), **more, "counts": dict(totals), "files": shards}
        text = json.dumps(content, indent=1) + "\n"
        if not path.exists() or path.read_text() != text:
            write_atomically(path, text.encode())
            sync_folder(self.side)
        (self.path / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self.path / _STATE, ignore_errors=True)
        return path

    def _write(self, name: str, value: dict[str, object]) -> None:
        write_atomically(self.path / _STATE / name, json.dumps(value).encode())


def manifest_of(folder: Path) -> Path:
    """Return the path of a folder's manifest: next to the folder, or in it if an earlier version wrote it there."""
    path = Path(side_folder(str(folder)), MANIFEST)
    earlier = folder / MANIFEST
    return earlier if earlier.is_file() and not path.is_file() else path


def folder_of_manifest(path: Path) -> Path:
    """Return the folder of shards that a manifest describes."""
    name = path.absolute().parent.name
    if _SIDE.fullmatch(name):
        return path.absolute().parent.parent / name[1 : -len(".loaderkit")]
    return path.parent


def read_plan(path: Path) -> Plan:
    """Read the plan in a manifest.

    Raises:
        WriteError: If the file is not a manifest, or of another version.
    """
    return _read(path)[0]


def read_records(path: Path) -> list[Record]:
    """Read the records of all shards in a manifest; raise as `read_plan`."""
    return [Record.from_json(value) for value in _read(path)[1]["files"]]


def is_ours(name: str) -> bool:
    """Return whether a file needs no entry in a manifest: hidden files, manifests and indexes."""
    return name.startswith(".") or name == MANIFEST or name.endswith(INDEX_SUFFIX)


def _read(path: Path) -> tuple[Plan, dict[str, Any]]:
    try:
        value: dict[str, Any] = json.loads(path.read_text())
        if value["version"] != VERSION:
            raise WriteError(f"{path}: of version {value['version']}, this loaderkit reads {VERSION}.")
        return Plan(**{name: value[name] for name in ("format", "source", "settings", "shards", "learned")}), value
    except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise WriteError(f"{path}: not a manifest of `loaderkit shard`: {type(error).__name__} {error}.") from error


def _difference(found: Mapping[str, object], wanted: Mapping[str, object]) -> str:
    differences = []
    for name, mine in wanted.items():
        theirs = found[name]
        if isinstance(mine, dict) and isinstance(theirs, dict):
            differences += (
                [_difference(theirs | dict.fromkeys(mine.keys() - theirs.keys()), mine)] if mine != theirs else []
            )
        elif mine != theirs and name not in ("learned", "shards"):
            differences.append(f"{name} is {theirs!r} there, {mine!r} here")
    return "; ".join(filter(None, differences)) or "other types of fields"
