# What other packages and the tests import from this package. Public names are in the root's `__init__.pyi`.

__all__ = [
    "CollateError",
    "PackCollate",
    "draw_segmentation",
    "keep_rows",
    "stack",
    "stack_columns",
]

from .coco import draw_segmentation
from .default import CollateError, keep_rows, stack, stack_columns
from .pack import PackCollate
