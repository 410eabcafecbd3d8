"""The loaders that the scripts compare on the same map-style data, each used as its documentation says.

Each `by_...` returns a callable that runs an epoch in its own process. Workers are forked (grain spawns)
and persist if the loader can keep them. If a loader cannot, it reports the time of an epoch from when it
runs steadily. Peers receive whole batches of indices, as tensors, if they accept them. grain's batches stay numpy arrays.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from report.declare import LOADER
from torch import Tensor
from torch.utils.data import DataLoader, default_collate
from torchdata.stateful_dataloader import StatefulDataLoader

import loaderkit as lk
from lib.apart import Make, interleave_apart
from lib.harness import Row, drain, quartiles, ratio, steady, tell

BARE, RING, REFERENCE = "bare loop (the limit)", "lk.Loader, ring", "DataLoader"
STATEFUL, NODES, GRAIN, SPDL = "StatefulDataLoader", "torchdata.nodes", "grain", "spdl"
Epoch = Callable[[], object]


@dataclass(frozen=True)
class Fetch:
    """Reads and collates the batch of some indices."""

    dataset: Any
    collate: Callable[[list[Any]], Any]

    def __call__(self, indices: Any) -> Any:
        numbers = indices.tolist() if isinstance(indices, Tensor) else list(map(int, indices))
        many = getattr(self.dataset, "__getitems__", None)
        return self.collate(many(numbers) if many is not None else [self.dataset[index] for index in numbers])


@dataclass(frozen=True, kw_only=True)
class Job:
    """An epoch of a map-style dataset, in batches.

    Args:
        dataset: With `__len__` and `__getitem__`; its length is a multiple of the batch size.
        batch_size: Samples a batch.
        collate: From a list of samples to a batch.
        shuffle: Shuffle, or read in order.
        gather: Reads a whole batch from a tensor or array of indices, if the data allows it.
        own: The dataset for lk.Loader, if it differs.
        most: Number of batches that slow peers read; their time is scaled to an epoch.
    """

    dataset: Any
    batch_size: int
    collate: Callable[[list[Any]], Any] = default_collate
    shuffle: bool = True
    gather: Callable[[Any], Any] | None = None
    own: Any = None
    most: int = sys.maxsize

    @property
    def fetch(self) -> Callable[[Any], Any]:
        return self.gather or Fetch(self.dataset, self.collate)

    @property
    def batches(self) -> int:
        return len(self.dataset) // self.batch_size

    @property
    def run(self) -> int:
        return min(self.batches, self.most)


class IndexBatches:
    """A sampler of whole batches, as tensors."""

    def __init__(self, job: Job, most: int = sys.maxsize) -> None:
        self._job, self._most = job, most

    def __iter__(self) -> Iterator[Tensor]:
        size = len(self._job.dataset)
        # Not by torch's generator: a process that is forked while a thread draws from that one waits for its lock for ever.
        order = torch.from_numpy(np.random.default_rng().permutation(size)) if self._job.shuffle else torch.arange(size)
        return iter(torch.split(order, self._job.batch_size)[: self._most])


def ours(job: Job, workers: int, engine: Any, stack: ExitStack, **settings: Any) -> Epoch:  # noqa: ARG001
    settings |= {"num_workers": workers, "persistent_workers": True} if workers else {}
    collate = None if job.collate is default_collate else job.collate
    dataset = job.dataset if job.own is None else job.own
    loader = lk.Loader(dataset, job.batch_size, shuffle=job.shuffle, collate_fn=collate, engine=engine, **settings)
    return lambda: drain(loader)


def by_torch(job: Job, workers: int, kind: Any, stack: ExitStack, **settings: Any) -> Epoch:  # noqa: ARG001
    settings |= {"num_workers": workers, "persistent_workers": True} if workers else {}
    loader = kind(job.dataset, job.batch_size, shuffle=job.shuffle, collate_fn=job.collate, **settings)
    return lambda: drain(loader)


def by_nodes(job: Job, workers: int, method: Any, stack: ExitStack) -> Epoch:  # noqa: ARG001 - ends its processes itself
    from torchdata import nodes

    most = job.run if method == "process" else job.batches
    source = nodes.SamplerWrapper(IndexBatches(job, most))
    if not workers:
        return partial(drain, nodes.Loader(nodes.Mapper(source, job.fetch)))
    loader = nodes.Loader(nodes.ParallelMapper(source, job.fetch, num_workers=workers, method=method))
    if method == "thread":
        return partial(drain, loader)

    def epoch() -> float:
        batches = iter(loader)
        taken = steady(batches, most)
        drain(batches)
        return taken * job.batches / most

    return epoch


@dataclass(frozen=True)
class AsArrays:
    """Makes arrays of the tensors in a batch, which is what grain moves between processes."""

    make: Callable[[Any], Any]

    def __call__(self, given: Any) -> Any:
        return _as_arrays(self.make(given))


def _as_arrays(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch.numpy()
    if isinstance(batch, dict):
        return {key: _as_arrays(value) for key, value in batch.items()}
    return type(batch)(map(_as_arrays, batch)) if isinstance(batch, tuple | list) else batch


def by_grain(job: Job, workers: int, method: Any, stack: ExitStack) -> Epoch:
    import grain

    data = grain.MapDataset.range(len(job.dataset)) if job.gather else grain.MapDataset.source(job.dataset)
    data = data.seed(0).shuffle() if job.shuffle else data
    if job.gather:
        data = data.batch(job.batch_size, drop_remainder=True).map(AsArrays(job.gather))
    else:
        data = data.batch(job.batch_size, drop_remainder=True, batch_fn=AsArrays(job.collate))
    threads = workers if method == "thread" else 0
    found = data.repeat().to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads))
    if workers and method == "process":
        found = found.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2))
    batches = iter(found)  # without an end, so that workers are kept
    stack.callback(batches.close)
    return lambda: steady(batches, job.run) * job.batches / job.run


_kept: list[Callable[[Any], Any]] = []


def _keep(fetch: Callable[[Any], Any]) -> None:
    _kept.append(fetch)


def _fetch_kept(indices: Any) -> Any:
    return _kept[0](indices)


def by_spdl(job: Job, workers: int, method: Any, stack: ExitStack) -> Epoch:
    from spdl.pipeline import PipelineBuilder

    count = max(1, workers)  # without workers, one thread next to the main one
    settings: dict[str, Any] = {}
    operation: Any = job.fetch
    if method == "process":
        pool = ProcessPoolExecutor(count, get_context("fork"), initializer=_keep, initargs=(job.fetch,))
        pool.submit(len, "").result()  # forks, as long as there are no threads
        settings, operation = {"executor": pool}, _fetch_kept
        stack.callback(pool.shutdown)

    def epoch() -> float | None:
        most = job.run if method == "process" else job.batches
        builder: Any = PipelineBuilder()
        builder = builder.add_source(IndexBatches(job, most))
        builder = builder.pipe(operation, concurrency=count, output_order="input", **settings)
        pipeline = builder.add_sink(2 * count).build(num_threads=count)
        with pipeline.auto_stop():
            if method == "process":
                return steady(iter(pipeline), most) * job.batches / most
            drain(pipeline)
        return None

    return epoch


OTHERS: dict[str, Callable[[Job, int, Any, ExitStack], Epoch]] = {NODES: by_nodes, GRAIN: by_grain, SPDL: by_spdl}


def others(job: Job, workers: int) -> dict[str, Make]:
    """Return the installed peers other than torch; report the others."""
    found: dict[str, Make] = {}
    for name, make in OTHERS.items():
        if not installed(name):
            continue
        if workers:
            found[f"{name}, processes"] = partial(make, job, workers, "process")
            found[f"{name}, threads"] = partial(make, job, workers, "thread")
        else:
            found[name] = partial(make, job, 0, "thread")
    return found


def installed(name: str) -> bool:
    """Whether a peer can be imported; says so where it can't."""
    if importlib.util.find_spec(name.split(".")[0]) is not None:
        return True
    tell(f"{name}: left out: not installed. pip install -e '.[bench]'")
    return False


def import_peers() -> None:
    """Import what the other peers need, here and not in each process that is forked."""
    for module in ("torchdata.nodes", "grain", "spdl.pipeline"):
        if importlib.util.find_spec(module.split(".")[0]) is not None:
            importlib.import_module(module)


def compare(
    job: Job,
    workers: int,
    *,
    rounds: int,
    limit_s: float,
    bare: Epoch,
    columns: Row | None = None,
    more: Mapping[str, Make] | None = None,
    alone: bool = False,
    programs: int = 0,
) -> list[Row]:
    """Measure an epoch of each loader: ours, torch's, and unless `alone` the other peers.

    Args:
        job: What they do.
        workers: Processes or threads.
        rounds: Number of rounds.
        limit_s: Seconds for all rounds; see `interleave`.
        bare: The same work without a loader, in one process. Its time is divided by the number of workers,
            unless the work is a gather.
        columns: Columns to put first.
        more: Additional contenders.
        alone: Leave out the other peers.
        programs: If given, this many programs share the rounds, and each turn is a new process with its own heap.
    """
    makes: dict[str, Make] = {BARE: partial(_as_it_is, bare), LOADER: partial(ours, job, workers, "auto")}
    makes |= {RING: partial(ours, job, workers, "ring")} if workers else {}
    makes |= more or {}
    makes[REFERENCE] = partial(by_torch, job, workers, DataLoader)
    if not alone:
        makes |= {STATEFUL: partial(by_torch, job, workers, StatefulDataLoader)} | others(job, workers)
    label = ", ".join([*(f"{key} {value}" for key, value in (columns or {}).items()), f"{workers} workers"])
    own: dict[str, Any] = {"fresh": True, "programs": programs, "prepare": import_peers} if programs else {}
    found = interleave_apart(makes, rounds=rounds, limit_s=limit_s, label=label, **own)
    share = 1 if job.gather else max(1, workers)
    found[BARE] = {number: taken / share for number, taken in found[BARE].items()}
    size = len(job.dataset)
    return [
        {
            **(columns or {}),
            "workers": workers,
            "contender": name,
            **quartiles("us_per_sample", taken.values(), 1e6 / size),
            "throughput_ratio_to_reference": 1 / ratio(taken, found[REFERENCE]),
            "throughput_ratio_to_limit": 1 / ratio(taken, found[BARE]),
            "repeats": len(taken),
        }
        for name, taken in found.items()
    ]


def _as_it_is(run: Epoch, _: ExitStack) -> Epoch:
    return run
