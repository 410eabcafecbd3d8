from loaderkit.engine.batch_reader import BatchReader, takes_batches
from loaderkit.engine.description import Description, batches_ahead
from loaderkit.engine.engine import Engine
from loaderkit.engine.inline import InlineEngine
from loaderkit.engine.ring import RingEngine
from loaderkit.engine.threads import ThreadsEngine, check_threads
from loaderkit.engine.torch import TorchEngine

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
