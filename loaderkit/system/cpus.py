"""How many CPUs this process may use, and how many worker processes a rank should start."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_WORKERS = 16  # more rarely help, and each takes memory

_V2 = re.compile(r"(?m)^0::(.*)$")
_V1 = re.compile(r"(?m)^\d+:([^:]*):(.*)$")


@dataclass(frozen=True, slots=True)
class Cpus:
    """The CPUs that this process may use.

    Args:
        allowed: CPUs that it may run on (its affinity).
        quota: CPUs that its control groups (containers, SLURM, systemd) let it keep busy; None means no limit.
    """

    allowed: int
    quota: float | None = None

    @classmethod
    def detect(cls, *, proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> "Cpus":
        """Return the CPUs that the system allows. `proc` names this process's control groups, which are mounted under `root`."""
        affinity = getattr(os, "sched_getaffinity", None)  # macOS has none
        allowed = len(affinity(0)) if affinity else os.cpu_count() or 1
        return cls(allowed, min(_quotas(proc, root), default=None))

    @property
    def usable(self) -> int:
        """Whole CPUs that this process may keep busy; at least one."""
        return max(1, self.allowed if self.quota is None else min(self.allowed, int(self.quota)))

    def workers(self, ranks: int = 1) -> int:
        """Return how many workers each rank on this host should have.

        It is the rank's share of the CPUs, less one for its trainer. It is at least 1, because reading then overlaps
        with waiting for the device, and at most 16.
        """
        return max(1, min(MOST_WORKERS, self.usable // max(1, ranks) - 1))

    def __str__(self) -> str:
        limited = "" if self.quota is None else f", a control group's quota of {self.quota:g}"
        return f"{self.allowed} CPUs{limited}"


def ranks_on_host() -> int:
    """Return how many ranks torchrun started on this host; 1 without torchrun."""
    return local_world_size() or 1


def local_world_size() -> int | None:
    """Return how many ranks torchrun started on this host; None if unknown."""
    given = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(given) if given.isdigit() and int(given) else None


def _quotas(proc: Path, root: Path) -> Iterator[float]:
    """Yield the limit, in CPUs, of each control group of this process and of their parents."""
    try:
        groups = proc.read_text()
    except OSError:  # not Linux
        return
    for path in _V2.findall(groups):
        for mount in (root, root / "unified"):
            for folder in _upwards(mount, path):
                limit = _words(folder / "cpu.max")
                if len(limit) == 2 and limit[0] != "max":
                    yield int(limit[0]) / int(limit[1])
    for controllers, path in _V1.findall(groups):
        if "cpu" in controllers.split(","):
            for mount in (root / controllers, root / "cpu"):
                for folder in _upwards(mount, path):
                    quota, period = _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us")
                    if quota and period and int(quota[0]) > 0:
                        yield int(quota[0]) / int(period[0])


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """Yield a group's folder and its parents, up to the mount. A container may see the mount only."""
    folder = mount / path.strip("/")
    while folder != mount:
        yield folder
        folder = folder.parent
    yield mount


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
