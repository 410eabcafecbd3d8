"""From samples to a batch."""

import importlib
from typing import TYPE_CHECKING, Any

from loaderkit.collate.stack import CollateError, stack

if TYPE_CHECKING:
    from loaderkit.collate.detection import DetectionCollate
    from loaderkit.collate.pack import PackCollate, document_mask, unpack
    from loaderkit.collate.pad import MultimodalCollate, PadCollate, RaggedCollate
    from loaderkit.collate.padding import pad_sequences, unpad
    from loaderkit.collate.rules import Jagged, Pad

# Few need them, and their import takes time.
_LAZY = {
    "DetectionCollate": "detection",
    "Jagged": "rules",
    "MultimodalCollate": "pad",
    "PackCollate": "pack",
    "Pad": "rules",
    "PadCollate": "pad",
    "RaggedCollate": "pad",
    "document_mask": "pack",
    "pad_sequences": "padding",
    "unpack": "pack",
    "unpad": "padding",
}

__all__ = [
    "CollateError",
    "DetectionCollate",
    "Jagged",
    "MultimodalCollate",
    "PackCollate",
    "Pad",
    "PadCollate",
    "RaggedCollate",
    "document_mask",
    "pad_sequences",
    "stack",
    "unpack",
    "unpad",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"loaderkit.collate.{_LAZY[name]}"), name)
