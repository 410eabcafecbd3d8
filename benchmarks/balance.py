"""Measure how long ranks wait for each other in steps of packed rows, with and without `balance=`.

Modelled: 200,000 documents (lognormal, median 600 tokens, cut at a row's length) in an epoch of a PackPlan with its default window, one row a
rank. A row costs what its documents and its padding cost by `lk.AttentionCost`. A step takes as long as its slowest rank. `slowest` is the
epoch's time over that of ranks that never wait; `accumulated` is the same if ranks wait only after four steps. `travel` is how far samples are
delivered from their place in the shuffled order, as a share of the window (a third if every order within it is equally likely).
`step_sd` is the standard deviation of the steps' mean cost, as a share of the mean: a balanced step has rows of like cost.

Computed: the CPU time of a training step (forward and backward) on each of two ranks, in turns in one process: two layers with attention inside of
documents, causal. Both plans have the same documents and steps.
"""

import time
from typing import Any

import numpy as np
import torch
from lib.harness import Row, parse_options, record, tell
from report.declare import Report, cell, each
from torch.nn.functional import scaled_dot_product_attention

import loaderkit as lk

MEDIAN, ACCUMULATED = 600, 4
PLAIN, BALANCED = "PackPlan", "PackPlan, balance="
Steps = list[tuple[Any, ...]]  # the batches of each step, by rank
CASES = ((1.0, 8192), (1.0, 32_768), (1.4, 32_768))  # sigma, tokens of a row


REPORT = Report(minutes=6, group="Variable lengths")
for ranks, most in (("8", 1.03), ("64", 1.10)):
    REPORT.target(
        f"Packed rows of 32,768 with `balance=`, {ranks} ranks: modelled time over that of ranks that never wait",
        each("slowest", contender=BALANCED, row="32768", ranks=ranks, sigma=("1", "1.4"), hidden=("1024", "4096")),
        most=most,
    )
    where = {"row": "32768", "ranks": ranks, "sigma": "1", "hidden": "1024"}
    REPORT.line(
        f"Packed rows of 32,768 (sigma 1), attention within documents, {ranks} ranks: modelled time over that of ranks that never wait",
        cell("`balance=` {:.3f}, without {:.2f}", each("slowest", contender=(BALANCED, PLAIN), **where)),
    )
REPORT.chart(
    "Modelled time of an epoch, over that of ranks that never wait (less is better)",
    "slowest",
    names=("contender", "hidden"),
    panels=("row", "sigma", "ranks"),
    where={"kind": "modelled"},
    mark=1,
)


def documents(sigma: float, row: int, size: int) -> Any:
    random = np.random.default_rng(0)
    return np.clip(random.lognormal(np.log(MEDIAN), sigma, size).astype(np.int64), 1, row)


def steps_of(plan: lk.PackPlan, ranks: int) -> Steps:
    """Return the batches of an epoch, by step and rank."""
    each = [list(plan.with_world(lk.World(rank, ranks)).keys(lk.Cursor())) for rank in range(ranks)]
    return list(zip(*each, strict=True))


def costs(plan: lk.PackPlan, steps: Steps, cost: lk.AttentionCost) -> Any:
    """Return what each batch of one row costs (S, ranks)."""
    found = []
    for step in steps:
        sizes = [plan.lengths[key.indices] for key in step]
        padding = np.array([plan.row_length - one.sum() for one in sizes])
        found.append([cost(one).sum() for one in sizes] + cost(padding))
    return np.array(found, dtype=float)


def slowest(found: Any) -> float:
    return float(found.max(axis=1).sum() / found.mean(axis=1).sum())


def travel(plan: lk.PackPlan, steps: Steps) -> float:
    positions = np.concatenate([key.positions for step in steps for key in step])
    return float(np.abs(positions - np.arange(len(positions))).mean() / plan.window)


def model(size: int, ranks_of: tuple[int, ...]) -> list[Row]:
    rows: list[Row] = []
    for sigma, row in CASES:
        lengths = documents(sigma, row, size)
        for ranks in ranks_of:
            plain = lk.PackPlan(lengths, row)
            begun = time.process_time()
            before = steps_of(plain, ranks)
            seconds = (time.process_time() - begun) / ranks
            for hidden in (1024, 4096):
                tell(f"balance: sigma {sigma}, rows of {row:,}, {ranks} ranks, width {hidden:,}")
                cost = lk.AttentionCost(hidden)
                balanced = lk.PackPlan(lengths, row, balance=cost)
                begun = time.process_time()
                after = steps_of(balanced, ranks)
                taken = (time.process_time() - begun) / ranks
                old = costs(plain, before, cost)
                for name, plan, steps, planned in (
                    (PLAIN, plain, before, seconds),
                    (BALANCED, balanced, after, taken),
                ):
                    found = costs(plan, steps, cost)
                    rows.append(
                        {
                            "contender": name,
                            "kind": "modelled",
                            "sigma": sigma,
                            "row": row,
                            "hidden": hidden,
                            "ranks": ranks,
                            "slowest": slowest(found),
                            "worst_step": float((found.max(axis=1) / found.mean(axis=1)).max()),
                            "accumulated": slowest(
                                found[: len(found) // ACCUMULATED * ACCUMULATED]
                                .reshape(-1, ACCUMULATED, ranks)
                                .sum(axis=1)
                            ),
                            "time_over_plain": float(found.max(axis=1).sum() / old.max(axis=1).sum()),
                            "travel": travel(plan, steps),
                            "step_sd": float(found.mean(axis=1).std() / found.mean()),
                            "steps": len(steps),
                            "plan_s": planned,
                        }
                    )
    return rows


class Layer(torch.nn.Module):
    """A layer of a transformer, with attention inside of documents."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.qkv, self.out = torch.nn.Linear(hidden, 3 * hidden), torch.nn.Linear(hidden, hidden)
        self.wide, self.narrow = torch.nn.Linear(hidden, 4 * hidden), torch.nn.Linear(4 * hidden, hidden)

    def forward(self, tokens: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        mixed = []
        for part in self.qkv(tokens).split(sizes):
            query, key, value = part.view(len(part), 3, self.hidden // 64, 64).permute(1, 2, 0, 3)
            mixed.append(scaled_dot_product_attention(query, key, value, is_causal=True).transpose(0, 1))
        tokens = tokens + self.out(torch.cat(mixed).reshape(-1, self.hidden))
        found: torch.Tensor = tokens + self.narrow(torch.nn.functional.gelu(self.wide(tokens)))
        return found


def compute(steps: int, row: int, hidden: int, sigma: float) -> list[Row]:
    """Time training steps of two ranks. Each step of both plans takes its turn."""
    torch.manual_seed(0)
    layers, lengths = [Layer(hidden), Layer(hidden)], documents(sigma, row, 4096)
    plans = {
        PLAIN: lk.PackPlan(lengths, row),
        BALANCED: lk.PackPlan(lengths, row, balance=lk.AttentionCost(hidden)),
    }
    batches = {name: steps_of(plan, 2)[:steps] for name, plan in plans.items()}

    def seconds(key: Any) -> float:
        sizes = lengths[key.indices].tolist()
        sizes += [row - sum(sizes)] * (sum(sizes) < row)
        tokens = torch.randn(row, hidden)
        begun = time.process_time()
        for layer in layers:
            tokens = layer(tokens, sizes)
        tokens.square().mean().backward()  # type: ignore[no-untyped-call]
        return time.process_time() - begun

    seconds(batches[PLAIN][0][0])
    taken: dict[str, list[list[float]]] = {name: [] for name in plans}
    for number in range(len(batches[PLAIN])):
        tell(f"balance: step {number + 1} of {steps}")
        for name in (PLAIN, BALANCED) if number % 2 else (BALANCED, PLAIN):
            if number < len(batches[name]):
                taken[name].append([seconds(key) for key in batches[name][number]])
    rows: list[Row] = []
    times = {name: np.array(found) for name, found in taken.items()}
    a_step = {name: found.max(axis=1).mean() for name, found in times.items()}
    for name, found in times.items():
        made: Row = {"contender": name, "kind": "computed", "sigma": sigma, "row": row, "hidden": hidden, "ranks": 2}
        made |= {"slowest": slowest(found), "worst_step": float((found.max(axis=1) / found.mean(axis=1)).max())}
        made |= {"accumulated": slowest(found[: len(found) // 4 * 4].reshape(-1, 4, 2).sum(axis=1))}
        made |= {"time_over_plain": float(a_step[name] / a_step[PLAIN]), "travel": travel(plans[name], batches[name])}
        made |= {"step_sd": float(found.mean(axis=1).std() / found.mean()), "steps": len(found), "plan_s": ""}
        rows.append(made)
    return rows


def main() -> None:
    options = parse_options(__doc__)
    torch.set_num_threads(1)
    if options.quick:
        rows = model(4000, (2,)) + compute(2, 512, 64, 1.4)
    else:
        rows = model(200_000, (8, 64)) + compute(60, 8192, 128, 1.4)
    record("balance", rows, options)


if __name__ == "__main__":
    main()
