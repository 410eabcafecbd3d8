"""Checks of the machine: CPUs, memory, shared memory, open files, how processes start."""

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

_FILES = 4096  # enough for some tens of workers that pass tensors by descriptors


@dataclass(frozen=True, slots=True)
class Host:
    """What was read off the machine.

    Args:
        cpus: Those that this process may use.
        cpus_there: Those that there are.
        memory: Bytes that can be had without swapping, as far as it is known.
        shared_memory: Bytes that /dev/shm has free and in all; None where there is none.
        open_files: The limit of open files and what it may be raised to; None where there is none.
        start_method: How processes are started by default.
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
        """Ask the system."""
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
    """Yield what there is to say of a machine on which so many ranks train."""
    yield Finding("ok", _versions())
    yield from _check_cpus(host, ranks)
    if host.memory is not None:
        low = host.memory < GIB
        yield Finding(
            "wrong" if low else "ok",
            f"memory: {in_units(host.memory)} can be had",
            "Workers that run out of it are killed: free some, or take fewer." if low else "",
        )
    yield from _check_shared_memory(host)
    yield from _check_open_files(host)
    yield _check_start_method(host)
    named = ", ".join(sorted(set(host.cuda_devices)))
    yield Finding("ok", f"CUDA: {len(host.cuda_devices)} devices ({named})" if named else "CUDA: no device")


def _check_cpus(host: Host, ranks: int) -> Iterator[Finding]:
    said = f"{host.cpus} may be used, {host.cpus_there} are there"
    told = f'num_workers="auto" is {host.cpus.workers(ranks)} with {ranks} {"rank" if ranks == 1 else "ranks"} here'
    if host.cpus.usable < ranks:
        yield Finding("wrong", f"{said}, for {ranks} ranks", "Ask for more CPUs a task, or start fewer ranks.")
    elif host.cpus.usable * 2 <= host.cpus_there:
        more = "This may be meant (a container, SLURM's --cpus-per-task); numbers of workers that count all CPUs are too high."
        yield Finding("note", f"{said}; {told}", more)
    else:
        yield Finding("ok", f"{said}; {told}")


def _check_shared_memory(host: Host) -> Iterator[Finding]:
    if host.shared_memory is None:
        return
    free, total = host.shared_memory
    small = total < GIB
    yield Finding(
        "note" if small else "ok",
        f"/dev/shm: {in_units(free)} of {in_units(total)} free",
        'Torch\'s workers (engine="torch") pass large tensors through it, and crash when it is full. Give a container more '
        '(docker: --shm-size=8g), or take engine="ring", which does not use it.'
        if small
        else "",
    )


def _check_open_files(host: Host) -> Iterator[Finding]:
    if host.open_files is None:
        return
    soft, hard = host.open_files
    low = soft < _FILES
    remedy = f"`ulimit -n {min(hard, 65_536)}`: torch's workers need a descriptor for each large tensor under way."
    yield Finding(
        "note" if low else "ok", f"open files: at most {soft:,} (may be raised to {hard:,})", remedy if low else ""
    )


def _check_start_method(host: Host) -> Finding:
    if host.start_method != "fork":
        return Finding("ok", f"processes are started by {host.start_method}: what a dataset holds is pickled")
    return Finding("ok", "processes are started by fork: at once, with what the dataset holds")


def _versions() -> str:
    found = [f"Python {platform.python_version()} on {sys.platform}"]
    for package in ("loaderkit", "torch", "torchdata", "lightning", "numpy"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} is not installed")
    return ", ".join(found)


def available_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return how many bytes of memory can be had: on the host, and in the container around this process."""
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
        except (OSError, ValueError):  # no such group, or "max"
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
    endless = 1 << 20
    return tuple(endless if each == resource.RLIM_INFINITY else each for each in (soft, hard))  # type: ignore[return-value]
