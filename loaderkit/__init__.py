"""Data loading for PyTorch that resumes anywhere: exactly once, bit for bit, on other hardware too."""

import lazy_loader

__version__ = "0.1.0"

# Names load when they are used, so that `import loaderkit` imports neither lightning nor torchvision.
_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

# Names of other libraries, with ours for the same thing.
_FOREIGN = {
    "DataLoader": "Loader",
    "StatefulDataLoader": "Loader",
    "IterableDataset": "StreamDataset",
    "LightningDataModule": "DataModule",
    "RandomSampler": "Shuffled",
    "StackDataset": "ZipDataset",
    "TensorDataset": "ArrayDataset",
    "WebDataset": "TarDataset",
    "WeightedRandomSampler": "Weighted",
}


def __getattr__(name: str) -> object:
    try:
        return _load(name)
    except AttributeError:
        if name in __all__ or name.startswith("_"):
            raise  # a fault inside the module that has the name
    from loaderkit.system.suggest import did_you_mean

    hint = f" Did you mean {_FOREIGN[name]!r}?" if name in _FOREIGN else did_you_mean(name, __all__)
    raise AttributeError(f"module 'loaderkit' has no attribute {name!r}.{hint}")
