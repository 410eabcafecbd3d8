"""The loaders that a DataModule gives to a Trainer: each knows whose count of batches holds."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import lightning.pytorch as pl
import torch.utils.data as torch_data
from lightning.pytorch.overrides.distributed import _IndexBatchSamplerWrapper
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden

from loaderkit.device.cuda import BACKENDS
from loaderkit.device.prefetch import Prefetcher
from loaderkit.engine.description import Description
from loaderkit.lightning.history import History
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.device_loader import AheadEpoch
from loaderkit.loader.loader import Loader


class TrainerLoader(Loader):
    """A loader whose batches may be copied ahead to the Trainer's device."""

    prefetcher: Prefetcher | None = None
    why_not_ahead: str | None = None  # where there is none

    def describe(self) -> Description:
        found = super().describe()
        if self.prefetcher is not None:
            where = str(self.prefetcher.device)
            return dataclasses.replace(found, device=where, device_why=self.prefetcher.describe())
        return dataclasses.replace(found, device_why=self.why_not_ahead and f"not ahead: {self.why_not_ahead}")

    def __iter__(self) -> Iterator[Any]:
        epoch = super().__iter__()
        return epoch if self.prefetcher is None else AheadEpoch(epoch, self.prefetcher)


class TrainLoader(TrainerLoader):
    """A training loader whose state is what was learnt, as its DataModule knows it; without a Trainer, a Loader."""

    driven = False  # by a Trainer, which may fetch ahead and begin anew
    saved: Callable[[], dict[str, Any]] | None = None  # the state that the DataModule would save
    loaded: Callable[[], None] | None = None  # tells the DataModule that Lightning has moved the loader
    restored = False  # whether the DataModule has put it in its place
    _history: History | None = None  # since the mark
    _first_epoch = 0  # its own, at the mark
    _ended = False  # it came to its end before the mark, in the same epoch of the Trainer
    _at_end = False  # its last pass came to its end, since the mark
    _waiting = False  # no batch has begun since the mark
    _learnt = 0  # batches since the mark, when the last one began

    @property
    def step(self) -> int | None:
        """Samples of a full step of all ranks, the unit in which batches are counted."""
        return self._position.step

    def mark(self, *, ended: bool = False) -> None:
        """Begin to count where the next `iter()` begins.

        Args:
            ended: Whether it came to its end before, in this epoch of the Trainer. CombinedLoader goes by what each of its
                loaders has told it since the epoch began: so it is told again.
        """
        if self.driven:
            self._position.discard_ahead()
            self._history = History(self._position)
            self._first_epoch = self._history.epoch
            self._waiting, self._learnt = True, 0
            self._ended, self._at_end = ended, False

    def begin_batch(self, learnt: int) -> None:
        """Take note that a batch begins, after so many learnt since the mark."""
        if self._history is not None:
            self._history.forget(self._learnt)  # of the last batch: another rank may be saved one step before this one
        self._waiting, self._learnt = False, learnt

    def state_after(self, batches: int, *, over: bool) -> dict[str, Any]:
        """Return the state so many batches after the mark, or of the epoch's end if it is over there."""
        history = self._history or History(self._position)
        return history.state_after(batches, over=over)

    def has_ended(self, state: Mapping[str, Any]) -> bool:
        """Say whether it came to its end in this epoch of the Trainer, before a state since the mark."""
        epoch: int = state["cursor"]["epoch"]
        return self._ended or epoch > self._first_epoch

    def end_epoch(self, batches: int) -> None:
        """End the Trainer's epoch, in which so many batches since the mark were used."""
        self._position.discard_ahead()
        if self._history is not None:
            self._history.end_epoch(batches)

    def stop(self) -> None:
        """Stand where the next `iter()` would begin, and stop the workers."""
        self._position.discard_ahead()
        if self._waiting:
            self._rewind()
        self.close()

    def follow(self, before: "TrainLoader") -> None:
        """Go on where another loader stopped."""
        self._position.follow(before._position)

    def __iter__(self) -> Iterator[Any]:
        if not self.driven:
            return super().__iter__()
        # Lightning fetches from a loader without a length before an epoch begins, and then calls iter() anew;
        # CombinedLoader calls it behind the end.
        again = self._waiting and not self._at_end
        self._at_end = False
        if again:
            self._rewind()
        return _Pass(self, iter(()) if again and self._ended else super().__iter__())

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() if self.saved is None else self.saved()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # Lightning comes with its own copy later; a checkpoint made without a DataModule has only that.
        if not self.restored:
            super().load_state_dict(state)
            if self.loaded is not None:
                self.loaded()

    @property
    def batch_sampler(self) -> Any:
        """None: its DataModule counts the epochs."""
        return None

    def note_batch(self) -> None:
        """Record a batch that was yielded."""
        if self._history is not None:
            self._history.record()

    def note_end(self) -> None:
        """Record that a pass came to its end."""
        self._at_end = True

    def _rewind(self) -> None:
        if self._history is not None:
            self._history.rewind()
            self._history = History(self._position)


class _Pass:
    """One pass of a training loader, which is told of each batch and of the end."""

    def __init__(self, loader: TrainLoader, batches: Iterator[Any]) -> None:
        self._loader, self._batches = loader, batches

    def __iter__(self) -> "_Pass":
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._loader.note_end()
            raise
        self._loader.note_batch()
        return batch


class EvalLoader(TrainerLoader):
    """An evaluation loader: each pass is the same, that of epoch 0."""

    def __iter__(self) -> Iterator[Any]:
        self.seek(epoch=0)
        return super().__iter__()

    @property
    def batch_sampler(self) -> Any:
        """What Lightning's prediction writers ask for the indices of each batch; those of a stream have none."""
        return None if is_stream(self.dataset) else _SeenIndices(self)


def is_stream(dataset: Any) -> bool:
    """Say whether data has no index."""
    return isinstance(dataset, torch_data.IterableDataset)


def why_not_ahead(trainer: pl.Trainer | None, data: pl.LightningDataModule, config: LoaderConfig) -> str | None:
    """Say why batches are not copied ahead to the Trainer's device; None if they are."""
    if trainer is None:
        return "there is no Trainer yet"
    device = trainer.strategy.root_device
    if device.type not in BACKENDS:
        return f"the Trainer's device is {device}: copies beside the computation are for CUDA"
    if config.device is not None:
        return f"the loader has device={config.device!r}, and copies its batches by itself"
    for hook in ("on_before_batch_transfer", "transfer_batch_to_device"):
        for owner in (data, trainer.lightning_module):
            if owner is not None and is_overridden(hook, owner):
                return f"{type(owner).__name__} has a {hook} of its own, which wants batches on the host"
    return None


def check_equal_ranks(trainer: pl.Trainer | None, loader: Loader, data: str) -> None:
    """Refuse data with unequal numbers of batches where ranks wait for each other at each batch.

    Raises:
        ValueError: If the loader's ranks each stop by themselves, and the strategy does not allow that.
    """
    if trainer is None or loader.config.stop != "each" or loader.world.size == 1:
        return
    if data == "train":
        why = "the gradients are averaged at each step"
    elif not isinstance(trainer.strategy, DDPStrategy):
        why = f"{type(trainer.strategy).__name__} may talk at each batch"
    else:
        buffers = [name for name, _ in trainer.lightning_module.named_buffers()]
        if not buffers or not trainer.strategy._ddp_kwargs.get("broadcast_buffers", True):
            return
        why = f"DDP sends the model's buffers ({', '.join(buffers[:3])}) around at each batch"
    raise ValueError(
        f"DataModule: with stop='each' the {loader.world.size} ranks have unequal numbers of batches of the {data} stream, "
        f"and would wait for each other for ever: {why}. Give "
        + ("LoaderConfig" if data == "train" else "DDPStrategy(broadcast_buffers=False), or eval_loader=LoaderConfig")
        + "(...) with steps=, stop='shortest' or stop='repeat'."
    )


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
