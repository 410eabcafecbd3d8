"""What the machine, its processes, threads and memory allow; knows nothing of data."""

from loaderkit.system.arrays import Int64Array, UInt64Array
from loaderkit.system.batch_memory import BufferPool, empty_array, lends, new_empty
from loaderkit.system.cpus import MOST_WORKERS, Cpus, ranks_on_host
from loaderkit.system.nested import map_leaves, pin, pin_tensor, should_pin, to_device
from loaderkit.system.open_before_fork import find_open_files, warn_of_open_files
from loaderkit.system.open_files import FileLimit, OpenFiles
from loaderkit.system.overrides import overridden_below
from loaderkit.system.per_thread import Opened, PerThread
from loaderkit.system.pickling import explained, find_unpicklable
from loaderkit.system.process import check_children, refuse_in_fork
from loaderkit.system.process_pool import LostTaskError, map_in_processes, map_on_executor, map_tasks
from loaderkit.system.progress import with_progress
from loaderkit.system.retry import Retry, TransientError, is_transient
from loaderkit.system.state import STATE_VERSION, StateError, seal
from loaderkit.system.threads import limit_threads, threads_of_a_read
from loaderkit.system.world import World

__all__ = [
    "MOST_WORKERS",
    "STATE_VERSION",
    "BufferPool",
    "Cpus",
    "FileLimit",
    "Int64Array",
    "LostTaskError",
    "OpenFiles",
    "Opened",
    "PerThread",
    "Retry",
    "StateError",
    "TransientError",
    "UInt64Array",
    "World",
    "check_children",
    "empty_array",
    "explained",
    "find_open_files",
    "find_unpicklable",
    "is_transient",
    "lends",
    "limit_threads",
    "map_in_processes",
    "map_leaves",
    "map_on_executor",
    "map_tasks",
    "new_empty",
    "overridden_below",
    "pin",
    "pin_tensor",
    "ranks_on_host",
    "refuse_in_fork",
    "seal",
    "should_pin",
    "threads_of_a_read",
    "to_device",
    "warn_of_open_files",
    "with_progress",
]
