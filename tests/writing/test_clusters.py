"""Shards, indexes and lengths are the same whoever makes them, also if a worker is killed in the middle."""

import multiprocessing
import os
import re
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest
from cluster_data import PER_SHARD, SIZE, Drawn, length
from command_line import loaderkit
from scripts import run_code
from shards_written import contents, folder_index, hidden

import loaderkit as lk
from loaderkit.datasets.shards.index import index_path

# A sample in the middle of shard 5 that is not among those that are read first, to plan.
INSIDE = int(lk.Shuffled(SIZE).indices(0, 108, 109)[0])
assert 108 not in {row * (SIZE - 1) // 63 for row in range(64)}
SHARDS = SIZE // PER_SHARD


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What this process writes."""
    folder = tmp_path_factory.mktemp("whole")
    write(Drawn(), folder)
    found = contents(folder)
    assert len(found) == SHARDS + 1
    return found


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as executor:
        yield executor


@pytest.fixture(scope="module")
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(3) as executor:
        yield executor


@pytest.fixture(scope="module")
def dask() -> Iterator[Executor]:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install distributed")
    settings = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with (
        warnings.catch_warnings(action="ignore"),
        distributed.LocalCluster(**settings, silence_logs="CRITICAL") as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client.get_executor()


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install ray")
    path = os.pathsep.join(filter(None, sys.path))  # its workers import the tests' datasets
    with warnings.catch_warnings(action="ignore"):
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            logging_level="CRITICAL",
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}},
        )
        with lk.RayExecutor(num_cpus=1) as executor:
            yield executor
        ray.shutdown()


@pytest.fixture(params=["pool", "threads", "dask", "ray"])
def executor(request: pytest.FixtureRequest) -> Executor:
    found: Executor = request.getfixturevalue(request.param)
    return found


pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of the clusters


def write(dataset: Drawn, folder: Path, executor: Executor | None = None) -> Path:
    return lk.write_shards(dataset, folder, samples_per_shard=PER_SHARD, shuffle=True, executor=executor)


def test_the_result_does_not_depend_on_the_executor(
    executor: Executor, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    steps: list[tuple[int, int]] = []
    settings = {"samples_per_shard": PER_SHARD, "shuffle": True}
    lk.write_shards(Drawn(), "out", **settings, executor=executor, on_shard=lambda *step: steps.append(step))  # type: ignore[arg-type]
    assert contents(tmp_path / "out") == whole
    assert hidden(tmp_path / "out") == []
    assert steps == [(done, SHARDS) for done in range(SHARDS + 1)]
    assert lk.verify_shards("out", executor=executor) == SIZE

    folder_index(Path("out")).unlink()
    assert lk.index_shards("out/*.tar", executor=executor) == SIZE
    assert [path for path in Path("out").glob("*.tar") if index_path(str(path), None).exists()] == list(
        Path("out").iterdir()
    )
    assert lk.index_shards(["out"], index_dir="aside", format="tar", executor=executor) == SIZE
    assert len(list(Path("aside").iterdir())) == SHARDS

    lengths = lk.measure_lengths(Drawn(), length, executor=executor)
    assert lengths.tolist() == lk.measure_lengths(Drawn(), length).tolist()
    assert len(set(lengths.tolist())) > 100


@pytest.mark.parametrize("name", ["dask", "ray"])
def test_a_cluster_does_the_tasks_of_a_killed_worker_again(
    name: str, request: pytest.FixtureRequest, whole: dict[str, bytes], tmp_path: Path
) -> None:
    cluster: Executor = request.getfixturevalue(name)
    out, flag = tmp_path / "out", tmp_path / "killed"
    write(Drawn(INSIDE, flag), out, cluster)
    assert flag.exists()
    assert contents(out) == whole
    assert hidden(out) == []
    flag.unlink()
    assert lk.measure_lengths(Drawn(INSIDE, flag), length, executor=cluster).sum() > 0
    assert flag.exists()


CANCELS = """
import random
import time

import ray

import loaderkit as lk

ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)
with lk.RayExecutor(num_cpus=1) as executor:
    list(executor.map(abs, range(10)))  # its workers have started
    for _ in range(150):
        futures = [executor.submit(abs, number) for number in range(30)]
        time.sleep(random.uniform(0, 0.02))
        for future in futures:
            future.cancel()
    print(sum(executor.map(abs, range(100))))
"""


def test_calls_that_are_cancelled_while_ray_sends_their_results_do_no_harm(tmp_path: Path) -> None:
    """`ray.cancel` would abort the process, so it has one of its own."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install ray")
    # Under Python 3.14 nanobind says at exit what was not freed.
    assert "4950" in run_code(tmp_path, CANCELS).splitlines()


def test_a_worker_of_a_pool_that_is_killed_is_an_error_and_a_rerun_finishes(
    whole: dict[str, bytes], tmp_path: Path
) -> None:
    out, flag = tmp_path / "out", tmp_path / "killed"
    with (
        ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as broken,
        pytest.raises(lk.WriteError, match=r"shard-00000\d.tar: a worker process was killed .* Run it again"),
    ):
        write(Drawn(INSIDE, flag), out, broken)
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as fresh:
        write(Drawn(INSIDE, flag), out, fresh)
    assert contents(out) == whole


def test_errors_of_tasks_reach_the_caller_with_the_shards_name(executor: Executor, tmp_path: Path) -> None:
    with pytest.raises(lk.WriteError, match=f"shard-000005.tar: sample {INSIDE} of the source can't be read: LookupE"):
        write(Drawn(broken=INSIDE), tmp_path / "out", executor)
    write(Drawn(), tmp_path / "good")
    shard = tmp_path / "good" / "shard-000003.tar"
    shard.write_bytes(shard.read_bytes()[:-700])
    named = re.escape(str(shard))
    with pytest.raises(lk.WriteError, match=f"1 of the shards or files are wrong. The first: {named}: has .* bytes"):
        lk.verify_shards(tmp_path / "good", executor=executor)
    shard.write_bytes(b"no tar" * 200)
    with pytest.raises(lk.ShardError, match=f"1 of 10 shards have no index. The first: {named}"):
        lk.index_shards(tmp_path / "good" / "*.tar", executor=executor)
    with pytest.raises(RuntimeError, match=f"no row {INSIDE}"):
        lk.measure_lengths(Drawn(broken=INSIDE), length, executor=executor)


def two_threads() -> Executor:
    return ThreadPoolExecutor(2)


def test_the_commands_take_a_function_that_returns_an_executor(tmp_path: Path, whole: dict[str, bytes]) -> None:
    executor = ("--executor", "test_clusters:two_threads")
    out = tmp_path / "out"
    options = ("--samples-per-shard", PER_SHARD, "--shuffle", *executor)
    assert loaderkit("shard", "cluster_data:Drawn", out, *options).returncode == 0
    assert contents(out) == whole
    assert "all right" in loaderkit("verify", out, *executor).stdout
    assert "10 fresh; 200 samples" in loaderkit("index", out, *executor).stdout
    said = loaderkit("lengths", "cluster_data:Drawn", "--length", "cluster_data:length", *executor)
    assert said.stdout.startswith("200 samples")
    for command in (("index", out), ("verify", out)):
        assert (
            "'test_clusters:nothing' can't be loaded"
            in loaderkit(*command, "--executor", "test_clusters:nothing").stderr
        )
    assert "not allowed with argument --jobs" in loaderkit("index", out, "--jobs", 2, *executor).stderr
