"""Checks of the machine: CPUs, memory, shared memory, open files and the start method of processes."""

import multiprocessing
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from loaderkit.cli.doctor.finding import GIB, Finding, in_units
from loaderkit.system.cpus import Cpus

_ENOUGH_FILES = 4096  # for some tens of workers that pass tensors by file descriptor


@dataclass(frozen=True, slots=True)
class Host:
    """What the machine offers.

    Args:
        cpus: CPUs that this process may use.
        cpus_there: CPUs of the machine.
        memory: Available bytes without swapping; None if unknown.
        shared_memory: Free and total bytes of /dev/shm; None if there is no /dev/shm.
        open_files: Soft and hard limit of open files; None if there are no limits.
        start_method: Default start method of processes.
        cuda_devices: Names of the CUDA devices.
    """

    cpus: Cpus
    cpus_there: int
    memory: int | None
    shared_memory: tuple[int, int] | None
    open_files: tuple[int, int] | None
    start_method: str
    cuda_devices: tuple[str, ...]

    @classmethod
    def detect(cls) -> "Host":
        """Read the values from the system."""
        return cls(
            cpus=Cpus.detect(),
            cpus_there=os.cpu_count() or 1,
            memory=available_memory(),
            shared_memory=_shared_memory(),
            open_files=_open_files(),
            start_method=multiprocessing.get_context().get_start_method(),
            cuda_devices=tuple(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())),
        )


def check_host(host: Host, ranks: int) -> Iterator[Finding]:
    """Yield findings about a machine that runs `ranks` ranks."""
    yield Finding("ok", _versions())
    yield from _check_cpus(host, ranks)
    if host.memory is not None:
        low = host.memory < GIB
        yield Finding(
            "wrong" if low else "ok",
            f"memory: {in_units(host.memory)} available",
            "The system kills workers that run out of memory: free some, or use fewer workers." if low else "",
        )
    yield from _check_shared_memory(host)
    yield from _check_open_files(host)
    yield _check_start_method(host)
    named = ", ".join(sorted(set(host.cuda_devices)))
    yield Finding("ok", f"CUDA: {len(host.cuda_devices)} devices ({named})" if named else "CUDA: no device")


def _check_cpus(host: Host, ranks: int) -> Iterator[Finding]:
    cpus = f"usable: {host.cpus}, of {host.cpus_there} on this machine"
    auto = f'num_workers="auto" is {host.cpus.workers(ranks)} with {ranks} {"rank" if ranks == 1 else "ranks"} here'
    if host.cpus.usable < ranks:
        yield Finding("wrong", f"{cpus}, for {ranks} ranks", "Request more CPUs per task, or start fewer ranks.")
    elif host.cpus.usable * 2 <= host.cpus_there:
        remedy = (
            "If intended (a container, SLURM's --cpus-per-task), do not choose num_workers by the number of all CPUs."
        )
        yield Finding("note", f"{cpus}; {auto}", remedy)
    else:
        yield Finding("ok", f"{cpus}; {auto}")


def _check_shared_memory(host: Host) -> Iterator[Finding]:
    if host.shared_memory is None:
        return
    free, total = host.shared_memory
    small = total < GIB
    yield Finding(
        "note" if small else "ok",
        f"/dev/shm: {in_units(free)} of {in_units(total)} free",
        'Torch\'s workers (engine="torch") pass large tensors through it and crash when it is full. Give the container '
        'more (docker: --shm-size=8g), or use engine="ring", which does not need it.'
        if small
        else "",
    )


def _check_open_files(host: Host) -> Iterator[Finding]:
    if host.open_files is None:
        return
    soft, hard = host.open_files
    low = soft < _ENOUGH_FILES
    remedy = f"`ulimit -n {min(hard, 65_536)}`: torch's workers need a file descriptor for each large tensor they send."
    yield Finding("note" if low else "ok", f"open files: at most {soft:,} (hard limit {hard:,})", remedy if low else "")


def _check_start_method(host: Host) -> Finding:
    if host.start_method != "fork":
        return Finding("ok", f"processes start by {host.start_method}: workers receive the dataset by pickle")
    return Finding("ok", "processes start by fork: fast, and workers inherit the dataset")


def _versions() -> str:
    found = [f"Python {platform.python_version()} on {sys.platform}"]
    for package in ("loaderkit", "torch", "torchdata", "lightning", "numpy"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} is not installed")
    return ", ".join(found)


def available_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes of available memory, limited by the host and by the container; None if unknown."""
    found = []
    try:
        lines = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) << 10)
    except (OSError, KeyError, ValueError):
        pass
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            found.append(int((groups / limit).read_text()) - int((groups / used).read_text()))
        except (OSError, ValueError):  # no such control group, or the limit is "max"
            continue
    return max(0, min(found)) if found else None


def _shared_memory() -> tuple[int, int] | None:
    try:
        found = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return None
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def _open_files() -> tuple[int, int] | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = 1 << 20
    soft, hard = (unlimited if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard))
    return soft, hard
