"""`loaderkit index`: what it writes, prints and leaves after a kill."""

import dataclasses
import json
import os
import pty
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import numpy as np
import psutil
import pytest
from command_line import COMMAND, ENVIRONMENT, loaderkit
from forked import lives
from servers import SlowStore, run_store
from shards_written import folder_index, side
from tasks import failing

import loaderkit as lk
from loaderkit.cli.command import main
from loaderkit.datasets.formats import find_formats, format_named, format_of
from loaderkit.datasets.shards.folder_index import FOLDER_INDEX, to_bytes
from loaderkit.datasets.shards.index import ShardIndex, index_path
from loaderkit.datasets.shards.jsonl import JsonlDataset
from loaderkit.files.urls import INDEX_SUFFIX as SUFFIX
from loaderkit.system.process_pool import map_in_processes


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Return a folder of five shards of 10 to 14 bytes."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.bytes").write_bytes(b"x" * (10 + number))
    return folder


def indexes(folder: Path) -> dict[str, int]:
    """Return the number of samples of each shard with a whole index in the user's folder. None lies next to a shard."""
    assert not list(folder.glob(f"*{SUFFIX}"))
    found = {path.name: index_path(str(path), None) for path in sorted(folder.glob("*.bytes"))}
    return {name: whole_index(path).count for name, path in found.items() if path.exists()}


def whole_index(path: Path) -> ShardIndex:
    return ShardIndex.from_bytes(path.read_bytes(), path)


WHOLE = {f"{number}.bytes": 10 + number for number in range(5)}


@pytest.mark.parametrize("jobs", [1, 2])
def test_index_makes_what_is_missing_and_leaves_what_is_fresh(shards: Path, jobs: int) -> None:
    command = ("index", shards, "--format", "index_formats:Bytes", "--jobs", jobs)
    missing = loaderkit(*command, "--check")
    assert missing.returncode == 1
    assert "5 shards: 5 missing; 0 samples" in missing.stdout
    assert indexes(shards) == {}  # a check writes nothing

    made = loaderkit(*command)
    assert (made.returncode, made.stderr) == (0, "")
    assert f"made    {shards}/3.bytes  13 samples" in made.stdout
    assert made.stdout.endswith("5 shards: 5 made; 60 samples\n")
    assert indexes(shards) == WHOLE

    (shards / "1.bytes").write_bytes(b"x" * 40)
    stale = loaderkit(*command, "--check", "--quiet")
    assert stale.returncode == 1
    assert f"stale   {shards}/1.bytes: has 40 bytes, had 11 when it was indexed" in stale.stderr
    again = loaderkit(*command)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.endswith("5 shards: 4 fresh, 1 made; 89 samples\n")
    assert loaderkit(*command, "--check").returncode == 0


def test_a_shard_that_fails_is_named_and_the_others_are_made(shards: Path) -> None:
    (shards / "2.bytes").write_bytes(b"ab!c")
    done = loaderkit("index", shards, "--format", "index_formats:Bytes", "--quiet")
    assert done.returncode == 1
    assert done.stderr == f"failed  {shards}/2.bytes: a '!' at byte 2.\n"
    assert done.stdout == "5 shards: 1 failed, 4 made; 48 samples\n"
    assert indexes(shards) == {name: count for name, count in WHOLE.items() if name != "2.bytes"}


def test_a_damaged_index_is_made_again(shards: Path) -> None:
    command = ("index", shards, "--format", "index_formats:Bytes")
    loaderkit(*command)
    index = index_path(str(shards / "4.bytes"), None)
    index.write_bytes(index.read_bytes()[:-9])
    damaged = loaderkit(*command, "--check")
    assert damaged.returncode == 1
    assert "4 fresh, 1 damaged" in damaged.stdout or "1 damaged, 4 fresh" in damaged.stdout
    assert loaderkit(*command).stdout.endswith("5 shards: 4 fresh, 1 made; 60 samples\n")
    assert indexes(shards) == WHOLE


def entries(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that the folder's index is there, and fresh, and that the folder has nothing but shards."""
    assert [path.name for path in side(folder).glob(f"*{SUFFIX}")] == [FOLDER_INDEX]
    assert {path.suffix for path in folder.iterdir()} == {".tar"}
    assert main(["index", str(folder), "--check", "--checksum"]) == 0
    assert capsys.readouterr().out.endswith("3 shards: 3 fresh; 50 samples\n")


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_folders_index_is_an_index_of_its_shards(
    jobs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is fresh, stale or damaged, and mended, as the shards' own files are; these are folded into it on request."""
    out = tmp_path / "out"
    lk.write_shards([{"cls": row} for row in range(50)], out, samples_per_shard=20)
    before = folder_index(out).read_bytes()
    entries(out, capsys)
    command = ["index", str(out), "--jobs", jobs]
    assert main([*command, "--folder-index"]) == 0
    assert capsys.readouterr().out.endswith("3 shards: 3 fresh; 50 samples\n")
    assert folder_index(out).read_bytes() == before
    entries(out, capsys)

    data = lk.TarDataset(out)
    good = {Path(shard).name: data.proven_index(part) for part, shard in enumerate(data.shards)}
    cut = {name: dataclasses.replace(index, offsets=index.spans(name)[:-1]) for name, index in good.items()}
    for damage in (before[:30], before[:-9], before[:-30] + bytes(30), to_bytes(cut)):
        folder_index(out).write_bytes(damage)
        assert main([*command, "--check"]) == 1
        assert "damaged" in capsys.readouterr().out
        assert main([*command, "--checksum", "--folder-index"]) == 0
        capsys.readouterr()
        entries(out, capsys)

    first, second = out / "shard-000000.tar", out / "shard-000001.tar"
    shutil.copyfile(first, second)
    assert main([*command, "--check"]) == 1
    assert f"stale   {second}: was changed after it was indexed" in capsys.readouterr().err
    assert main(command) == 0
    assert capsys.readouterr().out.endswith("3 shards: 2 fresh, 1 made; 50 samples\n")
    assert index_path(str(second), None).exists()
    assert main(["index", str(second), "--checksum", "--folder-index", "--quiet"]) == 0  # and keeps the others' entries
    capsys.readouterr()
    entries(out, capsys)

    time_ns = second.stat().st_mtime_ns
    second.write_bytes(second.read_bytes().replace(b"7" + bytes(511), b"8" + bytes(511)))
    os.utime(second, ns=(time_ns, time_ns))
    assert main([*command, "--check", "--checksum"]) == 1
    assert "its content changed after it was indexed, but not its size and time" in capsys.readouterr().err
    assert main([*command, "--checksum", "--folder-index"]) == 0
    capsys.readouterr()
    entries(out, capsys)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowStore]:
    with run_store(tmp_path_factory.mktemp("store")) as found:
        yield found


def test_a_process_indexes_several_remote_shards_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And names each one that fails."""
    with run_store(tmp_path, latency_s=0.1) as store:
        folder = store.root / "bucket" / "many"
        lk.write_shards([{"cls": row} for row in range(40)], folder, samples_per_shard=2)
        shutil.rmtree(side(folder))
        broken = folder / "shard-000007.tar"
        broken.write_bytes(broken.read_bytes()[:700])
        options = [f"--storage-option={name}={value}" for name, value in store.options.items()]
        folders = [f"--index-dir={tmp_path / 'index'}", f"--cache-dir={tmp_path / 'cache'}"]
        assert main(["index", "s3://bucket/many/", *options, *folders, "--jobs=1"]) == 1
        asked = [(one["method"], one["path"]) for one in store.requests() if one["path"].endswith(".tar")]
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1] == "20 shards: 1 failed, 19 made; 38 samples"
    assert "failed  s3://bucket/many/shard-000007.tar" in shown.err
    before_the_first_read = takewhile(lambda request: request[0] != "GET", asked)
    assert len({path for _, path in before_the_first_read}) > 3  # one after another it is 1


def test_check_reads_the_index_of_a_buckets_folder_once(
    store: SlowStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An upload has other times and tags than the index: it is fresh by its size, and by its content with --checksum."""
    folder = store.root / "bucket" / "train"
    lk.write_shards([{"cls": row} for row in range(50)], folder, samples_per_shard=10)
    for path in (*folder.iterdir(), *side(folder).iterdir()):
        os.utime(path, (1e9, 1e9))
    options = [f"--storage-option={name}={value}" for name, value in store.options.items()]
    command = ["index", "s3://bucket/train/", *options, f"--index-dir={tmp_path}", f"--cache-dir={tmp_path / 'cache'}"]

    def check(*more: str) -> tuple[int, str, str]:
        code = main([*command, "--check", *(more or ("--jobs=1",))])
        shown = capsys.readouterr()
        return code, shown.out.splitlines()[-1], shown.err

    for more in (("--jobs=1",), ("--jobs=2",), ("--jobs=1", "--checksum")):
        store.reset()
        assert check(*more) == (0, "5 shards: 5 fresh; 50 samples", "")
        asked = [request["method"] for request in store.requests() if request["path"].endswith(FOLDER_INDEX)]
        assert sorted(asked) == ["GET", "GET", "HEAD"]  # its header, and then all of it
    assert not list(tmp_path.glob(f"*{SUFFIX}"))

    index = folder_index(folder).read_bytes()
    (folder / "shard-000009.tar").write_bytes((folder / "shard-000000.tar").read_bytes())
    (folder / "shard-000001.tar").write_bytes((folder / "shard-000001.tar").read_bytes() + bytes(512))
    folder_index(folder).write_bytes(index[:-9])
    code, last, errors = check()
    assert (code, last) == (1, "6 shards: 1 damaged, 3 fresh, 1 missing, 1 stale; 30 samples")
    assert "missing s3://bucket/train/shard-000009.tar: has no index" in errors
    size = (folder / "shard-000001.tar").stat().st_size
    stale = f"s3://bucket/train/shard-000001.tar: has {size:,} bytes, had {size - 512:,} when it was indexed"
    assert f"stale   {stale}" in errors
    assert (
        "damaged s3://bucket/train/shard-000004.tar: s3://bucket/.train.loaderkit/folder.lkindex: is damaged, or changed"
        in errors
    )
    folder_index(folder).write_bytes(index[:50])
    assert check()[:2] == (1, "6 shards: 6 damaged; 0 samples")

    (folder / "shard-000009.tar").unlink()
    folder_index(folder).unlink()
    assert main([*command, "--folder-index", "--jobs=1"]) == 0
    capsys.readouterr()
    shutil.rmtree(tmp_path / "cache")
    for path in tmp_path.glob(f"*{SUFFIX}"):
        path.unlink()
    assert check()[:2] == (0, "5 shards: 5 fresh; 50 samples")
    shard = folder / "shard-000002.tar"
    shard.write_bytes(shard.read_bytes()[::-1])
    code, last, errors = check()
    assert (code, last) == (1, "5 shards: 4 fresh, 1 stale; 40 samples")
    assert "stale   s3://bucket/train/shard-000002.tar: was changed after it was indexed" in errors


def test_a_checksum_finds_what_size_and_time_hide(shards: Path) -> None:
    command = ("index", shards, "--format", "index_formats:Bytes")
    loaderkit(*command)
    assert "its index has no checksum" in loaderkit(*command, "--check", "--checksum").stderr
    assert loaderkit(*command, "--checksum").stdout.endswith("5 shards: 5 made; 60 samples\n")
    assert loaderkit(*command, "--check", "--checksum").returncode == 0
    shard = shards / "2.bytes"
    time_ns = shard.stat().st_mtime_ns
    shard.write_bytes(b"y" * 12)
    os.utime(shard, ns=(time_ns, time_ns))
    assert loaderkit(*command, "--check").returncode == 0
    changed = loaderkit(*command, "--check", "--checksum")
    assert changed.returncode == 1
    assert changed.stderr.startswith(f"stale   {shard}: its content changed after it was indexed")
    assert loaderkit(*command, "--checksum").stdout.endswith("5 shards: 4 fresh, 1 made; 60 samples\n")
    assert loaderkit(*command, "--check", "--checksum").returncode == 0


def test_indexes_lie_in_a_folder_on_request(shards: Path, tmp_path: Path) -> None:
    command = ("index", shards, "--format", "index_formats:Bytes", "--index-dir", tmp_path / "indexes")
    assert loaderkit(*command).returncode == 0
    assert indexes(shards) == {}
    assert sorted(whole_index(path).count for path in (tmp_path / "indexes").iterdir()) == sorted(WHOLE.values())
    assert loaderkit(*command, "--check").returncode == 0


def test_the_format_is_known_by_the_suffix(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    (tmp_path / "b.ndjson").write_text("3\n")
    done = loaderkit("index", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("2 shards: 2 made; 3 samples\n")
    assert len(JsonlDataset(tmp_path)) == 3
    np.save(tmp_path / "d.npy", np.arange(5))  # of two formats, neither of which has an index
    assert "2 fresh, 1 without" in loaderkit("index", tmp_path).stdout
    (tmp_path / "c.what").write_text("")
    unknown = loaderkit("index", tmp_path / "c.what")
    assert unknown.returncode == 1
    assert "no format has this suffix" in unknown.stderr


def test_settings_of_a_format_and_formats_without_an_index(shards: Path) -> None:
    command = ("index", shards, "--format")
    stepped = loaderkit(*command, "index_formats:Bytes", "--option", "step=10")
    assert stepped.stdout.endswith("5 shards: 5 made; 9 samples\n")
    without = loaderkit(*command, "index_formats:NoIndex")
    assert without.returncode == 0
    assert "5 shards: 5 without; 0 samples" in without.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["index", "nowhere"], 1, "no shards at 'nowhere'"),
        (["index", ".", "--format", "what"], 1, "format 'what' is not known, wanted one of"),
        (["index", ".", "--format", "no_module:Class"], 1, "can't be loaded: No module named 'no_module'"),
        (["index", ".", "--format", "index_formats:os"], 1, "wanted a subclass of ShardedDataset"),
        (["index", ".", "--jobs", "0"], 2, "--jobs: 0, wanted at least 1"),
        (["index", ".", "--option", "step"], 2, "'step', wanted NAME=VALUE"),
        (["idnex"], 2, "Did you mean 'index'?"),
        (["index", ".", "--cheksum"], 2, "unrecognized arguments: --cheksum. Did you mean '--checksum'?"),
    ],
)
def test_mistakes_are_named(arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        found = main(arguments)
    except SystemExit as end:  # argparse exits
        found = end.code  # type: ignore[assignment]
    shown = capsys.readouterr()
    assert (found, shown.out) == (code, "")
    assert message in shown.err


def test_a_worker_that_dies_is_a_failure_not_a_hang(shards: Path) -> None:
    command = ("index", shards, "--jobs", 2, "--format")
    done = loaderkit(*command, "index_formats:Dying")
    assert done.returncode == 1
    assert "a worker process was killed" in done.stderr
    assert loaderkit(*command, "index_formats:Bytes").returncode == 0
    assert indexes(shards) == WHOLE


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_run_leaves_nothing_half_and_a_rerun_finishes(shards: Path, kill: signal.Signals) -> None:
    arguments = ["index", str(shards), "--jobs", "2", "--format", "index_formats:Slow"]
    process = subprocess.Popen([*COMMAND, *arguments], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not indexes(shards) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) == 2
    process.send_signal(kill)
    _, errors = process.communicate(timeout=120)  # ends when the workers have closed the pipes
    assert process.returncode == (130 if kill == signal.SIGINT else -kill)
    assert b"Traceback" not in errors
    psutil.wait_procs(workers, timeout=60)
    assert not [worker for worker in workers if lives(worker.pid)]

    before = indexes(shards)
    assert 0 < len(before) < 5
    assert {name: WHOLE[name] for name in before} == before
    done = loaderkit(*arguments)
    assert done.returncode == 0
    assert done.stdout.endswith(f"5 shards: {len(before)} fresh, {5 - len(before)} made; 60 samples\n")
    assert indexes(shards) == WHOLE


def test_parts_that_a_kill_left_are_removed_when_they_are_old(shards: Path) -> None:
    index_path(str(shards / "0.bytes"), None).parent.mkdir(exist_ok=True)
    old, new, other = (
        index_path(str(shards / "0.bytes"), None).with_name(name)
        for name in (f".{'0' * 32}.part", f".{'1' * 32}.part", ".mine.part")
    )
    for path in (old, new, other):
        path.write_bytes(b"LKIND")
    for path in (old, other):
        os.utime(path, (1, 1))
    assert loaderkit("index", shards, "--format", "index_formats:Bytes").returncode == 0
    assert [path.exists() for path in (old, new, other)] == [False, True, True]


@pytest.mark.parametrize(("rank", "seen"), [("0", True), ("1", False)])
def test_progress_is_shown_on_a_terminal_by_rank_0(shards: Path, rank: str, seen: bool) -> None:
    reader, writer = pty.openpty()
    environment = ENVIRONMENT | {"RANK": rank, "WORLD_SIZE": "2"}
    command = [*COMMAND, "index", str(shards), "--format", "index_formats:Bytes"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=writer) as process:
        os.close(writer)
        shown = b""
        try:
            while block := os.read(reader, 4096):
                shown += block
        except OSError:  # raised at a terminal's end
            pass
        os.close(reader)
        assert process.stdout is not None
        lines = process.stdout.read().decode()
    assert process.returncode == 0
    assert lines.endswith("5 shards: 5 made; 60 samples\n")  # no bar in piped output
    assert (b"indexing" in shown) == seen


def test_formats_are_found_by_name_and_suffix() -> None:
    formats = find_formats()
    assert formats["jsonl"] is JsonlDataset
    assert format_named("jsonl") is format_of("s3://bucket/part-1.jsonl") is JsonlDataset
    for name, kind in formats.items():
        assert kind.suffixes or name == "litdata", name  # whose chunks are known by their index: .bin is tokens
        assert json.dumps(kind.suffixes)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_each_task_has_its_result_or_its_error(jobs: int) -> None:
    results = dict(map_in_processes(failing, range(4), jobs=jobs, fork=False))
    assert {task: result for task, result in results.items() if task != 2} == {0: 0, 1: 10, 3: 30}
    assert "UnicodeDecodeError: 'utf-8' codec can't decode" in str(results[2])
    assert "(in the third)" in str(results[2])
