"""Remote shards are read as local ones are, whatever the server does on the way."""

import json
import multiprocessing
import os
import pickle
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from servers import Faulty, FaultyProxy, Nginx, run_nginx, run_s3
from shards import as_list, check_laws, check_reads, with_draws

import loaderkit as lk
from loaderkit.cli.command import main
from loaderkit.datasets.find_shards import expand
from loaderkit.system.retry import Retry, is_transient

QUICK = Retry(attempts=4, wait_s=0.01)
SIZES = [7, 0, 12, 3]
ROWS = [{"id": number, "text": "word " * (number % 5)} for number in range(sum(SIZES))]


def lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def shards() -> dict[str, bytes]:
    ends = np.cumsum(SIZES).tolist()
    return {
        f"part-{number}.jsonl": lines(ROWS[end - size : end])
        for number, (end, size) in enumerate(zip(ends, SIZES, strict=True))
    }


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with run_nginx(tmp_path_factory.mktemp("nginx")) as server:
        for name, content in shards().items():
            (server.root / name).write_bytes(content)
        yield server


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with run_s3(tmp_path_factory.mktemp("s3")) as options:
        import s3fs

        files = s3fs.S3FileSystem(**options)
        files.mkdir("bucket")
        for name, content in shards().items():
            files.pipe(f"bucket/data/{name}", content)
        yield options


@pytest.fixture
def faulty() -> Iterator[Faulty]:
    server = Faulty(lines(ROWS))
    yield server
    server.close()


def number(row: dict[str, Any]) -> int:
    return int(row["id"])


def test_datamodules_read_from_s3(s3: dict[str, Any], tmp_path: Path) -> None:
    import s3fs

    table = "".join(f"{row % 5},{row % 3}\n" for row in range(30))
    s3fs.S3FileSystem(**s3).pipe("bucket/tables/train.csv", f"x,y\n{table}".encode())
    storage = lk.Storage(s3, cache_dir=tmp_path / "cache")
    config = lk.LoaderConfig(batch_size=5)
    tables = lk.TableDataModule(
        "s3://bucket/tables/*.csv", columns=lk.TableColumns(target="y"), storage=storage, loader=config
    )
    tables.setup("fit")
    assert sum(len(batch["target"]) for batch in tables.train_dataloader()) == 30
    gone = lk.TableDataModule("s3://bucket/tables/gone.csv", columns=lk.TableColumns(target="y"), storage=storage)
    with pytest.raises(FileNotFoundError, match=r"s3://bucket/tables/gone\.csv"):
        gone.statistics  # noqa: B018
    parts = {"first": "s3://bucket/data/part-0.jsonl", "all": ["s3://bucket/data/"]}
    shards = lk.ShardDataModule(
        "s3://bucket/data/*.jsonl", parts, options={"storage": storage}, index_dir=tmp_path / "index", loader=config
    )
    shards.prepare_data()
    assert len(list((tmp_path / "index").iterdir())) == len(SIZES)
    shards.setup("fit")
    assert sum(len(batch["id"]) for batch in shards.train_dataloader()) == len(ROWS)
    counts = {name: sum(len(batch["id"]) for batch in loader) for name, loader in shards.val_dataloader().items()}
    assert counts == {"first": SIZES[0], "all": len(ROWS)}


def test_the_laws_hold_over_http(nginx: Nginx, tmp_path: Path) -> None:
    """With fork workers, after the parent has used its event loop."""

    def make() -> Any:
        storage = lk.Storage(cache_dir=tmp_path / "cache", cache_bytes=2000)
        return lk.JsonlDataset(nginx.url + "/", storage=storage, index_dir=tmp_path / "index", transform=with_draws)

    check_laws(make, number)


@pytest.mark.parametrize("cached", [True, False])
def test_s3_gives_what_local_shards_give(s3: dict[str, Any], tmp_path: Path, cached: bool) -> None:
    (tmp_path / "local").mkdir()
    for name, content in shards().items():
        (tmp_path / "local" / name).write_bytes(content)
    storage = lk.Storage(s3, cache_dir=tmp_path / "cache" if cached else None)
    remote = pickle.loads(
        pickle.dumps(lk.JsonlDataset("s3://bucket/data", storage=storage, index_dir=tmp_path, transform=with_draws))
    )
    local = lk.JsonlDataset(tmp_path / "local", transform=with_draws)
    assert remote.fingerprint() == local.fingerprint()
    settings: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3, "collate_fn": as_list}
    wanted = list(lk.Loader(local, **settings))
    for workers in (0, 2):
        found = list(lk.Loader(remote, num_workers=workers, **settings))
        assert repr(found) == repr(wanted)
    loader = lk.Loader(remote, **settings)
    walk = iter(loader)
    first = [next(walk), next(walk)]
    again = lk.Loader(remote, num_workers=2, **settings)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert repr(first + list(again)) == repr(wanted)


@pytest.mark.slow
def test_workers_that_are_not_forked_read_s3(s3: dict[str, Any], tmp_path: Path) -> None:
    data = lk.JsonlDataset("s3://bucket/data", storage=lk.Storage(s3, cache_dir=tmp_path), index_dir=tmp_path)
    loader = lk.Loader(data, 8, num_workers=1, collate_fn=as_list, multiprocessing_context="spawn")
    assert [row for batch in loader for row in batch] == ROWS


def test_urls_folders_and_globs_are_listed(nginx: Nginx, s3: dict[str, Any]) -> None:
    names = sorted(shards())
    storage = lk.Storage(s3)
    for given in ("s3://bucket/data", "s3://bucket/data/", "s3://bucket/data/*.jsonl"):
        assert expand(given, [".jsonl"], storage) == [f"s3://bucket/data/{name}" for name in names]
    for given in (nginx.url + "/", nginx.url + "/*.jsonl"):
        assert expand(given, [".jsonl"]) == [f"{nginx.url}/{name}" for name in names]
    assert expand([f"{nginx.url}/{name}" for name in names], [".x"]) == [f"{nginx.url}/{name}" for name in names]
    assert expand(f"file://{nginx.root}/part-0.jsonl", [".x"]) == [f"{nginx.root}/part-0.jsonl"]


def test_without_a_cache_ranges_are_asked_for(nginx: Nginx, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (nginx.root / "big.npy").write_bytes(content)
    with lk.Storage(cache_dir=None).open(nginx.url + "/big.npy") as file:
        file.seek(-100, 2)
        assert file.read() == content[-100:]
        file.seek(1_000_000)
        assert file.read(10) == content[1_000_000:1_000_010]
    asked = [line for line in nginx.requests() if "big.npy" in line]
    assert len(asked) == 2
    assert all(' 206 "bytes=' in line for line in asked)
    assert sum(int(line.split()[-1]) for line in asked) < 1_000_000
    (nginx.root / "big.npy").write_bytes(content * 3)  # a download is several requests
    with lk.Storage(cache_dir=tmp_path).open(nginx.url + "/big.npy") as file:
        assert file.read() == content * 3


def read_all(url: str, folder: Path) -> None:
    data = lk.JsonlDataset(url, storage=lk.Storage(cache_dir=folder / "cache"), index_dir=folder / "index")
    loader = lk.Loader(data, 3, num_workers=2, collate_fn=as_list, multiprocessing_context="fork")
    if [row for batch in loader for row in batch] != ROWS:
        os._exit(3)


def test_two_ranks_with_two_workers_download_each_shard_once(nginx: Nginx, tmp_path: Path) -> None:
    before = len(nginx.requests())
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=read_all, args=(nginx.url + "/*.jsonl", tmp_path)) for _ in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
        assert rank.exitcode == 0
    asked = Counter(line.split()[1] for line in nginx.requests()[before:] if ".jsonl" in line)
    assert asked == {f"/part-{part}.jsonl": 1 for part in (0, 2, 3)}  # the empty one needs no request


@pytest.mark.parametrize("fault", ["503", "429", "500", "half", "reset", "stall", "no ranges"])
@pytest.mark.parametrize("cached", [True, False])
def test_temporary_errors_are_retried(faulty: Faulty, tmp_path: Path, fault: str, cached: bool) -> None:
    storage = lk.Storage(cache_dir=tmp_path / "cache" if cached else None, retry=QUICK, timeout_s=0.5)
    faulty.faults = [fault] * 3
    data = lk.JsonlDataset(faulty.url, storage=storage, index_dir=tmp_path)
    check_reads(data, ROWS)
    data.close()
    assert not faulty.faults or fault == "no ranges"
    if cached and fault != "no ranges":
        assert len(faulty.gets) == 4


def test_a_late_request_is_made_once_more(faulty: Faulty) -> None:
    """The late answers come after the test."""
    size = len(faulty.content)
    ranges = [(at, min(at + 20, size)) for at in range(0, size, 20)]
    faulty.faults = [""] * 7 + ["late"] + [""] * 4 + ["late"]
    storage = lk.Storage(cache_dir=None, timeout_s=120)
    begun = time.monotonic()
    assert b"".join(storage.read_many(faulty.url, ranges, size)) == faulty.content
    assert time.monotonic() - begun < 90
    assert len(faulty.gets) >= len(ranges) + 2
    assert max(Counter(faulty.gets).values()) == 2


def test_an_error_that_outlasts_all_retries_is_one_clear_error(faulty: Faulty, tmp_path: Path) -> None:
    size = len(faulty.content)
    for fault, says in (
        ("503", "503"),
        ("half", "received 350 of 701 bytes|Not enough data"),
        ("stall", "no answer within 0.3 s"),
    ):
        faulty.faults = [fault] * 4
        storage = lk.Storage(cache_dir=tmp_path / "cache", retry=QUICK, timeout_s=0.3)
        with pytest.raises(
            OSError, match=rf"data.jsonl: bytes 0 to {size:,} of {size:,}: can't be read: .*({says})"
        ) as caught:
            lk.JsonlDataset(faulty.url, storage=storage, index_dir=tmp_path)
        assert "tried 4 times" in str(caught.value)
        assert is_transient(caught.value)
    assert not list((tmp_path / "cache").glob("*.lks*"))
    assert not list((tmp_path / "cache").glob("*.lkp*"))


@pytest.mark.parametrize(("status", "error"), [("403", PermissionError), ("404", FileNotFoundError)])
def test_permanent_errors_are_not_retried(faulty: Faulty, tmp_path: Path, status: str, error: type[OSError]) -> None:
    faulty.faults = [status] * 9
    with pytest.raises(error, match=r"data.jsonl: bytes"):
        lk.JsonlDataset(faulty.url, storage=lk.Storage(cache_dir=tmp_path), index_dir=tmp_path)
    assert len(faulty.gets) == 1


@pytest.fixture
def proxy(s3: dict[str, Any]) -> Iterator[FaultyProxy]:
    server = FaultyProxy(int(s3["endpoint_url"].rpartition(":")[2]))
    yield server
    server.close()


def s3_storage(proxy: FaultyProxy, s3: dict[str, Any], cache: Path | None, retry: Retry = QUICK) -> lk.Storage:
    """Each S3 request is tried by us alone: neither botocore nor s3fs tries again."""
    options = {**s3, "endpoint_url": proxy.url, "config_kwargs": {"retries": {"max_attempts": 0}}}
    return lk.Storage(options, cache_dir=cache, retry=retry)


@pytest.fixture
def one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    s3fs = pytest.importorskip("s3fs")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)


@pytest.mark.each_value
@pytest.mark.usefixtures("one_try")
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("fault", ["drop", "truncate", "503 SlowDown", "500 InternalError"])
def test_s3_is_asked_again(proxy: FaultyProxy, s3: dict[str, Any], tmp_path: Path, fault: str, cached: bool) -> None:
    """Whatever fails on the way, and whatever was asked, the data is what was written."""
    retry = Retry(attempts=12, wait_s=0.01)
    storage = s3_storage(proxy, s3, tmp_path / "cache" if cached else None, retry)
    proxy.faults = [fault, fault, ""] * 6
    data = lk.JsonlDataset("s3://bucket/data/*.jsonl", storage=storage, index_dir=tmp_path / "index")
    loader = lk.Loader(data, 4, world=lk.World(), collate_fn=list)
    assert [row for batch in loader for row in batch] == ROWS
    assert proxy.asked.count(f"GET {fault}") >= 2
    assert proxy.asked.count(f"HEAD {fault}") >= 2


class ReadsAndDraws:
    """Each sample asks the store, then draws."""

    def __init__(self, storage: lk.Storage) -> None:
        self.storage = storage

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[bytes, float]:
        return self.storage.read("s3://bucket/data/part-0.jsonl", index, index + 5, 10**6), random.random()


def test_requests_that_are_repeated_draw_nothing(proxy: FaultyProxy, s3: dict[str, Any]) -> None:
    """The samples' random numbers are the same, whatever failed while they were read."""
    found = []
    for faults in ([], ["503 SlowDown", "500 InternalError"] * 4):
        options = {**s3, "endpoint_url": proxy.url}  # nothing else is set: botocore's own settings stay
        data = ReadsAndDraws(lk.Storage(options, retry=Retry(attempts=12, wait_s=0.01)))
        proxy.faults = list(faults)
        found.append([sample for batch in lk.Loader(data, 4, collate_fn=list) for sample in batch])
        assert not proxy.faults
    assert found[0] == found[1]


@pytest.mark.usefixtures("one_try")
@pytest.mark.parametrize("cached", [True, False])
def test_what_s3_does_not_mend_is_one_clear_error(
    proxy: FaultyProxy, s3: dict[str, Any], tmp_path: Path, cached: bool
) -> None:
    url = "s3://bucket/data/part-0.jsonl"
    storage = s3_storage(proxy, s3, tmp_path / "cache" if cached else None, Retry(attempts=3, wait_s=0.01))
    data = lk.JsonlDataset(url, storage=storage, index_dir=tmp_path / "index")

    def refused(fault: str) -> str:
        """Ask for the first sample, of a dataset that has not opened its shard; return the error."""
        for path in (tmp_path / "cache").glob("*.lkshard"):
            path.unlink()
        proxy.faults, proxy.asked = [fault] * 20, []
        with pytest.raises(OSError, match=r"^s3://bucket/data/part-0\.jsonl: ") as caught:
            pickle.loads(pickle.dumps(data))[0]
        proxy.faults = []
        return f"{type(caught.value).__name__}: {caught.value}"

    assert re.search(
        r"OSError: .*can't be read: .*(SlowDown|Service Unavailable).*tried 3 times", refused("503 SlowDown")
    )
    assert len(proxy.asked) == 3
    assert re.search(r"OSError: .*can't be read: .*tried 3 times", refused("drop"))
    assert len(proxy.asked) in range(3, 7)  # aiohttp asks once more by itself on a connection that was open
    assert re.search(
        r"PermissionError: .*access is refused: .*(AccessDenied|Forbidden).*Storage\(options\)",
        refused("403 AccessDenied"),
    )
    assert len(proxy.asked) == 1
    assert re.search(r"FileNotFoundError: .*is not there: ", refused("404 NoSuchKey"))
    assert len(proxy.asked) == 1
    assert data[0] == ROWS[0]  # the next time it is there


def test_refusals_and_gaps_are_named(nginx: Nginx, s3: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(
        PermissionError, match=r"secret/a.jsonl: access is refused: .*403.* Pass credentials as Storage"
    ):
        lk.JsonlDataset(nginx.url + "/secret/a.jsonl", index_dir=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"none.jsonl: is not there"):
        lk.JsonlDataset(nginx.url + "/none.jsonl", index_dir=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no shards at 's3://bucket/none'"):
        lk.JsonlDataset("s3://bucket/none", storage=lk.Storage(s3), index_dir=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"s3://other/a: is not there: .*NoSuchBucket"):
        lk.JsonlDataset("s3://other/a", storage=lk.Storage(s3), index_dir=tmp_path)


def test_changed_data_is_never_served_stale(faulty: Faulty, tmp_path: Path) -> None:
    def make() -> Any:
        return lk.JsonlDataset(faulty.url, storage=lk.Storage(cache_dir=tmp_path / "cache"), index_dir=tmp_path)

    old = make()
    assert old[1] == ROWS[1]
    changed = [*ROWS[:1], ROWS[2], ROWS[1], *ROWS[3:]]
    faulty.content, faulty.etag = lines(changed), '"2"'
    assert len(faulty.content) == len(lines(ROWS))  # told apart by nothing but the ETag
    with pytest.warns(UserWarning, match="1 of 1 shards have changed"):
        new = make()
    assert new[1] == ROWS[2]
    assert old[1] == ROWS[1]
    for copy in (tmp_path / "cache").glob("*.lkshard"):
        copy.unlink()
    old.close()
    with pytest.raises(ValueError, match=r"changed while it was in use: .* ETag 2,.* was .* ETag 1,"):
        old[1]


def test_a_shard_larger_than_the_cache_is_read_by_ranges(nginx: Nginx, tmp_path: Path) -> None:
    storage = lk.Storage(cache_dir=tmp_path / "cache", cache_bytes=100)
    check_reads(lk.JsonlDataset(nginx.url + "/", storage=storage, index_dir=tmp_path), ROWS)
    assert all(path.stat().st_size <= 100 for path in (tmp_path / "cache").glob("*.lk*"))
    with pytest.raises(ValueError, match="cache_bytes is 0"):
        lk.Storage(cache_bytes=0)


def test_a_killed_download_is_done_again(faulty: Faulty, tmp_path: Path) -> None:
    faulty.faults = ["stall"]
    context = multiprocessing.get_context("fork")
    storage = lk.Storage(cache_dir=tmp_path / "cache", retry=QUICK)
    child = context.Process(target=lk.JsonlDataset, args=(faulty.url,), kwargs={"storage": storage})
    child.start()
    end = time.monotonic() + 20
    while not faulty.gets and time.monotonic() < end:
        time.sleep(0.01)
    assert faulty.gets
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join(60)
    assert [path.suffix for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"] == [".lkpart"]
    check_reads(lk.JsonlDataset(faulty.url, storage=storage, index_dir=tmp_path), ROWS)


def test_the_command_indexes_s3(s3: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [f"--storage-option={name}={value}" for name, value in s3.items()]
    command = ["index", "s3://bucket/data", *options]
    command += [
        f"--index-dir={tmp_path / 'index'}",
        f"--cache-dir={tmp_path / 'cache'}",
        "--cache-bytes=1M",
        "--jobs=1",
    ]
    for wanted in ("4 made", "4 fresh"):
        assert main(command) == 0
        assert f"{wanted}; 22 samples" in capsys.readouterr().out


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(lk.Storage({"secret": "hidden"}))
