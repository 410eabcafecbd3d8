"""Slots that are page-locked where they lie, so that a device copies from them at full speed, beside the computation."""

import resource
from typing import Any

import torch

from loaderkit.engine.ring.slots import Slots
from loaderkit.system.process import process_id


class Pins:
    """Registers slots with CUDA, each as far as it has memory, and takes that back before the memory goes.

    Torch knows nothing of copies from such memory that are still queued: who hands its tensors to a device has to hold
    them until their copies are done. So it is for batches that loaderkit itself copies.

    Args:
        slots: The slots, in the loader's process.
        cudart: CUDA's runtime, a `Runtime`.
    """

    def __init__(self, slots: Slots, cudart: Any) -> None:
        self.why = ""  # why batches are copied to page-locked memory after all
        self._cudart, self._owner, self._closed = cudart, process_id(), False
        self._sizes: dict[int, int] = {}  # bytes of each slot that are registered
        self._leased: set[int] = set()
        self._base = slots.memory  # stays mapped as long as anything is registered
        self._reserved = slots.reserved
        self._address = self._base.__array_interface__["data"][0]
        self._start = slots.start

    def lease(self, slot: int, size: int) -> bool:
        """Have a slot's first bytes registered, for a batch that is handed out now; say whether they are."""
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
        """Take note that a slot's last view is gone."""
        self._leased.discard(slot)
        if self._closed:
            self.unpin(slot)

    def unpin(self, slot: int) -> None:
        """Take a slot's registration back, if it has one."""
        # Whoever takes the entry out does it: views may die in any thread.
        if process_id() == self._owner and self._sizes.pop(slot, None) is not None:
            self._cudart.unregister(self._address + self._start(slot))

    def close(self) -> None:
        """Take all registrations back, those of slots in use when their views are gone."""
        self._closed = True  # first: a view may die meanwhile
        for slot in list(self._sizes):
            if slot not in self._leased:
                self.unpin(slot)


class Runtime:
    """CUDA's runtime, called for the device that copies: the calls would take memory of the first device otherwise."""

    def __init__(self, device: torch.device) -> None:
        self._cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        self._device = device

    def register(self, address: int, size: int) -> int:
        """Page-lock memory; return CUDA's error code, 0 if there is none."""
        with torch.cuda.device(self._device):
            code = int(self._cudart.cudaHostRegister(address, size, 0))
            if code:
                _forget_error()
        return code

    def unregister(self, address: int) -> int:
        """Take it back; return CUDA's error code, 0 if there is none."""
        with torch.cuda.device(self._device):
            return int(self._cudart.cudaHostUnregister(address))


def cuda_runtime(device: torch.device) -> Runtime | None:
    """Return CUDA's runtime for a device; None where there is none."""
    return Runtime(device) if torch.cuda.is_available() else None


def _forget_error() -> None:
    """Take the failed call's error out of CUDA, which would raise it again at somebody's next kernel."""
    try:
        torch.zeros(1, device="cuda")
    except RuntimeError:
        return
