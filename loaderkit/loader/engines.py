"""Which engine makes a Loader's batches, and what `describe()` says of it."""

import sys
from typing import Any

import torch

from loaderkit.datasets.memory.array import in_memory
from loaderkit.engine.description import Description
from loaderkit.engine.engine import Engine, InlineEngine
from loaderkit.engine.threads import ThreadsEngine
from loaderkit.engine.torch import TorchEngine
from loaderkit.loader.config import LoaderConfig
from loaderkit.reading.batch_reader import BatchReader
from loaderkit.seeding.draws import Draws
from loaderkit.system.nested import should_pin
from loaderkit.system.start import choose_start
from loaderkit.system.threads import threads_run_together

_IN_THIS_PROCESS = "batches are made in this process"
_NO_GIL = "threads of this Python run at the same time, and the data is thread_safe"


def make_engine(reader: BatchReader, config: LoaderConfig, num_workers: int, *, in_turn: bool = False) -> Engine:
    """Make the engine that the settings ask for.

    With `in_turn`, the ring deals batches to its workers in turn: each worker keeps to its own shards.
    """
    device = _device(config)
    pinned = should_pin(config.pin_memory, device)
    name, _ = _choose(reader, config, num_workers)
    if name == "inline":
        return InlineEngine(reader, pin_memory=pinned)
    common: dict[str, Any] = {
        "num_workers": num_workers,
        "pin_memory": pinned,
        "prefetch_factor": config.prefetch_factor,
        "persistent_workers": bool(config.persistent_workers),
        "timeout": config.timeout,
    }
    if name == "threads":
        return ThreadsEngine(reader, **common)
    common |= {"multiprocessing_context": config.multiprocessing_context, "worker_init_fn": config.worker_init_fn}
    if name == "torch":
        return TorchEngine(reader, **common)
    from loaderkit.engine.ring.engine import RingEngine  # its import takes time

    # Slots are pinned in place only if the loader itself copies batches to the device. It then holds a slot until the
    # copy is done.
    in_place = device if device is not None and device.type == "cuda" else None
    return RingEngine(reader, in_turn=in_turn, pin_in_place=in_place, **common)


def _choose(reader: BatchReader, config: LoaderConfig, num_workers: int) -> tuple[str, str]:
    """Return the name of the engine to use, and why.

    With engine="auto", workers are for data that takes time. Rows in memory without a transform and a collate_fn take less
    time to gather here than to receive from a worker. Without Python's GIL, threads read what declares that they may.
    """
    if num_workers == 0 and config.engine in ("auto", "torch"):
        return "inline", "no workers"
    if config.engine != "auto":
        return config.engine, f"engine={config.engine!r}"
    workers = "ring" if sys.platform == "linux" else "torch"
    if config.worker_init_fn is not None:
        return workers, "worker_init_fn is for worker processes"
    if config.timeout:
        return workers, "timeout needs another process to wait for"
    if reader.collate_fn is None and in_memory(reader.dataset):
        return "inline", "rows in memory without a transform take less time to read here than to receive from workers"
    if not threads_run_together():
        return workers, f"num_workers={config.num_workers!r}"
    if config.multiprocessing_context is not None:
        return workers, "multiprocessing_context is for worker processes"
    if reader.draws_from() is Draws.ANYTHING or not reader.thread_safe():
        return workers, "dataset or collate_fn does not declare what it draws, and thread_safe = True"
    return "threads", _NO_GIL


def describe(engine: Engine, reader: BatchReader, config: LoaderConfig, workers: int, workers_why: str) -> Description:
    """Describe how `engine` makes batches, or will. `workers` is the number that the settings ask for."""
    start = engine.started
    if start is None and engine.name in ("ring", "torch"):
        start = choose_start(config.multiprocessing_context, reader)
    return Description(
        engine=engine.name,
        # The GIL may be back: importing a library that needs it switches it on.
        why=_NO_GIL if config.engine == "auto" and engine.name == "threads" else _choose(reader, config, workers)[1],
        num_workers=engine.num_workers,
        workers_why=workers_why if engine.num_workers else _IN_THIS_PROCESS,
        start_method=start.method if start else None,
        start_why=start.why if start else "",
        prefetch=engine.prefetch,
        dealing=engine.dealing,
        pinned=engine.pinned,
        pinned_why=engine.pinned_why or _why_pinned(config, engine.pinned),
        device=config.device,
    )


def describe_stream(dataset: object, config: LoaderConfig, num_workers: int, workers_why: str) -> Description:
    """Describe how a stream's batches are made."""
    pinned = should_pin(config.pin_memory, _device(config))
    start = choose_start(config.multiprocessing_context, dataset) if num_workers else None
    return Description(
        engine="torch" if num_workers else "inline",
        why="torch's workers read a stream" if num_workers else "no workers",
        num_workers=num_workers,
        workers_why=workers_why if num_workers else _IN_THIS_PROCESS,
        start_method=start.method if start else None,
        start_why=start.why if start else "",
        prefetch=num_workers * (config.prefetch_factor or 2),
        dealing="in turn" if num_workers else None,
        pinned=pinned,
        pinned_why=_why_pinned(config, pinned),
        device=config.device,
    )


def _device(config: LoaderConfig) -> torch.device | None:
    return None if config.device is None else torch.device(config.device)


def _why_pinned(config: LoaderConfig, pinned: bool) -> str:
    if config.pin_memory == "auto":
        if pinned:
            return "for CUDA"
        return f"the device is {config.device}" if config.device else "there is no CUDA device"
    lacking = ", but there is no CUDA device" if config.pin_memory and not pinned else ""
    return f"pin_memory={config.pin_memory}{lacking}"
