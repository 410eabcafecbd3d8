"""The loaders that a DataModule gives to a Trainer."""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Never

import torch
import torch.utils.data as torch_data

from loaderkit.device.cuda import BACKENDS
from loaderkit.device.prefetch import Prefetcher
from loaderkit.engine.description import Description
from loaderkit.lightning.framework import DDPStrategy, IndexBatchSamplerWrapper, is_overridden, pl
from loaderkit.loader.config import LoaderConfig
from loaderkit.loader.device_loader import AheadEpoch
from loaderkit.loader.loader import Loader
from loaderkit.loader.position import Position
from loaderkit.system.nested import to_device


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

    def __iter__(self) -> Iterator[Any]:
        epoch = super().__iter__()
        return epoch if self.prefetcher is None else AheadEpoch(epoch, self.prefetcher)


class History:
    """The points of a position since a mark, counted in batches; the mark is where the next pass starts.

    A Trainer fetches batches before it trains on them, so a state is that of an earlier batch.
    """

    def __init__(self, position: Position) -> None:
        self.position = position
        self._points: deque[Any] = deque([position.upcoming()])
        self._forgotten = 0  # batches since the mark whose points are gone

    @property
    def epoch(self) -> int:
        """The position's epoch at the oldest point."""
        return self.position.cursor_at(self._points[0]).epoch

    def record(self) -> None:
        """Add the point after a batch that was yielded."""
        self._points.append(self.position.yielded() or self.position.point())

    def forget(self, batches: int) -> None:
        """Drop the points before this many batches after the mark."""
        while self._forgotten < batches and len(self._points) > 1:
            self._points.popleft()
            self._forgotten += 1

    def state_after(self, batches: int, *, over: bool) -> dict[str, Any]:
        """Return the state `batches` batches after the mark; if the epoch is over there, its end's state."""
        point = self.point_after(batches)
        return self.position.state_at(self.position.epoch_after(point) if over else point, self._points)

    def rewind(self) -> None:
        """Return to the mark."""
        self.position.go_to(self._points[0])

    def end_epoch(self, batches: int) -> None:
        """End a Trainer's epoch that used this many batches since the mark."""
        self.position.go_to(self.position.epoch_after(self.point_after(batches)))

    def point_after(self, batches: int) -> Any:
        """Return the point `batches` batches after the mark."""
        if batches < self._forgotten:
            raise RuntimeError(
                f"loader: no state after {batches} batches: the states before batch {self._forgotten} are dropped."
            )
        # If several datasets are read together, this one may have ended before the others.
        return self._points[min(batches - self._forgotten, len(self._points) - 1)]


class TrainLoader(TrainerLoader):
    """A training loader whose state is the position after the last batch trained on.

    A Trainer fetches batches ahead, so the loader records its positions since a mark. Its DataModule
    sets the mark and asks for the state some batches after it. Without a Trainer it is a plain Loader.
    """

    driven = False  # whether a Trainer draws the batches; it may fetch ahead and start a pass again
    saved: Callable[[], dict[str, Any]] | None = None  # returns the state that the DataModule saves
    loaded: Callable[[], None] | None = None  # tells the DataModule that Lightning has moved the loader
    restored = False  # whether the DataModule has restored its position
    _history: History | None = None  # positions since the mark
    _first_epoch = 0  # the loader's epoch at the mark
    # Whether it ended before the mark, in the same epoch of the Trainer. CombinedLoader tracks which loaders have
    # ended, so after a resume it must end again.
    _ended = False
    _at_end = False  # whether its last pass since the mark ended
    _waiting = False  # whether no batch has begun since the mark
    _learnt = 0  # batches trained on since the mark, when the last batch began
    _begun = 0  # batches that began since the mark

    @property
    def step(self) -> int | None:
        """Number of samples in a full step of all ranks: the unit of batch counts."""
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

    def mark(self, *, ended: bool = False) -> None:
        """Count batches from the start of the next pass; `ended`: the loader already ended in this epoch."""
        if self.driven:
            self.position.discard_ahead()
            self._history = History(self.position)
            self._first_epoch = self._history.epoch
            self._waiting, self._learnt, self._begun = True, 0, 0
            self._ended, self._at_end = ended, False

    def begin_batch(self, learnt: int) -> None:
        """Record that a batch begins, when `learnt` batches since the mark are trained on."""
        if self._history is not None:
            self._history.forget(self._learnt)  # keeps one batch more: another rank may save one step earlier
        self._waiting, self._learnt = False, learnt
        self._begun += 1

    @property
    def point_after_step(self) -> Any:
        """The position after the batch that is being trained on; None if no Trainer draws the batches."""
        return None if self._history is None else self._history.point_after(self._begun)

    def state_after(self, batches: int, *, over: bool) -> dict[str, Any]:
        """Return the state `batches` batches after the mark; if the epoch is over there, its end's state."""
        return (self._history or History(self.position)).state_after(batches, over=over)

    def has_ended(self, state: Mapping[str, Any]) -> bool:
        """Return whether the loader ended in this epoch of the Trainer before a state since the mark."""
        epoch: int = state["cursor"]["epoch"]
        return self._ended or epoch > self._first_epoch

    def end_epoch(self, batches: int) -> None:
        """End the Trainer's epoch, which used `batches` batches since the mark."""
        self.position.discard_ahead()
        if self._history is not None:
            self._history.end_epoch(batches)

    def is_over(self) -> bool:
        """Return whether no later epoch will have a batch either, and warn."""
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

    def stop(self) -> None:
        """Move to the start of the next pass, and stop the workers."""
        self.position.discard_ahead()
        if self._waiting:
            self._rewind()
        self.close()

    def follow(self, before: "TrainLoader") -> None:
        """Continue where another loader stopped."""
        self.position.follow(before.position)

    def __iter__(self) -> Iterator[Any]:
        if not self.driven:
            return super().__iter__()
        # Lightning fetches from a loader without a length before an epoch begins, then calls iter() again.
        # CombinedLoader calls iter() after the end.
        again = self._waiting and not self._at_end
        self._at_end = False
        if again:
            self._rewind()
        return self._record(iter(()) if again and self._ended else super().__iter__())

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() if self.saved is None else self.saved()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # Lightning loads its own copy later; a checkpoint without a DataModule has only that one.
        if not self.restored:
            super().load_state_dict(state)
            if self.loaded is not None:
                self.loaded()

    @property
    def batch_sampler(self) -> Any:
        """None, because the DataModule counts the epochs."""
        return None

    def _record(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if self._history is not None:
                self._history.record()
            yield batch
            del batch  # its memory may be reused for the next one
        self._at_end = True

    def _rewind(self) -> None:
        if self._history is not None:
            self._history.rewind()
            self._history = History(self.position)


class EvalLoader(TrainerLoader):
    """An evaluation loader: every pass is that of epoch 0."""

    def __iter__(self) -> Iterator[Any]:
        self.seek(epoch=0)
        return super().__iter__()

    @property
    def batch_sampler(self) -> Any:
        """Gives Lightning's prediction writers the indices of each batch; None for a stream."""
        return None if is_stream(self.dataset) else _SeenIndices(self)


def is_stream(dataset: Any) -> bool:
    """Return whether data has no index."""
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


def move_batch(batch: Any, device: torch.device, *_: Any) -> Any:
    """Copy a batch to the Trainer's device. Lightning's own way refuses frozen dataclasses, and calls constructors."""
    return to_device(batch, device)


def check_equal_ranks(trainer: pl.Trainer | None, loader: Loader, data: str) -> None:
    """Refuse a loader whose ranks may have different numbers of batches if they wait for each other."""
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
    def seen_batch_indices(self) -> Any:  # type: ignore[override]  # Lightning's is a list
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __getitem__(self, batch: int) -> list[int]:
        indices: list[int] = self._loader.indices(0, batch).tolist()
        return indices
