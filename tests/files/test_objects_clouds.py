"""Objects of Google Cloud Storage and Azure come through obstore, with the bytes, credentials and errors of gcsfs and adlfs."""

import json
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from servers import AZURE_ACCOUNT, AZURE_KEY, FaultyProxy, TokenServer, run_azure, run_store
from shards_written import folder_index

import loaderkit as lk
from loaderkit.cli.command import main
from loaderkit.files.fsspec_store import FsspecStore
from loaderkit.files.obstore_settings import find_opening

pytest.importorskip("obstore")
fsspec = pytest.importorskip("fsspec")
SIZE = 10_000_001  # in three requests, all of them large
CONTENT = np.random.default_rng(3).bytes(SIZE)
KEY, ODD = "train/a=1/x-1.bin", "train/odd %20+name.bin"
SAMPLES = 60


@dataclass(frozen=True)
class Cloud:
    """An emulator, reached through a proxy."""

    scheme: str
    options: dict[str, Any]  # of the file system
    unknown: dict[str, Any]  # an option that obstore is not given
    proxy: FaultyProxy

    def url(self, key: str = KEY, container: str = "bucket") -> str:
        return f"{self.scheme}://{container}/{key}"

    def storage(self, options: dict[str, Any] | None = None, **settings: Any) -> lk.Storage:
        settings = {"cache_dir": None, "retry": lk.Retry(wait_s=0.01)} | settings
        return lk.Storage(self.options if options is None else options, **settings)

    def is_fast(self, options: dict[str, Any] | None = None, url: str = "") -> bool:
        self.proxy.headers.clear()
        assert self.storage(options).read(url or self.url(), 0, SIZE, SIZE) == CONTENT
        return set(self.readers()) == {"obstore"}

    def readers(self) -> list[str]:
        """Return who has asked for ranges of objects since `proxy.headers` was cleared."""
        lower = [{name.lower(): value for name, value in headers.items()} for headers in self.proxy.headers]
        found = [headers for headers in lower if {"range", "x-ms-range"} & headers.keys()]
        return ["obstore" if "object_store" in headers["user-agent"] else "fsspec" for headers in found]


@pytest.fixture(scope="module", params=["google", "azure"])
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    package = {"google": "gcsfs", "azure": "adlfs"}[request.param]
    pytest.importorskip(package, reason=f"{package} is not installed: pip install '.[test]'")
    folder = tmp_path_factory.mktemp(request.param)
    samples = [{"cls": number} for number in range(SAMPLES)]
    lk.write_shards(samples, folder / "tars", samples_per_shard=10)
    tars = (folder / "tars").iterdir()
    objects = {KEY: CONTENT, ODD: CONTENT} | {f"tars/{path.name}": path.read_bytes() for path in tars}
    objects[".tars.loaderkit/folder.lkindex"] = folder_index(folder / "tars").read_bytes()
    if request.param == "google":
        with run_store(folder) as store:
            for key, value in objects.items():
                path = store.root / "bucket" / key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(value)
            proxy = FaultyProxy(urlsplit(store.url).port or 0)
            yield Cloud("gs", {"token": "anon", "endpoint_url": proxy.url}, {"requests_timeout": 20}, proxy)
            proxy.close()
    else:
        with run_azure(folder) as port:
            make_container(port, "bucket", objects)
            proxy = FaultyProxy(port)
            yield Cloud("az", {"connection_string": azure(proxy.url)}, {"max_concurrency": 2}, proxy)
            proxy.close()


def make_container(port: int, name: str, objects: dict[str, bytes], **settings: Any) -> None:
    from azure.storage.blob import BlobServiceClient

    with BlobServiceClient.from_connection_string(azure(f"http://127.0.0.1:{port}")) as service:
        container = service.create_container(name, **settings)
        for key, value in objects.items():
            container.upload_blob(key, value)


def azure(url: str, secret: str = f"AccountKey={AZURE_KEY}") -> str:
    """Return a connection string."""
    parts = (
        "DefaultEndpointsProtocol=http",
        f"AccountName={AZURE_ACCOUNT}",
        secret,
        f"BlobEndpoint={url}/{AZURE_ACCOUNT}",
    )
    return ";".join(filter(None, parts))


def content(storage: lk.Storage, url: str) -> bytes:
    with storage.open(url) as file:
        return file.read()


def test_the_bytes_are_those_of_the_object(cloud: Cloud, tmp_path: Path) -> None:
    cloud.proxy.headers.clear()
    assert content(cloud.storage(cache_dir=tmp_path), cloud.url()) == CONTENT
    assert set(cloud.readers()) == {"obstore"}
    storage = cloud.storage()
    spans = [(0, 1), (5, 5_000_000), (SIZE - 3, SIZE), (4_000_000, SIZE)]
    assert b"".join(storage.read_many(cloud.url(), spans, SIZE)) == b"".join(
        CONTENT[start:stop] for start, stop in spans
    )
    assert storage.counts.read()["bytes"] == sum(stop - start for start, stop in spans)


def test_what_obstore_does_not_know_is_read_by_fsspec(cloud: Cloud, tmp_path: Path) -> None:
    assert cloud.is_fast()
    for options, url in ((cloud.options | cloud.unknown, cloud.url()), (cloud.options, cloud.url(ODD))):
        assert not cloud.is_fast(options, url)
        assert content(cloud.storage(options, cache_dir=tmp_path / str(len(options))), url) == CONTENT
        assert set(cloud.readers()) == {"fsspec"}


def test_passing_faults_are_tried_again(cloud: Cloud) -> None:
    storage = cloud.storage()
    for fault in ("503 SlowDown", "500 InternalError", "429 Slow", "drop", "truncate"):
        cloud.proxy.faults[:] = [fault, fault]
        assert storage.read(cloud.url(), 7, SIZE, SIZE) == CONTENT[7:], fault
        assert cloud.proxy.asked[-3:] == [f"GET {fault}", f"GET {fault}", "GET "]


def test_a_fault_draws_nothing_from_the_samples_generator(cloud: Cloud) -> None:
    """Also if gcsfs repeats the request, after a wait of random length."""
    if cloud.scheme != "gs":
        pytest.skip("of Google alone")
    before = random.getstate()
    storage = lk.Storage(cloud.options | cloud.unknown, cache_dir=None, retry=lk.Retry(wait_s=0))
    cloud.proxy.faults[:] = ["503 SlowDown"]
    assert storage.read(cloud.url(), 0, 9, SIZE) == CONTENT[:9]
    assert not cloud.proxy.faults
    assert random.getstate() == before


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("401 Unauthorized", PermissionError, "x-1.bin: .*access is refused.*Storage\\(options\\)"),
        ("403 Forbidden", PermissionError, "x-1.bin: .*access is refused.*Storage\\(options\\)"),
        ("404 NoSuchKey", FileNotFoundError, "x-1.bin: .*is not there"),
        ("400 Wrong", OSError, "x-1.bin: .*can't be read.*Wrong"),
    ],
)
def test_lasting_errors_are_raised_at_once_as_by_fsspec(
    cloud: Cloud, fault: str, error: type[Exception], message: str
) -> None:
    for options in (cloud.options, cloud.options | cloud.unknown):
        cloud.proxy.headers.clear()
        cloud.proxy.asked.clear()
        cloud.proxy.faults[:] = [fault]
        with pytest.raises(error, match=message) as caught:
            cloud.storage(options).read(cloud.url(), 0, SIZE, SIZE)
        assert type(caught.value) is error
        assert cloud.proxy.asked == [f"GET {fault}"]
        assert cloud.readers() == ["obstore" if options == cloud.options else "fsspec"]


def test_what_is_not_there_is_named(cloud: Cloud) -> None:
    with pytest.raises(FileNotFoundError, match=r"y\.bin: .*is not there"):
        cloud.storage().read(cloud.url("y.bin"), 0, SIZE, SIZE)
    for container, key in product(("none", "bucket"), ("none/*.tar", "none/")):
        with pytest.raises(FileNotFoundError, match=r"no shards at|is not there"):
            lk.TarDataset(cloud.url(key, container), storage=cloud.storage())


def _read(cloud: Cloud) -> None:
    os._exit(0 if cloud.storage().read(cloud.url(), 0, SIZE, SIZE) == CONTENT else 1)


def test_a_process_forked_from_one_that_has_used_obstore_reads_by_fsspec(cloud: Cloud) -> None:
    assert cloud.is_fast()
    cloud.proxy.headers.clear()
    process = multiprocessing.get_context("fork").Process(target=_read, args=(cloud,))
    process.start()
    process.join(90)
    assert process.exitcode == 0
    assert cloud.readers() == ["fsspec"]


def _epoch(scheme: str, options: dict[str, Any], context: str, folder: Path) -> tuple[list[Any], list[Any], list[str]]:
    """Return the batches of an epoch, those of a run that stops in it and resumes, and the threads that are left."""

    def make(name: str) -> lk.Loader:
        storage = lk.Storage(options, cache_dir=folder / name)
        data = lk.TarDataset(f"{scheme}://bucket/tars/*.tar", storage=storage, index_dir=folder / "index")
        return lk.Loader(data, 7, shuffle=True, num_workers=2, multiprocessing_context=context, collate_fn=list)

    whole = list(make("whole"))
    first, second = make("first"), make("second")
    batches = iter(first)
    parts = [next(batches) for _ in range(3)]
    second.load_state_dict(first.state_dict())
    del batches
    resumed = parts + list(second)
    threads = [
        thread.name for thread in threading.enumerate() if not thread.name.startswith("asyncio_")
    ]  # of fsspec's loop
    return whole, resumed, threads


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("fast", "context"), [(True, "fork"), (False, "fork"), pytest.param(True, "spawn", marks=pytest.mark.slow)]
)
def test_an_epoch_and_a_resume_in_its_middle(cloud: Cloud, fast: bool, context: str, tmp_path: Path) -> None:
    """By obstore and by fsspec. Forked workers inherit what their parent has used to list and to read indexes."""
    cloud.proxy.headers.clear()
    options = cloud.options | ({} if fast else cloud.unknown)
    limit_s = 600 if context == "spawn" else 200  # pytest's limit comes once, and leaving the pool waits again
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as other:
        whole, resumed, threads = other.submit(_epoch, cloud.scheme, options, context, tmp_path).result(limit_s)
    assert resumed == whole
    assert sorted(sample["cls"] for batch in whole for sample in batch) == list(range(SAMPLES))
    assert len(cloud.readers()) >= 3 * 6
    assert set(cloud.readers()) == {"obstore" if fast else "fsspec"}
    assert set(threads) <= {"MainThread", "fsspecIO"}


def test_an_uploaded_index_fits_until_a_shard_changes(
    cloud: Cloud, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By size and checksum after the upload; by the store's tags once the index has been written in the bucket."""
    lk.write_shards([{"cls": number} for number in range(SAMPLES)], tmp_path / "out", samples_per_shard=10)
    for path in (tmp_path / "out").iterdir():
        cloud.storage().write(cloud.url(f"indexed/{path.name}"), path.read_bytes())
    index_url = cloud.url(".indexed.loaderkit/folder.lkindex")
    cloud.storage().write(index_url, folder_index(tmp_path / "out").read_bytes())
    cloud.proxy.headers.clear()
    data = lk.TarDataset(cloud.url("indexed/"), storage=cloud.storage(cache_dir=tmp_path / "one"), index_dir=tmp_path)
    assert len(data) == SAMPLES
    assert cloud.proxy.headers == []  # nothing of a shard

    folders = [f"--index-dir={tmp_path}", f"--cache-dir={tmp_path / 'cache'}"]
    options = [f"--storage-option={name}={value}" for name, value in cloud.options.items()]

    def index(*more: str) -> tuple[int, str]:
        code = main(["index", cloud.url("indexed/"), "--jobs=1", *folders, *options, *more])
        return code, capsys.readouterr().out.splitlines()[-1]

    fresh, stale = (0, "6 shards: 6 fresh; 60 samples"), (1, "6 shards: 5 fresh, 1 stale; 50 samples")
    assert index("--check") == fresh
    assert cloud.readers() == []
    assert index("--check", "--checksum") == fresh
    assert len(cloud.readers()) == 6
    changed = data.shards[2]
    whole = (tmp_path / "out" / "shard-000002.tar").read_bytes()
    cloud.storage().write(changed, whole[::-1])
    assert index("--check") == fresh  # it has the same size
    assert index("--check", "--checksum") == stale
    with pytest.raises(ValueError, match=r"shard-000002\.tar: .*has the checksum|shard-000002\.tar: changed"):
        data[25]

    cloud.storage().write(changed, whole)
    assert index("--folder-index") == (0, "6 shards: 6 made; 60 samples")
    assert index("--check") == fresh
    cloud.storage().write(changed, whole[::-1])
    assert index("--check") == stale


@pytest.fixture
def google(cloud: Cloud) -> Cloud:
    if cloud.scheme != "gs":
        pytest.skip("of Google alone")
    return cloud


@pytest.fixture
def microsoft(cloud: Cloud) -> Cloud:
    if cloud.scheme != "az":
        pytest.skip("of Azure alone")
    return cloud


def authorization(cloud: Cloud) -> str:
    """Return what the last request for an object was authorized with."""
    headers = {name.lower(): value for name, value in cloud.proxy.headers[-1].items()}
    return headers.get("authorization", "")


def service_account(path: Path, server: TokenServer) -> Path:
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {
        "type": "service_account",
        "project_id": "project",
        "client_email": "me@example.org",
        "token_uri": server.url,
    }
    path.write_text(json.dumps(account | {"private_key": key.decode()}))
    return path


def test_tokens_are_those_of_gcsfs(google: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a service account: from its file, or as the application's default. New ones are asked for in time."""
    elsewhere = {"endpoint_url": google.proxy.url}
    server = TokenServer(lasts_s=200)
    path = service_account(tmp_path / "account.json", server)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    seen = []
    for options in (elsewhere | {"token": str(path)}, elsewhere):
        for _ in range(2):
            assert google.is_fast(options)
            seen.append(authorization(google))
            time.sleep(0.3)  # obstore asks again after 0.1 s, if a token ends within 4 minutes
    server.close()
    assert len(set(seen)) == 4
    assert all(token.startswith("Bearer token-") for token in seen)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", google.proxy.url)
    assert not google.is_fast({"token": "anon"})


def test_credentials_are_those_of_adlfs(microsoft: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key, a signature or none, from the options or the environment. What obstore itself reads there does not count."""
    blob = pytest.importorskip("azure.storage.blob")
    for name, value in (("TOKEN", "of another tool"), ("ACCESS_KEY", "b3RoZXI="), ("USE_EMULATOR", "true")):
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
    url = microsoft.proxy.url
    assert microsoft.is_fast(microsoft.options | {"anon": False})
    assert authorization(microsoft).startswith(f"SharedKey {AZURE_ACCOUNT}:")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure(url))
    assert microsoft.is_fast({})
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")

    make_container(microsoft.proxy.port, "public", {"x.bin": CONTENT}, public_access="container")
    may = {"resource_types": "sco", "permission": "rl", "expiry": datetime.now(UTC) + timedelta(hours=1)}
    signature = blob.generate_account_sas(AZURE_ACCOUNT, AZURE_KEY, **may)
    for secret, place in ((f"SharedAccessSignature={signature}", microsoft.url()), ("", "az://public/x.bin")):
        options = {"connection_string": azure(url, secret)}
        assert microsoft.is_fast(options, place)
        assert authorization(microsoft) == ""
        assert microsoft.storage(options).read(place, 0, SIZE, SIZE) == CONTENT
    for secret in ("AccountKey=b3RoZXI=", ""):
        with pytest.raises((PermissionError, FileNotFoundError), match=r"x-1\.bin: .*(access is refused|is not there)"):
            microsoft.storage({"connection_string": azure(url, secret)}).read(microsoft.url(), 0, SIZE, SIZE)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"account_key": AZURE_KEY}, {"account_key": AZURE_KEY, "skip_signature": False}),
        ({"sas_token": "?sv=1&sig=2"}, {"sas_key": "sv=1&sig=2", "skip_signature": False}),
        ({"anon": True}, {"skip_signature": True}),
        ({"client_id": "a", "client_secret": "b", "tenant_id": "c"}, None),
        ({"anon": False}, None),
    ],
)
def test_accounts_of_azure_have_their_own_address(options: dict[str, Any], settings: dict[str, Any] | None) -> None:
    pytest.importorskip("adlfs")
    options = options | {"account_name": "me"}
    found = find_opening("az://bucket/x.bin", FsspecStore(options, 10))
    if settings is None:
        assert found is None
        return
    assert found is not None
    assert found[:2] == ("AzureStore", "bucket")
    wanted = settings | {"endpoint": "https://me.blob.core.windows.net", "account_name": "me"}
    assert wanted.items() <= found.settings.items()
