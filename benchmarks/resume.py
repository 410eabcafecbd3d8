"""Measure a resume late in an epoch: time until the first batch, and what is read again.

10,000,000 samples, batches of 1,024, shuffled, no workers, at 90 % of an epoch. Each time is from making the loader to its
first batch. A DataLoader has no state, so it runs to the place again.
"""

import json
import pickle
from collections.abc import Callable
from typing import Any

import torch
from lib.harness import Row, drain, interleave, parse_options, quartiles, ratio, record
from report.declare import LOADER, Report, cell, each
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import loaderkit as lk

BATCH = 1024
OURS_FRESH, OURS_RESUMED = "lk.Loader, fresh start", "lk.Loader, resumed"
DATA_FRESH, DATA_RESUMED = "StatefulDataLoader, fresh start", "StatefulDataLoader, resumed"
TORCH_FRESH, TORCH_RESUMED = "DataLoader, fresh start", "DataLoader, run to the place again"

REPORT = Report(minutes=1.5, group="Order and resume")
for text, column, most, unit in (
    ("Resume at 90 % of 10M samples: over a fresh start", "ratio_to_own_fresh_start", 1.05, ""),
    ("Samples read again", "extra_getitem_calls", 0, ""),
    ("The state", "state_bytes", 1024, " bytes"),
):
    REPORT.target(text, each(column, contender=f"{LOADER}, resumed"), most=most, unit=unit)
REPORT.line(
    "Resume at 90 % of 10M samples: time to the first batch (samples read again)",
    cell("{} ms ({:.0f})", each("first_batch_ms", "extra_getitem_calls", contender=f"{LOADER}, resumed")),
    cell(
        "`StatefulDataLoader` {} ms ({:,.0f}), `DataLoader` {} ms ({:,.0f})",
        each(
            "first_batch_ms",
            "extra_getitem_calls",
            contender=("StatefulDataLoader, resumed", "DataLoader, run to the place again"),
        ),
    ),
)
REPORT.line(
    "The state of that run",
    cell("{:.0f} bytes of JSON", each("state_bytes", contender=f"{LOADER}, resumed")),
    cell("`StatefulDataLoader` {:,.0f} bytes", each("state_bytes", contender="StatefulDataLoader, resumed")),
)
REPORT.speed(
    "resume at 90 % of 10M",
    "first_batch_ms",
    {},
    f"{LOADER}, resumed",
    {"DataLoader": "DataLoader, run to the place again", "StatefulDataLoader": "StatefulDataLoader, resumed"},
    timed=False,
)
REPORT.chart("Resume at 90 % of 10,000,000 samples: ms to the first batch (less is better)", "first_batch_ms", log=True)


class Counted:
    """Samples that cost nothing; counts how often it is asked for one."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.calls = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        self.calls += 1
        return index


def as_is(samples: list[int]) -> list[int]:
    return samples


def main() -> None:
    options = parse_options(__doc__)
    size = 200_000 if options.quick else 10_000_000
    done = int(0.9 * size) // BATCH
    data = Counted(size)
    dataset: Any = data

    def ours(state: dict[str, Any] | None) -> lk.Loader:
        loader = lk.Loader(data, BATCH, shuffle=True, collate_fn=as_is)
        if state is not None:
            loader.load_state_dict(state)
        return loader

    def stateful(state: dict[str, Any] | None) -> Any:
        torch.manual_seed(0)
        loader: Any = StatefulDataLoader(dataset, BATCH, shuffle=True, collate_fn=as_is)
        if state is not None:
            loader.load_state_dict(state)
        return loader

    def plain() -> Any:
        return DataLoader(dataset, BATCH, shuffle=True, collate_fn=as_is, generator=torch.Generator().manual_seed(0))

    whole = ours(None)
    whole.seek(epoch=0, samples=done * BATCH)
    our_state = whole.state_dict()
    their_state, expected = run_to(stateful(None), done)
    kept: dict[str, Any] = {}  # the first batch of each
    calls: dict[str, int] = {}

    def first(name: str, make: Callable[[], Any], skip: int = 0) -> Callable[[], None]:
        def start() -> None:
            data.calls = 0
            batches = iter(make())
            for _ in range(skip):
                next(batches)
            kept[name], calls[name] = next(batches), data.calls

        return start

    contenders = {
        OURS_FRESH: first(OURS_FRESH, lambda: ours(None)),
        OURS_RESUMED: first(OURS_RESUMED, lambda: ours(json.loads(json.dumps(our_state)))),
        DATA_FRESH: first(DATA_FRESH, lambda: stateful(None)),
        DATA_RESUMED: first(DATA_RESUMED, lambda: stateful(pickle.loads(pickle.dumps(their_state)))),
        TORCH_FRESH: first(TORCH_FRESH, plain),
        TORCH_RESUMED: first(TORCH_RESUMED, plain, skip=done),
    }
    seldom = {name: 1 if name.startswith("lk") else 15 for name in contenders}
    found = interleave(contenders, rounds=2 if options.quick else 30, seldom=seldom)
    check("lk.Loader", kept[OURS_RESUMED], whole.indices(0, done).tolist())
    check("StatefulDataLoader", kept[DATA_RESUMED], expected)
    sizes = {OURS_RESUMED: len(json.dumps(our_state)), DATA_RESUMED: len(pickle.dumps(their_state))}
    fresh = {OURS_RESUMED: OURS_FRESH, DATA_RESUMED: DATA_FRESH, TORCH_RESUMED: TORCH_FRESH}
    rows: list[Row] = []
    for name, taken in found.items():
        rows.append(
            {
                "contender": name,
                **quartiles("first_batch_ms", taken.values(), 1e3),
                "ratio_to_own_fresh_start": ratio(taken, found[fresh.get(name, name)]),
                "extra_getitem_calls": calls[name] - BATCH,
                "state_bytes": sizes.get(name, ""),
                "repeats": len(taken),
            }
        )
    record("resume", rows, options)


def run_to(loader: Any, batches: int) -> tuple[dict[str, Any], Any]:
    """Return a loader's state after so many batches, and the batch that follows."""
    iterator = iter(loader)
    drain(next(iterator) for _ in range(batches))
    state: dict[str, Any] = loader.state_dict()
    return state, next(iterator)


def check(name: str, found: list[int], wanted: list[int]) -> None:
    if found != wanted:
        raise RuntimeError(f"resume: {name} went on with other samples than the uninterrupted run.")


if __name__ == "__main__":
    main()
