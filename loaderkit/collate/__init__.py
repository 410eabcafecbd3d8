"""From samples to a batch."""

from typing import TYPE_CHECKING, Any

from loaderkit.collate.stack import CollateError, stack

if TYPE_CHECKING:
    from loaderkit.collate.pad import Pad, PadCollate

__all__ = ["CollateError", "Pad", "PadCollate", "stack"]


def __getattr__(name: str) -> Any:
    if name not in ("Pad", "PadCollate"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from loaderkit.collate import pad  # few need it, and its import takes time

    return getattr(pad, name)
