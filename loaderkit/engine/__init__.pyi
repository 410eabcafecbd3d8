# The interface of the package. Each name loads when it is first used.

__all__ = [
    "BatchReader",
    "Description",
    "Engine",
    "InlineEngine",
    "RingEngine",
    "ThreadsEngine",
    "TorchEngine",
    "batches_ahead",
    "check_threads",
    "takes_batches",
]

from .batch_reader import BatchReader as BatchReader
from .batch_reader import takes_batches as takes_batches
from .description import Description as Description
from .description import batches_ahead as batches_ahead
from .engine import Engine as Engine
from .inline import InlineEngine as InlineEngine
from .ring.engine import RingEngine as RingEngine
from .threads import ThreadsEngine as ThreadsEngine
from .threads import check_threads as check_threads
from .torch import TorchEngine as TorchEngine
