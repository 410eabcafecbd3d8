"""What a loader says of how it works: who makes its batches, and why."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """How a loader makes its batches, or is going to; `str()` gives it in a few lines.

    Args:
        engine: "inline", "ring", "torch", "threads", or "torchdata" (of a stream).
        why: What chose the engine.
        making_us: Microseconds to read and collate a batch, where that was measured.
        receiving_us: Microseconds of this process to receive one from a worker, where that was measured; before there are
            workers, those to write one and to receive it.
        num_workers: Worker processes (or threads) in use, or to be started; 0 without.
        workers_why: Where that number comes from.
        start_method: How processes are started; None without them.
        prefetch: Batches that are made ahead at most, by all workers together.
        dealing: Which worker makes which batch; None without workers.
        pinned: Whether batches are in page-locked memory.
        pinned_why: Why, or why not.
        device: Where batches go; None leaves them on the host.
        device_why: How they are copied there, or why not.
    """

    engine: str
    why: str
    making_us: float | None = None
    receiving_us: float | None = None
    num_workers: int
    workers_why: str
    start_method: str | None
    prefetch: int
    dealing: str | None
    pinned: bool
    pinned_why: str
    device: str | None
    device_why: str | None = None

    def __str__(self) -> str:
        workers = f"{self.num_workers} ({self.workers_why})"
        if self.num_workers:
            started = f"started by {self.start_method}" if self.start_method else "threads"
            workers += f", {started}, up to {self.prefetch} batches ahead, dealt {self.dealing}"
        return (
            f"engine: {self.engine} ({self.why})\n"
            f"workers: {workers}\n"
            f"pinned: {'yes' if self.pinned else 'no'} ({self.pinned_why})\n"
            f"device: {self.device or 'none, batches stay on the host'}"
            + (f" ({self.device_why})" if self.device_why else "")
        )
