"""What each training step was trained on."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from loaderkit.loader.loader import Loader
from loaderkit.loader.step_file import MOST_STEPS, START, Record, Section, pack_settings, pack_step, read_steps
from loaderkit.sampling.cursor import Cursor
from loaderkit.sampling.skips import Skips
from loaderkit.system.arrays import Int64Array
from loaderkit.system.world import World


class StepBatch(NamedTuple):
    """A batch of a step: what one rank was trained on.

    Attributes:
        rank: The rank.
        cursor: The position before the batch.
        positions: The positions of its samples in the epoch's order (B,) int64.
        indices: The indices of its samples in the dataset (B,) int64.
    """

    rank: int
    cursor: Cursor
    positions: Int64Array
    indices: Int64Array


class StepLog:
    """A file that says what each training step was trained on, in 25 bytes a step.

    Call `record` after each optimizer step, with the number that your loss plot has for it. Later, `locate` tells which
    samples were in a step, `replay` makes its batches again, and `stretches` is what `Loader.skip` takes. Nothing else
    needs the file. Under Lightning use `StepLogCallback`.

    Rank 0 writes; the other ranks do nothing. What counts is what the loader has yielded, however far it reads ahead. With
    gradient accumulation a step has several batches: those that were yielded since the last record.

    Records are appended. A kill loses at most the step that is being written, and a power failure the last seconds. A
    resumed run continues in the same file: the steps that it repeats replace the earlier ones. The number of ranks, the
    batch size and what is skipped may change at any step.

    Args:
        path: The file. The first record makes it.

    Examples:
        >>> import tempfile
        >>> log = lk.StepLog(tempfile.mkdtemp() + "/steps.log")
        >>> loader = lk.Loader(range(100, 110), batch_size=4, shuffle=True)
        >>> for step, batch in enumerate(loader):
        ...     log.record(loader, step)
        >>> batch.tolist(), log.locate(loader, 2)[0].indices.tolist()
        ([104, 105], [4, 5])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._file: int | None = None
        self._loader: Loader | None = None  # the loader of the last record
        self._mark: object = None  # its mark at the last record; see `PassLog`
        self._step = -1
        self._settings: Any = None
        self._read: tuple[int, list[Section]] | None = None  # the file's size, and what it held then

    def __repr__(self) -> str:
        return f"StepLog({self.path!r})"

    def record(self, loader: Loader, step: int, *, point: object = None) -> None:
        """Write what a step was trained on: the loader's batches since the last record.

        Args:
            loader: The loader that yielded the batches.
            step: The number of the step, from 0.
            point: The loader's position after the step, if a Trainer has fetched more; by default the present one.

        Raises:
            ValueError: If the loader has yielded no batch, the number is out of range, or the file is damaged.
        """
        position = loader.position
        if position.crew.world.rank:
            return
        if not 0 <= step < MOST_STEPS:
            raise ValueError(f"StepLog: step {step!r}, wanted a number from 0 to {MOST_STEPS - 1:,}.")
        now = (position.yielded() or position.point()) if point is None else point
        mark = self._mark if loader is self._loader else None
        batches, follows = position.passes.since(mark, now)
        if not batches:
            raise ValueError(
                f"StepLog: step {step} without a batch: the loader has yielded none since the last record. Call record after "
                "the step, with the loader that gave its batches."
            )
        config, text = loader.config, b""
        shape = {"ranks": loader.world.size, "batch_size": config.batch_size, "tail": config.tail_policy}
        settings = shape, loader.skips
        if not follows or step < self._step or settings != self._settings:
            # A stream's state is too large for a log: it has the lanes of all ranks.
            start = None if position.step is None else position.state_at(batches[0])
            text = pack_settings({**shape, "start": start})
        for cursor in map(position.cursor_at, batches):
            text += pack_step(Record(step, cursor.epoch, cursor.batches, cursor.samples))
        self._write(text)
        self._loader, self._mark, self._step, self._settings = loader, position.passes.mark(now), step, settings

    def steps(self) -> list[int]:
        """Return the numbers of the steps in the file, ascending."""
        found = [section.rows["step"] for section in self._sections()]
        return np.unique(np.concatenate(found)).tolist() if found else []

    def find(self, step: int) -> list[Cursor]:
        """Return the positions before the batches of a step: one without gradient accumulation.

        Raises:
            FileNotFoundError: If there is no file yet.
            ValueError: If the file has no such step, or is damaged.
        """
        return [Cursor(epoch=one.epoch, samples=one.samples, batches=one.batches) for _, one in self._find(step)]

    def settings(self, step: int) -> dict[str, Any]:
        """Return what a step was trained with.

        These are `ranks`, the `batch_size` of each rank, `tail`, and `start`: the loader's state before the first step
        with these settings, None for a stream. The errors are those of `find`.
        """
        return dict(self._find(step)[0][0].settings)

    def locate(self, loader: Loader, step: int, *, rank: int | None = None) -> list[StepBatch]:
        """Return which samples were in a step, without reading data.

        Args:
            loader: A loader of the same data and order. Its batch size, ranks and position do not matter, except that a plan
                by length must be that of the step.
            step: The number of the step.
            rank: Only this rank; None means all.

        Returns:
            For each rank and batch: the rank, the cursor before the batch, and the samples' positions in the epoch's order and
            indices in the dataset, both (B,) int64.

        Raises:
            StateError: If the loader has other data, another order or another seed.
            ValueError: If the file has no such step or rank, or is damaged.
            TypeError: If the data is a stream.
        """
        return list(self._batches(loader, step, rank))

    def replay(self, loader: Loader, step: int, *, rank: int = 0) -> list[Any]:
        """Make the batches of a step again, bit for bit, as a rank got them; the loader does not move.

        The batches are on the loader's device, if it has one. The arguments and errors are those of `locate`.
        """
        return [then.replay(cursor) for then, cursor in self._places(loader, step, rank)]

    def stretches(self, loader: Loader, first: int, last: int) -> tuple[tuple[int, int, int], ...]:
        """Return what steps `first` to `last` read, as (epoch, start, stop).

        Each is a range of positions in the epoch's order; `stop` is not included. Ranges that touch are joined. The
        errors are those of `locate`.

        Examples:
            >>> import tempfile
            >>> log, loader = lk.StepLog(tempfile.mkdtemp() + "/steps.log"), lk.Loader(range(10), batch_size=2)
            >>> for step, batch in enumerate(loader):
            ...     log.record(loader, step)
            >>> for epoch, start, stop in log.stretches(loader, 2, 3):
            ...     print(epoch, start, stop)  # for loader.skip(epoch=epoch, samples=range(start, stop))
            0 4 8
        """
        found = []
        for step in range(first, last + 1):
            for then, cursor in self._places(loader, step, 0):
                after = then.position.cursor_at((cursor, 1))
                end = (
                    after.samples
                    if after.epoch == cursor.epoch
                    else then.position.indexed("replay()").plan.size_of(cursor.epoch)
                )
                found.append((cursor.epoch, cursor.samples, end))
        return Skips.of(found).stretches

    def close(self) -> None:
        """Close the file; the next record opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _batches(self, loader: Loader, step: int, rank: int | None) -> Iterator[StepBatch]:
        ranks = range(self._find(step)[0][0].settings["ranks"]) if rank is None else [rank]
        for each in ranks:
            for then, cursor in self._places(loader, step, each):
                key = then.position.indexed("replay()").plan.key(cursor, 0)
                yield StepBatch(each, cursor, key.positions, key.indices)

    def _places(self, loader: Loader, step: int, rank: int) -> Iterator[tuple[Loader, Cursor]]:
        """Yield for each batch of a step a loader like the one of that time, and the cursor before the batch."""
        made: tuple[Section, Loader] | None = None
        for section, record in self._find(step):
            if made is None or made[0] is not section:
                made = section, loader_then(loader, section.settings, rank)
            then = made[1]
            start = then.cursor
            # Inside a window of a plan by length, a cursor needs the plan's own values (`Cursor.plan`), not in the log.
            base = start if record.epoch == start.epoch else Cursor(epoch=record.epoch)
            ahead = record.batches - base.batches
            cursor = then.position.cursor_at((base, ahead)) if ahead >= 0 else Cursor()
            if (cursor.epoch, cursor.samples) != (record.epoch, record.samples):
                raise ValueError(
                    f"StepLog: step {step} began at sample {record.samples:,} of epoch {record.epoch}, batch {record.batches}, "
                    f"this loader gives {cursor}. Give a loader with the plan of that step."
                )
            yield then, cursor

    def _find(self, step: int) -> list[tuple[Section, Record]]:
        sections = self._sections()
        found = [(section, record) for section in sections for record in section.find(step)]
        if not found:
            steps = self.steps()
            has = f"steps from {steps[0]:,} to {steps[-1]:,}" if steps else "none"
            raise ValueError(f"StepLog: no step {step:,} in {self.path}, which has {has}.")
        return found

    def _sections(self) -> list[Section]:
        size = Path(self.path).stat().st_size
        if self._read is None or self._read[0] != size:
            self._read = size, read_steps(self.path).sections
        return self._read[1]

    def _write(self, text: bytes) -> None:
        if self._file is None:
            end = read_steps(self.path).end if Path(self.path).exists() else 0
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            os.ftruncate(self._file, end)  # cuts off a record that was half written
            text = text if end else START + text
        while text:
            text = text[os.write(self._file, text) :]

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_file": None, "_read": None}


def loader_then(loader: Loader, settings: Mapping[str, Any], rank: int) -> Loader:
    """Return a loader like another, with the number of ranks, batch size and position from a log's settings.

    Raises:
        StateError: If the data, order or seed is another.
        ValueError: If there is no such rank.
    """
    ranks, config = settings["ranks"], loader.config
    if not 0 <= rank < ranks:
        raise ValueError(f"StepLog: rank {rank}, wanted one of the {ranks} ranks of that step.")
    changes: dict[str, object] = {"world": World(rank, ranks)}
    if config.plan is None and config.batch_sampler is None:
        changes |= {"batch_size": settings["batch_size"], "tail": settings["tail"], "drop_last": False}
    then = loader.in_this_process(**changes)
    if settings["start"] is None:
        raise TypeError(
            "StepLog: locate and replay are for data with an index: a log does not say where the lanes of a stream were. Use "
            "the last checkpoint before that step: `loaderkit locate CHECKPOINT`."
        )
    then.load_state_dict(settings["start"])
    if (found := then.position.step) != (wanted := settings["start"]["step"]):
        raise ValueError(
            f"StepLog: a step of all ranks had {wanted:,} samples or tokens, this loader's plan has {found:,}. Give a loader with "
            "the plan of that step."
        )
    return then
