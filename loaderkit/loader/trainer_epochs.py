"""Keep a Loader in step with a Trainer that has no DataModule and numbers the epochs itself."""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch.utils.data as torch_data

from loaderkit.loader.position import Position
from loaderkit.system.arrays import Int64Array


class TrainerEpochs(torch_data.Sampler[int]):
    """Receives the `set_epoch` calls of a Trainer, and moves a position to the epoch that the Trainer starts.

    Lightning saves a loader's state in its checkpoints, but does not restore it from a checkpoint at an epoch's end.
    The number in `set_epoch` is then the only hint where the loader must continue. As a sampler it yields the indices that
    this rank reads in the coming epoch.
    """

    def __init__(self, position: Position) -> None:
        self._position = position
        self._used = False
        self._loaded = -1  # the turn of the position just after a state was loaded
        self._loaded_step: int | None = None  # samples of a step in the run that wrote the state
        self._loaded_batches: int | None = None  # of the state's epoch, as that run counted them
        self._last = (-1, -1)  # the turn and the epoch of the last call
        self._empty = 0  # epochs that the Trainer counted without reading a batch

    def __iter__(self) -> Iterator[int]:
        for indices in self._batches():
            yield from indices.tolist()

    def __len__(self) -> int:
        return sum(map(len, self._batches()))

    def _batches(self) -> Iterator[Int64Array]:
        epoch = self._position.cursor_at(self._position.upcoming()).epoch
        indices = self._position.indexed("indices()").plan.indices
        return (indices(epoch, batch) for batch in range(self._position.length()))

    @property
    def sampler(self) -> "TrainerEpochs":
        """Itself: Lightning calls `loader.batch_sampler.sampler.set_epoch`."""
        return self

    def note_loaded(self, state: Mapping[str, Any]) -> None:
        """Record that the position has just loaded a state."""
        self._loaded, self._loaded_step = self._position.turn, state.get("step")
        self._loaded_batches = None if self._position.step is None else state["cursor"]["batches"]

    def set_epoch(self, epoch: int) -> None:
        """Go to the epoch that the Trainer starts, unless the position is there already.

        Raises:
            RuntimeError: If the batches of a checkpoint cannot be translated, or a stream's state was lost.
        """
        position, first = self._position, not self._used
        self._used = True
        resumes = self._loaded == position.turn
        # Stages have no step of one size, so their batches are compared too, before the Trainer moves on.
        is_first = resumes and self._last[0] != position.turn
        recounted = is_first and self._loaded_batches not in (None, position.cursor.batches)
        if resumes and self._last == (position.turn, epoch - 1):
            # A run that `max_steps` ended, and that is resumed, ends the same epoch again without a batch.
            self._empty += 1
            position.go_to(position.point(), left=True)
        if position.step is None:
            self._follow_stream(epoch - self._empty, first=first)
        else:
            self._follow_indexed(epoch - self._empty, position.step, recounted=recounted)
        if position.skips:
            position.say(
                "Loader: steps are left out (loader.skip), so epochs have different numbers of batches, and a Trainer asks for the "
                "length once: it cuts the longer epochs. Use loaderkit.DataModule, or "
                "Trainer(reload_dataloaders_every_n_epochs=1)."
            )
        self._last = position.turn, epoch
        if resumes:
            self._loaded = position.turn

    def _follow_indexed(self, epoch: int, step: int, *, recounted: bool) -> None:
        if recounted or self._loaded_step not in (None, step):
            raise RuntimeError(
                f"cannot resume under this Trainer: it counts batches. A step of the checkpoint had {self._loaded_step} "
                f"samples over all ranks, now it has {step}. Pass the data in a loaderkit.DataModule, which translates the "
                "Trainer's counts, or keep the world and the batch size."
            )
        if self._position.cursor_at(self._position.upcoming()).epoch < epoch:
            self._position.seek(epoch, 0)
        if (why := self._position.why_over()) is not None:  # a Trainer without a limit would begin empty epochs forever
            raise RuntimeError(f"{why} Or let the Trainer end with them: max_epochs=1.")

    def _follow_stream(self, epoch: int, *, first: bool) -> None:
        position = self._position
        if position.cursor.epoch >= epoch:
            return
        # The Trainer's limit of batches ended an epoch of this run within the stream's epoch; the next pass starts the next one.
        if not first and position.cursor_at(position.upcoming()).epoch >= epoch:
            return
        if position.config.steps or position.begun:
            raise RuntimeError(
                f"cannot resume under this Trainer: it starts epoch {epoch}, the stream is in epoch "
                f"{position.cursor.epoch}, and Lightning restored no loader state (it does not at an epoch's end). Pass "
                "the stream in a loaderkit.DataModule, which keeps its state."
            )
        position.seek(epoch, 0)

    def warn_about_saving(self) -> None:
        """Say once which checkpoints of this Trainer do not resume exactly, if it has called `set_epoch`."""
        if not self._used:
            return
        position = self._position
        if position.step is not None:
            dropped = "And Lightning drops the state if `trainer.estimated_stepping_batches` is read. "
            position.say(
                "A Trainer saves the state of a Loader that it got directly or from a `train_dataloader` hook. The run resumes "
                "exactly after a kill. But a checkpoint counts batches that were not learnt if an exception, a signal or a "
                "gradient accumulation interrupts a step, and the whole epoch if `max_steps` ends the fit. At an epoch's "
                "end it has no state for loaders that are cycled next to a longer one. "
                f"{dropped if _drops_states() else ''}Use loaderkit.DataModule and its loaders, which are exact in all these cases."
            )
            return
        prefetched = (
            "" if position.config.steps else " Without a length, Lightning also fetches and counts one batch ahead."
        )
        position.say(
            "A Trainer saves the state of a stream's Loader that it got directly. The run resumes exactly if it saves between "
            "batches. But a checkpoint counts batches that were not learnt if an exception, a signal or a gradient "
            f"accumulation interrupts a step.{prefetched} Use loaderkit.DataModule, which is exact in all these cases."
        )


class _SetUp:
    """Imitates Lightning's loop after `trainer.estimated_stepping_batches` was read.

    Its loaders are made, and their saved states are not loaded yet.
    """

    _combined_loader = _data_fetcher = ()
    _combined_loader_states_to_load: object = ({},)
    _should_reload_train_dl = False
    restarting = True
    loaded = False

    def _load_combined_loader_states(self) -> None:
        self.loaded = True


def _drops_states() -> bool:
    """Return whether the imported Lightning drops loader states that it has not loaded yet.

    Lightning 2.6 does, a later one may not. So this runs Lightning's own method on a `_SetUp`.
    """
    loops = [sys.modules.get(f"{name}.loops.fit_loop") for name in ("lightning.pytorch", "pytorch_lightning")]
    asked = _SetUp()
    for loop in loops:
        with contextlib.suppress(Exception):  # it has changed, or is not there
            loop._FitLoop.setup_data(asked)  # type: ignore[union-attr]  # a private method, by its mangled name
    return not asked.loaded


class RepeatingEpochs(TrainerEpochs, torch_data.SequentialSampler):
    """Tells Lightning that each epoch has the same batches.

    Under `overfit_batches`, Lightning refuses a Loader whose sampler is not a SequentialSampler: it cannot turn off
    its shuffling.
    """
