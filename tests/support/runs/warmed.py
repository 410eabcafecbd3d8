"""What a server imports last before it forks the processes of tests, which would each spend half a second of CPU on it."""

import contextlib
import gc
import importlib

import huge_pages

import loaderkit as lk

LAZY = ("loaderkit.engine.ring", "loaderkit.loader.streams", "torch.utils.serialization.config")
CLOUDS = ("adlfs", "gcsfs", "s3fs")  # Lightning imports those that are installed whenever it saves a checkpoint

for name in (*LAZY, *CLOUDS):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
for name in lk.__all__:
    with contextlib.suppress(ImportError):
        getattr(lk, name)

gc.collect()
gc.freeze()  # a Trainer collects garbage, and so does an interpreter that ends
huge_pages.use()
