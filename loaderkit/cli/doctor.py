"""`loaderkit doctor`: find what on this machine or in a dataset will cause trouble."""

import argparse
import os
import platform
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from loaderkit.cli.arguments import Commands, count, number
from loaderkit.cli.bench.subject import INLINE, Subject, add_subject, subject_from
from loaderkit.cli.report import say
from loaderkit.cli.store import StoreSpeed, measure_store
from loaderkit.datasets.shards.sharded import shards_within
from loaderkit.engine.description import batches_ahead
from loaderkit.files.requests import BLOCK, REQUESTS
from loaderkit.sampling.shard_order import ShardOrder, shuffled_order
from loaderkit.seeding.private import private_generators
from loaderkit.system.cpus import Cpus, ranks_on_host
from loaderkit.system.nested import tensor_bytes
from loaderkit.system.object_graph import reachable
from loaderkit.system.pickling import find_unpicklable
from loaderkit.system.start import choose_start
from loaderkit.system.terminal import coloured

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_ENOUGH_FILES = 4096  # for some tens of workers that pass tensors by file descriptor
_UNLIMITED_FILES = 1 << 20
_MANY = 100_000  # objects in a container that should be packed
_READ_AHEAD = 2  # shards in use if they are read in order: the current one, and the next
_SHOWN = 8  # paths in a line
_COLOURS = {"ok": "green", "note": "yellow", "wrong": "bold red"}
_IN_USE = 4  # batches that the trainer holds, about


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check."""

    level: Literal["ok", "note", "wrong"]  # a "note" is a possible problem
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.level:<5}  {self.what}" + (f"\n       -> {self.remedy}" if self.remedy else "")


@dataclass(frozen=True, slots=True)
class Host:
    """What the machine offers."""

    cpus: Cpus  # that this process may use
    cpus_there: int
    memory: int | None  # available bytes without swapping; None: unknown
    shared_memory: tuple[int, int] | None  # free and total bytes of /dev/shm, if there is one
    open_files: tuple[int, int] | None  # soft and hard limit, if there are limits
    start_method: str  # of workers, if the settings name none
    cuda_devices: tuple[str, ...]  # names

    @classmethod
    def detect(cls) -> "Host":
        """Read the values from the system."""
        return cls(
            cpus=Cpus.detect(),
            cpus_there=os.cpu_count() or 1,
            memory=available_memory(),
            shared_memory=_shared_memory(),
            open_files=_open_files(),
            start_method=choose_start().method,
            cuda_devices=tuple(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())),
        )


def add_to(commands: Commands) -> None:
    """Add the command to a parser's subcommands."""
    parser = commands.add_parser(
        "doctor",
        description="Check CPUs, memory, shared memory, the limit of open files and the start method of processes. With a "
        "SOURCE, also check whether its dataset pickles, keeps random generators or very many objects, and how much "
        "memory its batches need. The exit code is 1 if something is wrong.",
        examples=(
            ("loaderkit doctor", "check this machine"),
            ("loaderkit doctor mine:make_loader --ranks 8", "check a Loader's data too, for 8 ranks on this machine"),
        ),
    )
    add_subject(parser, required=False)
    parser.add_argument("--workers", type=number, metavar="N", help='workers of each rank; default: num_workers="auto"')
    parser.add_argument("--ranks", type=count, metavar="N", help="ranks on this machine; default: torchrun's, or 1")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the findings and return the exit code."""
    wrong = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for finding in _findings(arguments):
            line = str(finding)
            say(coloured(finding.level, _COLOURS[finding.level], sys.stdout) + line.removeprefix(finding.level))
            wrong |= finding.level == "wrong"
    return int(wrong)


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    host, ranks = Host.detect(), arguments.ranks or ranks_on_host()
    yield from check_host(host, ranks)
    if arguments.source is not None:
        workers = host.cpus.workers(ranks) if arguments.workers is None else arguments.workers
        yield from check_data(subject_from(arguments), host, workers=workers, ranks=ranks)


def check_host(host: Host, ranks: int) -> Iterator[Finding]:
    """Yield findings about a machine that runs `ranks` ranks."""
    yield Finding("ok", _versions())
    yield _check_cpus(host, ranks)
    if host.memory is not None:
        what = f"memory: {in_units(host.memory)} available"
        remedy = "The system kills workers that run out of memory: free some, or use fewer workers."
        yield Finding("wrong", what, remedy) if host.memory < _GIB else Finding("ok", what)
    if host.shared_memory is not None:
        free, total = host.shared_memory
        what = f"/dev/shm: {in_units(free)} of {in_units(total)} free"
        remedy = (
            'Torch\'s workers (engine="torch") pass large tensors through it and crash when it is full. Give the container '
            'more (docker: --shm-size=8g), or use engine="ring", which does not need it.'
        )
        yield Finding("note", what, remedy) if total < _GIB else Finding("ok", what)
    if host.open_files is not None:
        soft, hard = host.open_files
        what = f"open files: at most {soft:,} (hard limit {hard:,})"
        remedy = (
            f"`ulimit -n {min(hard, 65_536)}`: torch's workers need a file descriptor for each large tensor they send."
        )
        yield Finding("note", what, remedy) if soft < _ENOUGH_FILES else Finding("ok", what)
    receive = "inherit the dataset" if host.start_method == "fork" else "receive the dataset by pickle"
    yield Finding("ok", f"processes start by {host.start_method}: workers {receive}")
    named = ", ".join(sorted(set(host.cuda_devices)))
    yield Finding("ok", f"CUDA: {len(host.cuda_devices)} devices ({named})" if named else "CUDA: no device")


def check_data(subject: Subject, host: Host, *, workers: int, ranks: int) -> Iterator[Finding]:
    """Yield findings about a dataset that `workers` workers read for each of this machine's `ranks` ranks."""
    yield from _check_pickling(subject, host)
    yield _check_generators(subject)
    yield from _check_records(subject.dataset)
    yield from _check_store(subject)
    batches = list(islice(subject.loader(INLINE), 1))
    if batches:
        size, tensors = measure(batches[0])
        yield _check_memory(subject, size, tensors, host, workers=workers, ranks=ranks)
        if workers:
            yield from _check_transport(subject, size, tensors, host, workers=workers, ranks=ranks)
    else:
        yield Finding("wrong", "the loader has no batches", "Use a smaller batch size, or tail='keep'.")


def _check_cpus(host: Host, ranks: int) -> Finding:
    cpus = f"usable: {host.cpus}, of {host.cpus_there} on this machine"
    if host.cpus.usable < ranks:
        return Finding("wrong", f"{cpus}, for {ranks} ranks", "Request more CPUs per task, or start fewer ranks.")
    cpus += f'; num_workers="auto" is {host.cpus.workers(ranks)} with {ranks} {"rank" if ranks == 1 else "ranks"} here'
    if host.cpus.usable * 2 > host.cpus_there:
        return Finding("ok", cpus)
    remedy = "If intended (a container, SLURM's --cpus-per-task), do not choose num_workers by the number of all CPUs."
    return Finding("note", cpus, remedy)


def _check_pickling(subject: Subject, host: Host) -> Iterator[Finding]:
    wanted = subject.config.multiprocessing_context or host.start_method
    parts = {"dataset": subject.dataset, "collate_fn": subject.config.collate_fn}
    found = {where: why for name, part in parts.items() for where, why in find_unpicklable(part, name=name).items()}
    for where, why in islice(found.items(), _SHOWN):
        yield Finding(
            "note" if wanted == "fork" else "wrong",
            f"{where} does not pickle ({why})",
            f"Workers started by {'forkserver or spawn' if wanted == 'fork' else wanted} can't receive it. "
            "Open files and connections through loaderkit.Handle, and define functions at module level.",
        )
    if not found:
        yield Finding("ok", "the dataset pickles: any start method works")


def _check_generators(subject: Subject) -> Finding:
    """Say which random generators the data keeps, and whether a Loader seeds them."""
    config = subject.config
    found = private_generators(dataset=subject.dataset, collate_fn=config.collate_fn)
    if not found:
        return Finding("ok", "the data keeps no random generator")
    shown = ", ".join(map(str, found[:_SHOWN])) + f" and {len(found) - _SHOWN} more" * (len(found) > _SHOWN)
    left = [each for each in found if config.private_generators == "leave" or each.seeded is None]
    if not left:
        return Finding("ok", f"the data keeps random generators, which a Loader seeds for each sample: {shown}")
    instead = {f"{each.library}: {each.instead}" for each in left if each.instead}
    return Finding(
        "wrong",
        f"the data keeps random generators that a Loader leaves: {', '.join(map(str, left[:_SHOWN]))}",
        "Each worker's copy draws the same numbers, and a resume restarts it. Use private_generators='seed', or draw from "
        f"loaderkit.sample_rng(), or from the global functions of torch, numpy or random. {'; '.join(sorted(instead))}".strip(),
    )


def _check_records(dataset: object) -> Iterator[Finding]:
    for path, value, _ in reachable(dataset, "dataset"):
        if isinstance(value, list | tuple | dict | set) and len(value) >= _MANY:
            some = islice(value.values() if isinstance(value, dict) else value, 100)
            numbers = all(isinstance(each, int | float | None) for each in some)
            yield Finding(
                "note",
                f"{path}: {len(value):,} Python objects; each worker copies them as it reads them",
                "They are numbers: keep them in an array." if numbers else "Pack them with loaderkit.share.",
            )


def _check_store(subject: Subject) -> Iterator[Finding]:
    """Measure the store of remote shards, and say what an epoch costs and how much cache the run wants."""
    data = shards_within(subject.dataset)
    speed = None if data is None else measure_store(data.files)
    if data is None or speed is None:
        return
    total = data.files.remote_bytes
    yield describe_store(speed, len(data.files.remote), total)
    if (cost := data.files.cache_cost()) is None:
        return
    order = subject.config.order
    if order is None and subject.config.shuffle:
        order = shuffled_order(data, len(data), seed=0, batch_size=subject.config.batch_size)
    used = order.shards_in_use if isinstance(order, ShardOrder) else min(_READ_AHEAD, len(data.shards))
    wanted = used * total // len(data.shards)
    cost += f"; about {used:,} shards are in use at a time, {in_units(wanted)}: the run wants at least that much cache"
    if data.storage.cache_dir is None or data.storage.cache_bytes >= total:
        yield Finding("ok", f"cache: {cost}")
    else:
        within = "" if data.storage.cache_bytes >= wanted else ", and shards in use again and again"
        remedy = f"Each epoch downloads the rest again{within}. To keep all of it: lk.Storage(cache_bytes={total})."
        yield Finding("note", f"cache: {cost}", remedy)


def describe_store(speed: StoreSpeed, shards: int, total: int) -> Finding:
    """Return the finding about a store's measured speed; it has `shards` remote shards, of `total` bytes together."""
    what = f"{shards:,} remote shards, {in_units(total)}: {speed.latency_s * 1e3:.0f} ms to the first byte, "
    if speed.connection is None and speed.block < BLOCK:
        return Finding(
            "note",
            f"{what}and hardly longer to the last one of {in_units(speed.block)}: the run waits for answers, not for bytes",
            "Write larger shards, of 64 MiB or more: each request then brings more bytes.",
        )
    if speed.connection is not None:
        what += f"{speed.connection / 1e6:.0f} MB/s on a connection, "
    what += f"{speed.together / 1e6:.0f} MB/s on {REQUESTS} together; "
    what += f"an epoch takes at least {total / speed.together:.0f} s from an empty cache"
    return Finding("ok", f"{what}; {speed.advice()}")


def _check_memory(subject: Subject, size: int, tensors: int, host: Host, *, workers: int, ranks: int) -> Finding:
    """Compare the memory of the batches that exist at a time with the available memory."""
    what = f"a batch has {in_units(size)} in {tensors} tensors"
    torch_ahead = (subject.config.prefetch_factor or 2) * workers
    is_torch = subject.engine == "torch"
    ahead = torch_ahead if is_torch else batches_ahead(size, workers, subject.config.prefetch_factor)
    needed = size * (ahead + _IN_USE) * ranks
    if workers:
        held = f"{ahead} batches ahead and about {_IN_USE} in use, on {ranks} rank{'s' * (ranks > 1)}"
        what += f"; up to {in_units(needed)} in memory: {held}"
    if host.memory is None or needed <= host.memory // 2:
        return Finding("ok", what)
    remedy = "Use fewer workers, a smaller prefetch_factor, or smaller batches."
    return Finding("wrong", f"{what}; memory: {in_units(host.memory)}", remedy)


def _check_transport(
    subject: Subject, size: int, tensors: int, host: Host, *, workers: int, ranks: int
) -> Iterator[Finding]:
    """Yield findings about passing batches from workers to this process."""
    ahead = (subject.config.prefetch_factor or 2) * workers
    shared = size * ahead * ranks
    if host.shared_memory is not None and shared > host.shared_memory[0]:
        yield Finding(
            "wrong" if subject.engine == "torch" else "note",
            f"/dev/shm has {in_units(host.shared_memory[0])} free, torch's workers would need {in_units(shared)}",
            'Use engine="ring", which does not need it, or give the container more (docker: --shm-size).',
        )
    if host.open_files is not None and tensors * ahead * 2 > host.open_files[0]:
        yield Finding(
            "note",
            f"{tensors} tensors a batch, {ahead} batches ahead: torch's workers may need more than "
            f"{host.open_files[0]:,} open files",
            'Raise the limit with `ulimit -n`, or use engine="ring".',
        )
    if size > 64 * _MIB:
        remedy = "Keep pictures as uint8 and tokens as uint16 until they are on the device."
        yield Finding("note", f"a batch of {in_units(size)} is slow to copy", remedy)


def measure(batch: object) -> tuple[int, int]:
    """Return the size in bytes of a batch's tensors and arrays, and their number."""
    if isinstance(batch, torch.Tensor):
        return tensor_bytes(batch), 1
    if isinstance(batch, np.ndarray):
        return int(batch.nbytes), 1
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    elif not isinstance(batch, list | tuple):
        batch = list(getattr(batch, "__dict__", {}).values())
    found = [measure(part) for part in batch]
    return sum(size for size, _ in found), sum(tensors for _, tensors in found)


def in_units(size: float) -> str:
    """Format a number of bytes in KiB, MiB or GiB."""
    for unit, name in ((_GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f} bytes"


def _versions() -> str:
    found = [f"Python {platform.python_version()} on {sys.platform}"]
    for package in ("loaderkit", "torch", "torchdata", "lightning", "numpy"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            if package != "torchdata":  # only other loaders need it
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
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (_UNLIMITED_FILES if limit == resource.RLIM_INFINITY else limit for limit in limits)
    return soft, hard
