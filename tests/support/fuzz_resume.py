"""Run a case of the fuzzer of kill and resume, and compare it with the uninterrupted run.

The laws, by the kind of data:

- Every kind: on the same ranks with the same batch size each batch is the uninterrupted run's, bit for bit, whoever makes it.
- Batches of a fixed size: other ranks and batch sizes change nothing in the order of samples, nor in what they draw.
- Batches by length: other ranks and batch sizes change nothing in what a sample draws, and each comes once.
- Streams: each lane gives its samples in its order, without holes or repeats, whoever reads it.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import pickle
import select
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from drawing import equal
from fuzz_cases import ITERABLES, SHARDED, Case, Leg, draw_case, simpler
from fuzz_data import BatchSampler, Collate, Drawn, make_indexed, make_order, make_plan, make_stream, samples_of

import loaderkit as lk

WAIT_S = 60  # for a batch, or a process
MOST_CYCLES = 64  # that a run reads of its stream
REFUSALS = ("wanted at least one for each", "can't be shared evenly", "found no samples", "come out uneven")
_END = object()

MakeLoader = Callable[..., lk.Loader]
Sample = tuple[int, bytes]


class WrongError(AssertionError):
    """A run breaks a law."""


class _RefusedError(Exception):
    """The Loader says that these ranks cannot share this data: the run ends here."""


class Step(NamedTuple):
    """One batch of each rank, and the state after it; without batches, a leg's start."""

    epoch: int
    batches: list[Any]
    state: Any  # None if the ranks have none together


class Taken(NamedTuple):
    """A step, and the leg that it was taken in; or, without batches, the leg's start."""

    leg: Leg
    epoch: int
    batches: list[Any]


class Fuzzer:
    """Runs cases until the time is over.

    Args:
        folder: Where data is written.
        make_loader: Makes the loaders of the runs that are killed and resumed; a test gives one with a fault.
    """

    def __init__(self, folder: Path, make_loader: MakeLoader = lk.Loader) -> None:
        self.folder, self.make_loader = folder, make_loader
        self.resumes = 0  # so far

    def run(self, seed: int, numbers: Iterator[int], seconds: float) -> int:
        """Run cases with these numbers; return how many.

        Raises:
            AssertionError: If a case breaks a law. It names the case, and a simpler one that fails too.
        """
        end, count = time.monotonic() + seconds, 0
        for number in numbers:
            case = draw_case(seed, number)
            try:
                self.check(case)
            except BaseException as error:
                line = f"repeat it: pytest tests/laws/test_fuzz_resume.py --fuzz-seed={seed}:{number}"
                if not isinstance(error, WrongError):  # a time limit, an interrupt
                    error.add_note(line)
                    raise
                raise AssertionError(f"{error}\n{line}\nsimplest found: {self.simplest(case)}") from error
            count += 1
            if time.monotonic() > end:
                break
        return count

    def check(self, case: Case) -> None:
        """Run one case; raise WrongError if it breaks a law."""
        run = _Run(case, self.folder, self.make_loader)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of idle workers, and lanes without samples
            taken, complete = run.interrupted()
            if taken:
                _check(run, taken, complete=complete)
        self.resumes += run.resumes

    def simplest(self, case: Case, seconds: float = 20) -> Case:
        """Return the simplest case found that fails too."""
        end, found = time.monotonic() + seconds, True
        while found and time.monotonic() < end:
            found = False
            for other in simpler(case):
                try:
                    self.check(other)
                except WrongError:
                    case, found = other, True
                    break
        return case


class _Run:
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
            taken += [Taken(leg, step.epoch, step.batches) for step in found]
            self.resumes += 1
        return taken, True

    @functools.cache  # noqa: B019 - a run lives for one case
    def whole(self, shape: Leg) -> list[list[list[Any]]] | None:
        """Return the batches [epoch][step][rank] of the uninterrupted run; None if it is refused."""
        return self._whole(self.case, shape)

    def uninterrupted(self, leg: Leg) -> Leg:
        """Return a leg with the same batches, that one process makes where it can."""
        workers = leg.workers if self.case.data in ITERABLES else 0
        return _plain(ranks=leg.ranks, batch_size=leg.batch_size, workers=workers)

    @functools.cache  # noqa: B019
    def in_order(self) -> list[list[Sample]]:
        """Return the samples of each epoch, as one process with batches of one sample gets them."""
        size = self.case.legs[0].batch_size or 1 if self.case.plan != "batches" else 1
        found = self._whole(dataclasses.replace(self.case, tail="keep"), _plain(ranks=1, batch_size=size))
        return [_samples(steps) for steps in found or []]

    @functools.cache  # noqa: B019
    def lanes(self, cycles: int) -> list[list[list[Sample]]]:
        """Return the samples [lane][cycle] of each lane of a stream, read by a rank of its own."""
        first = self.case.legs[0]
        case = dataclasses.replace(self.case, steps=None, stop="each", tail="keep", epochs=cycles)
        leg = _plain(ranks=case.lanes, batch_size=1)
        if case.data in ITERABLES:
            leg = _plain(ranks=first.ranks, batch_size=1, workers=first.workers)
        found = [_samples(steps) for steps in self._whole(case, leg) or []]
        lanes = leg.ranks * max(1, leg.workers)
        if case.data in ITERABLES:  # they tell their lane by their id
            return [[[each for each in cycle if each[0] % lanes == lane] for cycle in found] for lane in range(lanes)]
        loaders = [self._loader(case, leg, rank, None, lk.Loader) for rank in range(case.lanes)]
        return [
            [[sample for batch in loader for sample in samples_of(batch)] for _ in range(cycles)] for loader in loaders
        ]

    def _whole(self, case: Case, leg: Leg) -> list[list[list[Any]]] | None:
        epochs: list[list[list[Any]]] = [[] for _ in range(case.epochs)]
        try:
            for step in self._steps(case, leg, None, lk.Loader, whole=True):
                if step.batches:
                    epochs[step.epoch].append(step.batches)
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
                yield Step(epoch, [], None if whole else _state(case, loaders, ask))
                while epoch < case.epochs:
                    passes, taken = [iter(loader) for loader in loaders], 0
                    while True:
                        batches = ask(lambda rank: next(passes[rank], _END), ranks)  # noqa: B023
                        over = [batch is _END for batch in batches]
                        if any(over) and not all(over) and case.stop != "each":
                            raise WrongError(f"epoch {epoch}: some ranks have a batch, others none: {over}")
                        if all(over):
                            break
                        batches = [None if batch is _END else batch for batch in batches]
                        taken += 1
                        yield Step(epoch, batches, None if whole else _state(case, loaders, ask))
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


def _samples(steps: list[list[Any]]) -> list[Sample]:
    return [sample for step in steps for batch in step if batch is not None for sample in samples_of(batch)]


# Laws


def _check(run: _Run, taken: list[Taken], *, complete: bool) -> None:
    case = run.case
    epochs = [[step for step in taken if step.epoch == epoch] for epoch in range(case.epochs)]
    if [step.epoch for step in taken] != sorted(step.epoch for step in taken):
        raise WrongError(f"epochs come in the order {[step.epoch for step in taken]}")
    done = case.epochs if complete else max([step.epoch for step in taken], default=0)
    _check_batches(run, taken, done)
    if not case.is_stream:
        _check_base(run)
        for epoch in range(done):
            _check_samples(run, epoch, epochs[epoch])
    elif case.steps is None:
        for epoch, steps in enumerate(epochs):
            _check_lanes(run, epoch, steps, complete=epoch < done)
    else:
        _check_lanes(run, 0, taken, complete=False)


def _check_batches(run: _Run, taken: list[Taken], done: int) -> None:
    """Compare each epoch with the uninterrupted run, until ranks or batch size change."""
    case, shape = run.case, taken[0].leg.shape
    for epoch in range(case.epochs):
        steps = [step for step in taken if step.epoch == epoch]
        if not steps:
            continue
        if case.steps is None:  # otherwise an epoch goes on where the last one ended
            shape = steps[0].leg.shape
        alike = list(itertools.takewhile(lambda step: step.leg.shape == shape, steps))  # noqa: B023
        after = next((step for step in taken if step.epoch > epoch), steps[-1])
        moves = len(alike) < len(steps) or after.leg.shape != shape  # at the end, "drop" may have left nothing to do
        if alike and (whole := run.whole(run.uninterrupted(alike[0].leg))) is not None:
            got = [step.batches for step in alike if step.batches]
            _compare(got, whole[epoch], epoch, complete=epoch < done and not moves)
        if moves and case.steps is not None:
            return


def _compare(got: list[list[Any]], whole: list[list[Any]], epoch: int, *, complete: bool) -> None:
    for number, (one, two) in enumerate(zip(got, whole, strict=False)):
        if not equal(one, two):
            found, wanted = _samples([one]), _samples([two])
            raise WrongError(f"epoch {epoch}, step {number}: {_difference(found, wanted)}")
    if len(got) > len(whole) or (complete and len(got) < len(whole)):
        raise WrongError(f"epoch {epoch} has {len(got)} steps, the uninterrupted run {len(whole)}")


def _check_base(run: _Run) -> None:
    """Check the uninterrupted run itself: each sample once, and other draws in each epoch."""
    case, epochs = run.case, run.in_order()
    ids = [[number for number, _ in epoch] for epoch in epochs]
    if case.order not in ("mixture", "weighted", "part") and any(
        sorted(each) != list(range(len(each))) for each in ids
    ):
        raise WrongError(f"the uninterrupted run has the ids {ids}")
    drawn = [draw for epoch in epochs for _, draw in epoch if draw]
    if len(set(drawn)) < len(drawn):
        raise WrongError("two samples of the uninterrupted run draw the same")
    if case.order == "shuffle" and any(one == two for one, two in itertools.pairwise(ids)):
        raise WrongError("two epochs of the uninterrupted run have the same order")


def _check_samples(run: _Run, epoch: int, steps: list[Taken]) -> None:
    case, whole = run.case, run.in_order()[epoch]
    got = _in_order(case, steps, whole)
    step = max(leg.ranks * (leg.batch_size or 1) for leg in case.legs)
    left = len(whole) - len(got)
    if case.plan == "batches":
        right = got[: len(whole)] == whole[: len(got)] and (
            left == 0 if case.tail == "keep" else abs(left) < max(step, 2)
        )
        again = [number for number, _ in got[len(whole) :]]
        right &= again == [number for number, _ in (whole * (1 + len(again) // len(whole)))[: len(again)]]
        right &= left >= 0 if case.tail == "drop" else left <= 0
    elif case.tail == "keep":
        right = sorted(got) == sorted(whole)
    elif case.tail == "drop":
        right = set(got) <= set(whole) and len(set(got)) == len(got)
    else:
        right = set(got) == set(whole)
    if not right:
        raise WrongError(f"epoch {epoch}: {_difference(got, whole)}")


def _in_order(case: Case, steps: list[Taken], whole: list[Sample]) -> list[Sample]:
    """Return the samples of steps. Ranks share a step of a ShardOrder by lane: there, the order in the step is the run's."""
    by_lane = case.order == "shards" or (case.order == "shuffle" and case.data in SHARDED)
    got: list[Sample] = []
    for step in steps:
        one = _samples([step.batches])
        wanted = whole[len(got) : len(got) + len(one)]
        got += wanted if by_lane and step.leg.ranks > 1 and sorted(one) == sorted(wanted) else one
    return got


def _check_lanes(run: _Run, first: int, steps: list[Taken], *, complete: bool) -> None:
    """Check that each lane gives its samples in its order from a cycle on, without holes or repeats."""
    case = run.case
    got = _samples([step.batches for step in steps])
    lanes, places = _lanes(run, first, got)
    most = max(leg.batch_size or 1 for leg in case.legs) if case.tail == "drop" else 1
    at = [0] * len(lanes)
    for sample in got:
        if sample not in places:
            raise WrongError(f"epoch {first}: sample {sample[0]} draws what it never does in the uninterrupted run")
        lane, place = places[sample]
        skipped = Counter(cycle for cycle, _ in lanes[lane][at[lane] : place])
        ended = bool(skipped) and lanes[lane][place][0] > max(skipped) and max(skipped.values()) < most
        if place < at[lane] or (skipped and not ended):
            raise WrongError(f"epoch {first}: lane {lane} gives its sample {place} after {at[lane]} samples")
        at[lane] = place + 1
    for lane, samples in enumerate(lanes if complete and case.stop != "shortest" else []):
        size = sum(cycle == first for cycle, _ in samples)
        if at[lane] <= size - most or (at[lane] > size and case.stop != "repeat"):
            raise WrongError(f"epoch {first}: lane {lane} gives {at[lane]} of {size} samples")


def _lanes(
    run: _Run, first: int, got: list[Sample]
) -> tuple[list[list[tuple[int, Sample]]], dict[Sample, tuple[int, int]]]:
    """Return what each lane gives from cycle `first` on, as (cycle, sample), and the place of each sample there."""
    cycles = first + 2
    while True:
        lanes = [
            [(cycle, sample) for cycle, samples in enumerate(lane) if cycle >= first for sample in samples]
            for lane in run.lanes(cycles)
        ]
        places = {each: (lane, at) for lane, samples in enumerate(lanes) for at, (_, each) in enumerate(samples)}
        if len(places) < sum(map(len, lanes)):
            raise WrongError("two samples of the uninterrupted stream are the same")
        if places.keys() >= set(got) or cycles > MOST_CYCLES:
            return lanes, places
        cycles *= 2


def _difference(got: list[Sample], whole: list[Sample]) -> str:
    missing, more = sorted(set(whole) - set(got)), sorted(set(got) - set(whole))
    if missing or more:
        return f"missing {_short(missing)}, not of the uninterrupted run {_short(more)}"
    if len(got) != len(whole) or got != whole:
        return (
            f"{len(got)} samples of {len(whole)}, in another order or repeated: {_short(got)}, wanted {_short(whole)}"
        )
    return f"what the collate draws for {_short(got)}"


def _short(samples: list[Sample]) -> str:
    ids = [number for number, _ in samples]
    return f"{ids[:12]}{'...' * (len(ids) > 12)}"
