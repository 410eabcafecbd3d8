"""The laws of the fuzzer of kill and resume: compare a run that was killed and resumed with the uninterrupted one.

By the kind of data:

- Every kind: on the same ranks with the same batch size each batch is the uninterrupted run's, bit for bit, whoever makes it.
- Batches of a fixed size: other ranks and batch sizes change nothing in the order of samples, nor in what they draw.
- Batches by length: other ranks and batch sizes change nothing in what a sample draws, and each comes once.
- Streams: each lane gives its samples in its order, without holes or repeats, whoever reads it.

Under a policy on bad samples these hold for the good ones. Each bad one is reported once, and the states hold the counts.
"""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from drawing import equal
from fuzz_cases import MAKING, SHARDED, Case
from fuzz_data import OTHERS, batch_size_of, cause_of, checksum, is_bad, is_kept
from fuzz_runs import Bad, Run, Sample, Step, Taken, WrongError, key_of, reports_of, samples_in

MOST_CYCLES = 64  # that a run reads of its stream


def check(run: Run, taken: list[Taken], *, complete: bool) -> None:
    case = run.case
    epochs = [[step for step in taken if step.epoch == epoch] for epoch in range(case.epochs)]
    if [step.epoch for step in taken] != sorted(step.epoch for step in taken):
        raise WrongError(f"epochs come in the order {[step.epoch for step in taken]}")
    done = case.epochs if complete else max([step.epoch for step in taken], default=0)
    _check_batches(run, taken, done)
    if case.bad:
        (_check_rank_counts if case.is_stream else _check_counts)(taken)
    if not case.is_stream:
        _check_base(run)
        for epoch in range(done):
            _check_samples(run, epoch, epochs[epoch])
            if case.bad:
                _check_reports(run, epoch, epochs[epoch])
    elif case.steps is None:
        for epoch, steps in enumerate(epochs):
            _check_lanes(run, epoch, steps, complete=epoch < done)
    else:
        _check_lanes(run, 0, taken, complete=False)


def _check_batches(run: Run, taken: list[Taken], done: int) -> None:
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
            _compare(alike, whole[epoch], epoch, complete=epoch < done and not moves)
        if moves and case.steps is not None:
            return


def _compare(alike: list[Taken], whole: list[Step], epoch: int, *, complete: bool) -> None:
    got, wanted = ([step for step in steps if step.batches or reports_of(step)] for steps in (alike, whole))
    for number, (one, two) in enumerate(zip(got, wanted, strict=False)):
        if not equal(one.batches, two.batches):
            raise WrongError(f"epoch {epoch}, step {number}: {_difference(samples_in([one]), samples_in([two]))}")
        if one.bad is not None and one.bad != two.bad:
            raise WrongError(f"epoch {epoch}, step {number}: reports {one.bad}, wanted {two.bad}")
    counts = [sum(bool(step.batches) for step in steps) for steps in (got, wanted)]
    if counts[0] > counts[1] or (complete and counts[0] < counts[1]):
        raise WrongError(f"epoch {epoch} has {counts[0]} steps, the uninterrupted run {counts[1]}")


def _check_base(run: Run) -> None:
    """Check the uninterrupted run itself: each sample once, and other draws in each epoch."""
    case, epochs = run.case, [samples_in(steps) for steps in run.in_order(run.case.without_bad)]
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


def _check_samples(run: Run, epoch: int, steps: list[Taken]) -> None:
    """Check that the good samples of an epoch come as the uninterrupted run has them, and what stands in for bad ones."""
    case, clean = run.case, samples_in(run.in_order(run.case.without_bad)[epoch])
    good = [sample for sample in clean if not is_bad(case, sample[0])]
    if case.policy == "replace" and case.plan == "batches":  # a stand-in depends on its place alone
        whole = samples_in(run.in_order(case)[epoch])
        kept = [sample for sample, (number, _) in zip(whole, clean, strict=False) if not is_bad(case, number)]
        if kept != good or any(is_bad(case, number) for number, _ in whole) or len(whole) != len(clean):
            raise WrongError(f"epoch {epoch} of the uninterrupted run: {_difference(kept, good)}")
        got = _in_order(case, steps, whole)
    elif case.bad and case.data == "rows":  # nothing tells a stand-in from the sample itself
        return
    else:
        whole = good
        got = _in_order(case, steps, whole, set(good).__contains__ if case.bad else lambda _: True)
        if any(is_bad(case, number) for number, _ in samples_in(steps)):
            raise WrongError(f"epoch {epoch} has bad samples")
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


def _in_order(
    case: Case, steps: list[Taken], whole: list[Sample], counts: Callable[[Sample], bool] = lambda _: True
) -> list[Sample]:
    """Return the samples of steps that count.

    Ranks share a step of a ShardOrder by lane: there, the order in the step is the run's.
    """
    by_lane = case.order == "shards" or (case.order == "shuffle" and case.data in SHARDED)
    got: list[Sample] = []
    for step in steps:
        one = list(filter(counts, samples_in([step])))
        wanted = whole[len(got) : len(got) + len(one)]
        got += wanted if by_lane and step.leg.ranks > 1 and sorted(one) == sorted(wanted) else one
    return got


def _check_reports(run: Run, epoch: int, steps: list[Taken]) -> None:
    """Check that each bad sample of an epoch is reported once."""
    case = run.case
    if any(step.bad is None for step in steps):
        return
    found = Counter(bad.index for bad in reports_of(*steps))
    clean = samples_in(run.in_order(case.without_bad)[epoch])
    wanted = Counter(number for number, _ in clean if is_bad(case, number))
    more, missing = (found - wanted).total(), (wanted - found).total()
    step = max(leg.ranks * (leg.batch_size or 1) for leg in case.legs)
    free = len(clean) if case.plan != "batches" else max(step, 2) - 1  # samples that are left out, or come again
    if more > (free if case.tail == "pad" else 0) or missing > (free if case.tail == "drop" else 0):
        raise WrongError(f"epoch {epoch} reports {sorted(found.elements())}, wanted {sorted(wanted.elements())}")
    if any(
        bad.error != f"ValueError: bad {cause_of(case, bad.index)}" or bad.epoch != epoch for bad in reports_of(*steps)
    ):
        raise WrongError(f"epoch {epoch} reports {reports_of(*steps)}")
    if case.policy == "replace" and case.plan == "batches":
        whole = {bad.position: bad for bad in reports_of(*run.in_order(case)[epoch])}
        if any(whole[bad.position] != bad for bad in reports_of(*steps)):
            raise WrongError(f"epoch {epoch} reports {reports_of(*steps)}, wanted {list(whole.values())}")


def _check_counts(taken: list[Taken]) -> None:
    """Check the counts in the states of data with an index: what single ranks have found, and among how many samples."""
    epoch, known, judged, samples, sure = 0, 0, 0, 0, True
    for step in taken:
        if step.epoch > epoch:
            epoch, known, judged, samples, sure = step.epoch, 0, 0, 0, True
        if step.leg.ranks == 1:
            known += len(reports_of(step))
            sure &= step.bad is not None
        if step.state is None:
            raise WrongError("the ranks have no state")
        cursor = step.state["cursor"]
        if cursor["epoch"] > epoch:
            epoch, known, judged, samples, sure = cursor["epoch"], 0, 0, 0, True
        if step.leg.ranks == 1:
            judged += cursor["samples"] - samples
        samples = cursor["samples"]
        found = step.state["bad"], step.state["judged"]
        if found[1] != judged or (sure and found[0] != known):
            raise WrongError(f"leg {step.turn}, {cursor}: bad and judged are {found}, wanted {(known, judged)}")


def _check_rank_counts(taken: list[Taken]) -> None:
    """Check the counts in the states of a stream: each rank's, or equal parts of the sum after a start with other ranks."""
    epoch, turn, counts, sure = 0, 0, [0] * taken[0].leg.ranks, True
    for step in taken:
        ranks = step.leg.ranks
        if step.turn > turn:
            turn = step.turn
            counts = counts if len(counts) == ranks else [math.ceil(sum(counts) / ranks)] * ranks
        if step.epoch > epoch:
            epoch, counts, sure = step.epoch, [0] * ranks, True
        sure &= step.bad is not None
        counts = [count + len(bad) for count, bad in zip(counts, step.bad or [[]] * ranks, strict=True)]
        if step.state is None:
            continue
        cursor = step.state["cursor"]
        if cursor["epoch"] > epoch:
            epoch, counts, sure = cursor["epoch"], [0] * ranks, True
        if sure and cursor["bad"] != counts:
            raise WrongError(f"leg {turn}, {cursor}: wanted the counts {counts} of bad samples")


def _check_lanes(run: Run, first: int, steps: list[Taken], *, complete: bool) -> None:
    """Check that each lane gives its samples in its order from a cycle on, without holes or repeats."""
    case = run.case
    got = samples_in(steps)
    line = _lanes(run, first, got)
    lanes, places = line.samples, line.places
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
    if case.bad and all(step.bad is not None for step in steps):
        exact = complete and case.stop in (None, "each")
        _check_lane_reports(line, first, Counter(map(key_of, reports_of(*steps))), at, most, exact=exact)


def _check_lane_reports(
    line: "_Line", first: int, found: Counter[Bad], at: list[int], most: int, *, exact: bool
) -> None:
    """Check that each bad sample before a lane's place is reported once, and none after its next sample."""
    least, limit = Counter[Bad](), Counter[Bad]()
    for samples, bads, place in zip(line.samples, line.bad, at, strict=True):
        end = place
        while end < len(samples):  # "drop" leaves out the rest of a cycle if that is no batch
            left = sum(cycle == samples[end][0] for cycle, _ in samples[end:])
            if left >= most:
                break
            end += left
        least.update(bad for _, before, bad in bads if before < place)
        limit.update(bad for _, before, bad in bads if before <= end)
    if exact:
        least = limit = Counter(bad for bads in line.bad for cycle, _, bad in bads if cycle == first)
    if least - found or found - limit:
        raise WrongError(
            f"epoch {first} does not report {sorted((least - found).elements())}, and reports without need "
            f"{sorted((found - limit).elements())}"
        )


class _Line(NamedTuple):
    """What the lanes of a stream give, one cycle after another."""

    samples: list[list[tuple[int, Sample]]]  # of each lane, with the cycle
    places: dict[Sample, tuple[int, int]]  # lane, and number among its samples
    bad: list[list[tuple[int, int, Bad]]]  # of each lane: cycle, and the number of good samples before


def _lanes(run: Run, first: int, got: list[Sample]) -> _Line:
    """Return what each lane gives from cycle `first` on."""
    cycles = first + 2
    while True:
        line = _Line([], {}, [])
        for lane, found in enumerate(run.lanes(run.case, cycles)):
            samples: list[tuple[int, Sample]] = []
            bad: list[tuple[int, int, Bad]] = []
            for cycle in range(first, cycles):
                for each in found[cycle]:
                    if len(each) == 3:
                        bad.append((cycle, len(samples), each))
                    else:
                        line.places[each] = lane, len(samples)
                        samples.append((cycle, each))
            line.samples.append(samples)
            line.bad.append(bad)
        if len(line.places) < sum(map(len, line.samples)):
            raise WrongError("two samples of the uninterrupted stream are the same")
        if line.places.keys() >= set(got) or cycles > MOST_CYCLES:
            if run.case.bad:
                _check_good(run, cycles)
            return line
        cycles *= 2


def _check_good(run: Run, cycles: int) -> None:
    """Check the lanes of the uninterrupted stream themselves: they give all good samples of a run without bad ones, in its order."""
    case, members = run.case, run.case.without_bad
    remade = case.data in MAKING and case.failing != "verb"  # the next samples take the places of bad ones
    if remade or case.data == "filtered":
        members = dataclasses.replace(members, data="interleave" if case.data == "mixed batches" else "stream")
    for lane, cycle in itertools.product(range(case.lanes), range(cycles)):
        lines = run.lanes(case, cycles)[lane][cycle], run.lanes(members, cycles)[lane][cycle]
        found: list[Any] = [each for each in lines[0] if len(each) == 2]
        reported = sorted(int(each[2].rpartition(" ")[2]) for each in lines[0] if len(each) == 3)
        bad = sorted(number for number, _ in lines[1] if is_bad(case, number))
        if reported != bad:
            raise WrongError(f"lane {lane} of the uninterrupted stream reports {reported}, wanted {bad}")
        good: list[Any] = [each for each in lines[1] if not is_bad(case, each[0])]
        if case.data == "packed" and remade:  # fewer documents make other rows
            continue
        if case.data == "filtered":
            good = [each for each in good if is_kept(each[0])]
        if remade:
            found, good = sorted((number, _drawn(each)[0].item()) for number, each in found), _batches(case, good)
        if found != good:
            raise WrongError(f"lane {lane} of the uninterrupted stream: {_difference(found, good)}")


def _batches(case: Case, good: list[Sample]) -> list[tuple[int, float]]:
    """Return the ids and checksums of the batches that a lane's good samples make."""
    found, size = [], batch_size_of(case)
    for samples in ([each for each in good if (each[0] < OTHERS) == first] for first in (True, False)):
        for part in (samples[start : start + size] for start in range(0, len(samples), size)):
            numbers = torch.tensor([number for number, _ in part])
            found.append((part[0][0], float(checksum([numbers, torch.stack([_drawn(each) for _, each in part])]))))
    return sorted(found)


def _drawn(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.float64)


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
