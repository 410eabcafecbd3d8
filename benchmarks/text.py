"""Measure texts of different lengths: the padding of each plan, the cost of planning, and the effect on a training.

Lengths are lognormal (median 150, sigma 0.6 and 1.0), cut off at 2,048 like a model's context; plans also without the cut. The model
is the same for all contenders: an embedding and two layers for each token, so that a step costs what its tokens cost, padding
included. Budgets and rows are those of 64 mean texts. lhotse's constraint counts padding too. Times are CPU time on one
thread; columns with `wall` have wall time.
"""

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from lhotse.cut.text import TextExample
from lhotse.dataset import DynamicBucketingSampler
from lhotse.dataset.sampling.base import TokenConstraint
from lib.harness import Row, interleave, parse_options, quartiles, ratio, record, spread
from report.declare import Report, cell, each
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

import loaderkit as lk
from loaderkit.datasets.rows.texts import TokenSpans, end_to_end
from loaderkit.system.arrays import Int64Array

SIGMAS, LONGEST, BATCH, ROW, VOCABULARY, WIDTH = (0.6, 1.0), 2048, 64, 4096, 64, 32
DRAWS: tuple[tuple[float, int | None], ...] = ((0.6, LONGEST), (1.0, LONGEST), (1.0, None))  # sigma, where cut
WINDOWS = (2_048, 8_192, 131_072)  # besides the default
RANDOM, BUCKETS, BUDGET, PACKED = "random batches", "lk.LengthBuckets", "lk.TokenBudget", "lk.PackPlan"
REFERENCE, LHOTSE = "DataLoader + pad_sequence, shuffled", "lhotse DynamicBucketingSampler"
Batches = Callable[[], Iterator[tuple[Tensor, int]]]

REPORT = Report(minutes=2.5, group="Variable lengths")
for name, most, column, text, unit in (
    (BUDGET, 1.03, "padded_to_real", "computed tokens for each real one, lognormal lengths", ""),
    (BUCKETS, 1.06, "padded_to_real", "computed tokens for each real one, lognormal lengths", ""),
    (PACKED, 1.006, "padded_to_real", "computed tokens for each real one, lognormal lengths", ""),
    (BUCKETS, 200, "plan_ns_per_sample", "planning a sample", " ns"),
    (BUDGET, 200, "plan_ns_per_sample", "planning a sample", " ns"),
):
    values = each(column, file="text_plans", contender=name, longest="2048", sigma=("0.6", "1"))
    REPORT.target(f"`{name}`: {text}, sigma 0.6 and 1.0", values, most=most, unit=unit)
REPORT.target(
    "Training on texts with `lk.TokenBudget`, sigma 0.6 and 1.0: tokens a second over lhotse's",
    each("throughput_ratio_to_lhotse", contender=BUDGET, sigma=("0.6", "1")),
    least=1,
)
for sigma in ("0.6", "1"):
    plans = {"file": "text_plans", "sigma": sigma, "longest": "2048"}
    REPORT.line(
        f"Texts with lognormal lengths (sigma {float(sigma)}, at most 2,048): tokens computed for each real one",
        cell(
            "LengthBuckets {:.3f}, TokenBudget {:.3f}, PackPlan {:.3f}",
            each("padded_to_real", contender=(BUCKETS, BUDGET, PACKED), **plans),
        ),
        cell("random batches {}", each("padded_to_real", contender="random batches", **plans)),
    )
for sigma in ("0.6", "1"):
    REPORT.line(
        f"Training on them (sigma {float(sigma)}), a small model: tokens a second of CPU time over `DataLoader` + `pad_sequence`",
        cell(
            "TokenBudget {} x, PackPlan {} x",
            each("throughput_ratio_to_reference", contender=(BUDGET, PACKED), sigma=sigma),
        ),
        cell(
            "lhotse's dynamic buckets {} x",
            each("throughput_ratio_to_reference", contender="lhotse DynamicBucketingSampler", sigma=sigma),
        ),
    )
REPORT.chart(
    "Training on texts of lognormal lengths: real tokens trained / s (more is better)",
    "tokens_per_s",
    panels=("sigma",),
)
REPORT.chart(
    "Computed / real tokens of each plan (less is better)",
    "padded_to_real",
    panels=("sigma", "longest"),
    mark=1,
    file="text_plans",
)


def lengths_of(sigma: float, size: int, longest: int | None = LONGEST) -> Int64Array:
    drawn = np.random.default_rng(0).lognormal(np.log(150), sigma, size)
    return np.clip(drawn, 1, longest).astype(np.int64)


def budget_of(lengths: Int64Array) -> int:
    return max(int(lengths.max()), round(BATCH * float(lengths.mean())))


def plans_of(lengths: Int64Array) -> dict[str, Callable[[], Any]]:
    budget = budget_of(lengths)
    row = max(ROW, int(lengths.max()))
    return {
        BUCKETS: lambda: lk.LengthBuckets(lengths, BATCH),
        BUDGET: lambda: lk.TokenBudget(lengths, budget),
        PACKED: lambda: lk.PackPlan(lengths, row, max(1, budget // row)),
    }


def floors_of(lengths: Int64Array) -> dict[str, Callable[[], Any]]:
    """Return the least padding of fixed-size batches in other windows: that of sorted samples."""
    return {
        f"{BUCKETS}, window {window:,}": functools.partial(lk.LengthBuckets, lengths, BATCH, window=window)
        for window in WINDOWS
    }


def plan_rows(size: int, repeats: int) -> list[Row]:
    rows: list[Row] = []
    for sigma, longest in DRAWS:
        lengths, drawn = lengths_of(sigma, size, longest), {"sigma": sigma, "longest": longest or "not cut"}
        batches = lk.Shuffled(size).indices(0, 0, size // BATCH * BATCH).reshape(-1, BATCH)
        padded = float(lengths[batches].max(axis=1).sum() * BATCH / lengths[batches].sum())
        rows.append({"contender": RANDOM, **drawn, "padded_to_real": padded, "plan_ns_per_sample": 0.0})
        for name, make in (plans_of(lengths) | floors_of(lengths)).items():
            taken = []
            for _ in range(repeats):
                start = time.process_time()  # not the wall's: nothing here waits
                for _ in make().keys(lk.Cursor()):
                    pass
                taken.append((time.process_time() - start) / size * 1e9)
            found = make().summary()
            row = {"contender": name, **drawn, "padded_to_real": found.padded_to_real}
            rows.append(row | {"plan_ns_per_sample": float(np.median(taken))})
    return [row | {"samples": size, "repeats": repeats} for row in rows]


class Texts(Dataset[Tensor]):
    def __init__(self, texts: list[Tensor]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Tensor:
        return self.texts[index]


class Padded(Dataset[Any]):
    """Pads what lhotse's sampler hands over."""

    def __getitem__(self, examples: Any) -> tuple[Tensor, Tensor]:
        return pad([torch.from_numpy(example.tokens) for example in examples])


def pad(texts: list[Tensor]) -> tuple[Tensor, Tensor]:
    return pad_sequence(texts, batch_first=True), torch.tensor([len(text) for text in texts])


def loaders_of(spans: TokenSpans) -> dict[str, Batches]:
    """Return what makes an epoch of (tokens (B, T), real tokens)."""
    lengths, wide = spans.lengths(), spans.flat.astype(np.int64)
    ends = (spans.starts + spans.sizes).tolist()
    arrays = [wide[start:end] for start, end in zip(spans.starts.tolist(), ends, strict=True)]
    plain = DataLoader(Texts([torch.from_numpy(array) for array in arrays]), BATCH, shuffle=True, collate_fn=pad)
    examples = [TextExample("", tokens=array) for array in arrays]
    padding = lk.PadCollate({"tokens": lk.Pad(lengths=True)})
    ours = {
        name: lk.Loader(spans, plan=make(), collate_fn=lk.PackCollate(row_length=ROW) if name == PACKED else padding)
        for name, make in plans_of(lengths).items()
    }

    def torchs() -> Iterator[tuple[Tensor, int]]:
        for tokens, sizes in plain:
            yield tokens, int(sizes.sum())

    def lhotses() -> Iterator[tuple[Tensor, int]]:
        constraint = TokenConstraint(max_tokens=budget_of(lengths))
        sampler = DynamicBucketingSampler(examples, constraint=constraint, num_buckets=30, shuffle=True)
        for tokens, sizes in DataLoader(Padded(), batch_size=None, sampler=sampler):
            yield tokens, int(sizes.sum())

    def own(name: str) -> Iterator[tuple[Tensor, int]]:
        for batch in ours[name]:
            real = batch["tokens_lengths"].sum() if name != PACKED else (batch["document_ids"] >= 0).sum()
            yield batch["tokens"].long(), int(real)

    return {REFERENCE: torchs, LHOTSE: lhotses} | {name: lambda name=name: own(name) for name in ours}


def train(model: nn.Module, batches: Iterator[tuple[Tensor, int]]) -> dict[str, int]:
    counts = {"steps": 0, "tokens": 0, "padded": 0}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for tokens, real in batches:
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        counts = {
            "steps": counts["steps"] + 1,
            "tokens": counts["tokens"] + real,
            "padded": counts["padded"] + tokens.numel(),
        }
    return counts


def run_epochs(loaders: dict[str, Batches], model: nn.Module, rounds: int) -> tuple[Any, Any, Any, Any]:
    """Return each contender's counts, CPU seconds of its epochs with and without the model, and wall seconds with it."""
    counts: dict[str, dict[str, int]] = {}
    found: dict[str, list[float]] = {name: [] for name in loaders}
    alone: dict[str, list[float]] = {name: [] for name in loaders}
    walls: dict[str, list[float]] = {name: [] for name in loaders}

    def epoch(name: str) -> None:
        start = time.process_time()
        for _ in loaders[name]():
            pass
        between, wall = time.process_time(), time.perf_counter()
        counts[name] = train(model, loaders[name]())
        alone[name].append(between - start)
        found[name].append(time.process_time() - between)
        walls[name].append(time.perf_counter() - wall)

    interleave({name: functools.partial(epoch, name) for name in loaders}, rounds=rounds)
    return counts, found, alone, walls


def pipeline_rows(size: int, rounds: int) -> list[Row]:
    rows: list[Row] = []
    torch.set_num_threads(1)
    for sigma in SIGMAS:
        lengths = lengths_of(sigma, size)
        flat = np.random.default_rng(1).integers(0, VOCABULARY, int(lengths.sum()), dtype=np.uint16)
        loaders = loaders_of(end_to_end(flat, lengths, None))
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, VOCABULARY)
        )
        counts, found, alone, walls = run_epochs(loaders, model, rounds)
        for name in loaders:
            taken = dict(enumerate(found[name][1:]))  # the first one is not counted
            middle = spread(taken.values())[1]
            if counts[name]["tokens"] != lengths.sum():
                raise SystemExit(f"text: {name} gave {counts[name]['tokens']:,} tokens, wanted {lengths.sum():,}.")
            rows.append(
                {
                    "contender": name,
                    "sigma": sigma,
                    "tokens_per_s": counts[name]["tokens"] / middle,
                    "steps_per_s": counts[name]["steps"] / middle,
                    **quartiles("epoch_s", taken.values()),
                    "epoch_wall_s": spread(walls[name][1:])[1],
                    "tokens_per_wall_s": counts[name]["tokens"] / spread(walls[name][1:])[1],
                    "loading_s": spread(alone[name][1:])[1],
                    "padded_to_real": counts[name]["padded"] / counts[name]["tokens"],
                    "throughput_ratio_to_reference": 1 / ratio(taken, dict(enumerate(found[REFERENCE][1:]))),
                    "throughput_ratio_to_lhotse": 1 / ratio(taken, dict(enumerate(found[LHOTSE][1:]))),
                    "repeats": len(taken),
                }
            )
    return rows


def main() -> None:
    options = parse_options(__doc__)
    rows = plan_rows(20_000 if options.quick else 1_000_000, 1 if options.quick else 5)
    record("text_plans", rows, options)
    trained = pipeline_rows(300 if options.quick else 6_000, 1 if options.quick else 4)
    record("text", trained, options)


if __name__ == "__main__":
    main()
