# What other packages and the tests import from this package. Public names are in the root's `__init__.pyi`.

from .config import LoaderConfig as LoaderConfig
from .downloads import Downloads as Downloads
from .loader import Loader as Loader
from .step_file import is_step_log as is_step_log
from .step_log import StepBatch as StepBatch
from .step_log import StepLog as StepLog
from .step_log import loader_then as loader_then
from .streams.locate import locate_in_stream as locate_in_stream
