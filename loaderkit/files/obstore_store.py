"""Objects of S3, Google Cloud Storage and Azure through obstore (extra `cloud`), for less CPU time than through fsspec.

obstore's threads do not survive a fork. If a process has used obstore, its forked children read through fsspec instead.
Before workers are forked, a separate program (`obstore_program`) lists and reads S3 objects.
"""

import ctypes
import json
import os
import re
import threading
from typing import Any, ClassVar

from loaderkit.files import obstore_program
from loaderkit.files.fsspec_store import FsspecStore
from loaderkit.files.listing import Entry, Stat, Wanted, stat_of
from loaderkit.files.obstore_settings import find_opening
from loaderkit.system.retry import TRANSIENT_STATUS, TransientError
from loaderkit.system.worker_info import in_worker_process

_LEAST_BYTES = 1 << 20  # of a range that obstore reads outside workers: smaller ones may come before workers are forked
_KEY = re.compile(r"[\w=.-]+(/[\w=.-]+)*", re.ASCII)  # names of objects that obstore does not escape
_STATUS = re.compile(r"status code: (\d{3})")


class _Process:
    stores: ClassVar[dict[str, Any]] = {}  # by bucket and options; None if fsspec has to read
    opening = threading.Lock()
    parent_used_it = False

    @classmethod
    def after_fork(cls) -> None:
        for store in filter(None, cls.stores.values()):
            cls.parent_used_it = True
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))  # freeing it may wait for a lost thread's lock
        cls.stores.clear()
        cls.opening = threading.Lock()  # a thread that the child lacks may hold the old lock


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Process.after_fork)


class ObstoreStore:
    """The store of a bucket: obstore reads ranges of objects, and fsspec does the rest.

    fsspec gives the versions of objects: gcsfs asks Google's JSON API and obstore its XML API, and the two name a
    version (entity tag) differently. fsspec also reads objects with unusual names or options, and small ranges outside
    workers.

    Args:
        scheme: Scheme of the URLs.
        container: The bucket or container.
        by_fsspec: Reads the same URLs through fsspec.
    """

    def __init__(self, scheme: str, container: str, by_fsspec: FsspecStore) -> None:
        self._bucket, self._container, self._by_fsspec = f"{scheme}://{container}", container, by_fsspec
        settings = [self._bucket, dict(by_fsspec.options), by_fsspec.timeout_s]
        self._name = json.dumps(settings, sort_keys=True, default=repr)

    def info(self, url: str) -> Stat | None:
        """Return the version of an object."""
        obstore_program.end()
        return self._by_fsspec.info(url)

    def put(self, url: str, content: bytes) -> None:
        """Write an object as a whole."""
        obstore_program.end()
        self._by_fsspec.put(url, content)

    def list(self, wanted: Wanted) -> dict[str, Entry]:
        """Return the objects at a URL. `obstore_process` lists folders and flat globs of S3 if it can; else fsspec."""
        return self._list_apart(wanted) or self._by_fsspec.list(wanted)

    def get(self, url: str, start: int, stop: int, *, early: bool = False, apart: bool = False) -> bytes:
        """Return a range of an object.

        Raises:
            FileNotFoundError: If there is no such object.
            PermissionError: If the server refuses access.
            TransientError: If another attempt may succeed.
            OSError: If it cannot be read.
        """
        content: bytes | None = None
        key = url.removeprefix(f"{self._bucket}/")
        if in_worker_process() or not (early or stop - start < _LEAST_BYTES):  # a worker process forks no workers
            content = self._read(key, start, stop)
        elif apart:
            content = self._run_apart("read", key, start, stop)
        obstore_program.end()
        return self._by_fsspec.get(url, start, stop) if content is None else content

    def _read(self, key: str, start: int, stop: int) -> Any:
        """Return an object's bytes from `start` to before `stop`, as a buffer; None if fsspec has to read them."""
        if not _KEY.fullmatch(self._container) or not _KEY.fullmatch(key) or _Process.parent_used_it:
            return None
        with _Process.opening:
            if self._name not in _Process.stores:
                _Process.stores[self._name] = self._open()
        store = _Process.stores[self._name]
        if store is None:
            return None
        import obstore

        try:
            return obstore.get_range(store, key, start=start, end=stop)
        except (FileNotFoundError, obstore.exceptions.BaseError) as error:
            said = str(error).partition("\n\nDebug source")[0]
            if not isinstance(error, FileNotFoundError) and "redirect" in said and not _is_refused(said):
                _Process.stores[self._name] = None  # the bucket is in another region; s3fs finds it
                return None
            raise _named(error, said) from None

    def _open(self) -> Any:
        """Return obstore's store; None if fsspec has to read, or has to report what is wrong with the options."""
        found = find_opening(f"{self._bucket}/", self._by_fsspec)
        if found is None:
            return None
        import obstore.store

        try:
            return getattr(obstore.store, found.name)(found.container, **found.settings)
        except (obstore.exceptions.BaseError, ValueError):
            return None

    def _list_apart(self, wanted: Wanted) -> dict[str, Entry]:
        """Return the objects that `obstore_process` lists; an empty dict if s3fs has to list them."""
        if not wanted.is_flat and (wanted.is_glob or not wanted.url.endswith("/")):
            return {}
        prefix = wanted.folder.rstrip("/").removeprefix(self._bucket).removeprefix("/")
        listed = self._run_apart("list", prefix or None, not wanted.is_glob)
        if listed is None or not all(_KEY.fullmatch(key) for key, *_ in listed):
            return {}
        root = f"{prefix}/" if prefix else ""
        found = {
            key: stat_of({"size": size, "LastModified": changed, "ETag": tag})
            for key, size, changed, tag in listed
            if key.startswith(root)
        }
        found = wanted.matching(found) if wanted.is_glob else found
        return {f"s3://{self._container}/{key}": Entry(key.removeprefix(root), stat) for key, stat in found.items()}

    def _run_apart(self, call: str, key: str | None, *arguments: object) -> Any:
        """Return the result of `obstore_process`; None if s3fs has to make the request, or to raise its error."""
        known = self._bucket.startswith(("s3://", "s3a://")) and _KEY.fullmatch(self._container)
        if not known or (key is not None and not _KEY.fullmatch(key)):
            return None
        if (found := find_opening(f"{self._bucket}/", self._by_fsspec)) is None:
            return None
        settings = found.settings
        if (provider := settings.pop("credential_provider", None)) is not None:
            given = provider()
            settings |= {"access_key_id": given["access_key_id"], "secret_access_key": given["secret_access_key"]}
            settings |= {"session_token": given["token"]} if given["token"] else {}
        # After a listing comes the index of the folder, then the shards.
        return obstore_program.ask((self._container, settings, call, (key, *arguments)), again=call == "list")


def _status_in(said: str) -> int | None:
    found = _STATUS.search(said)
    return int(found[1]) if found else None


def _is_refused(said: str) -> bool:
    return _status_in(said) in (401, 403)


def _named(error: Exception, said: str) -> OSError:
    """Return obstore's error as a built-in one, or as a TransientError if another attempt may succeed."""
    status = _status_in(said)
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(said)
    if _is_refused(said):
        return PermissionError(said)
    return TransientError(said) if status is None or status in TRANSIENT_STATUS else OSError(said)
