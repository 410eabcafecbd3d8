# What other packages and the tests import from this package. Public names are in the root's `__init__.pyi`.

from .batch_reader import BatchReader as BatchReader
from .batch_reader import takes_batches as takes_batches
from .description import Description as Description
from .engine import Engine as Engine
from .engine import InlineEngine as InlineEngine
from .ring.engine import RingEngine as RingEngine
from .ring.messages import Answer as Answer
from .ring.messages import Inbox as Inbox
from .ring.messages import pack_key as pack_key
from .ring.messages import unpack_key as unpack_key
from .ring.pickled import read_batch as read_batch
from .ring.pickled import write_batch as write_batch
from .ring.pins import cuda_runtime as cuda_runtime
from .ring.slots import Slots as Slots
from .ring.team import WorkerDied as WorkerDied
from .threads import ThreadsEngine as ThreadsEngine
from .torch import TorchEngine as TorchEngine
from .torch import seal as seal
