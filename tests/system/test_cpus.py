"""num_workers="auto" is a rank's share of what the host lets its processes use."""

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import loaderkit as lk
from loaderkit.system.cpus import MOST_WORKERS, Cpus, ranks_on_host


@pytest.fixture
def sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)


def detect(tmp_path: Path, groups: str, files: dict[str, str]) -> Cpus:
    for name, content in files.items():
        file = tmp_path / "fs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content + "\n")
    (tmp_path / "cgroup").write_text(groups)
    return Cpus.detect(proc=tmp_path / "cgroup", root=tmp_path / "fs")


@pytest.mark.usefixtures("sixteen")
@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/\n", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/job\n", {"job/cpu.max": "400000 100000"}, 4),
        ("0::/job/step\n", {"job/step/cpu.max": "max 100000", "job/cpu.max": "200000 100000"}, 2),
        ("0::/job/step\n", {"job/step/cpu.max": "100000 50000", "job/cpu.max": "600000 100000"}, 2),
        ("0::/of/the/host\n", {"cpu.max": "300000 100000"}, 3),  # a container sees only its own groups
        ("0::/job\n", {"unified/job/cpu.max": "250000 100000"}, 2.5),
        ("4:memory:/\n0::/\n", {}, None),
        (
            "5:cpu,cpuacct:/d\n",
            {"cpu,cpuacct/d/cpu.cfs_quota_us": "50000", "cpu,cpuacct/d/cpu.cfs_period_us": "100000"},
            0.5,
        ),
        ("5:cpuacct,cpu:/d\n", {"cpu/d/cpu.cfs_quota_us": "-1", "cpu/d/cpu.cfs_period_us": "100000"}, None),
        ("5:cpuset:/d\n", {"cpu/d/cpu.cfs_quota_us": "50000", "cpu/d/cpu.cfs_period_us": "100000"}, None),
        ("5:cpu:/d\n", {"cpu/cpu.cfs_quota_us": "700000", "cpu/cpu.cfs_period_us": "100000"}, 7),
        ("", {"cpu.max": "100000 100000"}, None),
    ],
)
def test_the_tightest_quota_of_all_groups_holds(tmp_path: Path, groups: str, files: dict[str, str], quota: Any) -> None:
    assert detect(tmp_path, groups, files) == Cpus(16, quota)


@pytest.mark.usefixtures("sixteen")
def test_without_control_groups_the_affinity_holds(tmp_path: Path) -> None:
    assert Cpus.detect(proc=tmp_path / "none", root=tmp_path) == Cpus(16)


def test_without_an_affinity_all_cpus_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert Cpus.detect(proc=tmp_path / "none", root=tmp_path) == Cpus(6)


def test_this_hosts_cpus_are_found() -> None:
    assert 1 <= Cpus.detect().usable <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("cpus", "ranks", "workers"),
    [
        (Cpus(1), 1, 1),
        (Cpus(2), 1, 1),
        (Cpus(4), 1, 3),
        (Cpus(4, 1.5), 1, 1),
        (Cpus(8, 3.9), 1, 2),
        (Cpus(4, 0.5), 1, 1),
        (Cpus(16), 4, 3),
        (Cpus(16), 8, 1),
        (Cpus(2), 8, 1),
        (Cpus(256), 1, MOST_WORKERS),
    ],
)
def test_a_rank_has_its_share_less_a_core_for_its_trainer(cpus: Cpus, ranks: int, workers: int) -> None:
    assert cpus.workers(ranks) == workers


def test_ranks_and_workers_fit_the_cpus() -> None:
    for allowed, ranks in itertools.product(range(2, 40), range(1, 9)):
        if allowed >= 2 * ranks:
            assert ranks * (1 + Cpus(allowed).workers(ranks)) <= allowed


def test_torchrun_says_how_many_ranks_share_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert ranks_on_host() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert ranks_on_host() == 4


@pytest.mark.usefixtures("sixteen")
@pytest.mark.parametrize("stream", [False, True])
def test_a_loader_has_its_share(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    data: Any = lk.StreamDataset(["a"], read=lambda shard, start: iter(range(start, 4))) if stream else torch.arange(64)
    loader = lk.Loader(data, 2, num_workers="auto", engine="auto" if stream else "ring")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")  # after the loader was made
    about, cpus = loader.describe(), Cpus.detect()
    assert (about.num_workers, about.workers_why) == (cpus.workers(4), f"auto: {cpus}, 4 ranks on this host")
    told = lk.Loader(data, 2, num_workers="auto", world=lk.World(0, 2, on_host=2), engine="auto" if stream else "torch")
    assert told.describe().num_workers == cpus.workers(2)


def test_auto_is_as_good_as_a_number() -> None:
    settings: dict[str, Any] = {"engine": "ring", "persistent_workers": True, "prefetch_factor": 2}
    loader = lk.Loader(torch.arange(8), 2, num_workers="auto", **settings)
    assert torch.cat(list(loader)).tolist() == list(range(8))
    loader.close()
