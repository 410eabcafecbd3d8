"""`loaderkit doctor` names each problem, its place, and a remedy."""

import dataclasses
import importlib.metadata
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data

import loaderkit as lk
from loaderkit.cli.bench.subject import subject_of
from loaderkit.cli.command import main
from loaderkit.cli.doctor import Host, available_memory, check_data, check_host, describe_store, in_units, measure
from loaderkit.cli.store import StoreSpeed, measure_store
from loaderkit.files.listing import Stat
from loaderkit.system.cpus import Cpus

ROOMY = Host(
    cpus=Cpus(8),
    cpus_there=8,
    memory=64 << 30,
    shared_memory=(8 << 30, 8 << 30),
    open_files=(65_536, 65_536),
    start_method="fork",
    cuda_devices=(),
)


class Data:
    """Forty samples, and the attributes that a test wants."""

    def __init__(self, **kept: Any) -> None:
        self.__dict__.update(kept)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1000)


def said(findings: Iterator[Any], *levels: str) -> list[str]:
    return [str(finding) for finding in findings if finding.level in (levels or ("note", "wrong"))]


def about(data: Any, host: Host = ROOMY, *, workers: int = 2, ranks: int = 1) -> list[str]:
    return said(check_data(subject_of(data, batch_size=None, spawn=False), host, workers=workers, ranks=ranks))


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Any]:
    with (tmp_path / "a").open("w") as opened:
        yield opened


@pytest.mark.parametrize("there", [True, False])
def test_the_version_of_torchdata_is_shown_where_it_is_installed(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str) -> str:
        if name in ("lightning", "torchdata") and not there:
            raise importlib.metadata.PackageNotFoundError(name)
        return "7.8.9"

    monkeypatch.setattr("loaderkit.cli.doctor.version", found)
    versions = next(check_host(ROOMY, 2)).what
    assert ("torchdata 7.8.9" if there else "lightning is not installed") in versions
    assert ("torchdata" in versions) == there


def test_a_good_machine_and_dataset_are_fine() -> None:
    assert said(check_host(ROOMY, 2)) == []
    assert about(Data()) == []
    assert about(lk.Loader(Data(), 4, num_workers=2)) == []


@pytest.mark.parametrize(
    ("changes", "ranks", "message"),
    [
        ({"cpus": Cpus(8, 1.5)}, 2, f"wrong  usable: {Cpus(8, 1.5)}, of 8 on this machine, for 2 ranks"),
        ({"cpus": Cpus(2), "cpus_there": 64}, 1, "note   usable: 2 CPUs, of 64 on this machine"),
        ({"memory": 100 << 20}, 1, "wrong  memory: 100 MiB available"),
        ({"shared_memory": (1 << 20, 64 << 20)}, 1, "note   /dev/shm: 1 MiB of 64 MiB free"),
        ({"open_files": (1024, 4096)}, 1, "note   open files: at most 1,024 (hard limit 4,096)"),
    ],
)
def test_what_a_machine_lacks_is_said(changes: Any, ranks: int, message: str) -> None:
    found = said(check_host(dataclasses.replace(ROOMY, **changes), ranks))
    assert len(found) == 1
    assert found[0].startswith(message)
    assert "\n       -> " in found[0]


def test_what_does_not_pickle_is_named_by_its_path(file: Any) -> None:
    data = Data(parts=[{"name": "a", "file": file}], lock=threading.Lock(), size=3)
    paths = lk.testing.find_unpicklable(data)
    assert list(paths) == ["dataset.parts[0]['file']", "dataset.lock"]
    assert "cannot pickle" in paths["dataset.lock"]
    found = about(data)
    assert len(found) == 2
    assert found[0].startswith("note   dataset.parts[0]['file'] does not pickle")
    spawned = about(data, dataclasses.replace(ROOMY, start_method="spawn"))
    assert spawned[1].startswith("wrong  dataset.lock does not pickle")


def test_functions_and_objects_are_blamed_themselves() -> None:
    lock = threading.Lock()

    def local() -> Any:
        return lock

    class Local:
        pass

    data = Data(function=local, value=Local())
    assert list(lk.testing.find_unpicklable(data)) == ["dataset.function", "dataset.value"]
    around: list[Any] = [lock]
    around.append(around)
    assert list(lk.testing.find_unpicklable({"around": around})) == ["dataset['around'][0]"]
    assert lk.testing.find_unpicklable(Data(handle=lk.Handle(open, "a"))) == {}


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_large_array_pickles(order: Any) -> None:
    """Pickle writes it as a buffer of its own."""
    assert lk.testing.find_unpicklable({"a": np.zeros((300, 80), order=order)}) == {}


def test_generators_and_many_objects_are_found() -> None:
    records = [{"id": number} for number in range(100_000)]
    found = about(Data(rng=np.random.default_rng(0), records=records, numbers=list(range(100_000))))
    assert [text.split("\n")[0] for text in found] == [
        "note   dataset.numbers: 100,000 Python objects; each worker copies them as it reads them",
        "note   dataset.records: 100,000 Python objects; each worker copies them as it reads them",
    ]
    assert "array" in found[0]
    assert "loaderkit.share" in found[1]
    assert about(Data(records=lk.share(records))) == []


def test_generators_that_a_loader_leaves_are_named() -> None:
    data = Data(rng=np.random.default_rng(0))
    assert about(lk.Loader(data, 4)) == []
    with pytest.warns(UserWarning, match="dataset.rng: random generators"):
        (found,) = about(lk.Loader(data, 4, private_generators="leave"))
    assert found.startswith("wrong  the data keeps random generators that a Loader leaves: dataset.rng\n")
    assert "private_generators='seed'" in found


def test_batches_that_do_not_fit_are_said() -> None:
    assert measure(({"a": torch.zeros(3), "b": [np.zeros(2, np.uint8), "text"]}, 1)) == (14, 2)
    assert measure(torch.eye(3).to_sparse()) == (3 * (2 * 8 + 4), 1)
    data, batch = Data(), 32 * 4000
    loader = lk.Loader(data, 32, engine="torch", num_workers=1)
    small = dataclasses.replace(ROOMY, memory=2 * (2 * 4 + 4) * batch)
    for source, ahead in (
        (data, 8 * 4),
        (loader, 2 * 4),
        (lk.Loader(data, 32, num_workers=1, prefetch_factor=3), 3 * 4),
    ):
        [found] = about(source, small, workers=4, ranks=3)
        needed = in_units((ahead + 4) * 3 * batch)
        assert found.startswith(f"wrong  a batch has 125 KiB in 1 tensors; up to {needed} in memory: {ahead} batches")
    for source, level in ((loader, "wrong"), (data, "note"), (torch_data.DataLoader(data, 32), "wrong")):  # type: ignore[arg-type]
        [found] = about(source, dataclasses.replace(ROOMY, shared_memory=(1 << 20, 8 << 30)), workers=8)
        assert found.startswith(f"{level:<5}  /dev/shm has 1 MiB free, torch's workers would need 1.95 MiB")
    [found] = about(loader, dataclasses.replace(ROOMY, open_files=(20, 20)), workers=8)
    assert found.startswith("note   1 tensors a batch, 16 batches ahead")


def test_memory_is_the_hosts_or_the_containers(tmp_path: Path) -> None:
    assert available_memory(tmp_path, tmp_path) is None
    (tmp_path / "meminfo").write_text("MemTotal:  900 kB\nMemAvailable:  500 kB\n")
    assert available_memory(tmp_path, tmp_path) == 500 << 10
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert available_memory(tmp_path, tmp_path) == 500 << 10
    (tmp_path / "memory.max").write_text("5000\n")
    assert available_memory(tmp_path, tmp_path) == 4000
    assert available_memory() is not None


def bad() -> lk.Loader:
    return lk.Loader(Data(rng=np.random.default_rng(0)), private_generators="leave")


def broken() -> Data:
    raise RuntimeError("no data today")


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) in (0, 1)
    assert "usable: " in capsys.readouterr().out
    assert main(["doctor", f"{__name__}:Data", "--workers", "1", "--ranks", "1"]) in (0, 1)
    assert "a batch has 125 KiB in 1 tensors" in capsys.readouterr().out
    assert main(["doctor", f"{__name__}:bad"]) == 1
    assert "dataset.rng" in capsys.readouterr().out
    assert main(["doctor", f"{__name__}:broken"]) == 1
    assert "RuntimeError: no data today" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("speed", "level", "words", "not_words"),
    [
        (StoreSpeed(0.03, None, 2e6, 60_000), "note", "hardly longer to the last one of 58.6 KiB", "MB/s"),
        (StoreSpeed(0.03, None, 2e9, 8 << 20), "ok", "2000 MB/s on 16 together", "on a connection"),
        (StoreSpeed(0.03, 5e7, 4e8, 8 << 20), "ok", "50 MB/s on a connection, 400 MB/s on 16 together", "hardly"),
    ],
)
def test_a_store_is_described_by_what_was_measured(speed: StoreSpeed, level: str, words: str, not_words: str) -> None:
    found = describe_store(speed, 10, 10**9)
    assert found.level == level
    assert words in found.what
    assert not_words not in found.what


@pytest.mark.parametrize("size", [10, 60_000, 1 << 20])
def test_small_shards_have_no_speed_of_a_connection(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their time is that of an answer, and its noise is not divided by."""
    clock = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: clock)

    class Store:
        """Answers after 20 ms, with some noise, and sends 1 GB/s, by a clock of its own."""

        turn = 0

        def read(self, url: str, start: int, stop: int, size: int) -> bytes:
            nonlocal clock
            self.turn += 1
            clock += 0.02 + 0.0005 * (self.turn % 2) + (stop - start) / 1e9
            return bytes(stop - start)

        def read_many(self, url: str, ranges: list[tuple[int, int]], size: int) -> list[bytes]:
            return [self.read(url, start, stop, size) for start, stop in ranges]

    class Files:
        remote: ClassVar[dict[str, Stat]] = dict.fromkeys(("a", "b"), Stat(size, 0))
        remote_bytes = 2 * size
        storage = Store()

    found = measure_store(Files())
    assert found is not None
    assert found.connection is None
