"""From the host to the device, ahead of use."""

from loaderkit.device.cuda import BACKENDS, HostBatches
from loaderkit.device.prefetch import Fetched, Prefetcher, prefetch, seeded

__all__ = [
    "BACKENDS",
    "Fetched",
    "HostBatches",
    "Prefetcher",
    "prefetch",
    "seeded",
]
