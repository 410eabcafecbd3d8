"""From samples to a batch."""

from loaderkit.collate.pad import Pad, PadCollate
from loaderkit.collate.stack import CollateError, stack

__all__ = ["CollateError", "Pad", "PadCollate", "stack"]
