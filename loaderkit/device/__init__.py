"""From the host to the device, ahead of use."""

from loaderkit.device.cuda import BACKENDS, Cuda, HostBatches
from loaderkit.device.prefetch import Fetched, Prefetcher, Transform, prefetch, seeded
from loaderkit.device.transforms import DecodePictures, Normalize, PadRagged, WidenTokens

__all__ = [
    "BACKENDS",
    "Cuda",
    "DecodePictures",
    "Fetched",
    "HostBatches",
    "Normalize",
    "PadRagged",
    "Prefetcher",
    "Transform",
    "WidenTokens",
    "prefetch",
    "seeded",
]
