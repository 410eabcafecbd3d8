"""Worker processes that write batches into shared memory, which is reused."""

from loaderkit.engine.ring.engine import RingEngine
from loaderkit.engine.ring.messages import Inbox, pack_key, unpack_key
from loaderkit.engine.ring.pickled import read, write
from loaderkit.engine.ring.slots import Slots
from loaderkit.engine.ring.team import WorkerDied

__all__ = ["Inbox", "RingEngine", "Slots", "WorkerDied", "pack_key", "read", "unpack_key", "write"]
