# The interface of the package. Each name loads when it is first used.

__all__ = [
    "CollateError",
    "DetectionCollate",
    "Jagged",
    "MultimodalCollate",
    "PackCollate",
    "Pad",
    "PadCollate",
    "RaggedCollate",
    "Side",
    "TooLong",
    "coco_target",
    "document_mask",
    "draw_segmentation",
    "keep_rows",
    "pad_sequences",
    "stack",
    "stack_columns",
    "unpack",
    "unpad",
]

from .coco import coco_target as coco_target
from .coco import draw_segmentation as draw_segmentation
from .default import CollateError as CollateError
from .default import stack as stack
from .default import stack_columns as stack_columns
from .detection import DetectionCollate as DetectionCollate
from .pack import PackCollate as PackCollate
from .pack import document_mask as document_mask
from .pack import unpack as unpack
from .pad import MultimodalCollate as MultimodalCollate
from .pad import PadCollate as PadCollate
from .pad import RaggedCollate as RaggedCollate
from .padding import pad_sequences as pad_sequences
from .padding import unpad as unpad
from .rows import keep_rows as keep_rows
from .rules import Jagged as Jagged
from .rules import Pad as Pad
from .rules import Side as Side
from .rules import TooLong as TooLong
