"""The default collate. It lies in `system/stack.py`, below the datasets: `batch` of a stream stacks, too."""

from loaderkit.system.stack import CollateError as CollateError
from loaderkit.system.stack import stack as stack
from loaderkit.system.stack import stack_columns as stack_columns
from loaderkit.system.stack_rows import keep_rows as keep_rows
