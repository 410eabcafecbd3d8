"""Page-lock slots in place, so that a device copies from them at full speed while it computes."""

import contextlib
import os
import resource
from typing import Any

import torch

from loaderkit.engine.ring.slots import Slots


class Pins:
    """Registers the memory of slots with CUDA, and unregisters it before it is freed.

    Torch does not track copies from such memory. The code that copies a batch to a device must hold the batch until the
    copy is done. So this is only for batches that loaderkit itself copies.
    """

    def __init__(self, slots: Slots, cudart: Any) -> None:
        self.why = ""  # the reason why registering failed; empty if it did not
        self._cudart, self._owner, self._closed = cudart, os.getpid(), False
        self._sizes: dict[int, int] = {}  # bytes of each slot that are registered
        self._leased: set[int] = set()
        self._base = slots.memory  # stays mapped as long as anything is registered
        self._reserved = slots.reserved
        self._address = self._base.__array_interface__["data"][0]
        self._start = slots.start

    def lease(self, slot: int, size: int) -> bool:
        """Register a slot's first `size` bytes for a batch. Return whether they are registered."""
        if self._sizes.get(slot, 0) < size:
            if self.why:
                return False
            self.unpin(slot)
            wanted = self._reserved[slot]
            code = self._cudart.register(self._address + self._start(slot), wanted)
            if code:
                limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
                shown = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,} bytes"
                self.why = f"cudaHostRegister of {wanted:,} bytes failed with code {code} (ulimit -l is {shown})"
                return False
            self._sizes[slot] = wanted
        self._leased.add(slot)
        return True

    def free(self, slot: int) -> None:
        """Note that a slot's last view is gone."""
        self._leased.discard(slot)
        if self._closed:
            self.unpin(slot)

    def unpin(self, slot: int) -> None:
        """Unregister a slot, if it is registered."""
        # Only the thread that removes the entry does it: views may die in any thread.
        if os.getpid() == self._owner and self._sizes.pop(slot, None) is not None:
            self._cudart.unregister(self._address + self._start(slot))

    def close(self) -> None:
        """Unregister all slots. Slots in use are unregistered when their views are gone."""
        self._closed = True  # first: a view may die meanwhile
        for slot in list(self._sizes):
            if slot not in self._leased:
                self.unpin(slot)


class Runtime:
    """CUDA's runtime for one device, which is made current for each call: else the calls would use the first device."""

    def __init__(self, device: torch.device) -> None:
        self._cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch has no types for it
        self._device = device

    def register(self, address: int, size: int) -> int:
        """Page-lock memory; return CUDA's error code, 0 for success."""
        with torch.cuda.device(self._device):
            code = int(self._cudart.cudaHostRegister(address, size, 0))
            if code:
                with contextlib.suppress(RuntimeError):  # else CUDA raises the error again at the next kernel
                    torch.zeros(1, device="cuda")
        return code

    def unregister(self, address: int) -> int:
        """Unlock memory; return CUDA's error code, 0 for success."""
        with torch.cuda.device(self._device):
            return int(self._cudart.cudaHostUnregister(address))


def cuda_runtime(device: torch.device) -> Runtime | None:
    """Return CUDA's runtime for a device, or None without CUDA."""
    return Runtime(device) if torch.cuda.is_available() else None
