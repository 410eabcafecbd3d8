"""Measure texts from JSONL files to packed rows: tokenized on the way, tokenized before, and by datasets and trl.

Texts have random words and lognormal lengths (median 400 words, sigma 1). The tokenizer is a BPE of the tokenizers library, trained on
some of them. Rows have 2,048 tokens, and longer texts are cut. Each contender has one core, and no workers: it starts with the
files, and reads an epoch of batches of 8 rows. The limit is a bare loop that parses and tokenizes. `first_epoch` counts all that
comes before the first batch; `later_epoch` does not. Each turn is a new process with an empty cache. Times are CPU time.
"""

import functools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import torch
from lib.apart import once
from lib.harness import Row, parse_options, quartiles, ratio, record, spread, tell, turns
from report.declare import Report
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader
from trl.data_utils import pack_dataset

import loaderkit as lk

ROW, BATCH, PARTS, VOCABULARY, MEDIAN = 2048, 8, 4, 16_000, 400
BARE, ON_THE_WAY, BEFORE, TRL = "bare loop (the limit)", "lk, on the way", "lk, tokenized before", "datasets + trl"
Epochs = Iterator[tuple[float, int, int]]  # seconds, rows and tokens of each epoch

REPORT = Report(minutes=6)
REPORT.chart(
    "Texts to packed rows: tokens / s of CPU time (more is better)",
    {"first_epoch_tokens_per_s": "first epoch", "later_epoch_tokens_per_s": "later epochs"},
)


def write_texts(folder: Path, size: int) -> list[str]:
    """Write texts as JSONL, and the tokenizer; return the paths of the texts."""
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfw"))
    words = np.array(["".join(rng.choice(letters, rng.integers(2, 10))) for _ in range(20_000)])
    counts = np.maximum(1, rng.lognormal(np.log(MEDIAN), 1.0, size)).astype(int)
    texts = [" ".join(words[np.minimum(rng.zipf(1.3, count), len(words)) - 1]) for count in counts]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator(texts[:500], trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))
    paths = [folder / f"texts-{part}.jsonl" for part in range(PARTS)]
    for part, path in enumerate(paths):
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[part::PARTS]))
    return list(map(str, paths))


class Encode:
    """From a text to the ids of its tokens."""

    draws_nothing = True

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids


class Job(NamedTuple):
    paths: list[str]  # of the texts
    encode: Encode
    folder: Path  # for what the contender writes


def of_loader(make: Callable[[], Any]) -> Epochs:
    start, loader = time.process_time(), make()
    for _ in range(2):
        rows = tokens = 0
        for batch in loader:
            rows += len(batch["tokens"])
            tokens += int((batch["document_ids"] >= 0).sum())
        yield time.process_time() - start, rows, tokens
        start = time.process_time()


def bare(job: Job) -> Epochs:
    for _ in range(2):
        start, tokens = time.process_time(), 0
        for path in job.paths:
            with Path(path).open() as file:
                tokens += sum(len(job.encode(json.loads(line)["text"])) for line in file)
        yield time.process_time() - start, -(-tokens // ROW), tokens


def on_the_way(job: Job) -> Epochs:
    def make() -> Any:
        stream = lk.StreamDataset(job.paths, lk.LineReader(), lanes=PARTS, shuffle=True)
        return lk.Loader(stream.map(lambda sample: job.encode(sample["text"])).pack(ROW), BATCH)

    return of_loader(make)


def before(job: Job) -> Epochs:
    def make() -> Any:
        shards = job.folder / "shards"
        texts = lk.JsonlDataset(job.paths, index_dir=job.folder)
        lk.write_shards(texts, str(shards), format=lk.TokenFormat(tokenizer=job.encode, field="text"))
        documents = lk.DocumentDataset(f"{shards}/*.bin", dtype="uint16")
        plan = lk.PackPlan(documents.lengths(), ROW, BATCH, too_long="split")
        return lk.Loader(documents, plan=plan, collate_fn=lk.PackCollate(row_length=ROW))

    return of_loader(make)


def by_trl(job: Job) -> Epochs:
    start = time.process_time()
    texts = datasets.load_dataset("json", data_files=job.paths, split="train", cache_dir=str(job.folder))

    def tokenize(rows: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {"input_ids": [found.ids for found in job.encode.tokenizer.encode_batch(rows["text"])]}

    packed = pack_dataset(texts.map(tokenize, batched=True, remove_columns=["text"]), ROW, "bfd_split").with_format(
        "torch"
    )
    for _ in range(2):
        rows = tokens = 0
        for batch in DataLoader(packed, BATCH, shuffle=True, collate_fn=padded):
            rows += len(batch)
            tokens += int((batch >= 0).sum())
        yield time.process_time() - start, rows, tokens
        start = time.process_time()


def padded(rows: list[dict[str, Any]]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True, padding_value=-1)


CONTENDERS = {BARE: bare, ON_THE_WAY: on_the_way, BEFORE: before, TRL: by_trl}


def turn(name: str, paths: list[str]) -> list[tuple[float, int, int]]:
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder:
        return list(CONTENDERS[name](Job(paths, Encode(Path(paths[0]).parent), Path(folder))))


def measure(paths: list[str], rounds: int) -> list[Row]:
    found: dict[str, list[list[tuple[float, int, int]]]] = {name: [] for name in CONTENDERS}
    for number in range(rounds):
        tell(f"tokenising: round {number + 1} of {rounds}")
        for place in turns(len(CONTENDERS), number):
            name = list(CONTENDERS)[place]
            found[name].append(once(functools.partial(turn, name, paths), limit_s=600))
    taken = [
        {name: dict(enumerate(each[epoch][0] for each in epochs)) for name, epochs in found.items()} for epoch in (0, 1)
    ]
    rows: list[Row] = []
    for name, epochs in found.items():
        _, filled, tokens = epochs[0][0]
        rows.append(
            {
                "contender": name,
                **quartiles("first_epoch_tokens_per_s", (tokens / each[0][0] for each in epochs)),
                "later_epoch_tokens_per_s": spread(tokens / each[1][0] for each in epochs)[1],
                "first_throughput_ratio_to_limit": 1 / ratio(taken[0][name], taken[0][BARE]),
                "first_throughput_ratio_to_trl": 1 / ratio(taken[0][name], taken[0][TRL]),
                "later_throughput_ratio_to_trl": 1 / ratio(taken[1][name], taken[1][TRL]),
                "filled": tokens / filled / ROW,
                "tokens": tokens,
                "repeats": rounds,
            }
        )
    return rows


def main() -> None:
    options = parse_options(__doc__)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(write_texts(Path(folder), 300 if options.quick else 3_000), 1 if options.quick else 5)
    record("tokenising", rows, options)


if __name__ == "__main__":
    main()
