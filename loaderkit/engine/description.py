"""How a loader makes its batches, and why."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """How a loader makes its batches, or is going to. `str()` gives it in a few lines.

    Args:
        engine: "inline", "ring", "torch" or "threads".
        why: The reason for this engine.
        num_workers: Worker processes or threads, running or to be started; 0 without.
        workers_why: The reason for this number.
        start_method: How processes are started, "fork", "forkserver" or "spawn"; None without them.
        start_why: The reason for this method; empty without processes.
        prefetch: The most batches made ahead, by all workers together.
        dealing: How batches are dealt to workers, in words; None without workers.
        pinned: Whether batches are in page-locked memory.
        pinned_why: Why, or why not.
        device: Where batches go; None leaves them on the host.
        device_why: How they are copied there, or why not.
        order: What a ShardOrder keeps in use; None for other orders.
        cache: How much of the remote shards is kept on this host; None without remote shards.
        downloads: What was downloaded so far, and how far the cache is ahead; None if nothing was.
    """

    engine: str
    why: str
    num_workers: int
    workers_why: str
    start_method: str | None
    start_why: str
    prefetch: int
    dealing: str | None
    pinned: bool
    pinned_why: str
    device: str | None
    device_why: str | None = None
    order: str | None = None
    cache: str | None = None
    downloads: str | None = None

    def __str__(self) -> str:
        workers = f"{self.num_workers} ({self.workers_why})"
        if self.num_workers:
            started = f"started by {self.start_method} ({self.start_why})" if self.start_method else "threads"
            workers += f", {started}, up to {self.prefetch} batches ahead, dealt {self.dealing}"
        return (
            f"engine: {self.engine} ({self.why})\n"
            f"workers: {workers}\n"
            f"pinned: {'yes' if self.pinned else 'no'} ({self.pinned_why})\n"
            f"device: {self.device or 'none, batches stay on the host'}"
            + (f" ({self.device_why})" if self.device_why else "")
            + (f"\norder: {self.order}" if self.order else "")
            + (f"\ncache: {self.cache}" if self.cache else "")
            + (f"\ndownloads: {self.downloads}" if self.downloads else "")
        )


AHEAD = 8  # batches ahead for each worker, by default: one slow sample then delays no other batch
_AHEAD_BYTES = 32 << 20  # of batches ahead, by default: more than that leaves the caches


def batches_ahead(size: int, workers: int, prefetch_factor: int | None) -> int:
    """Return how many batches of `size` bytes all workers together make ahead at most.

    By default that is 32 MB of batches, but at least two and at most eight for each worker.
    """
    if prefetch_factor:
        return workers * prefetch_factor
    return max(2 * workers, min(AHEAD * workers, _AHEAD_BYTES // max(1, size)))
