# What other packages and the tests import from this package. Public names are in the root's `__init__.pyi`.

from .coco import draw_segmentation as draw_segmentation
from .default import CollateError as CollateError
from .default import keep_rows as keep_rows
from .default import stack as stack
from .default import stack_columns as stack_columns
from .pack import PackCollate as PackCollate
