"""Random cases for the fuzzer of kill and resume: one case is one run, killed and resumed under other settings."""

import dataclasses
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Self

INDEXED = (
    *("list", "array", "rows", "records", "jsonl", "csv", "tar", "parquet", "tokens", "concat", "subset", "map"),
    *("media", "multimodal", "packed rows", "pieces"),
)
SHARDED = ("jsonl", "csv", "tar", "parquet", "tokens")
MAKING = ("batched", "shuffled batches", "mixed batches", "packed")  # streams that make one sample of several
STREAMS = ("stream", "lines", "shared", "filtered", "chain", "interleave", "part", *MAKING)
ITERABLES = ("iterable", "stateful")
PLANS = ("buckets", "budget", "pack", "batch sampler")
ORDERS = (
    "in order",
    "shuffle",
    "shards",
    "mixture",
    "weighted",
    "without replacement",
    "part",
    "sampler",
    "torch sampler",
)
BAD = ("few", "runs", "ends", "most")  # which samples are bad; `fuzz_data.is_bad` says what that means
FAILING = ("transform", "read", "verb")  # what fails at a bad sample of a stream


@dataclass(frozen=True, kw_only=True)
class Leg:
    """One process group of a run, from its start to its kill."""

    ranks: int
    batch_size: int | None
    workers: int = 0
    engine: str = "inline"
    end: int | None  # steps until the kill; None is the end of the run
    sigkill: bool = False  # a real process that is killed; otherwise the loaders are abandoned
    ahead: bool = False  # batches are taken ahead, by a DeviceLoader
    store: bool = False  # ranks of a stream exchange states; otherwise their states are merged

    @property
    def shape(self) -> tuple[int, int | None]:
        """What decides which samples share a batch."""
        return self.ranks, self.batch_size


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run. Equal cases do the same."""

    data: str
    variant: int  # of the data: how many shards, how large
    order: str
    plan: str
    tail: str
    seed: int
    epochs: int
    from_everywhere: bool  # samples draw from the global generators too
    collate: str  # "default", or "drawing", which draws as well
    window: int
    lanes: int
    stop: str | None  # when an epoch of a stream ends on several ranks
    steps: int | None
    legs: tuple[Leg, ...]
    policy: Literal["raise", "skip", "replace"] = "raise"  # on bad samples
    bad: str | None = None  # which there are
    failing: str = "transform"

    @property
    def without_bad(self) -> Self:
        """The same run of data whose samples can all be read."""
        return dataclasses.replace(self, policy="raise", bad=None)

    @property
    def is_stream(self) -> bool:
        return self.data in STREAMS + ITERABLES


def draw_case(seed: int, number: int) -> Case:
    """Return a case: a pure function of both numbers."""
    random_ = random.Random(f"{seed}:{number}")
    pick, chance = random_.choice, lambda part: random_.random() < part
    has_bad = chance(0.4)
    data = pick(random_.choices([INDEXED, STREAMS, ITERABLES], [5, 5, 0] if has_bad else [6, 3, 1])[0])
    if has_bad and data in STREAMS and chance(0.5):  # states inside a batch are rare, and the hardest
        data = pick((*MAKING, "mixed batches"))
    is_stream = data in STREAMS + ITERABLES
    lanes = pick((4, 4, 6, 12))
    plan = "batches" if is_stream or chance(0.6) else pick(PLANS)
    orders = [each for each in ORDERS if each != "shards" or data in SHARDED]
    single = plan == "batches" and chance(0.05)
    ranks = [1 if (single and not is_stream) or chance(0.35) else pick((2, 3, 4)) for _ in range(5)]
    sizes = [None if single else pick((1, 2, 3, 4, 5, 7)) for _ in range(5)]
    threads = chance(0.3) and not is_stream
    legs: list[Leg] = []
    for turn in range(pick((2, 2, 3, 3, 4, 5))):
        moves = bool(legs) and chance(0.5) and data not in ITERABLES  # to other ranks or another batch size
        resizes = not legs or chance(0.3)
        leg_ranks = ranks[turn] if moves or not legs else legs[-1].ranks
        workers, engine = _workers(random_, is_stream=is_stream, threads=threads, ranks=leg_ranks)
        if data in ITERABLES and legs:
            workers, engine = legs[0].workers, legs[0].engine
        legs.append(
            Leg(
                ranks=leg_ranks,
                batch_size=sizes[turn] if resizes else legs[-1].batch_size,
                workers=workers,
                engine=engine,
                end=random_.randrange(14),
                sigkill=chance(0.08),
                ahead=chance(0.1),
                store=chance(0.5) and not workers,
            )
        )
    legs[-1] = dataclasses.replace(legs[-1], end=None, sigkill=False)
    many, busy = (any(leg.ranks > 1 for leg in legs), any(leg.ranks > 1 and leg.workers for leg in legs))
    steps = random_.randrange(2, 7) if is_stream and chance(0.4) else None
    # Ranks that wait for each other are threads here, and torch's workers cannot be forked from several threads at a time.
    stop = pick(("each", "shortest", "repeat")[: 1 if busy else 3]) if is_stream and many and not steps else None
    repeats = many and (stop == "repeat" or steps is not None)  # then each rank must have a batch
    spare = repeats or (steps and any(leg.workers for leg in legs))  # cycles without batches take workers long
    if data == "rows" and plan == "pack":  # needs a collate, and samples to give it
        data = "records"
    if data in ("filtered", "part") and repeats:
        data = "stream"
    variant = pick((1, 3)) if repeats else random_.randrange(4)
    return Case(
        data=data,
        variant=variant,
        order=pick(("in order", "shuffle", "shuffle"))
        if is_stream or plan != "batches" or chance(0.4)
        else pick(orders),
        plan=plan,
        tail="keep" if spare else pick(("keep", "drop") if is_stream else ("keep", "keep", "drop", "pad")),
        seed=random_.randrange(1000),
        epochs=pick((1, 2, 2, 3)),
        from_everywhere=not threads and chance(0.5),
        collate="drawing" if single or plan == "pack" or chance(0.4) else "default",
        window=pick((1, 2, 5, 8, 16, 40)),
        lanes=lanes,
        stop=stop,
        steps=steps,
        legs=tuple(legs),
        policy="raise" if not has_bad else "skip" if is_stream else pick(("skip", "replace")),
        bad=pick(("few", "ends") if spare else BAD) if has_bad else None,
        failing=pick(FAILING) if has_bad and is_stream else "transform",
    )


def _workers(random_: random.Random, *, is_stream: bool, threads: bool, ranks: int) -> tuple[int, str]:
    """Return a number of workers and an engine. Few legs start processes, because that takes long."""
    most = max(1, min(3, 4 // ranks))
    if random_.random() < (0.75 if is_stream else 0.6) and not threads:
        return 0, "inline"
    if threads and random_.random() < 0.8:
        return random_.randint(1, 3), "threads"
    return random_.randint(1, most), "auto" if is_stream else random_.choice(("ring", "ring", "torch"))


def simpler(case: Case) -> Iterator[Case]:
    """Yield cases that are a little simpler, the simplest first."""
    change = dataclasses.replace
    for turn in range(len(case.legs) - 1):
        yield change(case, legs=case.legs[:turn] + case.legs[turn + 1 :])
    if case.epochs > 1:
        yield change(case, epochs=case.epochs - 1)
    if case.bad:
        yield case.without_bad
    plain = {"plan": "batches", "order": "in order", "tail": "keep", "collate": "default", "from_everywhere": False}
    for name, value in plain.items():
        if getattr(case, name) != value and not (name == "collate" and case.plan == "pack"):
            yield change(case, **{name: value})
    if case.policy == "replace":
        yield change(case, policy="skip")
    for name, value in {"bad": "few", "failing": "transform"}.items():
        if case.bad and getattr(case, name) != value:
            yield change(case, **{name: value})
    for data in ("list", "stream"):
        if case.data != data and case.is_stream == (data == "stream") and case.order != "shards":
            yield change(case, data=data)
    for turn, leg in enumerate(case.legs):
        for simple in _simpler_legs(leg, alike=case.data in ITERABLES):
            yield change(case, legs=(*case.legs[:turn], simple, *case.legs[turn + 1 :]))


def _simpler_legs(leg: Leg, *, alike: bool) -> Iterator[Leg]:
    change = dataclasses.replace
    if leg.workers and not alike:
        yield change(leg, workers=0, engine="inline")
    if leg.ranks > 1 and not alike:
        yield change(leg, ranks=leg.ranks - 1)
    for name in ("sigkill", "ahead", "store"):
        if getattr(leg, name):
            yield change(leg, **{name: False})
    if leg.end:
        yield change(leg, end=leg.end - 1)
