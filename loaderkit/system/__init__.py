"""What the machine, its processes, threads and memory allow; knows nothing of data."""

from loaderkit.system.arrays import Int64Array, UInt64Array
from loaderkit.system.batch_memory import BufferPool, empty_array, lends, new_empty
from loaderkit.system.cpus import MOST_WORKERS, Cpus, ranks_on_host
from loaderkit.system.nested import pin, should_pin, to_device
from loaderkit.system.open_before_fork import find_open_files
from loaderkit.system.per_thread import Opened, PerThread
from loaderkit.system.process_pool import LostTaskError, map_in_processes, map_on_executor, map_tasks
from loaderkit.system.retry import Retry, TransientError, is_transient
from loaderkit.system.state import STATE_VERSION, StateError, seal
from loaderkit.system.tables import by_position, columns_of, frame_way_out, is_frame
from loaderkit.system.threads import threads_of_a_read
from loaderkit.system.world import World

__all__ = [
    "MOST_WORKERS",
    "STATE_VERSION",
    "BufferPool",
    "Cpus",
    "Int64Array",
    "LostTaskError",
    "Opened",
    "PerThread",
    "Retry",
    "StateError",
    "TransientError",
    "UInt64Array",
    "World",
    "by_position",
    "columns_of",
    "empty_array",
    "find_open_files",
    "frame_way_out",
    "is_frame",
    "is_transient",
    "lends",
    "map_in_processes",
    "map_on_executor",
    "map_tasks",
    "new_empty",
    "pin",
    "ranks_on_host",
    "seal",
    "should_pin",
    "threads_of_a_read",
    "to_device",
]
