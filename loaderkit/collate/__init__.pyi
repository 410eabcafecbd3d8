# The interface of the package. Each name loads when it is first used.

__all__ = [
    "ChatCollate",
    "CollateError",
    "DetectionCollate",
    "Jagged",
    "MultimodalCollate",
    "PackCollate",
    "Pad",
    "PadCollate",
    "RaggedCollate",
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

from .chats import ChatCollate
from .coco import coco_target, draw_segmentation
from .default import CollateError, keep_rows, stack, stack_columns
from .detection import DetectionCollate
from .pack import PackCollate, document_mask, unpack
from .pad import MultimodalCollate, PadCollate, RaggedCollate
from .padding import pad_sequences, unpad
from .rules import Jagged, Pad
