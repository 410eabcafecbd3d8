"""An executor that runs tasks on a Ray cluster."""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from typing import Any, TypeVar

R = TypeVar("R")


class RayExecutor(Executor):
    """Runs calls as tasks on a Ray cluster, for `executor=`.

    Tasks of workers and nodes that die run again.
    It uses the cluster that `ray.init` connected to. Without that call Ray connects to `RAY_ADDRESS`, or starts a cluster
    on this host. It needs the package `ray` (`pip install ".[ray]"` in a checkout of loaderkit).

    Cancelling a future drops its result. Ray still runs the call, unless this process ends before.

    Args:
        max_retries: How often a task of a dead worker runs again; -1 is without limit.
        options: Other options of a Ray task, such as `num_cpus`, `memory` or `runtime_env`.

    Raises:
        ImportError: If Ray is not installed.

    Examples:
        >>> with lk.RayExecutor(num_cpus=1) as cluster:  # doctest: +SKIP
        ...     lk.write_shards(dataset, "/shared/shards", executor=cluster)
    """

    def __init__(self, *, max_retries: int = 3, **options: object) -> None:
        try:
            import ray
        except ImportError as error:
            raise ImportError(
                "RayExecutor needs the package ray: pip install '.[ray]' in a checkout of loaderkit."
            ) from error
        self._ray = ray
        self._task: Any = ray.remote(_call).options(max_retries=max_retries, **options)
        self._sent: tuple[object, object] = (None, None)  # the last function, and where Ray keeps it
        self._lock = threading.Lock()
        self._pending: set[Future[Any]] = set()
        self._closed = False

    def submit(self, fn: Callable[..., R], /, *args: object, **kwargs: object) -> Future[R]:
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._sent[0] is not fn:  # each node receives a function once, however many calls follow
                self._sent = fn, self._ray.put(fn)
            reference = self._task.remote(self._sent[1], args, kwargs)
            # Cancelling the future does not call `ray.cancel`: if a result arrives at the same time, Ray 2.60 aborts this
            # process ("Tried to complete task that was not pending").
            future: Future[R] = reference.future()
            self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            self._closed, pending = True, list(self._pending)
        for future in pending if cancel_futures else ():
            future.cancel()
        if wait:
            _wait(pending)
        self._sent = (None, None)


def _call(function: Callable[..., R], args: tuple[object, ...], kwargs: dict[str, object]) -> R:
    return function(*args, **kwargs)


_wait = wait  # `shutdown` has an argument of that name
