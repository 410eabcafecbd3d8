"""`loaderkit bench` and `loaderkit doctor` on a bucket: with its credentials, and never a cold cache next to a warm one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import Faulty, SlowStore, run_s3, run_store

import loaderkit as lk
from loaderkit.cli.command import main

SHARDS, EACH, BYTES = 4, 16, 600_000  # more than 8 MiB a shard: smaller ones are waited for


class Samples:
    def __len__(self) -> int:
        return SHARDS * EACH

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"bin": bytes([index]) * BYTES}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowStore]:
    with run_store(tmp_path_factory.mktemp("store"), latency_s=0.002) as found:
        lk.write_shards(Samples(), found.root / "bucket" / "train", samples_per_shard=EACH)
        yield found


def run(command: str, url: str, options: dict[str, Any], folder: Path, *more: object) -> int:
    given = [f"--storage-option={name}={value}" for name, value in options.items()]
    places = [f"--cache-dir={folder / 'cache'}", "--option", f"index_dir={folder / 'index'}"]
    return main([command, url, *given, *places, *map(str, more)])


BENCH = ("--engines", "inline,ring", "--workers", "0,1", "--seconds", 1, "--rounds", 1, "--batch-size", 4)


def got(store: SlowStore) -> int:
    """Bytes of shards that were sent since the last call."""
    found = sum(request["bytes"] for request in store.requests() if ".tar" in request["path"])
    store.reset()
    return found


def test_warm_turns_download_each_shard_once_and_cold_ones_every_time(
    store: SlowStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    got(store)
    whole = SHARDS * EACH * BYTES
    assert run("bench", "s3://bucket/train/", store.options, tmp_path, *BENCH) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[1].startswith("cache: warm.")
    assert "\nrecommended from a warm cache: engine=" in text
    assert whole <= got(store) < 2 * whole
    assert run("bench", "s3://bucket/train/", store.options, tmp_path, *BENCH, "--cache", "cold") == 0
    text = capsys.readouterr().out
    assert text.splitlines()[1].startswith("cache: cold.")
    assert text.splitlines()[3].endswith("downloads (MB/s)")
    assert "\nrecommended for the first epoch: engine=" in text
    assert got(store) >= 2 * whole  # for each of two settings
    kept = sorted(path.suffix for path in (tmp_path / "cache").iterdir())
    assert kept == [".lkshard"] * SHARDS + [".lock"]  # the empty caches are gone


def test_a_cache_that_never_gets_warm_is_not_measured(
    store: SlowStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("--cache-bytes", "12M", "--engines", "inline", "--workers", 0, "--seconds", 1, "--rounds", 1)
    assert run("bench", "s3://bucket/train/", store.options, tmp_path, *small) == 1
    text = capsys.readouterr().out
    assert "the cache is too small for what is read" in text
    assert "recommended: nothing" in text


def test_the_doctor_says_how_many_connections_and_how_much_cache_the_run_wants(
    store: SlowStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("doctor", "s3://bucket/train/", store.options, tmp_path, "--workers", 0) == 0
    text = capsys.readouterr().out
    assert "4 remote shards, 36.7 MiB: " in text
    assert "connections would reach that, and a download opens 16" in text or "all 16 connections" in text
    assert "about 4 shards are in use at a time, 36.7 MiB: the run wants at least that much cache" in text
    assert run("doctor", "s3://bucket/train/", store.options, tmp_path, "--workers", 0, "--cache-bytes", "12M") == 0
    assert "Each epoch downloads the rest again, and shards in use again and again." in capsys.readouterr().out


def test_other_servers_work_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = b"".join(b'{"id": %d}\n' % number for number in range(64))
    served = Faulty(content)
    try:
        assert (
            run("bench", served.url, {}, tmp_path, *BENCH[:2], "--workers", "0,1", "--seconds", 1, "--rounds", 1) == 0
        )
        assert "cache: warm." in capsys.readouterr().out
    finally:
        served.close()
    import fsspec

    with run_s3(tmp_path) as options:
        files = fsspec.filesystem("s3", **options, skip_instance_cache=True)
        files.mkdir("lines")
        files.pipe("lines/a.jsonl", content)
        given = ("--engines", "inline", "--workers", 0, "--seconds", 1, "--rounds", 1)
        assert run("bench", "s3://lines/a.jsonl", options, tmp_path / "s3", *given) == 0
        assert "cache: warm." in capsys.readouterr().out
        assert run("bench", "s3://lines/b.jsonl", options, tmp_path / "s3", *given) == 1
        assert "no shards at 's3://lines/b.jsonl'" in capsys.readouterr().err


def test_storage_options_of_local_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text("1\n")
    assert main(["bench", str(tmp_path / "a.jsonl"), "--storage-option", "key=a"]) == 1
    assert "are for URLs, and " in capsys.readouterr().err
