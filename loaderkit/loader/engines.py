"""From settings to an engine, and what `describe()` says of it."""

import multiprocessing
import sys
from typing import Any

import torch

from loaderkit.engine import Engine
from loaderkit.engine.auto import MEASURED, AutoEngine
from loaderkit.engine.batch_reader import BatchReader
from loaderkit.engine.description import Description
from loaderkit.engine.inline import InlineEngine
from loaderkit.engine.threads import ThreadsEngine
from loaderkit.engine.timed import TimedFeed
from loaderkit.engine.torch import TorchEngine
from loaderkit.loader.config import LoaderConfig
from loaderkit.system.nested import should_pin


def make_engine(feed: BatchReader, config: LoaderConfig, num_workers: int, *, in_turn: bool = False) -> Engine:
    """Make the engine that the settings ask for.

    Args:
        feed: What it runs.
        config: The settings.
        num_workers: Its workers.
        in_turn: Whether batches are to be dealt to the workers in turn, so that each keeps to its own shards.
    """
    pinned = should_pin(config.pin_memory, _device(config))
    here = InlineEngine(feed, pin_memory=pinned)
    if config.engine == "inline" or (config.engine == "auto" and num_workers == 0):
        return here
    if config.engine == "threads":
        return ThreadsEngine(
            feed,
            num_workers=num_workers,
            pin_memory=pinned,
            prefetch_factor=config.prefetch_factor,
            persistent_workers=bool(config.persistent_workers),
            timeout=config.timeout,
        )
    measured = config.engine == "auto" and _promised(config) is None
    kind: Any = TorchEngine
    ways: dict[str, Any] = {}
    if config.engine == "ring" or (config.engine == "auto" and _has_ring()):
        from loaderkit.engine.ring import RingEngine  # its import takes time

        kind = RingEngine
        # The loader itself copies such batches, and holds them until that is done; what users copy, nobody knows.
        device = _device(config)
        ways = {"in_turn": in_turn, "pin_in_place": device if device is not None and device.type == "cuda" else None}
    workers: Engine = kind(
        TimedFeed.of(feed) if measured else feed,
        num_workers=num_workers,
        pin_memory=pinned,
        prefetch_factor=config.prefetch_factor,
        persistent_workers=bool(config.persistent_workers),
        multiprocessing_context=config.multiprocessing_context,
        worker_init_fn=config.worker_init_fn,
        timeout=config.timeout,
        **ways,
    )
    if not measured:
        return workers
    from loaderkit.engine.ring.cost import handing_over_s

    return AutoEngine(feed, here=here, workers=workers, handing_over_s=handing_over_s)


def describe(engine: Any, config: LoaderConfig, workers_why: str) -> Description:
    """Say how an engine works, or is going to."""
    making = receiving = None
    if isinstance(engine, AutoEngine):
        why = engine.why or f"not measured yet: {engine.measured} of {MEASURED} batches"
        making, receiving, engine = engine.making_us, engine.receiving_us, engine.now
    elif config.engine == "auto":
        why = (engine.num_workers and _promised(config)) or "no workers"
    else:
        why = f"engine={config.engine!r}"
    pinned_why = engine.pinned_why or _why_pinned(config, engine.pinned)
    return Description(
        engine=engine.name,
        why=why,
        making_us=making,
        receiving_us=receiving,
        num_workers=engine.num_workers,
        workers_why=workers_why if engine.num_workers else "batches are made in this process",
        start_method=start_method(config) if engine.num_workers and engine.name != "threads" else None,
        prefetch=engine.prefetch,
        dealing=engine.dealing,
        pinned=engine.pinned,
        pinned_why=pinned_why,
        device=config.device,
    )


def describe_stream(config: LoaderConfig, num_workers: int, workers_why: str) -> Description:
    """Say how a stream's batches are made."""
    pinned = should_pin(config.pin_memory, _device(config))
    return Description(
        engine="torchdata" if num_workers else "inline",
        why="of a stream: its workers carry its state along" if num_workers else "no workers",
        num_workers=num_workers,
        workers_why=workers_why,
        start_method=start_method(config) if num_workers else None,
        prefetch=num_workers * (config.prefetch_factor or 2),
        dealing="in turn" if num_workers else None,
        pinned=pinned,
        pinned_why=_why_pinned(config, pinned),
        device=config.device,
    )


def start_method(config: LoaderConfig) -> str:
    """Name how worker processes are started."""
    context: Any = config.multiprocessing_context
    if isinstance(context, str):
        return context
    return str((context or multiprocessing).get_start_method())


def _promised(config: LoaderConfig) -> str | None:
    """Say what only worker processes can keep, if anything."""
    if config.worker_init_fn is not None:
        return "worker_init_fn is for worker processes"
    return "timeout needs another process to wait for" if config.timeout else None


def _has_ring() -> bool:
    return sys.platform == "linux"


def _device(config: LoaderConfig) -> torch.device | None:
    return None if config.device is None else torch.device(config.device)


def _why_pinned(config: LoaderConfig, pinned: bool) -> str:
    if config.pin_memory is not True and config.pin_memory is not False:
        return (
            "for CUDA" if pinned else f"the device is {config.device}" if config.device else "there is no CUDA device"
        )
    return f"pin_memory={config.pin_memory}" + (
        "" if pinned or not config.pin_memory else ", but there is no CUDA device"
    )
