"""What Lightning's next release does otherwise, on top of the installed one.

Its pull request 21708 drops the workers' iterator in place of stopping the workers; 21765 loads the states of loaders also after
`trainer.estimated_stepping_batches` was read.
"""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.utilities import combined_loader

_setup_data = _FitLoop.setup_data


def setup_data(loop: Any) -> None:
    """Load states that wait even if the loaders are set up, and begin to read again."""
    if loop._combined_loader is not None and not loop._should_reload_train_dl:
        if loop.restarting and loop._combined_loader_states_to_load:
            loop._load_combined_loader_states()
            iter(loop._data_fetcher)
        return
    _setup_data(loop)


def reset_iterator(loader: Any) -> None:
    """Forget a DataLoader's iterator."""
    if hasattr(loader, "_iterator"):
        loader._iterator = None


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Let Lightning be the next one inside."""
    with (
        mock.patch.object(_FitLoop, "setup_data", setup_data),
        mock.patch.object(combined_loader, "_shutdown_workers_and_reset_iterator", reset_iterator),
    ):
        yield
