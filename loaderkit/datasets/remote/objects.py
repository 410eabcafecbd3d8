"""Large ranges of S3 objects through obstore (extra `cloud`), which takes half the CPU time of s3fs.

obstore's threads do not survive a fork. A process that forks from one that has used it leaves it alone.
"""

import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from loaderkit.system.retry import TRANSIENT_STATUS, TransientError

_LEAST_BYTES = 1 << 20  # of a range: for smaller ones, opening a store costs more than it saves
_OPTIONS = {"key", "secret", "token", "anon", "endpoint_url", "client_kwargs"}  # of s3fs, that are understood here
_CLIENT = {"endpoint_url", "region_name"}
_KEY = re.compile(r"[\w=.-]+(/[\w=.-]+)*", re.ASCII)  # an object's name that obstore does not write in another way
_STATUS = re.compile(r"status code: (\d{3})")
_CREDENTIALS_LAST = timedelta(minutes=5)  # then botocore is asked again, which renews them


class _Process:
    stores: ClassVar[dict[str, Any]] = {}  # None: s3fs has to read
    parent_used_it = False

    @classmethod
    def after_fork(cls) -> None:
        cls.parent_used_it |= any(cls.stores.values())
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
    small = stop - start < _LEAST_BYTES
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


def _open(bucket: str, options: Mapping[str, Any], timeout_s: float) -> Any:
    """Return a store for these options; None without obstore, or if it does not know an option."""
    try:
        from obstore.store import S3Store
    except ImportError:
        return None
    client = dict(options.get("client_kwargs") or {})
    if (
        options.keys() - _OPTIONS
        or client.keys() - _CLIENT
        or any(name.startswith("AWS_ENDPOINT") for name in os.environ)
    ):
        return None
    session = _session()
    endpoint = options.get("endpoint_url") or client.get("endpoint_url")
    region = client.get("region_name") or session.get_config_variable("region") or ("us-east-1" if endpoint else None)
    if region is None:
        return None
    settings: dict[str, Any] = {"region": region}
    if options.get("anon"):
        settings["skip_signature"] = True
    elif options.get("key") and options.get("secret"):
        settings |= {"access_key_id": options["key"], "secret_access_key": options["secret"]}
        settings |= {"session_token": options["token"]} if options.get("token") else {}
    elif options.keys() & {"key", "secret", "token"} or session.get_credentials() is None:
        return None
    else:
        settings["credential_provider"] = _credentials
    if endpoint:
        settings |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
    return S3Store(
        bucket,
        client_options={"timeout": timedelta(seconds=timeout_s), "allow_http": True},
        retry_config={"max_retries": 0, "retry_timeout": timedelta(0)},  # `Retry` repeats requests
        **settings,
    )


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
