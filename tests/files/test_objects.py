"""S3 objects come through obstore: the same listings, bytes and errors as by s3fs, also in processes that fork."""

import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from servers import FaultyProxy, SlowStore, run_s3, run_store

import loaderkit as lk
from loaderkit.files.fsspec_store import FsspecStore
from loaderkit.files.store import choose_store

pytest.importorskip("obstore")
SIZE = 9_000_001
CONTENT = np.random.default_rng(3).bytes(SIZE)
URL = "s3://bucket/train/a=1/x-1.bin"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowStore]:
    with run_store(tmp_path_factory.mktemp("store")) as found:
        for name in ("a=1/x-1.bin", "odd %20+name.bin"):
            path = found.root / "bucket" / "train" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(CONTENT)
        lk.write_shards([{"cls": number} for number in range(4)], found.root / "tars" / "train")
        for name in (*(f"p/{number:04}.tar" for number in range(1100)), "p/q/1.tar", "p/.h/1.tar", "p/2.txt", "3.tar"):
            path = found.root / "many" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(name.encode())
        yield found


@pytest.fixture
def proxy(store: SlowStore) -> Iterator[FaultyProxy]:
    found = FaultyProxy(urlsplit(store.url).port or 0)
    yield found
    found.close()


def make(options: dict[str, Any], folder: Path, **settings: Any) -> lk.Storage:
    return lk.Storage(options, **{"cache_dir": folder / "cache", "retry": lk.Retry(wait_s=0.01)} | settings)


def content(storage: lk.Storage, url: str = URL) -> bytes:
    with storage.open(url) as file:
        return file.read()


def is_fast(options: dict[str, Any], url: str = URL) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FsspecStore, "get", lambda *_, **__: b"")
        return len(choose_store(url, options, 10).get(url, 0, SIZE)) == SIZE


def test_the_bytes_are_those_of_the_object(store: SlowStore, tmp_path: Path) -> None:
    assert content(make(store.options, tmp_path)) == CONTENT
    assert "obstore" in sys.modules
    storage = make(store.options, tmp_path, cache_dir=None)
    spans = [(0, 1), (5, 5_000_000), (SIZE - 3, SIZE), (4_000_000, SIZE)]
    assert list(map(bytes, storage.read_many(URL, spans[:1] + spans[2:3], SIZE))) == [CONTENT[:1], CONTENT[-3:]]
    assert b"".join(storage.read_many(URL, spans, SIZE)) == b"".join(CONTENT[start:stop] for start, stop in spans)
    assert storage.counts.read()["bytes"] == 4 + sum(stop - start for start, stop in spans)
    assert storage.open_ranges(URL, SIZE).read() == CONTENT


def test_what_obstore_does_not_know_is_read_by_s3fs(store: SlowStore, tmp_path: Path) -> None:
    assert is_fast(store.options)
    odd = "s3://bucket/train/odd %20+name.bin"
    more = store.options | {"config_kwargs": {"read_timeout": 20}}
    for options, url in ((more, URL), (store.options, odd)):
        assert not is_fast(options, url)
        assert content(make(options, tmp_path), url) == CONTENT
    assert not is_fast({}, "memory://train/a.bin")


URLS = ["s3://many/p/*.tar", "s3://many/p/00?[12].tar", "s3://many/p/", "s3://many/", "s3://many/*.tar"]


class Modules:
    """A transform that says what its process has imported for s3fs."""

    def __call__(self, sample: dict[str, Any]) -> tuple[int, list[str]]:
        return sample["cls"], sorted({"s3fs", "botocore"} & sys.modules.keys())


def _begin(options: dict[str, Any], folder: Path) -> tuple[list[Any], list[Any]]:
    """List and read as a new process does."""
    storage = make(options, folder)
    listed = [storage.find(url, [".tar"]) for url in URLS]
    data = lk.TarDataset("s3://tars/train/*.tar", storage=storage, index_dir=folder / "index", transform=Modules())
    with pytest.raises(FileNotFoundError, match=r"none\.tar"):
        storage.read("s3://tars/none.tar", 0, 9, apart=True)
    assert not {"s3fs", "botocore"} & sys.modules.keys()
    batches = list(lk.Loader(data, 1, num_workers=2, multiprocessing_context="fork", collate_fn=list))
    return listed, [sample for batch in batches for sample in batch]


@pytest.mark.slow
def test_a_process_and_its_workers_begin_without_s3fs(store: SlowStore, tmp_path: Path) -> None:
    """Another process lists, so that obstore works in workers that are forked later; the listings are those of s3fs."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as other:
        listed, samples = other.submit(_begin, store.options, tmp_path).result(600)
    by_s3fs = make(store.options | {"config_kwargs": {"read_timeout": 20}}, tmp_path)
    assert listed == [by_s3fs.find(url, [".tar"]) for url in URLS]
    assert list(map(len, listed)) == [1100, 20, 1101, 1102, 1]
    assert samples == [(number, []) for number in range(4)]


_BEGIN = """
import os, subprocess, sys
import loaderkit as lk
from loaderkit.files import obstore_program as program

started = []
class Started(subprocess.Popen):
    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        if "obstore_process.py" in str(self.args):
            started.append(self)
program.subprocess.Popen = Started
storage = lk.Storage({"key": "test", "secret": "test", "endpoint_url": sys.argv[1]}, cache_dir=None)
assert len(storage.find("s3://many/p/*.tar", [".tar"])) == 1100
assert [one.poll() for one in started] == [None], started  # it waits for its next task
"""
_AFTER = {
    "a read": 'storage.read("s3://tars/train/shard-000000.tar", 0, 9, apart=True)',
    "a missing index": """
try:
    storage.read("s3://tars/none.tar", 0, 9, apart=True)
except FileNotFoundError as error:
    assert "none.tar" in str(error)
""",
    "another request": 'storage.stat("s3://many/p/0001.tar")',
    "a fork": "if (fork := os.fork()) == 0:\n    os._exit(0)\nos.waitpid(fork, 0)",
    "the end": "import atexit; atexit.register(print, 'over'); program.end()",
}


@pytest.mark.parametrize("what", _AFTER)
def test_one_program_makes_the_first_requests_and_none_is_left(what: str, store: SlowStore) -> None:
    last = "assert len(started) == 1 and started[0].returncode is not None, started"
    code = f"{_BEGIN}\n{_AFTER[what]}\n{last}"
    subprocess.run([sys.executable, "-c", code, store.options["endpoint_url"]], check=True, timeout=120)


def test_a_program_that_was_killed_is_replaced_by_s3fs(store: SlowStore) -> None:
    code = f"""{_BEGIN}
started[0].kill()
started[0].wait()
assert len(storage.find("s3://many/", [".tar"])) == 1102
assert len(started) == 1 and "s3fs" in sys.modules
assert len(storage.find("s3://many/p/", [".tar"])) == 1101
assert len(started) == 2
"""
    subprocess.run([sys.executable, "-c", code, store.options["endpoint_url"]], check=True, timeout=120)


@pytest.mark.parametrize("url", ["s3://many/none/*.tar", "s3://many/none/", "s3://none/*.tar", "s3://none/p/"])
def test_what_is_not_there_is_named(url: str, store: SlowStore, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no shards at|is not there"):
        lk.TarDataset(url, storage=make(store.options, tmp_path))


def test_passing_faults_are_tried_again(store: SlowStore, proxy: FaultyProxy, tmp_path: Path) -> None:
    options = store.options | {"endpoint_url": proxy.url}
    storage = make(options, tmp_path, cache_dir=None)
    for fault in ("503 SlowDown", "500 InternalError", "429 Slow", "drop", "truncate"):
        proxy.faults[:] = [fault, fault]
        assert storage.read(URL, 7, SIZE, SIZE) == CONTENT[7:], fault
        assert proxy.asked[-3:] == [f"GET {fault}", f"GET {fault}", "GET "]


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("403 AccessDenied", PermissionError, "x-1.bin: .*access is refused.*Storage\\(options\\)"),
        ("404 NoSuchKey", FileNotFoundError, "x-1.bin: .*is not there"),
        ("400 Wrong", OSError, "x-1.bin: .*can't be read.*400"),
    ],
)
def test_lasting_errors_are_raised_at_once(
    fault: str, error: type[Exception], message: str, store: SlowStore, proxy: FaultyProxy, tmp_path: Path
) -> None:
    storage = make(store.options | {"endpoint_url": proxy.url}, tmp_path, cache_dir=None)
    proxy.faults[:] = [fault]
    with pytest.raises(error, match=message) as caught:
        storage.read(URL, 0, SIZE, SIZE)
    assert "Debug source" not in str(caught.value)
    assert proxy.asked == [f"GET {fault}"]


def test_a_request_without_an_answer_ends(store: SlowStore, tmp_path: Path) -> None:
    storage = make(store.options, tmp_path, cache_dir=None, timeout_s=0.3, retry=lk.Retry(attempts=2, wait_s=0))
    store.set(latency_s="3,3")
    try:
        with pytest.raises(OSError, match=r"x-1\.bin: .*can't be read.*tried 2 times"):
            storage.read(URL, 0, SIZE, SIZE)
    finally:
        store.set(latency_s="0,0")


def _read(fast: bool, options: dict[str, Any], folder: Path) -> None:
    ok = is_fast(options) == fast and content(make(options, folder)) == CONTENT
    os._exit(0 if ok else 1)


def _fork(fast: bool, options: dict[str, Any], folder: Path) -> None:
    """Open a dataset, which reads the index of its folder, and then start a worker."""
    data = lk.TarDataset("s3://tars/train/*.tar", storage=make(options, folder), index_dir=folder / "index")
    assert len(data) == 4
    child: Any = multiprocessing.get_context("fork").Process(target=_read, args=(fast, options, folder))
    child.start()
    child.join(60)
    os._exit(child.exitcode)


@pytest.mark.parametrize("used", [True, False])
def test_a_forked_process_reads_whether_or_not_its_parent_has(used: bool, store: SlowStore, tmp_path: Path) -> None:
    assert is_fast(store.options)  # this process has, and one that is spawned has not
    context: Any = multiprocessing.get_context("fork" if used else "spawn")
    process = context.Process(target=_read if used else _fork, args=(not used, store.options, tmp_path))
    process.start()
    process.join(90)
    assert process.exitcode == 0


def test_a_forked_process_never_ends_the_stores_of_its_parent() -> None:
    """Ending one waits for a lock, and a thread that the fork did not copy may have held it."""
    program = """
import os
from loaderkit.files.obstore_store import _Process

class Store:
    def __del__(self):
        print(f"ended by {'the parent' if os.getpid() == parent else 'the fork'}", flush=True)

parent = os.getpid()
_Process.stores["name"] = Store()
if (fork := os.fork()) == 0:
    assert _Process.parent_used_it and not _Process.stores
else:
    assert os.waitpid(fork, 0)[1] == 0
    _Process.stores.clear()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "ended by the parent\n"


def test_a_real_s3_server_with_credentials_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    with run_s3(tmp_path) as options:
        files = fsspec.filesystem("s3", **options, skip_instance_cache=True)
        files.mkdir("bucket")
        files.pipe(URL.removeprefix("s3://"), CONTENT)
        for some in (options, {"endpoint_url": options["endpoint_url"]}):
            assert is_fast(some)
            assert content(make(some, tmp_path / str(len(some)))) == CONTENT
        with pytest.raises(FileNotFoundError, match=r"y\.bin"):
            make(options, tmp_path, cache_dir=None).read("s3://bucket/y.bin", 0, SIZE, SIZE)
        for url in ("s3://none/train/", "s3://none/train/*.tar"):
            with pytest.raises(FileNotFoundError, match=rf"no shards at '{re.escape(url)}'|{url[:16]}.*is not there"):
                lk.TarDataset(url, storage=make(options, tmp_path))
