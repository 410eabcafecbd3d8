"""The settings of a Loader, with their meaning and their checks."""

import multiprocessing
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from loaderkit.datasets.bad_samples import RAISE, BadSamples
from loaderkit.sampling.plan import Plan, Tail
from loaderkit.seeding.private import PrivatePolicy
from loaderkit.seeding.watched import GlobalPolicy
from loaderkit.system.checks import check_choice, plain_integer
from loaderkit.system.state import Rule
from loaderkit.system.world import World, as_world

Stop = Literal["shortest", "repeat", "each"]
EngineName = Literal["auto", "inline", "torch", "ring", "threads"]


def _integers(least: int, also: str = "", *, other: object = None) -> Rule:
    """Return a rule that allows integers of at least `least`, and one other value."""
    return Rule(
        f"an integer of at least {least}{also}",
        lambda value: value == other or (isinstance(value, int) and not isinstance(value, bool) and value >= least),
    )


IN_THIS_PROCESS: dict[str, object] = {  # the settings of a Loader without workers
    "num_workers": 0,
    "prefetch_factor": None,
    "persistent_workers": None,
    "timeout": 0,
    "engine": "auto",
    "multiprocessing_context": None,
    "worker_init_fn": None,
    "pin_memory": False,
}
_FLAG = Rule("True or False", lambda value: value in (True, False, None))  # not the string "False"
_FUNCTION = Rule("a function", lambda value: value is None or callable(value))
_RULES = {
    "seed": Rule(
        "an integer. lk.torch_seed() gives the one of torch.manual_seed",
        lambda value: isinstance(value, int) and not isinstance(value, bool),
    ),
    "batch_size": _integers(1, ", or None for single samples"),
    "num_workers": _integers(0, ", or 'auto'", other="auto"),
    "prefetch_factor": _integers(1),
    "steps": _integers(1),
    "shuffle": _FLAG,
    "drop_last": _FLAG,
    "persistent_workers": _FLAG,
    "batch_sampler": Rule("an iterable of lists of indices", lambda value: value is None or hasattr(value, "__iter__")),
    "collate_fn": _FUNCTION,
    "worker_init_fn": _FUNCTION,
    "timeout": Rule("seconds, or 0 to wait forever", lambda value: isinstance(value, int | float) and value >= 0),
    "pin_memory": Rule("True, False or 'auto'", lambda value: value in (True, False, "auto")),
    "bad_samples": Rule(
        "a BadSamples such as loaderkit.BadSamples('skip')", lambda value: isinstance(value, BadSamples)
    ),
    "seeders": Rule(
        "a list of functions, such as [library.set_seed]",
        lambda value: isinstance(value, list | tuple) and all(map(callable, value)),
    ),
}
_CHOICES = {
    "tail": get_args(Tail),
    "engine": get_args(EngineName),
    "private_generators": get_args(PrivatePolicy),
    "global_generators": get_args(GlobalPolicy),
    "stop": get_args(Stop),
}


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """The settings of a Loader as a value.

    For a DataModule, a config file or the command line.

    Args:
        batch_size: Samples in a batch of one rank. None yields each sample as it is.
        shuffle: A new order in each epoch, which depends on (seed, epoch) alone: `Shuffled`, or a `ShardOrder` with a block of
            one batch if the dataset has `shard_sizes`. None lets a DataModule decide: training data yes, other data no.
        seed: Decides the order and the samples' random numbers; the same on every rank. `torch.manual_seed` and Lightning's
            `seed_everything` do not change them; for a seed that follows these, give `lk.torch_seed()`.
        order: An order or a sampler, in place of `shuffle`.
        batch_sampler: A sampler that yields lists of indices, one for each batch, in place of `batch_size`, `shuffle` and
            `order`. Rank r of R gets the batches r, r + R, and so on; see `tail` if R does not divide them. In a DataModule it is for
            training alone: evaluation has batches of `batch_size`, by default the sampler's own if it has one.
        plan: A plan that makes the batches, such as `LengthBuckets`, in place of order and batch size.
        collate_fn: Makes a batch from a list of samples. By default it stacks them, or packs the rows of
            `data.pack(...)`. It is not seeded if its attribute `draws_nothing` is true.
        num_workers: Worker processes, or threads; 0 reads in this process. "auto" takes this rank's share of the CPUs that
            affinity and control groups allow, less one for the trainer: 1 to 16.
        drop_last: The same as tail="drop".
        tail: What happens to the samples at an epoch's end that do not fill a step of all ranks. "keep" spreads them evenly over
            the ranks, "drop" leaves them out, "pad" repeats samples. For a stream, "drop" leaves out the last batch of a
            lane if it is smaller.
        world: The rank of this process and the number of ranks; detected by default. If ranks share data (tensor, context or
            pipeline parallel), give the data-parallel dimensions of the DeviceMesh, such as `mesh["dp"]`, or their process
            group. A config keeps them as a World.
        device: The device of the batches; None leaves them on the host.
        pin_memory: Copy batches to page-locked memory; "auto" does so for CUDA only.
        engine: What makes batches. "inline" is this process, "torch" are torch's worker processes, "ring" are worker
            processes that write to shared memory (on Linux), "threads" are threads. "auto" takes the ring if there are
            workers, and torch's where there is no ring. Without Python's GIL it takes threads for data that says what it
            draws and sets `thread_safe = True`. `Loader.describe()` says what it chose and why. Threads read
            one dataset together, and copy neither it nor its batches: for reads that wait for a store or a service.
            They share the trainer's random generators and cannot seed them, so dataset and collate function must say
            what they draw (see `Loader`).
        prefetch_factor: Batches that each worker makes ahead. By default 2 with torch's workers. With the ring and with
            threads 8; fewer if all of them would take more than 32 MB together, but at least 2.
        persistent_workers: Keep the workers between epochs. Processes then do not see later changes of the dataset. The
            workers of a stream always start again.
        multiprocessing_context: "fork", "forkserver" or "spawn".
        worker_init_fn: Called in each worker process with the worker's number.
        timeout: Seconds to wait for a worker's batch; 0 waits forever.
        steps: For a stream: batches in an epoch of each rank.
        stop: For a stream without `steps` on several ranks: when an epoch ends. "shortest" ends it after the last
            step for which all ranks have a batch, and leaves out the rest. "repeat" ends it when all ranks have read their part;
            ranks that are done earlier start their part again. Both ask all ranks at each step. "each" ends it on each
            rank after its own part; numbers of batches then differ, so use it for work without collectives.
        store: For a stream: the torch.distributed store through which ranks exchange states; by default that of the process
            group.
        meet_timeout_s: Seconds to wait for other ranks in the store.
        bad_samples: What happens if a sample cannot be read; by default its error is raised.
        private_generators: What happens to random generators that the dataset, its transforms and the collate function
            keep as attributes, as in MONAI and albumentations. "seed" seeds them for each sample, and those of the
            collate function for each batch, so a resume is exact. "leave" does not seed them, for generators whose
            state must carry over from sample to sample: their draws then depend on the workers, and a resume restarts
            them. By default those of data with an index and of a StreamDataset are seeded, and those of another
            IterableDataset are left, since they may decide its order.
        seeders: Functions that seed the generators of libraries in other languages, as `torch.manual_seed` seeds torch's. Each
            gets 32 bits of a sample's seed. OpenCV's `setRNGSeed` need not be listed.
        global_generators: "watch" seeds numpy and `random` only for data with an index that uses them, so that other data is read faster.
            Draws are the same. The first samples in each worker show what is used. If a later batch is the first to use one, it
            is read a second time: at most two batches of a worker. "seed" seeds them for each sample, and reads nothing twice.

    Raises:
        ValueError: If a setting is out of range, or two contradict each other.

    Examples:
        >>> config = lk.LoaderConfig(batch_size=32, num_workers=2)
        >>> print(config)
        batch_size=32, num_workers=2, engine='auto'
        >>> lk.Loader.from_config(range(100), config, num_workers=0)
        Loader(range of 100 samples, batch_size=32, num_workers=0, engine='auto', rank 0 of 1)
    """

    batch_size: int | None = 1
    shuffle: bool | None = None
    seed: int = 0
    order: Any = None
    batch_sampler: Any = None
    plan: Plan | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    num_workers: int | Literal["auto"] = 0
    drop_last: bool = False
    tail: Tail = "keep"
    world: World | None = None
    device: str | None = None
    pin_memory: bool | Literal["auto"] = "auto"
    engine: EngineName = "auto"
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None
    multiprocessing_context: Any = None
    worker_init_fn: Callable[[int], None] | None = None
    timeout: float = 0
    steps: int | None = None
    stop: Stop | None = None
    store: Any = None
    meet_timeout_s: float = 60
    bad_samples: BadSamples = RAISE
    private_generators: PrivatePolicy | None = None
    seeders: Sequence[Callable[[int], object]] = ()
    global_generators: GlobalPolicy = "watch"

    def __post_init__(self) -> None:
        for name in ("batch_size", "seed", "num_workers", "prefetch_factor", "steps"):
            object.__setattr__(self, name, plain_integer(getattr(self, name)))
        for name, rule in _RULES.items():
            if not rule.holds(value := getattr(self, name)):
                raise ValueError(f"loader: {name} is {value!r}, wanted {rule.wanted}.")
        for name, choices in _CHOICES.items():
            is_optional = name in ("private_generators", "stop")
            if (value := getattr(self, name)) is not None or not is_optional:
                check_choice("loader", name, value, choices, ", or None" if is_optional else "")
        if self.drop_last and self.tail not in ("keep", "drop"):
            raise ValueError(f"loader: drop_last=True and tail={self.tail!r} contradict each other. Give one.")
        if self.steps is not None and self.stop is not None:
            raise ValueError(f"loader: steps={self.steps} and stop={self.stop!r} contradict each other. Give one.")
        self._check_engine()
        self._check_workers()
        self._check_order()
        object.__setattr__(self, "world", as_world(self.world))  # a mesh does not pickle

    def _check_engine(self) -> None:
        """Refuse an engine that does not run here, or not with this number of workers."""
        if self.engine in ("ring", "threads") and not self.num_workers:
            where = "worker processes" if self.engine == "ring" else "threads"
            raise ValueError(f"loader: engine={self.engine!r} needs {where}, and num_workers is 0. Give num_workers=.")
        if self.engine == "ring" and sys.platform != "linux":
            raise ValueError(
                f"loader: engine='ring' needs Linux, and this is {sys.platform}. Give engine='auto', which takes the ring "
                "where it works, or engine='torch'."
            )
        if self.engine == "inline" and self.num_workers:
            raise ValueError(f"loader: engine='inline' has no workers, num_workers is {self.num_workers!r}; wanted 0.")

    def _check_order(self) -> None:
        """Refuse two settings that both say which samples a batch has."""
        if self.order is not None and self.shuffle:
            raise ValueError("loader: shuffle=True and order= contradict each other: the order says how to shuffle.")
        if self.plan is not None and (self.order is not None or self.shuffle):
            raise ValueError("loader: plan= has its own order. Leave out order= and shuffle=.")
        if self.plan is not None and not isinstance(self.plan, Plan):
            raise ValueError(
                f"loader: plan is of type {type(self.plan).__name__}, wanted a loaderkit.Plan such as LengthBuckets. For a "
                "batch sampler, give its sampler as order=, with batch_size=."
            )
        for name in ("shuffle", "order", "plan"):
            if self.batch_sampler is not None and (value := getattr(self, name)):
                raise ValueError(f"loader: batch_sampler= makes the batches alone. Leave out {name}={value!r}.")

    def _check_workers(self) -> None:
        """Refuse settings of workers that are out of range, or that are given without workers."""
        for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"):
            if self.num_workers == 0 and getattr(self, name):
                raise ValueError(f"loader: {name} is for workers, and num_workers is 0. Leave it out, or use workers.")
        for name in ("worker_init_fn", "multiprocessing_context"):
            if self.engine == "threads" and getattr(self, name) is not None:
                raise ValueError(f"loader: {name} is for worker processes, and engine is 'threads'. Leave it out.")
        if isinstance(context := self.multiprocessing_context, str):
            methods = sorted(multiprocessing.get_all_start_methods())  # their order differs from version to version
            check_choice("loader", "multiprocessing_context", context, methods)

    @property
    def tail_policy(self) -> Tail:
        """The setting `tail`, or "drop" if `drop_last` is true."""
        return "drop" if self.drop_last else self.tail

    def __str__(self) -> str:
        size = f"batch_size={self.batch_size}" if self.plan is None else f"plan={type(self.plan).__name__}"
        return f"{size}, num_workers={self.num_workers!r}, engine={self.engine!r}"
