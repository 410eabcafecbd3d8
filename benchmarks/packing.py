"""Measure rows of tokens from documents of different lengths: speed, how full rows are, and which share of the tokens is used.

Documents are lognormal (median 700 tokens, sigma 1.2: one in six is longer than a row of 2,048), 10,000 of them, uint16, in the page
cache. A batch has 8 rows. All run in this process without workers, on one thread. Each peer is used as its documentation
says; trl packs a whole dataset beforehand, and reads it with its own collator. grain has no cutting for its best fit, so it
gets the pieces. Megatron's index is made beforehand. Speed is in tokens of documents that an epoch delivers, by CPU time, what is done beforehand not included.
"""

import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from lib.harness import LeftOutError, Row, interleave, parse_options, ratio, record, spread, tell
from report.declare import Report

import loaderkit as lk

ROW, BATCH, MEDIAN, SIGMA, END = 2048, 8, 700, 1.2, 1
SPLIT, WINDOWS, ONES, FLAT = "lk.PackPlan, split", "lk.WindowDataset", "lk.WindowDataset, block=1", "lk.TokenDataset"
BFD, WRAPPED, BEST_FIT, CONCAT = "trl bfd_split", "trl wrapped", "grain best fit", "grain concat"
LITDATA, MEGATRON = "litdata TokensLoader", "Megatron GPTDataset"
Batches = Callable[[], Iterator[tuple[int, int]]]  # an epoch: rows, and tokens of documents in them


REPORT = Report(minutes=8)
REPORT.chart(
    "Rows of tokens from documents (more is better)",
    {"tokens_per_s": "tokens / s", "rows_full": "rows full", "tokens_used": "tokens used"},
)


@dataclass(frozen=True)
class Corpus:
    """Documents on disk, as datatrove writes them."""

    path: Path
    lengths: Any

    @property
    def documents(self) -> lk.DocumentDataset:
        return lk.DocumentDataset(self.path)


def write(folder: Path, size: int) -> Corpus:
    random = np.random.default_rng(0)
    lengths = np.maximum(1, random.lognormal(np.log(MEDIAN), SIGMA, size)).astype(np.int64)
    random.integers(2, 50_000, int(lengths.sum()), dtype=np.uint16).tofile(folder / "a.ds")
    np.cumsum(lengths).astype("<u8").tofile(folder / "a.ds.index")
    return Corpus(folder / "a.ds", lengths)


def split(corpus: Corpus) -> Batches:
    documents = corpus.documents
    collate = lk.PackCollate(row_length=ROW, dtype=torch.int64)

    def epoch() -> Iterator[tuple[int, int]]:
        plan = lk.PackPlan(documents.lengths(), ROW, BATCH, too_long="split")  # anew, as each epoch plans
        for batch in lk.Loader(documents, plan=plan, collate_fn=collate):
            yield len(batch["tokens"]), int((batch["document_ids"] >= 0).sum())

    return epoch


def windows(corpus: Corpus, **settings: Any) -> Batches:
    return windows_of(lk.WindowDataset(corpus.documents, ROW, **settings))


def flat_windows(corpus: Corpus) -> Batches:
    return windows_of(lk.TokenDataset(corpus.path, length=ROW, dtype="uint16"))


def windows_of(data: Any) -> Batches:
    def epoch() -> Iterator[tuple[int, int]]:
        for batch in lk.Loader(data, BATCH, shuffle=True):
            tokens = batch.long()
            yield len(tokens), tokens.numel()

    return epoch


def trl(corpus: Corpus, strategy: str) -> Batches:
    import datasets
    from torch.utils.data import DataLoader
    from trl.data_utils import pack_dataset
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    datasets.disable_progress_bars()
    documents = corpus.documents
    rows = ({"input_ids": documents[number].astype(np.int32)} for number in range(len(documents)))
    whole = datasets.Dataset.from_list(
        list(rows), features=datasets.Features(input_ids=datasets.List(datasets.Value("int32")))
    )
    packed = pack_dataset(whole.shuffle(seed=0), ROW, strategy)
    collate = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=strategy != "wrapped")
    loader = DataLoader(packed, BATCH, shuffle=True, collate_fn=collate)

    def epoch() -> Iterator[tuple[int, int]]:
        for number, batch in enumerate(loader):
            real = batch["input_ids"].numel() if strategy != "wrapped" else int(batch["attention_mask"].sum())
            yield min(BATCH, len(packed) - BATCH * number), real

    return epoch


def grain(corpus: Corpus, kind: str) -> Batches:
    import grain.experimental
    from grain import MapDataset

    source: Any = corpus.documents if kind == CONCAT else lk.PieceDataset(corpus.documents, ROW)
    pack = {
        CONCAT: functools.partial(grain.experimental.ConcatThenSplitIterDataset, length_struct={"tokens": ROW}),
        BEST_FIT: functools.partial(
            grain.experimental.BestFitPackIterDataset, length_struct={"tokens": ROW}, num_packing_bins=128
        ),
    }[kind]

    def epoch() -> Iterator[tuple[int, int]]:
        documents = MapDataset.source(source).shuffle(seed=0).map(lambda tokens: {"tokens": tokens.astype(np.int64)})
        for batch in pack(documents.to_iter_dataset()).batch(BATCH):
            yield len(batch["tokens"]), int((batch["tokens_segment_ids"] > 0).sum())

    return epoch


def litdata(corpus: Corpus) -> Batches:
    import litdata as peer

    folder = str(corpus.path.with_name("litdata"))
    documents = corpus.documents
    peer.optimize(
        lambda number: torch.from_numpy(documents[number].astype(np.int32)),
        list(range(len(documents))),
        folder,
        chunk_size=1 << 22,
        num_workers=1,
        item_loader=peer.streaming.TokensLoader(),
        start_method="fork",
    )
    data = peer.StreamingDataset(folder, item_loader=peer.streaming.TokensLoader(block_size=ROW), shuffle=True)

    def epoch() -> Iterator[tuple[int, int]]:
        for batch in peer.StreamingDataLoader(data, batch_size=BATCH):
            tokens = batch.long()
            yield len(tokens), tokens.numel()

    return epoch


class End:
    """What Megatron asks of a tokenizer."""

    eod, pad, vocab_size = END, -1, 50_000
    unique_identifiers: ClassVar[dict[str, str]] = {"name": "none"}


def megatron(corpus: Corpus) -> Batches:
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
    from megatron.core.datasets.utils import Split
    from torch.utils.data import DataLoader

    prefix, documents = str(corpus.path.with_name("megatron")), corpus.documents
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for number, length in enumerate(corpus.lengths.tolist()):
        builder.add_document(torch.from_numpy(documents[number].astype(np.int32)), [length])
    builder.finalize(f"{prefix}.idx")
    config = GPTDatasetConfig(
        random_seed=0,
        sequence_length=ROW,
        blend=None,
        split="1,0,0",
        path_to_cache=str(corpus.path.with_name("cache")),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        tokenizer=End(),
    )
    indices = np.arange(len(documents), dtype=np.int32)
    data = GPTDataset(IndexedDataset(prefix), prefix, indices, None, Split.train, config)
    loader = DataLoader(data, BATCH, shuffle=True)

    def epoch() -> Iterator[tuple[int, int]]:
        for batch in loader:
            yield len(batch["tokens"]), batch["tokens"].numel()

    return epoch


CONTENDERS: dict[str, Callable[[Corpus], Batches]] = {
    SPLIT: split,
    WINDOWS: windows,
    ONES: functools.partial(windows, block=1),
    FLAT: flat_windows,
    BFD: functools.partial(trl, strategy="bfd_split"),
    WRAPPED: functools.partial(trl, strategy="wrapped"),
    BEST_FIT: functools.partial(grain, kind=BEST_FIT),
    CONCAT: functools.partial(grain, kind=CONCAT),
    LITDATA: litdata,
    MEGATRON: megatron,
}


def measure(corpus: Corpus, rounds: int) -> list[Row]:
    total, epochs, before, counts = int(corpus.lengths.sum()), {}, {}, {}
    for name, prepare in CONTENDERS.items():
        start = time.perf_counter()
        try:
            epochs[name] = prepare(corpus)
        except ImportError as error:
            tell(f"packing: {name}: left out: {error}.")
            continue
        before[name] = time.perf_counter() - start

    def run(name: str) -> None:
        found = list(epochs[name]())
        if not found:
            raise LeftOutError("no batches")
        counts[name] = tuple(map(sum, zip(*found, strict=True)))

    taken = interleave(
        {name: functools.partial(run, name) for name in epochs}, rounds=rounds, limit_s=300, clock=time.process_time
    )
    rows: list[Row] = []
    for name, times in taken.items():
        filled, tokens = counts[name]
        low, middle, high = spread(times.values())
        row: Row = {"contender": name, "tokens_per_s": tokens / middle, "epoch_s": middle, "epoch_s_q1": low}
        row |= {"epoch_s_q3": high, "before_s": before[name], "rows_full": tokens / (filled * ROW)}
        row |= {"tokens_used": tokens / total, "time_ratio_to_split": ratio(times, taken[SPLIT])}
        rows.append(row | {"documents": len(corpus.lengths), "repeats": len(times)})
    return rows


def main() -> None:
    options = parse_options(__doc__)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        corpus = write(Path(folder), 300 if options.quick else 10_000)
        rows = measure(corpus, 1 if options.quick else 3)
    record("packing", rows, options)


if __name__ == "__main__":
    main()
