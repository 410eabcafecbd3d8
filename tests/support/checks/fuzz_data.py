"""Data for the fuzzer of kill and resume: samples (id, draws) of every kind of dataset and stream."""

import functools
import itertools
import json
import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.utils.data as torch_data
from drawing import draws
from fuzz_cases import FAILING, STREAMS, Case, Leg
from images_made import encode, picture
from iterables import Numbers, StatefulNumbers
from media_made import audio
from tars_made import make as make_tar

import loaderkit as lk

SHARDS = ([9, 1, 14], [5, 2, 11, 3, 8], [23], [2, 1, 1, 6, 4, 2])  # samples of each, for each variant
TOKENS = 3  # in a sample
ROW = 16  # tokens of a packed row
DOCUMENTS = (0, 1, 3, 5, 9, 16, 40)  # tokens of each, in turn
LONGEST = 100
OTHERS = 1000  # the first id of a second stream
PLACEHOLDER = 256  # of a picture, after the bytes
EXTENSIONS = {"jsonl": "jsonl", "csv": "csv", "tar": "tar", "parquet": "parquet", "tokens": "bin"}


class Check:
    """Raises an error for the ids of bad samples."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __call__(self, number: int) -> int:
        if _fails(self.case, number):
            raise ValueError(f"bad {number}")
        return number


def is_bad(case: Case, number: int) -> bool:
    """Say whether the sample with this id is bad."""
    return _fails(case, cause_of(case, number))


def cause_of(case: Case, number: int) -> int:
    """Return the id of what makes a sample bad: of a piece, its document."""
    return _firsts(sum(sizes_of(case)))[number] // LONGEST if case.data == "pieces" else number


def _fails(case: Case, number: int) -> bool:
    if case.bad == "few":
        return number % 7 == 3
    if case.bad == "runs":
        return number // 5 % 3 == 1
    if case.bad == "ends":
        return number in _ends(tuple(sizes_of(case)))
    return case.bad == "most" and zlib.crc32(b"%d" % number) % 8 < 5


@functools.cache
def _ends(sizes: tuple[int, ...]) -> frozenset[int]:
    """Return the last two samples of each shard."""
    ends = np.cumsum(sizes), OTHERS + np.cumsum(sizes[::-1])
    return frozenset(int(end) - back for each in ends for end in each for back in (1, 2))


class Drawn:
    """A transform from a raw sample to its id and what it draws. It fails at bad samples, after it drew."""

    def __init__(self, case: Case, check: Callable[[int], int] = int) -> None:
        self.from_everywhere, self._check = case.from_everywhere, check
        self.draws_only_sample_rng = not case.from_everywhere

    def __call__(self, raw: Any) -> tuple[int, torch.Tensor]:
        drawn = self.draw()
        return self._check(id_of(raw)), drawn

    def draw(self) -> torch.Tensor:
        return draws() if self.from_everywhere else torch.from_numpy(lk.sample_rng().random(2))


def id_of(raw: Any) -> int:
    if isinstance(raw, dict):
        raw = raw["n"]
    if isinstance(raw, str):
        raw = json.loads(raw)["n"]
    return int(raw) if np.ndim(raw) == 0 else int(raw[0]) // TOKENS


class Summed:
    """A transform from a sample of many values to its id, a checksum of the values, and what it draws. It fails as Drawn does."""

    def __init__(self, drawn: Drawn, id_of: Callable[[Any], int], check: Callable[[int], int] = int) -> None:
        self._drawn, self._id_of, self._check = drawn, id_of, check
        self.draws_only_sample_rng = drawn.draws_only_sample_rng

    def __call__(self, sample: Any) -> tuple[int, torch.Tensor]:
        total = torch.tensor([checksum(sample)], dtype=torch.float64)
        drawn = torch.cat([total, self._drawn.draw()])
        return self._check(self._id_of(sample)), drawn


def checksum(value: Any, start: int = 0) -> int:
    if isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            start = checksum(each, start)
        return start
    return zlib.crc32(np.asarray(value).tobytes(), start)


class Collate:
    """Stacks samples, also those of packed rows, and draws for the batch."""

    def __init__(self, drawn: Drawn) -> None:
        self._drawn = drawn
        self.draws_only_sample_rng = drawn.draws_only_sample_rng

    def __call__(self, samples: Any) -> Any:
        if isinstance(samples, tuple):  # a single sample: batch_size=None
            samples = [samples]
        rows = samples if isinstance(samples[0], list) else [samples]
        numbers, drawn = zip(*(sample for row in rows for sample in row), strict=True)
        return torch.tensor(numbers), torch.stack(drawn), self._drawn.draw()


def samples_of(batch: Any) -> list[tuple[int, bytes]]:
    """Return the samples of a batch: their ids, and what they drew."""
    if isinstance(batch, dict):  # rows in memory draw nothing
        return [(number, b"") for number in batch["n"].reshape(-1).tolist()]
    ids, drawn = batch[0], batch[1]
    if isinstance(ids, int):
        return [(ids, drawn.numpy().tobytes())]
    return [(number, row.numpy().tobytes()) for number, row in zip(ids.tolist(), drawn, strict=True)]


def sizes_of(case: Case) -> list[int]:
    more = 3 if case.data in STREAMS else 1  # otherwise most lanes have but one batch
    return [more * size for size in SHARDS[case.variant]]


# Data with an index


class _List:
    def __init__(self, size: int, drawn: Drawn) -> None:
        self.size, self.drawn = size, drawn
        self.draws_only_sample_rng = drawn.draws_only_sample_rng

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.drawn(index)


class _Rows:
    """Rows in memory, of which a batch fails as a whole."""

    def __init__(self, rows: lk.ArrayDataset, check: Check) -> None:
        self._rows, self._check = rows, check

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return self._rows[self._check(index)]

    def read_batch(self, indices: np.ndarray) -> Any:
        return self._rows.read_batch(np.array([self._check(int(index)) for index in indices]))


def make_indexed(case: Case, folder: Path) -> Any:
    """Make the dataset of a case, whose sample `i` has the id `i`."""
    check = Check(case)
    drawn, size = Drawn(case, check), sum(sizes_of(case))
    if case.data == "list":
        return _List(size, drawn)
    if case.data == "rows":
        rows = lk.ArrayDataset({"n": torch.arange(size)})
        return _Rows(rows, check) if case.bad else rows
    if case.data == "array":
        return lk.ArrayDataset({"n": torch.arange(size)}, transform=drawn)
    if case.data == "records":
        return lk.RecordDataset([{"n": number} for number in range(size)], transform=drawn)
    if case.data == "concat":
        halves = [[{"n": number} for number in part] for part in np.array_split(range(size), 2)]
        return lk.ConcatDataset([lk.RecordDataset(half, transform=drawn) for half in halves])
    if case.data == "subset":
        numbers = [{"n": number // 2} for number in range(2 * size)]
        return lk.SubsetDataset(lk.RecordDataset(numbers, transform=drawn), range(0, 2 * size, 2))
    if case.data == "map":
        return lk.MapDataset(lk.RecordDataset([{"n": number} for number in range(size)]), drawn)
    if case.data == "media":
        rows = [{"n": n, "image": _encoded(n), "sound": audio(seconds=0.5, seed=n % 5)} for n in range(size)]
        decoded = lk.MediaDataset(rows, {"image": "image", "sound": "audio"}, audio={"clip_s": 0.25})
        return lk.MapDataset(decoded, Summed(drawn, id_of, check))
    if case.data == "multimodal":
        documents = [{"content": [f"{n} ", {"type": "image", "image": _encoded(n)}]} for n in range(size)]
        pictures = lk.Pictures(lk.Patches(size=4), placeholder=PLACEHOLDER)
        return lk.MapDataset(
            lk.MultimodalDataset(documents, _text_ids, pictures), Summed(drawn, _number_in_text, check)
        )
    if case.data == "pieces":
        documents = lk.MapDataset(lk.RecordDataset([{"n": n} for n in range(size)], transform=drawn), _Document())
        lengths = [_tokens_of(number) for number in range(size)]
        pieces = lk.PieceDataset(documents, ROW, lengths=lengths, fields=("tokens", "weights"))
        return lk.MapDataset(pieces, Summed(drawn, functools.partial(_place_of_piece, size)))
    if case.data == "packed rows":
        return _packed_rows(lk.Pipeline(lk.RecordDataset([{"n": number} for number in range(2 * size)])), case)
    shards = _write(case, case.data, folder)
    if case.data == "jsonl":
        return lk.JsonlDataset(shards, transform=drawn)
    if case.data == "csv":
        return lk.CsvDataset(shards, types={"n": int}, transform=drawn)
    if case.data == "tar":
        return lk.TarDataset(shards, transform=_FromTar(drawn))
    if case.data == "parquet":
        return lk.ParquetDataset(shards, transform=drawn)
    return lk.TokenDataset(shards, length=TOKENS, dtype="uint16", transform=drawn)


@functools.cache
def _encoded(number: int) -> bytes:
    return encode(picture(number))


def _text_ids(text: str) -> list[int]:
    return list(text.encode())


_text_ids.draws_nothing = True  # type: ignore[attr-defined]


def _number_in_text(sample: Any) -> int:
    ids = sample["input_ids"]
    return int(bytes(ids[ids != PLACEHOLDER].tolist()))


class _Document:
    """Makes a document of a sample: tokens that no other one has, and the sample's draws as a weight for each."""

    draws_nothing = True

    def __call__(self, sample: tuple[int, torch.Tensor]) -> dict[str, Any]:
        number, drawn = sample
        first, length = number * LONGEST, _tokens_of(number)
        return {"n": number, "tokens": np.arange(first, first + length), "weights": np.resize(drawn.numpy(), length)}


def _tokens_of(number: int) -> int:
    return DOCUMENTS[number % len(DOCUMENTS)]


@functools.cache
def _firsts(size: int) -> list[int]:
    """Return the first token of each piece of a number of documents; of an empty one, what it would be."""
    return [n * LONGEST + start for n in range(size) for start in range(0, max(1, _tokens_of(n)), ROW)]


def _place_of_piece(size: int, piece: Any) -> int:
    tokens = piece["tokens"]
    return _firsts(size).index(int(tokens[0]) if len(tokens) else piece["n"] * LONGEST)


def _first_token(row: Any) -> int:
    return int(row[0]["tokens"][0])


def _packed_rows(numbers: lk.Pipeline, case: Case) -> lk.Pipeline:
    """Pack documents into rows, and number these. Rows are bad, not documents: these have been read for their lengths."""
    drawn = Drawn(case)

    def pack(draw: Callable[[Any], Any]) -> lk.Pipeline:
        return numbers.map(draw).map(_Document()).pack(ROW, fields={"weights": 0.0}, window=case.window)

    firsts = [_first_token(row) for row in pack(_without_draws)]
    return pack(drawn).map(Summed(drawn, functools.partial(_place_of_row, firsts), Check(case)))


def _without_draws(raw: Any) -> tuple[int, torch.Tensor]:
    return id_of(raw), torch.zeros(1)


def _place_of_row(firsts: list[int], row: Any) -> int:
    return firsts.index(_first_token(row))


class _FromTar:
    def __init__(self, drawn: Drawn) -> None:
        self._drawn = drawn
        self.draws_only_sample_rng = drawn.draws_only_sample_rng

    def __call__(self, raw: Any) -> Any:
        return self._drawn(raw["cls"])


def _write(case: Case, kind: str, folder: Path) -> list[str]:
    """Write the shards of a variant once, and return their paths."""
    folder = folder / f"{case.data}{case.variant}"
    starts = np.cumsum([0, *sizes_of(case)]).tolist()
    parts = [range(start, start + size) for start, size in zip(starts, sizes_of(case), strict=False)]
    paths = [folder / f"{number}.{EXTENSIONS[kind]}" for number in range(len(parts))]
    if not folder.exists():
        folder.mkdir()
        for path, numbers in zip(paths, parts, strict=True):
            _write_shard(kind, path, numbers)
    return [str(path) for path in paths]


def _write_shard(kind: str, path: Path, numbers: range) -> None:
    if kind == "jsonl":
        path.write_text("".join(json.dumps({"n": number}) + "\n" for number in numbers))
    elif kind == "csv":
        path.write_text("n,text\n" + "".join(f'{number},"a\nb"\n' for number in numbers))
    elif kind == "tar":
        make_tar(path, [(f"{number:03}.cls", b"%d" % number) for number in numbers])
    elif kind == "parquet":
        pq.write_table(pa.table({"n": list(numbers)}), path, row_group_size=4)
    else:
        np.arange(numbers.start * TOKENS, numbers.stop * TOKENS, dtype=np.uint16).tofile(path)


def make_order(case: Case, dataset: Any) -> Any:
    """Make the order of a case; None if the Loader makes it."""
    size, seed = len(dataset), case.seed
    numbers = np.random.default_rng(case.variant)
    orders: dict[str, Any] = {
        "shards": lambda: lk.ShardOrder(dataset.shard_sizes, seed=seed, lanes=3, window=case.window, block=2),
        "mixture": lambda: lk.Mixture([size // 3, size - size // 3], [3, 1], seed=seed, window=8),
        "weighted": lambda: lk.Weighted(numbers.random(size), seed=seed),
        "without replacement": lambda: lk.Weighted(numbers.random(size) + 0.1, seed=seed, replacement=False),
        "part": lambda: lk.Subset(range(0, size, 2)),
        "sampler": lambda: _EpochSampler(size),
        "torch sampler": lambda: torch_data.RandomSampler(range(size)),
    }
    return orders[case.order]() if case.order in orders else None


class _EpochSampler:
    def __init__(self, size: int) -> None:
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        numbers = list(range(self.size))
        random.Random(self.epoch).shuffle(numbers)
        return iter(numbers)


class BatchSampler(_EpochSampler):
    """Gives an epoch in 12 batches of unlike sizes, so that each number of ranks up to 4 divides them."""

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[Any]:
        numbers = list(super().__iter__())
        ends = [max(row, row * row * self.size // 144) for row in range(13)]
        return (numbers[start:end] for start, end in itertools.pairwise(ends))


def make_plan(case: Case, leg: Leg, size: int, tail: Any) -> Any:
    """Make the plan of a leg; None if the Loader makes it."""
    lengths = np.random.default_rng(case.variant).integers(1, 12, size=size)
    batch = leg.batch_size or 1
    common = {"window": case.window, "shuffle": case.order != "in order", "seed": case.seed, "tail": tail}
    common["balance"] = lk.AttentionCost(1) if case.seed % 2 else None
    plans: dict[str, Any] = {
        "buckets": lambda: lk.LengthBuckets(lengths, batch, **common),
        "budget": lambda: lk.TokenBudget(lengths, 12 + 6 * batch, **common),
        "pack": lambda: lk.PackPlan(lengths, 16, batch, **common),
    }
    return plans[case.plan]() if case.plan in plans else None


# Streams


class _Shards:
    """Reads shards "first:last" of numbers."""

    def __init__(self, check: Callable[[int], int]) -> None:
        self._check = check

    def __call__(self, shard: str, start: int) -> Iterator[int]:
        first, last = map(int, shard.split(":"))
        yield from map(self._check, range(first + start, last))


class _Keeps:
    """A filter that fails at bad samples."""

    def __init__(self, check: Callable[[int], int]) -> None:
        self._check = check

    def __call__(self, sample: Any) -> bool:
        return is_kept(self._check(sample[0]))


def is_kept(number: int) -> bool:
    """Say whether the filter keeps the sample with this id."""
    return bool(number % 3)


class _Checked:
    """A map that fails at bad samples."""

    def __init__(self, check: Callable[[int], int]) -> None:
        self._check = check

    def __call__(self, sample: Any) -> Any:
        self._check(sample[0])
        return sample


def _first_in_batch(batch: Any) -> int:
    return int(batch[0][0])


def batch_size_of(case: Case) -> int:
    """Return the size of the batches that a stream itself makes."""
    return 2 + case.variant


def make_stream(case: Case, folder: Path, world: lk.World) -> Any:
    """Make the stream of a case."""
    sizes = sizes_of(case)
    if case.data in ("iterable", "stateful"):
        return (Numbers if case.data == "iterable" else StatefulNumbers)(sum(sizes), Drawn(case), world)
    failing = "transform" if case.data == "lines" and case.failing == "read" else case.failing
    checks = dict.fromkeys(FAILING, int) | {failing: Check(case)}
    drawn, verb, read = Drawn(case, checks["transform"]), checks["verb"], _Shards(checks["read"])

    def mapped(stream: lk.StreamDataset) -> lk.StreamDataset:
        return stream.map(_Checked(verb)) if case.bad and failing == "verb" else stream

    settings: dict[str, Any] = {
        "transform": drawn,
        "lanes": case.lanes,
        "window": case.window,
        "shuffle": case.order != "in order",
        "seed": case.seed,
    }
    if case.data == "lines":
        return mapped(lk.StreamDataset(_write(case, "jsonl", folder), lk.LineReader(), **settings))
    if case.data == "shared":
        return mapped(lk.StreamDataset(_shards(sizes), read, share=2, block=3, **settings))
    stream = lk.StreamDataset(_shards(sizes), read, **settings)
    if case.data == "filtered":
        return stream.filter(_Keeps(verb))
    if case.data == "stream":
        return mapped(stream)
    if case.data == "part":
        return mapped(stream).skip(case.lanes).take(sum(sizes) * 2 // 3)
    if case.data in ("batched", "shuffled batches"):
        batches = stream.batch(batch_size_of(case)).map(Summed(drawn, _first_in_batch, verb))
        return batches if case.data == "batched" else batches.shuffle(case.window)
    if case.data == "packed":
        rows = stream.map(_Document()).pack(ROW, fields={"weights": 0.0}, waiting=case.window)
        return rows.map(Summed(drawn, _first_token, verb))
    other = lk.StreamDataset(_shards(sizes[::-1], OTHERS), read, **settings)
    if case.data == "mixed batches":
        one, two = (each.batch(batch_size_of(case)) for each in (stream, other))
        return lk.interleave({one: 2, two: 1}).map(Summed(drawn, _first_in_batch, verb))
    return mapped(lk.chain(stream, other) if case.data == "chain" else lk.interleave({stream: 2, other: 1}))


def _shards(sizes: list[int], first: int = 0) -> list[str]:
    starts = np.cumsum([first, *sizes]).tolist()
    return [f"{start}:{end}" for start, end in itertools.pairwise(starts)]
