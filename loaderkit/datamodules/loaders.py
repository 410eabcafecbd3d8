"""The loaders that a DataModule gives to a Trainer: each knows whose count of batches holds."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lightning.pytorch.overrides.distributed import _IndexBatchSamplerWrapper

from loaderkit.loader import Loader


class TrainLoader(Loader):
    """A training loader whose state is what was learnt, as its DataModule knows it."""

    saved: Callable[[], dict[str, Any]] | None = None  # the state that the DataModule would save
    restored = False  # whether the DataModule has put it in its place

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() if self.saved is None else self.saved()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # Lightning comes with its own copy later; a checkpoint made without a DataModule has only that.
        if not self.restored:
            super().load_state_dict(state)

    @property
    def batch_sampler(self) -> Any:
        """None: its DataModule counts the epochs."""
        return None


class EvalLoader(Loader):
    """An evaluation loader: each pass is the same, that of epoch 0."""

    def __iter__(self) -> Iterator[Any]:
        self.seek(epoch=0)
        return super().__iter__()

    @property
    def batch_sampler(self) -> Any:
        """What Lightning's prediction writers ask for the indices of each batch."""
        return _SeenIndices(self)


class _SeenIndices(_IndexBatchSamplerWrapper):
    """Lightning's record of the indices in each batch, computed rather than recorded."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    @property
    def seen_batch_indices(self) -> Any:  # type: ignore[override]  # there a list that is written
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __getitem__(self, batch: int) -> list[int]:
        indices: list[int] = self._loader.indices(0, batch).tolist()
        return indices
