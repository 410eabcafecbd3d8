"""Which of obstore's classes reads a URL, with the credentials and endpoint that fsspec's file system of that URL uses."""

import importlib.util
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from loaderkit.files.fsspec_store import FsspecStore

Settings = dict[str, Any]

STORES = {  # names of obstore's classes, by the scheme of a URL
    **dict.fromkeys(("s3", "s3a"), "S3Store"),
    **dict.fromkeys(("gs", "gcs"), "GCSStore"),
    **dict.fromkeys(("az", "abfs", "abfss"), "AzureStore"),
}
# Options of s3fs, gcsfs and adlfs that can be translated for obstore. With any other option, fsspec reads.
_S3 = {"key", "secret", "token", "anon", "endpoint_url", "client_kwargs"}
_S3_CLIENT = {"endpoint_url", "region_name"}
_GOOGLE = {"token", "project", "access", "endpoint_url"}
_AZURE = {"account_name", "account_key", "sas_token", "connection_string", "anon"}
_GOOGLE_ELSEWHERE = {"STORAGE_EMULATOR_HOST", "GOOGLE_CLOUD_UNIVERSE_DOMAIN"}  # of the environment
_GOOGLE_URL = "https://storage.googleapis.com"
# Of S3. obstore asks botocore again 5 minutes before they expire, and botocore renews them.
_CREDENTIALS_LAST = timedelta(minutes=10)


class Opening(NamedTuple):
    """How to open an obstore store.

    Args:
        name: Name of obstore's class.
        container: The bucket or container.
        settings: Keyword arguments of the class.
    """

    name: str
    container: str
    settings: Settings


def find_opening(url: str, by_fsspec: FsspecStore) -> Opening | None:
    """Return how obstore opens the bucket of a URL; None if fsspec has to read it.

    Args:
        url: URL of an object.
        by_fsspec: Reads the same URL through fsspec. For Google and Azure, the credentials come from its file system,
            which also takes them from the environment.
    """
    options = by_fsspec.options
    scheme, _, path = url.partition("://")
    name = STORES.get(scheme)
    if name is None or importlib.util.find_spec("obstore") is None:
        return None
    if name == "S3Store":
        settings = _s3_settings(options)
    elif name == "GCSStore":
        settings = _google_settings(options, url, by_fsspec)
    else:
        settings = _azure_settings(options, url, by_fsspec)
    if settings is None:
        return None
    settings["client_options"] = {"timeout": timedelta(seconds=by_fsspec.timeout_s), "allow_http": True}
    settings["retry_config"] = {"max_retries": 0, "retry_timeout": timedelta(0)}  # `Retry` repeats requests
    return Opening(name, path.partition("/")[0], settings)


def _s3_settings(options: Mapping[str, Any]) -> Settings | None:
    client = dict(options.get("client_kwargs") or {})
    if (
        options.keys() - _S3
        or client.keys() - _S3_CLIENT
        or any(name.startswith("AWS_ENDPOINT") for name in os.environ)
    ):
        return None
    endpoint = options.get("endpoint_url") or client.get("endpoint_url")
    region = client.get("region_name") or _s3_region() or ("us-east-1" if endpoint else None)
    if region is None:
        return None
    settings: Settings = {"region": region}
    if options.get("anon"):
        settings["skip_signature"] = True
    elif options.get("key") and options.get("secret"):
        settings |= {"access_key_id": options["key"], "secret_access_key": options["secret"]}
        settings |= {"session_token": options["token"]} if options.get("token") else {}
    elif options.keys() & {"key", "secret", "token"} or _s3_session().get_credentials() is None:
        return None
    else:
        settings["credential_provider"] = _s3_credentials
    if endpoint:
        settings |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
    return settings


def _s3_region() -> str | None:
    """Return the region that botocore would use, or None. botocore is imported only if there are AWS config files."""
    files = (("AWS_CONFIG_FILE", "~/.aws/config"), ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"))
    if any(Path(os.environ.get(name, default)).expanduser().exists() for name, default in files):
        found: str | None = _s3_session().get_config_variable("region")
        return found
    return os.environ.get("AWS_DEFAULT_REGION")


def _s3_session() -> Any:
    import botocore.session

    return botocore.session.get_session()


def _s3_credentials() -> Any:
    found = _s3_session().get_credentials().get_frozen_credentials()
    return {
        "access_key_id": found.access_key,
        "secret_access_key": found.secret_key,
        "token": found.token,
        "expires_at": datetime.now(UTC) + _CREDENTIALS_LAST,
    }


def _google_settings(options: Mapping[str, Any], url: str, by_fsspec: FsspecStore) -> Settings | None:
    if options.keys() - _GOOGLE or _GOOGLE_ELSEWHERE & os.environ.keys():
        return None
    files, _ = by_fsspec.filesystem(url)
    if type(files).__module__ != "gcsfs.core":  # a subclass, such as that for zonal buckets, reads in its own way
        return None
    access = files.credentials
    # Explicit settings, since obstore reads the environment too.
    settings: Settings = {"base_url": options.get("endpoint_url") or _GOOGLE_URL}
    if access.credentials is None:
        return settings | {"skip_signature": True}

    def token() -> Any:
        access.maybe_refresh()  # renews a token that expires within 5 minutes
        found = access.credentials
        return {"token": found.token, "expires_at": found.expiry and found.expiry.replace(tzinfo=UTC)}

    return settings | {"skip_signature": False, "credential_provider": token}


def _azure_settings(options: Mapping[str, Any], url: str, by_fsspec: FsspecStore) -> Settings | None:
    if options.keys() - _AZURE:
        return None
    client = by_fsspec.filesystem(url)[0].service_client  # knows the connection string and the environment
    endpoint, _, sas_token = client.url.partition("?")
    settings: Settings = {"endpoint": endpoint.rstrip("/"), "use_emulator": False, "skip_signature": False}
    settings["account_name"] = getattr(client.credential, "account_name", None) or client.account_name or "unknown"
    if client.credential is None and not sas_token:
        return settings | {"skip_signature": True}
    if client.credential is None:
        return settings | {"sas_key": sas_token, "credential_type": "sas_token"}
    key = getattr(client.credential, "account_key", None)  # else it is an identity, whose tokens adlfs renews
    return None if key is None else settings | {"account_key": key, "credential_type": "access_key"}
