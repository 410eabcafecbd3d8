"""States that are edited: with a new checksum, so that only the checks of their fields can refuse them."""

from collections.abc import Mapping
from typing import Any

from loaderkit.system.state import seal


def reseal(state: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a state with other fields and the checksum of these."""
    fields = {name: value for name, value in state.items() if name not in ("version", "checksum")}
    return seal(fields | changes)
