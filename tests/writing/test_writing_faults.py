"""After a kill at any moment or a full disk, visible shards are complete and a rerun finishes."""

import multiprocessing
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from forked import lives
from shards_written import NeverScans, contents, hidden, manifest, side

import loaderkit as lk
from loaderkit.datasets.shards.folder_index import FOLDER_INDEX
from loaderkit.files.urls import INDEX_SUFFIX
from loaderkit.writing.manifest import Folder

FORMATS = {"tar": ".tar", "parquet": ".parquet", "tokens": ".bin"}
SIZE, PER_SHARD = 32, 8


class Source:
    """Samples that take a while."""

    def __init__(self, form: str, pause_s: float = 0.0) -> None:
        self.form, self.pause_s = form, pause_s

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.pause_s)
        return [index] * 40 if self.form == "tokens" else {"cls": index, "txt": "x" * 300}


def write(folder: Path, form: str, jobs: int = 1, pause_s: float = 0.0, **settings: Any) -> None:
    lk.write_shards(Source(form, pause_s), folder, format=form, samples_per_shard=PER_SHARD, jobs=jobs, **settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """What an uninterrupted run writes."""
    found = {}
    for form in FORMATS:
        folder = tmp_path_factory.mktemp(form)
        write(folder, form)
        found[form] = contents(folder)
        assert len([name for name in found[form] if name.endswith(FORMATS[form])]) == SIZE // PER_SHARD
    return found


def shards(folder: Path, form: str) -> dict[str, tuple[int, int]]:
    """Return the visible shards with their inodes and times."""
    if not folder.exists():
        return {}
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.glob(f"*{FORMATS[form]}")}


def check_and_rerun(folder: Path, form: str, wanted: dict[str, bytes], jobs: int = 1) -> int:
    """Check that visible shards are complete and stay, and that a rerun gives all. Return how many were visible."""
    before = shards(folder, form)
    if folder.exists():
        seen = contents(folder)
        assert seen == {name: wanted[name] for name in seen}
    write(folder, form, jobs)
    after = shards(folder, form)
    assert {name: after[name] for name in before} == before
    assert contents(folder) == wanted
    assert hidden(folder) == []
    check_index(folder, form)
    return len(before)


def check_index(folder: Path, form: str) -> None:
    """Check that one index file holds a fresh index of each shard."""
    assert not [path.name for path in folder.iterdir() if path.name.endswith(INDEX_SUFFIX)]
    names = [path.name for path in side(folder).iterdir() if path.name.endswith(INDEX_SUFFIX)]
    assert names == ([] if form == "tokens" else [FOLDER_INDEX])
    if form == "tar":
        data = NeverScans(folder)
        assert [data.proven_index(part).count for part in range(SIZE // PER_SHARD)] == [PER_SHARD] * (SIZE // PER_SHARD)


@contextmanager
def forked(function: Callable[[], None]) -> Iterator[Any]:
    """Run a function in a forked process, and kill it at the end."""
    process = multiprocessing.get_context("fork").Process(target=function)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join(60)


def die_at(moment: int, before: bool) -> None:
    """Kill this process at its n-th call of fsync, replace or unlink."""
    calls = iter(range(10**9))

    def wrap(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **settings: Any) -> Any:
            mine = next(calls) == moment
            if mine and before:
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*arguments, **settings)
            if mine:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(owner, name, call)

    wrap(os, "fsync")
    wrap(Path, "replace")
    wrap(Path, "unlink")


@pytest.mark.parametrize("form", FORMATS)
def test_a_kill_at_each_moment_leaves_whole_shards_and_a_rerun_finishes(
    form: str, tmp_path: Path, whole: dict[str, dict[str, bytes]]
) -> None:
    seen = set()
    moments = 0
    for moment in range(0, 1000, 1 if form == "tar" else 3):
        folder = tmp_path / str(moment)

        def killed(moment: int = moment, folder: Path = folder) -> None:
            die_at(moment, before=moment % 2 == 0)
            write(folder, form)

        with forked(killed) as process:
            process.join(60)
            code = process.exitcode
        if code == 0:  # it ended before that moment
            break
        assert code == -signal.SIGKILL
        moments += 1
        seen.add(check_and_rerun(folder, form, whole[form]))
    assert moments > (30 if form == "tar" else 10)
    assert seen == set(range(5))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_kill_at_any_time_leaves_no_process_and_a_rerun_finishes(
    jobs: int, tmp_path: Path, whole: dict[str, dict[str, bytes]]
) -> None:
    draw = random.Random(jobs)
    seen = []
    for number in range(4):
        form = draw.choice(list(FORMATS))
        folder = tmp_path / str(number)
        with forked(lambda form=form, folder=folder: write(folder, form, jobs, 0.01)) as process:  # type: ignore[misc]
            if number % 2:  # when there is something to be lost
                wait_for(lambda form=form, folder=folder: len(shards(folder, form)) >= 2)  # type: ignore[misc]
            else:
                time.sleep(draw.random() * 0.5)
            workers = psutil.Process(process.pid).children(recursive=True) if process.is_alive() else []
            os.kill(process.pid, signal.SIGKILL)
            process.join(60)
        seen.append(check_and_rerun(folder, form, whole[form], jobs))
        wait_for(lambda workers=workers: not any(lives(worker.pid) for worker in workers))  # type: ignore[misc]
    assert any(0 < found < 4 for found in seen)


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_a_killed_worker_is_an_error_and_a_rerun_finishes(tmp_path: Path, whole: dict[str, dict[str, bytes]]) -> None:
    said = multiprocessing.get_context("fork").SimpleQueue()

    def run() -> None:
        try:
            write(tmp_path / "x", "tar", 2, 0.02)
        except lk.WriteError as error:
            said.put(str(error))

    with forked(run) as process:
        wait_for(lambda: len(shards(tmp_path / "x", "tar")) >= 1)
        psutil.Process(process.pid).children()[0].kill()
        assert "a worker process was killed" in said.get()
        process.join(60)
        assert process.exitcode == 0
    assert 0 < check_and_rerun(tmp_path / "x", "tar", whole["tar"], 2) < 4


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupt_ends_it_at_once_and_leaves_nothing(
    jobs: int, tmp_path: Path, whole: dict[str, dict[str, bytes]]
) -> None:
    def run() -> None:
        try:
            write(tmp_path, "tar", jobs, 0.02)
        except KeyboardInterrupt:
            os._exit(130)

    with forked(run) as process:
        wait_for(lambda: len(shards(tmp_path, "tar")) >= 1)
        workers = psutil.Process(process.pid).children(recursive=True)
        assert len(workers) == (2 if jobs == 2 else 0)
        os.kill(process.pid, signal.SIGINT)
        process.join(60)
        assert process.exitcode == 130
        assert not [worker for worker in workers if lives(worker.pid)]
    assert hidden(tmp_path) == [".shards"]
    assert 0 < check_and_rerun(tmp_path, "tar", whole["tar"], jobs) < 4


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("limit", [0, 50, 900, 4000])
@pytest.mark.parametrize("form", FORMATS)
def test_a_full_disk_is_an_error_and_a_rerun_finishes(
    form: str, limit: int, jobs: int, tmp_path: Path, whole: dict[str, dict[str, bytes]]
) -> None:
    """A limit on file sizes stands for the full disk. It hits the plan, a record, a shard or an index."""
    said = multiprocessing.get_context("fork").SimpleQueue()

    def run() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            write(tmp_path / "x", form, jobs)
        except lk.WriteError as error:
            said.put(str(error))
        else:
            said.put("")

    with forked(run) as process:
        message = said.get()
        process.join(60)
    if message or limit < 4000:
        assert "can't be written: File too large" in message
    check_and_rerun(tmp_path / "x", form, whole[form])


class Later(Executor):
    """Does the first two calls at once. The others wait until they are done by hand, also if they are cancelled."""

    def __init__(self) -> None:
        self.left: list[Callable[[], Any]] = []
        self.calls = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.calls += 1
        if self.calls <= 2:
            future.set_result(fn(*args, **kwargs))
        else:
            self.left.append(lambda: fn(*args, **kwargs))
        return future


def stop_after_one(done: int, _: int) -> None:
    if done:
        raise KeyboardInterrupt


def test_tasks_that_a_cluster_begins_after_their_run_has_ended_write_nothing(
    tmp_path: Path, whole: dict[str, dict[str, bytes]]
) -> None:
    cluster, said = Later(), []
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, "tar", executor=cluster, on_shard=stop_after_one)
    assert len(cluster.left) == 3
    before = contents(tmp_path)

    def do_what_is_left(*_: int) -> None:
        said.extend(str(task()) for task in cluster.left)

    do_what_is_left()
    assert contents(tmp_path) == before
    write(tmp_path, "tar", on_shard=do_what_is_left)  # the next run
    do_what_is_left()
    assert len(said) == 3 * 6
    assert all("the run that this task belongs to has ended" in each for each in said)
    assert contents(tmp_path) == whole["tar"]
    assert hidden(tmp_path) == []


class Gated(Source):
    """Samples of which the second shard waits for a gate once the first is written."""

    def __init__(self, gate: threading.Event, folder: Path) -> None:
        super().__init__("tar")
        self.gate, self.folder = gate, folder

    def __getitem__(self, index: int) -> Any:
        if index == PER_SHARD + 1 and shards(self.folder, "tar"):
            assert self.gate.wait(60)
        return super().__getitem__(index)


def test_a_task_whose_run_ends_meanwhile_writes_nothing(tmp_path: Path, whole: dict[str, dict[str, bytes]]) -> None:
    gate = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(KeyboardInterrupt):
            lk.write_shards(
                Gated(gate, tmp_path), tmp_path, samples_per_shard=PER_SHARD, executor=pool, on_shard=stop_after_one
            )
        before = contents(tmp_path)
        gate.set()
    assert contents(tmp_path) == before
    assert hidden(tmp_path) == [".shards"]
    assert len(shards(tmp_path, "tar")) == 1


def test_a_second_writer_is_refused(tmp_path: Path, whole: dict[str, dict[str, bytes]]) -> None:
    with forked(lambda: write(tmp_path, "tar", 1, 0.03)) as process:
        wait_for(lambda: len(shards(tmp_path, "tar")) >= 1)
        with pytest.raises(lk.WriteError, match="another process writes shards here"):
            write(tmp_path, "tar", lock_timeout_s=0.2)
        assert process.is_alive()
        process.join(60)
        assert process.exitcode == 0
    assert contents(tmp_path) == whole["tar"]
    assert manifest(tmp_path).exists()


def test_a_writer_that_waited_for_another_keeps_others_out(tmp_path: Path) -> None:
    """The first writer removes the lock file while the second waits for it."""
    entered, leave = threading.Event(), threading.Event()

    def wait_and_hold() -> None:
        with Folder(tmp_path).locked():
            entered.set()
            leave.wait(60)

    second = threading.Thread(target=wait_and_hold)
    with Folder(tmp_path).locked():
        second.start()
        time.sleep(0.3)
        assert not entered.is_set()
    try:
        assert entered.wait(60)
        with pytest.raises(lk.WriteError, match="another process writes shards here"), Folder(tmp_path).locked(0.2):
            pass
    finally:
        leave.set()
        second.join(60)
    assert not list(tmp_path.iterdir())
