"""Run a case of the fuzzer of kill and resume: with kills, and uninterrupted."""

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import pickle
import select
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from fuzz_cases import ITERABLES, Case, Leg
from fuzz_data import BatchSampler, Collate, Drawn, make_indexed, make_order, make_plan, make_stream, samples_of

import loaderkit as lk

WAIT_S = 60  # for a batch, or a process
REFUSALS = ("wanted at least one for each", "can't be shared evenly", "found no samples", "come out uneven")
_END = object()

MakeLoader = Callable[..., lk.Loader]
Sample = tuple[int, bytes]
Bad = tuple[str, int, str]  # shard, number, error
Found = Sample | Bad


class WrongError(AssertionError):
    """A run breaks a law."""


class _RefusedError(Exception):
    """The Loader says that these ranks cannot share this data: the run ends here."""


class Step(NamedTuple):
    """One batch of each rank, and the state after it; without batches, a leg's start, or an epoch's end with bad samples."""

    epoch: int
    batches: list[Any]
    state: Any  # None if the ranks have none together
    bad: list[list[lk.BadSample]] | None  # that each rank has reported since the last step; None if nobody knows


class Taken(NamedTuple):
    """A step, and the leg that it was taken in."""

    turn: int  # the leg's number
    leg: Leg
    epoch: int
    batches: list[Any]
    state: Any
    bad: list[list[lk.BadSample]] | None


class Run:
    """The runs of one case: interrupted, and not."""

    def __init__(self, case: Case, folder: Path, make_loader: MakeLoader) -> None:
        self.case, self._folder, self._make = case, folder, make_loader
        self.resumes = 0

    def interrupted(self) -> tuple[list[Taken], bool]:
        """Run all legs; return the steps that count, and whether the last epoch is complete."""
        state: Any = None
        taken: list[Taken] = []
        for turn, leg in enumerate(self.case.legs):
            steps = self._killed(leg, state) if leg.sigkill else self._steps(self.case, leg, state, self._make)
            with contextlib.closing(steps):
                try:
                    found, state = _until_the_kill(steps, leg)
                except _RefusedError:
                    return taken, False
                except Exception as error:
                    if isinstance(error, WrongError):
                        raise
                    raise WrongError(
                        f"leg {turn} of {len(self.case.legs)} raises {type(error).__name__}: {error}"
                    ) from error
            taken += [Taken(turn, leg, *step) for step in found]
            self.resumes += 1
        return taken, True

    @functools.cache  # noqa: B019 - a run lives for one case
    def whole(self, shape: Leg) -> list[list[Step]] | None:
        """Return the steps [epoch][step] of the uninterrupted run; None if it is refused."""
        return self._whole(self.case, shape)

    def uninterrupted(self, leg: Leg) -> Leg:
        """Return a leg with the same batches, that one process makes where it can."""
        workers = leg.workers if self.case.data in ITERABLES else 0
        return _plain(ranks=leg.ranks, batch_size=leg.batch_size, workers=workers)

    @functools.cache  # noqa: B019
    def in_order(self, case: Case) -> list[list[Step]]:
        """Return the steps of each epoch, as one process with batches of one sample gets them."""
        size = case.legs[0].batch_size or 1 if case.plan != "batches" else 1
        return self._whole(dataclasses.replace(case, tail="keep"), _plain(ranks=1, batch_size=size)) or []

    def lanes(self, case: Case, cycles: int) -> list[list[list[Found]]]:
        """Return what [lane][cycle] each lane of a stream gives, read by a rank of its own."""
        if case.data in ITERABLES:
            return self._lanes_of_workers(cycles)
        return [[self._cycle(case, lane, cycle) for cycle in range(cycles)] for lane in range(case.lanes)]

    @functools.cache  # noqa: B019
    def _lanes_of_workers(self, cycles: int) -> list[list[list[Found]]]:
        first = self.case.legs[0]
        leg = _plain(ranks=first.ranks, batch_size=1, workers=first.workers)
        case = dataclasses.replace(self.case, steps=None, stop="each", tail="keep", epochs=cycles)
        found, lanes = self._whole(case, leg) or [], leg.ranks * max(1, leg.workers)
        cycles_of = [samples_in(steps) for steps in found]  # samples tell their lane by their id
        return [[[each for each in cycle if each[0] % lanes == lane] for cycle in cycles_of] for lane in range(lanes)]

    @functools.cache  # noqa: B019
    def _cycle(self, case: Case, lane: int, cycle: int) -> list[Found]:
        """Return a lane's samples in one cycle, and before each those that are bad."""
        case = dataclasses.replace(case, steps=None, stop="each", tail="keep")
        loader = self._loader(case, _plain(ranks=case.lanes, batch_size=1), lane, None, lk.Loader)
        loader.seek(epoch=cycle)
        found: list[Found] = []
        reported = 0
        for batch in itertools.chain(loader, [None]):
            bad = loader.bad_samples[reported:]
            reported += len(bad)
            found += map(key_of, bad)
            found += [] if batch is None else samples_of(batch)
        return found

    def _whole(self, case: Case, leg: Leg) -> list[list[Step]] | None:
        epochs: list[list[Step]] = [[] for _ in range(case.epochs)]
        try:
            for step in self._steps(case, leg, None, lk.Loader, whole=True):
                if step.batches or reports_of(step):
                    epochs[step.epoch].append(step)
        except _RefusedError:
            return None
        return epochs

    def _steps(self, case: Case, leg: Leg, state: Any, make: MakeLoader, *, whole: bool = False) -> Iterator[Step]:
        """Yield where a leg starts, and each step up to the run's end."""
        with contextlib.ExitStack() as stack:
            store = dist.HashStore() if leg.store or case.stop in ("shortest", "repeat") else None
            loaders, ask = [], _asker(stack, leg.ranks if store is not None else 1)
            try:
                for rank in range(leg.ranks):
                    loaders.append(self._loader(case, leg, rank, store, make, whole=whole))
                    stack.callback(loaders[-1].close)
                    if state is not None:
                        loaders[-1].load_state_dict(json.loads(json.dumps(state)))
                if leg.ahead:
                    loaders = [lk.DeviceLoader(loader, "cpu") for loader in loaders]
                ranks = range(leg.ranks)
                epoch = loaders[0].cursor.epoch
                reported = [0] * leg.ranks

                def step(batches: list[Any]) -> Step:
                    state = None if whole else _state(case, loaders, ask)
                    bad = [loader.bad_samples[count:] for loader, count in zip(loaders, reported, strict=True)]
                    reported[:] = [count + len(new) for count, new in zip(reported, bad, strict=True)]
                    # A DeviceLoader reports those of batches ahead, too.
                    return Step(epoch, batches, state, None if leg.ahead and case.bad else bad)

                yield step([])
                while epoch < case.epochs:
                    passes, taken = [iter(loader) for loader in loaders], 0
                    while True:
                        batches = ask(lambda rank: next(passes[rank], _END), ranks)  # noqa: B023
                        over = [batch is _END for batch in batches]
                        if any(over) and not all(over) and case.stop != "each":
                            raise WrongError(f"epoch {epoch}: some ranks have a batch, others none: {over}")
                        if all(over):
                            break
                        taken += 1
                        yield step([None if batch is _END else batch for batch in batches])
                    if reports_of(last := step([])):
                        yield last
                    if not taken and not case.is_stream and loaders[0].cursor.epoch == epoch:
                        raise _RefusedError("an epoch has no batches")
                    epoch += 1
                    if (found := {loader.cursor.epoch for loader in loaders}) != {epoch}:
                        raise WrongError(f"after epoch {epoch - 1} the ranks are in epoch {found}")
            except (ValueError, RuntimeError) as error:
                if any(text in str(error) for text in REFUSALS):
                    raise _RefusedError(str(error)) from error
                raise

    def _loader(
        self, case: Case, leg: Leg, rank: int, store: Any, make: MakeLoader, *, whole: bool = False
    ) -> lk.Loader:
        world = lk.World(rank, leg.ranks)
        settings: dict[str, Any] = {"world": world, "num_workers": leg.workers, "engine": leg.engine}
        settings["bad_samples"] = lk.BadSamples(case.policy, max_rate=1)
        if leg.workers:
            settings["timeout"] = WAIT_S
        if case.is_stream:
            dataset = make_stream(case, self._folder, world)
            settings |= {"tail": case.tail, "steps": case.steps, "store": store, "meet_timeout_s": WAIT_S}
            settings |= {"stop": case.stop if leg.ranks > 1 else None}
        else:
            dataset = make_indexed(case, self._folder)
            plan, order = make_plan(case, leg, len(dataset), case.tail), make_order(case, dataset)
            sizes = getattr(dataset, "shard_sizes", None)
            if whole and sizes is not None and case.order == "shuffle":  # the run goes on with the first leg's block
                order = lk.ShardOrder(sizes, seed=case.seed, block=case.legs[0].batch_size or 1)
            shuffle = case.order == "shuffle" and order is None
            if case.plan == "batch sampler":
                settings |= {"batch_sampler": BatchSampler(len(dataset)), "tail": case.tail}
            else:
                settings |= {"plan": plan} if plan else {"order": order, "shuffle": shuffle, "tail": case.tail}
        if case.data in ITERABLES or not case.is_stream:
            settings["seed"] = case.seed
        if case.collate == "drawing" and case.data != "rows":
            settings["collate_fn"] = Collate(Drawn(case))
        elif case.data in ("packed", "packed rows") and leg.batch_size is not None:
            settings["collate_fn"] = lk.PadCollate({})  # the rows are samples (id, draws) by now, which stack
        return make(dataset, leg.batch_size if case.plan == "batches" else 1, **settings)

    def _killed(self, leg: Leg, state: Any) -> Iterator[Step]:
        """Yield the steps of a leg that a forked process takes; kill the process once no more are wanted."""
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reading)
            self._serve(leg, state, writing)
        os.close(writing)
        try:
            with os.fdopen(reading, "rb") as pipe:
                while select.select([pipe], [], [], WAIT_S)[0]:
                    try:
                        message = pickle.load(pipe)
                    except EOFError:
                        return
                    if isinstance(message, str):
                        raise _RefusedError(message) if message.startswith("_RefusedError") else WrongError(message)
                    yield message
                raise WrongError(f"a process gives no batch within {WAIT_S} s")
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _serve(self, leg: Leg, state: Any, writing: int) -> None:
        """Be the process: write each step, with the state after it."""
        try:
            torch.set_num_threads(1)
            with os.fdopen(writing, "wb", buffering=0) as pipe:
                try:
                    for step in self._steps(self.case, leg, state, self._make):
                        pipe.write(pickle.dumps(step))
                except Exception as error:
                    text = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
                    pipe.write(pickle.dumps(text))
        finally:
            os._exit(0)


def _asker(stack: contextlib.ExitStack, ranks: int) -> Callable[..., list[Any]]:
    """Return a `map` over the ranks; each of several has a thread of its own, so that they can wait for each other."""
    if ranks == 1:
        return lambda work, over: [work(rank) for rank in over]
    pools = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(ranks)]
    return lambda work, over: [future.result() for future in [pools[rank].submit(work, rank) for rank in over]]


def _state(case: Case, loaders: list[Any], ask: Callable[..., list[Any]]) -> Any:
    """Return the state that the ranks have together; None if they stand in different epochs."""
    points = {loader.cursor.epoch for loader in loaders}
    if len(points) > 1:
        return None
    states = ask(lambda rank: loaders[rank].state_dict(), range(len(loaders)))
    if case.is_stream and states[0]["missing"]:
        return lk.merge_states(states) if len({loader.cursor.batches for loader in loaders}) == 1 else None
    if any(state != states[0] for state in states):
        raise WrongError(f"the states of the ranks differ: {states}")
    return states[0]


def _until_the_kill(steps: Iterator[Step], leg: Leg) -> tuple[list[Step], Any]:
    """Return a leg's steps up to its kill, and the state there."""
    taken: list[Step] = []
    state: Any = None
    for step in steps:
        taken.append(step)
        state = step.state
        if leg.end is not None and len(taken) > leg.end and state is not None:
            break
    return taken, state


def _plain(*, ranks: int, batch_size: int | None, workers: int = 0) -> Leg:
    engine = "torch" if workers > 1 else "inline"
    return Leg(ranks=ranks, batch_size=batch_size, workers=workers if workers > 1 else 0, engine=engine, end=None)


def samples_in(steps: Sequence[Step | Taken]) -> list[Sample]:
    return [sample for step in steps for batch in step.batches if batch is not None for sample in samples_of(batch)]


def reports_of(*steps: Step | Taken) -> list[lk.BadSample]:
    """Return the bad samples that steps report, as far as they are known."""
    return [bad for step in steps for rank in step.bad or [] for bad in rank]


def key_of(bad: lk.BadSample) -> Bad:
    return bad.shard or "", bad.index, bad.error
