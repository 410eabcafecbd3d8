"""The second normal deviate of a pair, which numpy's global generator keeps for its next draw."""

import ctypes
import functools
from typing import Any

import numpy as np

_STATE_BYTES = 4 * 625  # 624 words and the place among them


def kept_normal(bits: Any) -> float | None:
    """Return the deviate that numpy's global functions keep; None if they keep none. They may not keep it afterwards.

    `np.random.get_state` tells it too, but takes 40 us to copy 624 words.

    Args:
        bits: The bit generator of the global functions. Its state stays as it is.
    """
    if type(bits) is not np.random.MT19937 or not memory_is_known():
        state: Any = np.random.get_state(legacy=False)
        return float(state["gauss"]) if state["has_gauss"] else None
    address = bits.ctypes.state_address
    before = ctypes.string_at(address, _STATE_BYTES)
    drawn = np.random.standard_normal()
    if ctypes.string_at(address, _STATE_BYTES) == before:
        return float(drawn)
    ctypes.memmove(address, before, _STATE_BYTES)
    return None


@functools.cache
def memory_is_known() -> bool:
    """Return whether an MT19937 has its words and its place where `kept_normal` looks for them."""
    bits = np.random.MT19937(0)
    bits.random_raw(3)
    state = bits.state["state"]
    words = np.append(state["key"], np.uint32(state["pos"]))
    return ctypes.string_at(bits.ctypes.state_address, _STATE_BYTES) == words.tobytes()
