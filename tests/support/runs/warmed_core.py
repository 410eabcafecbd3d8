"""What a server imports for scripts that need no large library; see `warmed` for the others."""

import gc

import huge_pages
import torch.utils.serialization.config  # noqa: F401 - what saves a checkpoint imports it

import loaderkit as lk
import loaderkit.engine.ring
import loaderkit.loader.streams

for name in ("ArrayDataset", "Loader", "LoaderConfig", "StreamDataset", "sample_rng", "testing"):
    getattr(lk, name)  # loads it

gc.collect()
gc.freeze()
huge_pages.use()
