"""The loaders that a DataModule gives to a Trainer."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Never, TypeVar

import torch
import torch.utils.data as torch_data

from loaderkit.device.cuda import BACKENDS
from loaderkit.device.prefetch import Prefetcher
from loaderkit.engine.description import Description
from loaderkit.lightning.framework import DDPStrategy, IndexBatchSamplerWrapper, is_overridden, pl
from loaderkit.lightning.history import History
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.device_loader import AheadEpoch
from loaderkit.loader.loader import Loader
from loaderkit.system.nested import to_device

T = TypeVar("T")


class TrainerLoader(Loader):
    """A loader whose batches may be copied ahead to the Trainer's device."""

    prefetcher: Prefetcher | None = None
    why_not_ahead: str | None = None  # the reason, if there is no prefetcher

    @property
    def sampler(self) -> Never:
        """Raise AttributeError: the DataModule decides the order, also under `overfit_batches`."""
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute 'sampler': the DataModule counts the epochs."
        )

    def describe(self) -> Description:
        found = super().describe()
        if self.prefetcher is not None:
            where = str(self.prefetcher.device)
            return dataclasses.replace(found, device=where, device_why=self.prefetcher.describe())
        return dataclasses.replace(found, device_why=self.why_not_ahead and f"not ahead: {self.why_not_ahead}")

    def __iter__(self) -> Iterator[object]:
        epoch = super().__iter__()
        return epoch if self.prefetcher is None else AheadEpoch(epoch, self.prefetcher)


class TrainLoader(TrainerLoader):
    """A training loader whose state is the position after the last batch trained on.

    A Trainer fetches batches before it trains on them. The DataModule's TrainPosition gives the loader a History, which
    records the loader's positions and returns its state. Without a Trainer the loader is like a plain Loader.
    """

    _history: History | None = None

    def record_in(self, history: History) -> None:
        """Record each pass and each batch in `history` from now on. For a loader that a Trainer iterates over."""
        self._history = history

    @property
    def step(self) -> int | None:
        """Number of samples in a full step of all ranks; None for a stream."""
        return self.position.step

    @property
    def batches(self) -> int | None:
        """Number of batches in the epoch that begins; None if it is unknown, or the same in all epochs."""
        if self.step is None:
            return None
        try:
            return len(self)
        except TypeError:  # the sampler is endless
            return None

    @property
    def point_after_step(self) -> object:
        """The position after the batch that is being trained on; None if no Trainer iterates over the loader."""
        return None if self._history is None else self._history.point_after_step

    def is_over(self) -> bool:
        """Return whether no later epoch will have any batches; if so, warn with the reason."""
        why = self.position.why_over()
        if why is not None:
            self.position.say(why)
        return why is not None

    def leave_epoch(self) -> None:
        """Move to the start of the next epoch."""
        position = self.position
        if position.step is None:
            self.seek(epoch=position.cursor.epoch + 1)
        else:
            position.go_to(position.epoch_after(position.point()))

    def __iter__(self) -> Iterator[object]:
        return super().__iter__() if self._history is None else self._history.run(super().__iter__)

    def state_dict(self) -> dict[str, object]:
        return super().state_dict() if self._history is None else self._history.saved()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        if self._history is None:
            super().load_state_dict(state)
        elif not self._history.restored:  # Lightning loads its own copy after the DataModule's
            super().load_state_dict(state)
            self._history.loaded()

    def restore(self, state: Mapping[str, object]) -> None:
        """Go to a position that the DataModule saved."""
        super().load_state_dict(state)
        if self._history is not None:
            self._history.restored = True

    @property
    def batch_sampler(self) -> object:
        """None, so that Lightning sets no epoch: the DataModule counts the epochs."""
        return None


class EvalLoader(TrainerLoader):
    """An evaluation loader: every pass delivers the batches of epoch 0."""

    def __iter__(self) -> Iterator[object]:
        self.seek(epoch=0)
        return super().__iter__()

    @property
    def batch_sampler(self) -> object:
        """Gives Lightning's prediction writers the indices of each batch; None for a stream."""
        return None if is_stream(self.dataset) else _SeenIndices(self)


def is_stream(dataset: object) -> bool:
    """Return whether a dataset is a stream: an IterableDataset, whose samples have no index."""
    return isinstance(dataset, torch_data.IterableDataset)


def why_not_ahead(trainer: pl.Trainer | None, data: pl.LightningDataModule, config: LoaderConfig) -> str | None:
    """Return why batches are not copied ahead to the Trainer's device; None if they are."""
    if trainer is None:
        return "there is no Trainer yet"
    device = trainer.strategy.root_device
    if device.type not in BACKENDS:
        return f"the Trainer's device is {device}, and only CUDA copies during computation"
    if config.device is not None:
        return f"the loader has device={config.device!r} and copies its own batches"
    for hook in ("on_before_batch_transfer", "transfer_batch_to_device"):
        for owner in (data, trainer.lightning_module):
            if owner is not None and is_overridden(hook, owner) and getattr(owner, hook) is not move_batch:
                return f"{type(owner).__name__} overrides {hook}, which needs batches on the host"
    return None


def move_batch(batch: T, device: torch.device, *_: object) -> T:
    """Copy a batch to the Trainer's device. Lightning's own way refuses frozen dataclasses, and calls constructors."""
    return to_device(batch, device)


def check_equal_ranks(trainer: pl.Trainer | None, loader: Loader, data: str) -> None:
    """Raise a ValueError if ranks may have different numbers of batches, but communicate at each batch."""
    if trainer is None or loader.config.stop != "each" or loader.world.size == 1:
        return
    if data == "train":
        why = "the gradients are averaged at each step"
    elif not isinstance(trainer.strategy, DDPStrategy):
        why = f"{type(trainer.strategy).__name__} may communicate at each batch"
    else:
        buffers = [name for name, _ in trainer.lightning_module.named_buffers()]
        if not buffers or not trainer.strategy._ddp_kwargs.get("broadcast_buffers", True):
            return
        why = f"DDP broadcasts the model's buffers ({', '.join(buffers[:3])}) at each batch"
    raise ValueError(
        f"DataModule: with stop='each' the {loader.world.size} ranks have different numbers of batches of the {data} stream "
        f"and would wait for each other forever: {why}. Give "
        + ("LoaderConfig" if data == "train" else "DDPStrategy(broadcast_buffers=False), or eval_loader=LoaderConfig")
        + "(...) with steps=, stop='shortest' or stop='repeat'."
    )


class _SeenIndices(IndexBatchSamplerWrapper):
    """Lightning's record of the indices in each batch, computed on demand."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    @property
    def seen_batch_indices(self) -> object:  # type: ignore[override]  # Lightning's is a list
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __getitem__(self, batch: int) -> list[int]:
        indices: list[int] = self._loader.indices(0, batch).tolist()
        return indices
