"""Exchange small values between ranks, with a time limit."""

import time
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from loaderkit.loader.streams.state import RankCursor
from loaderkit.system.world import World

_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.0002, 0.05


class Rendezvous:
    """Exchanges small values between ranks through a store. Unlike in a collective, a failed rank does not hang the others.

    If no store is given, it takes that of the process group.
    """

    def __init__(self, store: Any, timeout_s: float) -> None:
        self._given, self._timeout_s = store, timeout_s
        self._left: set[str] = set()  # keys that other ranks may still read
        self._number: int | None = None  # tells apart several loaders of the same name

    def ask(self, name: str, when: str, cursor: RankCursor, world: World, has_batch: bool) -> list[bool]:
        """Return which ranks have another batch.

        `when` names the pass and the moment in it: two passes from one point must not read each other's answers.

        Raises:
            RuntimeError: If a rank does not answer in time, or there is no store.
        """
        if world.size == 1:
            return [has_batch]
        store = self._store()
        if store is None:
            raise RuntimeError(
                f"loader: to end an epoch together, {world.size} ranks need torch.distributed or store=. "
                "Initialise the process group, or use steps=."
            )
        answers = self._exchange(store, name, f"{when}/{cursor.name}", world, str(int(has_batch)), {})
        if silent := ", ".join(str(rank) for rank, answer in enumerate(answers) if answer is None):
            raise RuntimeError(
                f"loader: rank {silent} did not say in time whether it has another batch after {cursor.batches} of epoch "
                f"{cursor.epoch}. It has failed or is slow: see its log, or raise meet_timeout_s."
            )
        return [answer == "1" for answer in answers]

    def gather(self, name: str, cursor: RankCursor, world: World, nearby: Iterable[RankCursor]) -> list[str | None]:
        """Return `RankCursor.value` of each rank at one point; None from a rank that does not answer.

        `nearby` are the points a step before and after. A signal may make another rank ask for them.
        """
        store = self._store()
        if store is None:
            return [cursor.value if rank == world.rank else None for rank in range(world.size)]
        others = {each.name: each.value for each in nearby}
        values = self._exchange(store, name, cursor.name, world, cursor.value, others)
        if missing := ", ".join(str(rank) for rank, value in enumerate(values) if value is None):
            warnings.warn(
                f"Loader: rank {missing} did not give its state at batch {cursor.batches} of epoch {cursor.epoch} in "
                "time: no run can resume from this state. Call state_dict() on all ranks.",
                UserWarning,
                stacklevel=5,
            )
        return values

    def _exchange(
        self, store: Any, name: str, point: str, world: World, value: str, others: Mapping[str, str]
    ) -> list[str | None]:
        """Store this rank's value at a point of the run, and return those of all ranks; None from a rank that is late.

        Values are a function of the point. `others` are this rank's values at other points. If a process has several
        loaders of one name, all ranks must use them in the same order.
        """
        if self._number is None:
            self._number = store.add(f"loaderkit/{name}/{world.rank}", 1)
        run = f"loaderkit/{name}/{self._number}"
        own = {f"{run}/{at}/{world.rank}": left for at, left in {**others, point: value}.items()}
        for key, left in own.items():
            store.set(key, left)
        values: list[str | None] = [None] * world.size
        values[world.rank] = value
        deadline, wait_s = time.monotonic() + self._timeout_s, _SHORTEST_WAIT_S
        while True:
            for rank, found in enumerate(values):
                if found is None and store.check([key := f"{run}/{point}/{rank}"]):
                    values[rank] = store.get(key).decode()
            if None not in values or time.monotonic() > deadline:
                break
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        if None not in values:  # every rank that answered has read the values of the last exchange
            for key in self._left - set(own):
                store.delete_key(key)
            self._left = set()
        self._left |= set(own)
        return values

    def _store(self) -> Any:
        """Return the store, or None if there is none."""
        if self._given is None and torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.distributed_c10d._get_default_store()
        return self._given

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_given": None, "_left": set(), "_number": None}
