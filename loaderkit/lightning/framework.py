"""The Lightning package whose classes DataModules and callbacks extend: `lightning.pytorch` or `pytorch_lightning`.

Both packages have the same code, but a Trainer takes only DataModules of its own package. loaderkit uses the package that was
imported first. If neither was imported, it uses the installed one, or `lightning.pytorch` if both are installed.
"""

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING

__all__ = [
    "WAY_OUT",
    "DDPStrategy",
    "DataLoaderIterDataFetcher",
    "IndexBatchSamplerWrapper",
    "check_trainer",
    "is_overridden",
    "pl",
]

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _choose() -> str:
    """Return the name of the package to import."""
    imported = [name for name in sys.modules if name in PACKAGES]  # in the order of their imports
    installed = [name for name in PACKAGES if importlib.util.find_spec(name.partition(".")[0])]
    if not imported and not installed:
        raise ModuleNotFoundError(
            "loaderkit: DataModules and callbacks need Lightning, and neither lightning nor pytorch_lightning is installed. "
            "Run pip install lightning.",
            name="lightning",
        )
    return (imported or installed)[0]


if TYPE_CHECKING:  # to a type checker the two are the same
    import lightning.pytorch as pl
    from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher as DataLoaderIterDataFetcher
    from lightning.pytorch.overrides.distributed import _IndexBatchSamplerWrapper as IndexBatchSamplerWrapper
    from lightning.pytorch.strategies import DDPStrategy
    from lightning.pytorch.utilities.model_helpers import is_overridden
else:
    pl = importlib.import_module(_choose())
    DataLoaderIterDataFetcher = pl.loops.fetchers._DataLoaderIterDataFetcher
    IndexBatchSamplerWrapper = pl.overrides.distributed._IndexBatchSamplerWrapper
    DDPStrategy = pl.strategies.DDPStrategy
    is_overridden = pl.utilities.model_helpers.is_overridden

_OTHER = next(name for name in PACKAGES if name != pl.__name__)
WAY_OUT = (
    f"loaderkit's DataModules are of {pl.__name__}, which was imported first. Import {_OTHER} before it, and before you use a "
    "DataModule of loaderkit."
)


def check_trainer(trainer: object) -> None:
    """Raise a TypeError if a Trainer is of the other Lightning package."""
    other = sys.modules.get(_OTHER)
    if other is not None and isinstance(trainer, other.Trainer):
        raise TypeError(f"DataModule: the Trainer is of {_OTHER}, and {WAY_OUT}")
