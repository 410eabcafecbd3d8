"""Where the ranks meet: each leaves a value in a store, and waits for the others no longer than it was told."""

import time
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from loaderkit.loader.streams.state import RankCursor
from loaderkit.system.world import World

_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.0002, 0.05


class Rendezvous:
    """Exchanges small values between ranks, through a store rather than a collective: a failed rank hangs nobody.

    Args:
        store: A torch.distributed store; None takes that of the process group.
        timeout_s: How long to wait for the other ranks.
    """

    def __init__(self, store: Any, timeout_s: float) -> None:
        self._given, self._timeout_s = store, timeout_s
        self._left: set[str] = set()  # what others may still read
        self._number: int | None = None  # tells apart meetings of the same name

    @property
    def is_possible(self) -> bool:
        """Whether there is a store."""
        return self._given is not None or self._is_initialized()

    def ask(self, name: str, when: str, standing: RankCursor, world: World, has_batch: bool) -> list[bool]:
        """Return which ranks have another batch.

        Args:
            name: Of the meeting.
            when: In which pass, and where in it. A pass that begins where another began must not find what that one left.
            standing: Where this rank stands.
            world: This rank and the number of ranks.
            has_batch: Whether this rank has another one.

        Raises:
            RuntimeError: If one does not answer in time, or there is no store.
        """
        if world.size == 1:
            return [has_batch]
        if not self.is_possible:
            raise RuntimeError(
                f"loader: to end an epoch together {world.size} ranks need torch.distributed or store=, where they meet. "
                "Initialise the process group, or use steps=."
            )
        answers = self.exchange(name, f"{when}/{standing.point}", world, str(int(has_batch)))
        if silent := ", ".join(str(rank) for rank, answer in enumerate(answers) if answer is None):
            raise RuntimeError(
                f"loader: rank {silent} did not say in time whether it has another batch after {standing.batches} of epoch "
                f"{standing.epoch}. It has failed or is slow: see its log, or raise meet_timeout_s."
            )
        return [answer == "1" for answer in answers]

    def gather(self, name: str, standing: RankCursor, world: World, kept: Iterable[RankCursor]) -> list[str | None]:
        """Return what the ranks tell of where they stand, as far as they can be asked.

        Args:
            name: Of the meeting.
            standing: Where this rank stands, or stood at the point that is asked for.
            world: This rank and the number of ranks.
            kept: Where it stood before and after. A signal may find another rank one step before or behind
                this one; it finds here what it asks for.
        """
        if not self.is_possible:
            return [standing.value if rank == world.rank else None for rank in range(world.size)]
        others = {each.point: each.value for each in kept}
        values = self.exchange(name, standing.point, world, standing.value, others)
        if missing := ", ".join(str(rank) for rank, value in enumerate(values) if value is None):
            warnings.warn(
                f"Loader: rank {missing} did not give its state at batch {standing.batches} of epoch {standing.epoch} in "
                "time: no run can resume from this state. Call state_dict() on all ranks.",
                UserWarning,
                stacklevel=5,
            )
        return values

    def exchange(
        self, name: str, point: str, world: World, value: str, others: Mapping[str, str] | None = None
    ) -> list[str | None]:
        """Leave this rank's value, and return those of all ranks; None of those that did not come in time.

        Args:
            name: Of the meeting. Where a process has several of one name, all
                ranks have to begin with them in the same order.
            point: Where in a run the values belong; they are a function of it.
            world: This rank and the number of ranks.
            value: This rank's.
            others: Its values at other points, for ranks that stand there.
        """
        store = self._store()
        if self._number is None:
            self._number = store.add(f"loaderkit/{name}/{world.rank}", 1)
        own = {
            f"loaderkit/{name}/{self._number}/{at}/{world.rank}": left
            for at, left in {**(others or {}), point: value}.items()
        }
        for key, left in own.items():
            store.set(key, left)
        values: list[str | None] = [None] * world.size
        values[world.rank] = value
        deadline, wait_s = time.monotonic() + self._timeout_s, _SHORTEST_WAIT_S
        while True:
            for rank in (rank for rank, found in enumerate(values) if found is None):
                key = f"loaderkit/{name}/{self._number}/{point}/{rank}"
                if store.check([key]):
                    values[rank] = store.get(key).decode()
            if None not in values or time.monotonic() > deadline:
                break
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        if None not in values:  # whoever is here has read what was left before
            for key in self._left - set(own):
                store.delete_key(key)
            self._left = set()
        self._left |= set(own)
        return values

    def _store(self) -> Any:
        if self._given is not None:
            return self._given
        return torch.distributed.distributed_c10d._get_default_store()

    @staticmethod
    def _is_initialized() -> bool:
        return torch.distributed.is_available() and torch.distributed.is_initialized()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_given": None, "_left": set(), "_number": None}
