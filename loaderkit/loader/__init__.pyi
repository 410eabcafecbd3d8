# What other packages and the tests may use: each name is loaded when it is first used.

__all__ = [
    "AheadEpoch",
    "DeviceLoader",
    "Downloads",
    "Loader",
    "LoaderConfig",
    "Position",
    "StepBatch",
    "StepLog",
    "check_indexed",
    "describe_data",
    "is_step_log",
    "loader_then",
    "locate_in_stream",
    "measure_lengths",
    "merge_states",
]

from .checks import check_indexed as check_indexed
from .config import LoaderConfig as LoaderConfig
from .device_loader import AheadEpoch as AheadEpoch
from .device_loader import DeviceLoader as DeviceLoader
from .downloads import Downloads as Downloads
from .lengths import measure_lengths as measure_lengths
from .loader import Loader as Loader
from .loader import describe_data as describe_data
from .position import Position as Position
from .step_file import is_step_log as is_step_log
from .step_log import StepBatch as StepBatch
from .step_log import StepLog as StepLog
from .step_log import loader_then as loader_then
from .streams.locate import locate_in_stream as locate_in_stream
from .streams.state import merge_states as merge_states
