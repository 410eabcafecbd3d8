# The interface of the package. Each name loads when it is first used.

__all__ = [
    "BatchReader",
    "Batches",
    "Description",
    "Engine",
    "Hidden",
    "InlineEngine",
    "RingEngine",
    "StartWorker",
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
from .engine import InlineEngine as InlineEngine
from .ring.engine import RingEngine as RingEngine
from .threads import ThreadsEngine as ThreadsEngine
from .threads import check_threads as check_threads
from .torch import Batches as Batches
from .torch import Hidden as Hidden
from .torch import StartWorker as StartWorker
from .torch import TorchEngine as TorchEngine
