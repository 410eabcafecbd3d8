"""What handing a batch over by the ring costs, measured without a worker."""

import math
import os
import pickle
import select
import time
from typing import Any

from loaderkit.engine.ring.layout import read, write
from loaderkit.engine.ring.messages import ANSWER, pack_key
from loaderkit.engine.ring.slots import Slots
from loaderkit.sampling.plan import BatchKey

_ROUNDS = 2  # the first finds fresh memory


def handing_over_s(batch: Any, key: BatchKey) -> float:
    """Return the seconds that it takes to hand out such a key, to write such a batch, and to receive it.

    Infinite if it can't travel. No process sleeps and wakes here, which takes as long again for small batches.
    """
    try:
        slots = Slots(1, 0)
    except OSError:
        return math.inf
    reading, writing = os.pipe()
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    taken = math.inf
    try:
        for number in range(_ROUNDS):
            start = time.perf_counter()
            task = pack_key(key)
            written = write(batch, slots, 0)
            if written.image is not None:
                return math.inf
            answer = ANSWER.pack(number, 0, len(task), 0, 0, 0, 0.0, False) + written.structure
            os.write(writing, answer[:4096])  # more would fill the pipe
            poll.poll()
            os.read(reading, 1 << 16)
            read(written.structure, slots.lease(0, int))
            taken = time.perf_counter() - start
    except (pickle.PicklingError, AttributeError, TypeError):
        return math.inf
    finally:
        os.close(reading)
        os.close(writing)
        slots.close()
    return taken
