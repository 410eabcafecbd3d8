"""The engine on the workers of `torch.utils.data.DataLoader`."""

import io
import multiprocessing
import os
import pickle
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.utils.data as torch_data
from torch import Tensor

from loaderkit.engine.batch_reader import BatchReader
from loaderkit.sampling.plan import BatchKey
from loaderkit.seeding.keys import derive_seed
from loaderkit.system.nested import pin
from loaderkit.system.pickling import explained
from loaderkit.system.process import check_children, refuse_in_fork
from loaderkit.system.threads import limit_threads

# Copying this much through a pipe is faster than a file descriptor and fresh pages for each tensor.
_SMALL = 1 << 17  # bytes


class _Keys:
    """The DataLoader's batch sampler: the keys of this run."""

    now: Iterable[BatchKey] = ()

    def __iter__(self) -> Iterator[BatchKey]:
        return iter(self.now)


@dataclass(frozen=True, slots=True)
class Hidden:
    """A batch that torch passes on as it is: torch's own pinning skips dataclasses.

    Small tensors travel in the message, large ones in shared memory. The message can be read once.
    """

    content: Any

    def pin_memory(self) -> "Hidden":
        return Hidden(pin(self.content))

    def __reduce__(self) -> Any:
        buffer = io.BytesIO()
        _Pickler(buffer, -1).dump(self.content)
        return _load_batch, (buffer.getvalue(),)


def _load_batch(content: bytes) -> Hidden:
    return Hidden(pickle.loads(content))


class _Pickler(ForkingPickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or not _is_plain(value):
            return NotImplemented
        content = bytearray(value.reshape(-1).view(torch.uint8).numpy().data) if value.numel() else bytearray()
        return _rebuild, (content, value.dtype, tuple(value.shape))


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.nbytes <= _SMALL
        and tensor.is_contiguous()
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not vars(tensor)
    )


def _rebuild(content: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    make: Callable[..., Tensor] = torch.frombuffer
    return make(content, dtype=dtype).reshape(shape) if content else torch.empty(shape, dtype=dtype)


class Batches:
    """The batches of a run. An error ends the workers at once.

    The error that torch raises and its traceback form a cycle that holds the workers, and the garbage collector would wait
    5 s for each of them. So the traceback is dropped; the error's message has the worker's traceback.

    A forked process cannot read them: it would take batches from its parent.
    """

    def __init__(self, batches: Iterator[Hidden]) -> None:
        self._batches, self._owner = batches, os.getpid()
        _running.add(batches)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if os.getpid() != self._owner:
            refuse_in_fork(self._owner)
        try:
            return next(self._batches).content
        except BaseException as error:
            self._batches = iter(())
            raise error.with_traceback(None)  # noqa: B904 - it is the error itself


_running: weakref.WeakSet[Iterator[Hidden]] = weakref.WeakSet()
_inherited: list[Iterator[Hidden]] = []


def _keep_inherited() -> None:
    _inherited.extend(_running)


os.register_at_fork(after_in_child=_keep_inherited)  # freeing one of torch's iterators would stop the parent's workers


@dataclass(frozen=True)
class StartWorker:
    """Prepares a worker: it ends with its parent and has one thread. Then the user's `worker_init_fn` is called."""

    init: Callable[[int], None] | None

    def __call__(self, worker_id: int) -> None:
        # torch's workers watch their parent's id. Under forkserver that is the server, which lives as long as they do,
        # even if the trainer was killed. And a worker that ends waits until its batches are read.
        parent = multiprocessing.parent_process()
        if parent is not None:
            threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
        limit_threads()
        # The thread that sends batches imports parts of torch for its first large tensor. If this thread imports them at
        # the same time, the import fails, the batch is lost, and the trainer waits for ever.
        ForkingPickler.dumps(torch.empty(0))
        if self.init is not None:
            self.init(worker_id)


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


class TorchEngine:
    """Makes batches in the workers of torch's DataLoader, which deals the keys in turn and keeps the order.

    Its arguments are those of the DataLoader.
    """

    name: str = "torch"
    dealing: str | None = "in turn"
    pinned_why: str = ""

    def __init__(
        self,
        reader: BatchReader,
        *,
        num_workers: int,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        multiprocessing_context: Any = None,
        worker_init_fn: Callable[[int], None] | None = None,
        timeout: float = 0,
    ) -> None:
        self.num_workers, self.pinned = num_workers, pin_memory
        self.prefetch = num_workers * (prefetch_factor or 2)
        self._settings: dict[str, Any] = {
            "num_workers": num_workers,
            "pin_memory": pin_memory,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
            "multiprocessing_context": multiprocessing_context,
            "worker_init_fn": StartWorker(worker_init_fn),
            "timeout": timeout,
        }
        self._reader, self._init = reader, worker_init_fn
        self._keys: Any = _Keys()
        self._loader: torch_data.DataLoader[Any] | None = None
        self._owner = os.getpid()

    def run(self, keys: Iterable[BatchKey]) -> Iterator[Any]:
        check_children(self.num_workers)
        if self._owner != os.getpid():  # its workers belong to the parent of this fork
            self._loader, self._owner = None, os.getpid()
        if self._loader is None:
            # With its own generator the DataLoader does not draw from the global one.
            generator = torch.Generator().manual_seed(derive_seed("torch", self._reader.seed))
            dataset: Any = self._reader
            self._loader = torch_data.DataLoader(
                dataset, batch_sampler=self._keys, collate_fn=Hidden, generator=generator, **self._settings
            )
        self._keys.now = keys
        with explained(self._settings["multiprocessing_context"], self._reader, worker_init_fn=self._init):
            batches: Iterator[Hidden] = iter(self._loader)
        return Batches(batches)

    def close(self) -> None:
        self._loader = None  # its workers end with it
