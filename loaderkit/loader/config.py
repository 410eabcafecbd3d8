"""A loader's settings as a value, for config files and the command line."""

import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from loaderkit.datasets.bad_samples import RAISE, BadSamples
from loaderkit.sampling.plan import Plan, Tail
from loaderkit.system.world import World

Stop = Literal["shortest", "repeat", "each"]


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """The settings of a Loader; see there for their meaning.

    Args:
        shuffle: None lets a DataModule decide: training yes, the others no.

    Raises:
        ValueError: If a setting is out of range, or two contradict each other.
    """

    batch_size: int | None = 1
    shuffle: bool | None = None
    seed: int = 0
    order: Any = None
    plan: Plan | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    num_workers: int | Literal["auto"] = 0
    drop_last: bool = False
    tail: Tail = "keep"
    world: World | None = None
    device: str | None = None
    pin_memory: bool | Literal["auto"] = "auto"
    engine: Literal["auto", "inline", "torch", "ring", "threads"] = "auto"
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

    def __post_init__(self) -> None:
        size = self.batch_size
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise ValueError(
                f"loader: batch_size is {size!r}, wanted an integer of at least 1, or None for no batching."
            )
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise ValueError(f"loader: seed is {self.seed!r}, wanted an integer.")
        workers = self.num_workers
        if workers != "auto" and (not isinstance(workers, int) or isinstance(workers, bool) or workers < 0):
            raise ValueError(f"loader: num_workers is {workers!r}, wanted an integer of at least 0, or 'auto'.")
        for name in ("shuffle", "drop_last", "persistent_workers"):
            if (flag := getattr(self, name)) not in (True, False, None):  # the string "False" is true
                raise ValueError(f"loader: {name} is {flag!r}, wanted True or False.")
        if self.tail not in get_args(Tail):
            raise ValueError(f"loader: tail is {self.tail!r}, wanted one of {', '.join(map(repr, get_args(Tail)))}.")
        if self.drop_last and self.tail not in ("keep", "drop"):
            raise ValueError(f"loader: drop_last=True and tail={self.tail!r} contradict each other. Give one of them.")
        if self.engine not in ("auto", "inline", "torch", "ring", "threads"):
            raise ValueError(
                f"loader: engine is {self.engine!r}, wanted 'auto', 'inline', 'torch', 'ring' or 'threads'."
            )
        if self.engine in ("ring", "threads") and not self.num_workers:
            where = "worker processes" if self.engine == "ring" else "threads"
            raise ValueError(f"loader: engine={self.engine!r} works in {where}, and num_workers is 0. Use workers.")
        if self.engine == "ring" and sys.platform != "linux":
            raise ValueError(
                f"loader: engine='ring' shares memory as Linux does, and this is {sys.platform}. Give engine='auto', which "
                "takes the ring where it works, or engine='torch'."
            )
        if self.engine == "inline" and workers:
            raise ValueError(f"loader: engine='inline' has no workers, num_workers is {workers!r}; wanted 0.")
        if self.order is not None and self.shuffle:
            raise ValueError("loader: shuffle=True and order= contradict each other: the order says how to shuffle.")
        if self.plan is not None and (self.order is not None or self.shuffle):
            raise ValueError("loader: plan= brings its own order; leave out order= and shuffle=.")
        if self.plan is not None and not isinstance(self.plan, Plan):
            raise ValueError(
                f"loader: plan is of type {type(self.plan).__name__}, wanted a loaderkit.Plan such as LengthBuckets. In place of "
                "a batch sampler give its sampler as order=, with batch_size=."
            )
        if self.world is not None and not isinstance(self.world, World):
            raise ValueError(
                f"loader: world is {self.world!r}, wanted a World such as loaderkit.World(0, 2): rank 0 of 2."
            )
        for name in ("collate_fn", "worker_init_fn"):
            if (function := getattr(self, name)) is not None and not callable(function):
                raise ValueError(f"loader: {name} is {function!r}, wanted a function.")
        self._check_workers()
        if self.pin_memory not in (True, False, "auto"):
            raise ValueError(f"loader: pin_memory is {self.pin_memory!r}, wanted True, False or 'auto'.")
        if not isinstance(self.bad_samples, BadSamples):
            raise ValueError(
                f"loader: bad_samples is {self.bad_samples!r}, wanted a BadSamples such as loaderkit.BadSamples('skip')."
            )

        steps, stop = self.steps, self.stop
        if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 1):
            raise ValueError(f"loader: steps is {steps!r}, wanted an integer of at least 1.")
        if stop is not None and stop not in get_args(Stop):
            raise ValueError(
                f"loader: stop is {stop!r}, wanted one of {', '.join(map(repr, get_args(Stop)))}, or None."
            )
        if steps is not None and stop is not None:
            raise ValueError(f"loader: steps={steps} and stop={stop!r} contradict each other. Give one of them.")

    def _check_workers(self) -> None:
        """Refuse what is for workers where there are none, and what is out of range."""
        for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"):
            if self.num_workers == 0 and getattr(self, name):
                raise ValueError(f"loader: {name} is for workers, and num_workers is 0. Leave it out, or use workers.")
        for name in ("worker_init_fn", "multiprocessing_context"):
            if self.engine == "threads" and getattr(self, name) is not None:
                raise ValueError(f"loader: {name} is for worker processes, and engine is 'threads'. Leave it out.")
        ahead, context = self.prefetch_factor, self.multiprocessing_context
        if ahead is not None and (not isinstance(ahead, int) or isinstance(ahead, bool) or ahead < 1):
            raise ValueError(f"loader: prefetch_factor is {ahead!r}, wanted an integer of at least 1.")
        if not isinstance(self.timeout, int | float) or not self.timeout >= 0:
            raise ValueError(f"loader: timeout is {self.timeout!r}, wanted seconds, or 0 to wait for ever.")
        if isinstance(context, str) and context not in (known := multiprocessing.get_all_start_methods()):
            raise ValueError(
                f"loader: multiprocessing_context is {context!r}, wanted one of {', '.join(map(repr, known))}."
            )

    @property
    def tail_policy(self) -> Tail:
        """The tail, with `drop_last` taken into account."""
        return "drop" if self.drop_last else self.tail
