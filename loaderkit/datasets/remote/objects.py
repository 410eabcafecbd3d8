"""S3 objects through obstore (extra `cloud`), which takes half the CPU time of s3fs, and starts in a tenth of the time.

obstore's threads do not survive a fork. A process that forks from one that has used it leaves it alone. Before workers are forked,
a program of its own lists and reads.
"""

import ctypes
import importlib.util
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from torch.utils.data import get_worker_info

from loaderkit.datasets.remote.object_process import NOT_FOUND
from loaderkit.system.retry import TRANSIENT_STATUS, TransientError

_LEAST_BYTES = 1 << 20  # of a range outside of workers: small ones are read before workers are forked
_OPTIONS = {"key", "secret", "token", "anon", "endpoint_url", "client_kwargs"}  # of s3fs, that are understood here
_CLIENT = {"endpoint_url", "region_name"}
_MOST_APART = 8  # programs that a process starts: for more requests, s3fs takes less time in all
_KEY = re.compile(r"[\w=.-]+(/[\w=.-]+)*", re.ASCII)  # an object's name that obstore does not write in another way
_STATUS = re.compile(r"status code: (\d{3})")
_CREDENTIALS_LAST = timedelta(minutes=5)  # then botocore is asked again, which renews them


class _Process:
    stores: ClassVar[dict[str, Any]] = {}  # None: s3fs has to read
    parent_used_it = False
    apart = 0  # programs started

    @classmethod
    def after_fork(cls) -> None:
        for store in filter(None, cls.stores.values()):
            cls.parent_used_it = True
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))  # its end waits for a lock that a lost thread may hold
        cls.stores.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Process.after_fork)


def read_range(url: str, start: int, stop: int, options: Mapping[str, Any], timeout_s: float) -> Any:
    """Return a range as a buffer of bytes; None if fsspec has to read it.

    Args:
        url: URL of the object.
        start: First byte.
        stop: Byte after the last one.
        options: Options of s3fs.
        timeout_s: Time limit of the request.

    Raises:
        FileNotFoundError: If there is no such object.
        PermissionError: If the server refuses access.
        TransientError: If another attempt may succeed.
        OSError: If it cannot be read.
    """
    bucket, _, key = url.partition("://")[2].partition("/")
    small = stop - start < _LEAST_BYTES and not in_worker()
    if small or not url.startswith(("s3://", "s3a://")) or not _KEY.fullmatch(key) or _Process.parent_used_it:
        return None
    name = json.dumps([bucket, dict(options), timeout_s], sort_keys=True, default=repr)
    if name not in _Process.stores:
        _Process.stores[name] = _open(bucket, options, timeout_s)
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
    return get_worker_info() is not None


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
    if (settings := _settings(options, timeout_s)) is None:
        return None
    _Process.apart += 1
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


def _open(bucket: str, options: Mapping[str, Any], timeout_s: float) -> Any:
    """Return a store for these options; None without obstore, or if it does not know an option."""
    settings = _settings(options, timeout_s)
    if settings is None:
        return None
    from obstore.store import S3Store

    return S3Store(bucket, **settings)


def _settings(options: Mapping[str, Any], timeout_s: float) -> dict[str, Any] | None:
    """Return the arguments of a store for these options; None without obstore, or if it does not know an option."""
    if importlib.util.find_spec("obstore") is None:
        return None
    client = dict(options.get("client_kwargs") or {})
    if (
        options.keys() - _OPTIONS
        or client.keys() - _CLIENT
        or any(name.startswith("AWS_ENDPOINT") for name in os.environ)
    ):
        return None
    endpoint = options.get("endpoint_url") or client.get("endpoint_url")
    region = client.get("region_name") or _region() or ("us-east-1" if endpoint else None)
    if region is None:
        return None
    settings: dict[str, Any] = {
        "region": region,
        "client_options": {"timeout": timedelta(seconds=timeout_s), "allow_http": True},
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(0)},  # `Retry` repeats requests
    }
    if options.get("anon"):
        settings["skip_signature"] = True
    elif options.get("key") and options.get("secret"):
        settings |= {"access_key_id": options["key"], "secret_access_key": options["secret"]}
        settings |= {"session_token": options["token"]} if options.get("token") else {}
    elif options.keys() & {"key", "secret", "token"} or _session().get_credentials() is None:
        return None
    else:
        settings["credential_provider"] = _credentials
    if endpoint:
        settings |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
    return settings


def _region() -> str | None:
    """Return the region that botocore would use. Without a file of settings, importing botocore is not needed."""
    files = (("AWS_CONFIG_FILE", "~/.aws/config"), ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"))
    if any(Path(os.environ.get(name, default)).expanduser().exists() for name, default in files):
        found: str | None = _session().get_config_variable("region")
        return found
    return os.environ.get("AWS_DEFAULT_REGION")


def _session() -> Any:
    import botocore.session

    return botocore.session.get_session()


def _credentials() -> Any:
    found = _session().get_credentials().get_frozen_credentials()
    return {
        "access_key_id": found.access_key,
        "secret_access_key": found.secret_key,
        "token": found.token,
        "expires_at": datetime.now(UTC) + _CREDENTIALS_LAST,
    }
