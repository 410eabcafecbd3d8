"""Worker processes that write batches into shared memory, which is reused."""

from loaderkit.engine.ring.engine import RingEngine
from loaderkit.engine.ring.messages import Answer, Inbox, pack_key, unpack_key
from loaderkit.engine.ring.pickled import read, write
from loaderkit.engine.ring.pins import cuda_runtime
from loaderkit.engine.ring.slots import Slots
from loaderkit.engine.ring.team import WorkerDied

__all__ = [
    "Answer",
    "Inbox",
    "RingEngine",
    "Slots",
    "WorkerDied",
    "cuda_runtime",
    "pack_key",
    "read",
    "unpack_key",
    "write",
]
