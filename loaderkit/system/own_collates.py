"""Find the function by which another library makes batches of its own types, without importing libraries not in use."""

import importlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

# From a class to the function of its library that makes a batch of a list of samples. Both are given as (module, name).
_COLLATES = {
    ("monai.data.meta_tensor", "MetaTensor"): ("monai.data.utils", "collate_meta_tensor"),
    ("tensordict.memmap", "MemoryMappedTensor"): ("torch", "stack"),  # its attributes name one sample's file
    ("torch_geometric.data.data", "BaseData"): ("torch_geometric.data", "Batch.from_data_list"),
}


@lru_cache(maxsize=256)
def own_collate(kind: type) -> tuple[str, Callable[[list[Any]], object]] | None:
    """Return the name of the function by which a class's library makes a batch, and the function; None for other classes."""
    for base in kind.__mro__:
        found = _COLLATES.get((base.__module__, base.__qualname__))
        if found is not None:
            module, path = found
            function: Any = importlib.import_module(module)  # the class exists, so its library is in use
            for name in path.split("."):
                function = getattr(function, name)
            return f"{module}.{path}", function
    return None
