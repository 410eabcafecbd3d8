"""Measure conversations from JSONL files to packed rows with labels on the answers: in a Loader, and by trl's SFTTrainer.

A conversation has four questions and four answers of random words, with lognormal lengths (medians 15 and 60 words, sigma 0.7). The
tokenizer is a byte-level BPE of the tokenizers library, trained on some of them. Rows have 2,048 tokens. Each contender begins with the
files and reads two epochs of batches of 8 rows; `first` counts all that comes before the first batch, `later` is the second epoch. Seconds
are wall time. Loaders and trl have two processes for the work, the loops one. "cached" keeps the tokenized conversations in a
`lk.CachedDataset` on disk, in a new folder: measuring the lengths tokenizes, both epochs read.

One template marks answers with generation blocks, the other does not. trl's mask of the answers needs the blocks, so without them its
trainer trains on all tokens. The limit is a loop that parses, renders and tokenizes each conversation once.
"""

import functools
import json
import logging
import os
import tempfile
import time
import warnings
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
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import loaderkit as lk

ROW, BATCH, WORKERS, TURNS, VOCABULARY = 2048, 8, 2, 4, 16_000
WORDS, SIGMA = {"user": 15, "assistant": 60}, 0.7
CACHE_BYTES = 1_000_000_000  # 40 MB are used
BARE, LOOP, PLAN, CACHED, STREAM, TRL = (
    "bare loop",
    "lk.ChatDataset, a loop",
    "lk, PackPlan",
    "lk, PackPlan, cached",
    "lk, stream.pack",
    "trl SFTTrainer",
)
SPECIAL = ["<pad>", "<|im_start|>", "<|im_end|>"]
HEADER = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
PROMPT = "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
TURN = "{{ m.content + '<|im_end|>\n' }}"
TEMPLATES = {
    "with blocks": f"{HEADER}{{% if m.role == 'assistant' %}}{{% generation %}}{TURN}{{% endgeneration %}}{{% else %}}{TURN}{{% endif %}}{PROMPT}",
    "without blocks": f"{HEADER}{TURN}{PROMPT}",
}
Epochs = Iterator[tuple[float, int, int]]  # seconds, conversations and tokens of each epoch

REPORT = Report(minutes=6)
REPORT.chart(
    "Conversations to packed rows with labels: conversations / s, by processes (more is better)",
    {"first_epoch_chats_per_s": "first epoch", "later_epoch_chats_per_s": "later epoch"},
    names=("contender", "processes"),
    panels=("template",),
)


def write_chats(folder: Path, size: int) -> None:
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfw"))
    words = np.array(["".join(rng.choice(letters, rng.integers(2, 10))) for _ in range(20_000)])

    def text(role: str) -> str:
        count = min(200, max(1, int(rng.lognormal(np.log(WORDS[role]), SIGMA))))
        return " ".join(words[np.minimum(rng.zipf(1.3, count), len(words)) - 1])

    chats = [[{"role": role, "content": text(role)} for _ in range(TURNS) for role in WORDS] for _ in range(size)]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = (message["content"] for chat in chats[:500] for message in chat)
    bpe.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, show_progress=False)
    )
    bpe.save(str(folder / "tokenizer.json"))
    (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))


class Job(NamedTuple):
    path: str  # of the conversations
    tokenizer: Any
    blocks: bool
    folder: Path  # for what the contender writes


def timed(epochs: int, read: Callable[[], tuple[int, int]], start: float) -> Epochs:
    """Time epochs of a function that returns conversations and tokens; the first from a time before."""
    for _ in range(epochs):
        chats, tokens = read()
        yield time.perf_counter() - start, chats, tokens
        start = time.perf_counter()


def bare(job: Job) -> Epochs:
    def read() -> tuple[int, int]:
        sizes = []
        with Path(job.path).open() as file:
            for line in file:
                found = job.tokenizer.apply_chat_template(
                    json.loads(line)["messages"], return_assistant_tokens_mask=job.blocks
                )
                sizes.append(len(found["input_ids"]))
        return len(sizes), sum(sizes)

    return timed(2, read, time.perf_counter())


def dataset(job: Job) -> lk.ChatDataset:
    return lk.ChatDataset(lk.JsonlDataset(job.path, index_dir=job.folder), job.tokenizer)


def loop(job: Job) -> Epochs:
    start, chats = time.perf_counter(), dataset(job)

    def read() -> tuple[int, int]:
        sizes = [len(chats[number]["input_ids"]) for number in range(len(chats))]
        return len(sizes), sum(sizes)

    return timed(2, read, start)


def in_loader(start: float, data: Any, **settings: Any) -> Epochs:
    collate = lk.PackCollate(tokens="input_ids", row_length=ROW, labels=None, fields={"labels": -100})
    loader = lk.Loader(data, collate_fn=collate, num_workers=WORKERS, **settings)

    def read() -> tuple[int, int]:
        chats = tokens = 0
        for batch in loader:
            chats += int((batch["document_ids"].amax(dim=1) + 1).sum())
            tokens += int((batch["document_ids"] >= 0).sum())
        return chats, tokens

    return timed(2, read, start)


def by_plan(job: Job, *, cached: bool = False) -> Epochs:
    start, chats = time.perf_counter(), dataset(job)
    data: Any = lk.CachedDataset(chats, job.folder / "cache", max_bytes=CACHE_BYTES) if cached else chats
    lengths = lk.measure_lengths(data, "input_ids", num_workers=WORKERS)
    return in_loader(start, data, plan=lk.PackPlan(lengths, ROW, BATCH))


def by_stream(job: Job) -> Epochs:
    start = time.perf_counter()
    stream = lk.Pipeline(dataset(job)).stream(lanes=WORKERS, shuffle=True)
    return in_loader(start, stream.pack(ROW, tokens="input_ids", fields={"labels": -100}), batch_size=BATCH)


def by_trl(job: Job) -> Epochs:
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=len(job.tokenizer), **sizes))
    args = SFTConfig(
        str(job.folder / "trl"),
        per_device_train_batch_size=BATCH,
        dataset_num_proc=WORKERS,
        dataloader_num_workers=WORKERS,
        packing=True,
        padding_free=True,
        max_length=ROW,
        assistant_only_loss=job.blocks,
        use_cpu=True,
        bf16=False,
        report_to=[],
    )
    start = time.perf_counter()
    rows = datasets.load_dataset("json", data_files=job.path, split="train", cache_dir=str(job.folder))
    trainer = SFTTrainer(model, args, train_dataset=rows, processing_class=job.tokenizer)
    loader: Any = trainer.get_train_dataloader()

    def read() -> tuple[int, int]:
        chats = tokens = 0
        for batch in loader:
            chats += int((batch["position_ids"] == 0).sum())
            tokens += batch["input_ids"].numel()
        return chats, tokens

    return timed(2, read, start)


CONTENDERS: dict[str, Callable[[Job], Epochs]] = {
    BARE: bare,
    LOOP: loop,
    PLAN: by_plan,
    CACHED: functools.partial(by_plan, cached=True),
    STREAM: by_stream,
    TRL: by_trl,
}
PROCESSES = {BARE: 1, LOOP: 1}


def turn(name: str, template: str, source: Path) -> list[tuple[float, int, int]]:
    """Run a contender in this process, which has nothing in its caches."""
    datasets.disable_progress_bars()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(source / "tokenizer.json"),
        pad_token="<pad>",
        eos_token="<|im_end|>",
        chat_template=TEMPLATES[template],
    )
    with tempfile.TemporaryDirectory() as folder:
        job = Job(str(source / "chats.jsonl"), tokenizer, template == "with blocks", Path(folder))
        return list(CONTENDERS[name](job))


def measure(source: Path, rounds: int) -> list[Row]:
    found: dict[tuple[str, str], list[list[tuple[float, int, int]]]] = {
        (template, name): [] for template in TEMPLATES for name in CONTENDERS
    }
    for number in range(rounds):
        tell(f"chats: round {number + 1} of {rounds}")
        for place in turns(len(found), number):
            template, name = list(found)[place]
            found[template, name].append(once(functools.partial(turn, name, template, source), limit_s=300))
    taken = [
        {key: dict(enumerate(each[epoch][0] for each in epochs)) for key, epochs in found.items()} for epoch in (0, 1)
    ]
    rows: list[Row] = []
    for (template, name), epochs in found.items():
        key = template, name
        _, chats, tokens = epochs[0][0]
        rows.append(
            {
                "contender": name,
                "template": template,
                "processes": PROCESSES.get(name, WORKERS),
                **quartiles("first_epoch_chats_per_s", (chats / each[0][0] for each in epochs)),
                "later_epoch_chats_per_s": spread(chats / each[1][0] for each in epochs)[1],
                "first_throughput_ratio_to_trl": 1 / ratio(taken[0][key], taken[0][template, TRL]),
                "later_throughput_ratio_to_trl": 1 / ratio(taken[1][key], taken[1][template, TRL]),
                "later_throughput_ratio_to_bare": 1 / ratio(taken[1][key], taken[1][template, BARE]),
                "chats": chats,
                "tokens": tokens,
                "repeats": rounds,
            }
        )
    return rows


def main() -> None:
    options = parse_options(__doc__)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_chats(Path(folder), 60 if options.quick else 3_000)
        rows = measure(Path(folder), 1 if options.quick else 3)
    record("chats", rows, options)


if __name__ == "__main__":
    main()
