"""Exchange small values between ranks, with a time limit."""

import hashlib
import json
import secrets
import time
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from loaderkit.loader.streams.state import RankCursor
from loaderkit.system.world import World, default_store

_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.0002, 0.05


class Rendezvous:
    """Exchanges small values between ranks through a store. Unlike in a collective, a failed rank does not hang the others.

    If no store is given, it uses the store of the process group.

    A store may outlive an attempt of a run, and then has keys of ranks that were killed. So the ranks first agree on a prefix
    that no earlier attempt had. Each rank leaves a random token. Rank 0 offers a list of the tokens that it finds, and a new
    list when a token changes. When each rank has accepted the same list, rank 0 says so, and its digest is the prefix. So
    ranks meet only those that have seen their token. torchrun's restart count would not be enough: it may differ between
    hosts, and does not change with the number of hosts.
    """

    def __init__(self, store: object, timeout_s: float) -> None:
        self._given, self._timeout_s = store, timeout_s
        self._left: set[str] = set()  # keys that other ranks may still read
        self._token: str | None = None  # of this object
        self._offer: str | None = None  # rank 0's, or the last one that this rank accepted
        self._run: str | None = None  # prefix of the keys, once all ranks agree

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
        answers, silent = self._exchange(store, name, f"{when}/{cursor.name}", world, str(int(has_batch)), {})
        if silent:
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
        values, silent = self._exchange(store, name, cursor.name, world, cursor.value, others)
        if silent:
            warnings.warn(
                f"Loader: rank {silent} did not give its state at batch {cursor.batches} of epoch {cursor.epoch} in "
                "time: no run can resume from this state. Call state_dict() on all ranks.",
                UserWarning,
                stacklevel=5,
            )
        return values

    def _exchange(
        self, store: Any, name: str, point: str, world: World, value: str, others: Mapping[str, str]
    ) -> tuple[list[str | None], str]:
        """Store this rank's value at a point of the run. Return the values of all ranks, and the late ranks as a text.

        The value of a rank that is late is None.

        Values are a function of the point. `others` are this rank's values at other points. If a process has several
        loaders of one name, all ranks must use them in the same order.
        """
        values: list[str | None] = [None] * world.size
        values[world.rank] = value
        wait = _Wait(self._timeout_s)
        late = [] if self._run else self._agree(store, f"loaderkit/{name}/{world.size}{world.group}", world, wait)
        if (run := self._run) is None:
            return values, _listed(late)
        own = {f"{run}/{at}/{world.rank}": left for at, left in {**others, point: value}.items()}
        for key, left in own.items():
            store.set(key, left)
        while True:
            for rank, found in enumerate(values):
                if found is None and store.check([key := f"{run}/{point}/{rank}"]):
                    values[rank] = store.get(key).decode()
            if None not in values or not wait():
                break
        if None not in values:  # every rank that answered has read the values of the last exchange
            for key in self._left - set(own):
                store.delete_key(key)
            self._left = set()
        self._left |= set(own)
        return values, _listed(rank for rank, found in enumerate(values) if found is None)

    def _agree(self, store: object, meeting: str, world: World, wait: "_Wait") -> list[int]:
        """Agree on a prefix with the ranks of this attempt. Return the ranks that are late; none if all agree."""
        if self._token is None:
            self._token = secrets.token_hex(8)
        lead = self._lead if world.rank == 0 else self._follow
        while (late := lead(store, meeting, world)) and wait():
            pass
        return late

    def _lead(self, store: Any, meeting: str, world: World) -> list[int]:
        """As rank 0, offer the list of all tokens, and set the prefix when all ranks have accepted it.

        Return the late ranks.
        """
        others = range(1, world.size)
        tokens = [f"{meeting}/token/{rank}" for rank in others]
        if absent := [rank for rank, key in zip(others, tokens, strict=True) if not store.check([key])]:
            return absent
        offer = json.dumps([self._token, *(store.get(key).decode() for key in tokens)])
        if offer != self._offer:
            self._offer = offer
            store.set(f"{meeting}/offer", offer)
        run = _run_of(meeting, offer)
        if late := [rank for rank in others if not store.check([f"{run}/accepted/{rank}"])]:
            return late
        # Before `start` is set: a later loader of the same name must not find the tokens of this one.
        for key in (*tokens, *(f"{run}/accepted/{rank}" for rank in others)):
            store.delete_key(key)
        store.set(f"{run}/start", "")
        self._left.add(f"{run}/start")
        self._run = run
        return []

    def _follow(self, store: Any, meeting: str, world: World) -> list[int]:
        """As another rank, accept the latest offer that has this rank's token, and set the prefix when rank 0 says so.

        Return the late ranks.
        """
        if self._offer is not None and store.check([f"{(run := _run_of(meeting, self._offer))}/start"]):
            self._run = run
            return []
        if self._offer is None:  # each time: a dying rank of an earlier attempt may have overwritten it
            store.set(f"{meeting}/token/{world.rank}", self._token)
        offer = store.get(f"{meeting}/offer").decode() if store.check([f"{meeting}/offer"]) else "[]"
        if offer != self._offer and self._token in json.loads(offer):
            self._offer = offer
            store.set(f"{_run_of(meeting, offer)}/accepted/{world.rank}", "")
        if self._offer is None:
            return [0]
        run = _run_of(meeting, self._offer)
        late = [rank for rank in range(1, world.size) if not store.check([f"{run}/accepted/{rank}"])]
        return late or [0]

    def _store(self) -> object:
        """Return the store, or None if there is none."""
        return default_store() if self._given is None else self._given

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {
            "_given": None,
            "_left": set(),
            "_token": None,
            "_offer": None,
            "_run": None,
        }


def _run_of(meeting: str, offer: str) -> str:
    return f"{meeting}/{hashlib.blake2b(offer.encode(), digest_size=16).hexdigest()}"


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))


class _Wait:
    """Sleeps between looks at a store, longer each time, until a deadline."""

    def __init__(self, timeout_s: float) -> None:
        self._deadline, self._next_s = time.monotonic() + timeout_s, _SHORTEST_WAIT_S

    def __call__(self) -> bool:
        """Sleep and return True; return False after the deadline."""
        if time.monotonic() > self._deadline:
            return False
        time.sleep(self._next_s)
        self._next_s = min(2 * self._next_s, _LONGEST_WAIT_S)
        return True
