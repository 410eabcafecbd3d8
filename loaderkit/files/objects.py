"""Objects of S3, Google Cloud Storage and Azure through obstore (extra `cloud`), for less CPU time than through fsspec.

obstore's threads do not survive a fork. A process that forks from one that has used it leaves it alone. Before workers are forked,
a program of its own lists and reads objects of S3.
"""

import ctypes
import json
import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from loaderkit.files.object_process import NOT_FOUND
from loaderkit.files.object_stores import STORES, find_store
from loaderkit.system.retry import TRANSIENT_STATUS, TransientError
from loaderkit.system.worker_info import in_worker_process

_LEAST_BYTES = 1 << 20  # of a range outside of workers: small ones are read before workers are forked
_MOST_APART = 8  # programs that a process starts: for more requests, s3fs takes less time in all
_KEY = re.compile(r"[\w=.-]+(/[\w=.-]+)*", re.ASCII)  # an object's name that obstore does not write in another way
_STATUS = re.compile(r"status code: (\d{3})")


class _Process:
    stores: ClassVar[dict[str, Any]] = {}  # None: fsspec has to read
    opening = threading.Lock()
    parent_used_it = False
    apart = 0  # programs started

    @classmethod
    def after_fork(cls) -> None:
        for store in filter(None, cls.stores.values()):
            cls.parent_used_it = True
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))  # its end waits for a lock that a lost thread may hold
        cls.stores.clear()
        cls.opening = threading.Lock()  # a thread that the child lacks may hold the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Process.after_fork)


def read_range(
    url: str, start: int, stop: int, options: Mapping[str, Any], timeout_s: float, filesystem: Callable[[], Any]
) -> Any:
    """Return a range as a buffer of bytes; None if fsspec has to read it.

    Args:
        url: URL of the object.
        start: First byte.
        stop: Byte after the last one.
        options: Options of the URL's file system.
        timeout_s: Time limit of the request.
        filesystem: Returns that file system. S3 does without it.

    Raises:
        FileNotFoundError: If there is no such object.
        PermissionError: If the server refuses access.
        TransientError: If another attempt may succeed.
        OSError: If it cannot be read.
    """
    scheme, _, path = url.partition("://")
    container, _, key = path.partition("/")
    if scheme not in STORES or not _KEY.fullmatch(container) or not _KEY.fullmatch(key) or _Process.parent_used_it:
        return None
    if stop - start < _LEAST_BYTES and not in_worker():
        return None
    name = json.dumps([scheme, container, dict(options), timeout_s], sort_keys=True, default=repr)
    with _Process.opening:
        if name not in _Process.stores:
            _Process.stores[name] = _open(url, options, timeout_s, filesystem)
    store = _Process.stores[name]
    if store is None:
        return None
    import obstore

    try:
        return obstore.get_range(store, key, start=start, end=stop)
    except (FileNotFoundError, obstore.exceptions.BaseError) as error:
        said = str(error).partition("\n\nDebug source")[0]
        found = _STATUS.search(said)
        status = int(found[1]) if found else None
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(said) from None
        if status in (401, 403):
            raise PermissionError(said) from None
        if "redirect" in said:  # the bucket is in another region, which s3fs finds out
            _Process.stores[name] = None
            return None
        if status is None or status in TRANSIENT_STATUS:
            raise TransientError(said) from None
        raise OSError(said) from None


def in_worker() -> bool:
    """Return whether this is a worker of a loader, which forks no other."""
    return in_worker_process()


def list_objects(
    folder: str, options: Mapping[str, Any], timeout_s: float, *, recursive: bool
) -> list[dict[str, Any]] | None:
    """Return the objects in a folder as s3fs describes them, by another process; None if s3fs has to list them.

    Args:
        folder: URL of the folder.
        options: Options of s3fs.
        timeout_s: Time limit of each request.
        recursive: Whether to list the folders in the folder too.
    """
    bucket, _, prefix = folder.partition("://")[2].partition("/")
    found = _apart(folder, options, timeout_s, "list", prefix or None, recursive)
    if found is None or not all(_KEY.fullmatch(key) for key, *_ in found):
        return None
    return [
        {"name": f"{bucket}/{key}", "size": size, "LastModified": changed, "ETag": tag}
        for key, size, changed, tag in found
    ]


def read_apart(url: str, start: int, stop: int, options: Mapping[str, Any], timeout_s: float) -> bytes | None:
    """As `read_range`, but by another process, and fewer bytes if the object ends before. None for all other errors."""
    found: bytes | None = _apart(
        url, options, timeout_s, "read", url.partition("://")[2].partition("/")[2], start, stop
    )
    return found


def _apart(url: str, options: Mapping[str, Any], timeout_s: float, call: str, key: str | None, *arguments: Any) -> Any:
    """Return what `object_process` finds; None if s3fs has to find it or its errors."""
    bucket = url.partition("://")[2].partition("/")[0]
    known = url.startswith(("s3://", "s3a://")) and _KEY.fullmatch(bucket) and (key is None or _KEY.fullmatch(key))
    if not known or _Process.apart >= _MOST_APART or getattr(sys, "frozen", False):
        return None
    if (found := find_store(url, options, timeout_s, lambda: None)) is None:
        return None
    _Process.apart += 1
    settings = found.settings
    if (provider := settings.pop("credential_provider", None)) is not None:
        credentials = provider()
        settings |= {
            "access_key_id": credentials["access_key_id"],
            "secret_access_key": credentials["secret_access_key"],
        }
        settings |= {"session_token": credentials["token"]} if credentials["token"] else {}
    task = pickle.dumps((sys.path, bucket, settings, call, (key, *arguments)))  # secrets are not for the command line
    command = [sys.executable, "-P", str(Path(__file__).with_name("object_process.py"))]
    try:
        done = subprocess.run(command, input=task, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    except OSError:
        return None
    if done.returncode == NOT_FOUND and call == "read":
        raise FileNotFoundError(url)
    return pickle.loads(done.stdout) if done.returncode == 0 else None


def _open(url: str, options: Mapping[str, Any], timeout_s: float, filesystem: Callable[[], Any]) -> Any:
    """Return a store of obstore for these options; None if fsspec has to read, or has to say what is wrong with them."""
    found = find_store(url, options, timeout_s, filesystem)
    if found is None:
        return None
    import obstore.store

    try:
        return getattr(obstore.store, found.name)(found.container, **found.settings)
    except (obstore.exceptions.BaseError, ValueError):
        return None
