"""Collate sequences of different lengths: padded with mask and lengths, or joined with offsets.

Batches hold 64 to 256 sequences of 16 to 512 tokens. The reference is written by hand on torch:
`pad_sequence`, a comparison for the mask, a tensor of lengths. Times are CPU time on one thread, as in a
worker. The limit is what no collate can avoid: types, dtypes and lengths, and one `torch.cat`.
"""

import time
from collections.abc import Callable
from operator import attrgetter, countOf
from typing import Any

import numpy as np
import torch
from lib.harness import Row, drain, interleave, parse_options, quartiles, ratio, record
from report.declare import Report, every
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import loaderkit as lk

SIZES = (64, 128, 256)
BY_HAND = "pad_sequence + mask + lengths (the reference)"
CAST = "the same, cast to int64 first"
LEAST = "types, dtypes, lengths and torch.cat (the limit)"
MASKS = np.lib.stride_tricks.sliding_window_view(np.arange(1024) < 512, 512)[::-1]
LEAST_PADDED = "these and the mask (the limit of padding)"
DTYPE = attrgetter("dtype")
PAD = lk.PadCollate(lk.Pad(mask=True, lengths=True))
JOIN = lk.RaggedCollate(nested=False)
SAMPLES: dict[str, Callable[[Any], Any]] = {
    "tensors": torch.from_numpy,
    "arrays": lambda array: array,
    "lists": lambda array: array.tolist(),
}

REPORT = Report(minutes=1, group="Variable lengths")
for contender, kind_of, least_times in (
    ("lk.PadCollate", "int64", 2.3),
    ("lk.PadCollate", "uint16", 4),
    ("lk.RaggedCollate", "int64", 4.5),
    ("lk.RaggedCollate", "uint16", 4.5),
):
    for kind in ("tensors", "arrays"):
        REPORT.target(
            f"`{contender}` of {kind_of} {kind}, batches of 64, 128 and 256: times as fast as `pad_sequence` + mask",
            every("times_faster", contender=contender, samples=kind, dtype=kind_of),
            least=least_times,
        )
REPORT.chart(
    "Times as fast as pad_sequence and a mask, by sequences (16 to 512 tokens) a batch (more is better)",
    "times_faster",
    panels=("samples", "dtype"),
    x="batch_size",
    mark=1,
)


def by_hand(sequences: list[Any], cast: torch.dtype | None = None) -> tuple[Tensor, Tensor, Tensor]:
    tensors = [torch.as_tensor(sequence) for sequence in sequences]
    if cast is not None:
        tensors = [tensor.to(cast) for tensor in tensors]
    lengths = torch.tensor([len(tensor) for tensor in tensors])
    padded = pad_sequence(tensors, batch_first=True)
    return padded, torch.arange(padded.shape[1]) < lengths[:, None], lengths


def least(tensors: list[Tensor]) -> list[int]:
    lengths = list(map(Tensor.numel, tensors))
    if {*map(type, tensors)} != {Tensor} or countOf(map(DTYPE, tensors), tensors[0].dtype) < len(tensors):
        raise TypeError
    torch.cat(tensors)
    return lengths


def least_padded(tensors: list[Tensor]) -> object:
    lengths = np.array(least(tensors))
    return lengths, MASKS[lengths]


def make_batches(count: int, size: int, dtype: Any) -> list[list[Any]]:
    generator = np.random.default_rng(0)
    return [
        [generator.integers(0, 50_000, length).astype(dtype) for length in generator.integers(16, 513, size)]
        for _ in range(count)
    ]


def contenders_for(batches: list[list[Any]], kind: str) -> dict[str, Callable[[], object]]:
    """Return what to time: all batches, by each contender."""
    given = [[SAMPLES[kind](array) for array in batch] for batch in batches]

    def run(collate: Callable[[Any], Any], inputs: list[Any]) -> Callable[[], object]:
        return lambda: drain(map(collate, inputs))

    found = {BY_HAND: run(by_hand, given), "lk.PadCollate": run(PAD, given), "lk.RaggedCollate": run(JOIN, given)}
    if batches[0][0].dtype == np.uint16 and kind != "lists":
        found[CAST] = run(lambda batch: by_hand(batch, torch.int64), given)
    if kind == "tensors":
        found[LEAST], found[LEAST_PADDED] = run(least, given), run(least_padded, given)
    if kind == "arrays":
        joined = [JOIN(batch) for batch in given]
        found["lk.PadCollate, of one Ragged"] = run(PAD.collate_batch, joined)
        packing = lk.PackCollate()
        found["lk.PackCollate, one row with labels"] = run(packing, given)
    padded, mask, lengths = by_hand(given[0])
    for left, right in zip(PAD(given[0]), (padded, lengths, mask), strict=True):
        if not torch.equal(left, right):
            raise RuntimeError("collate: the contenders make different batches.")
    return found


def main() -> None:
    options = parse_options(__doc__)
    torch.set_num_threads(1)
    rounds, count = (3, 8) if options.quick else (30, 24)
    rows: list[Row] = []
    for kind in SAMPLES:
        for dtype in ("int64", "uint16") if kind != "lists" else ("int64",):
            for size in SIZES:
                taken = interleave(
                    contenders_for(make_batches(count, size, dtype), kind), rounds=rounds, clock=time.process_time
                )
                for name, seconds in taken.items():
                    rows.append(
                        {
                            "contender": name,
                            "samples": kind,
                            "dtype": dtype,
                            "batch_size": size,
                            **quartiles("us_per_batch", seconds.values(), 1e6 / count),
                            "times_faster": 1 / ratio(seconds, taken[BY_HAND]),
                            "repeats": len(seconds),
                        }
                    )
    record("collate", rows, options)


if __name__ == "__main__":
    main()
