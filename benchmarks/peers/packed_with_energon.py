"""Megatron-Energon: texts in tar shards, tokenized, cut and packed by a task encoder, as its guide to packing says."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import SEED, Setting
from megatron import energon
from packed import Rows, packed_job, packed_speed_jobs, write_tar
from packed_documents import Corpus, text_of, tokenize
from torch.nn.utils.rnn import pad_sequence
from with_energon import NAME, VERSION, prepare

__all__ = ["NAME", "VERSION", "WAYS", "count", "resume", "throughput", "write"]


@dataclass
class Document(energon.Sample):  # type: ignore[misc]
    content: Any  # its text, or the bytes of its tokens


@dataclass
class Tokens(energon.Sample):  # type: ignore[misc]
    tokens: Any
    positions: Any = None
    documents: Any = None  # 1, 2, 3, ... in a row


@energon.stateless  # type: ignore[untyped-decorator]
def cook(sample: dict[str, Any]) -> Document:
    return Document(**energon.basic_sample_keys(sample), content=sample["txt" if "txt" in sample else "bin"])


class Packer(energon.DefaultTaskEncoder):  # type: ignore[misc]
    cookers = [energon.Cooker(cook)]  # noqa: RUF012 - as its documentation has it

    def __init__(self, row: int) -> None:
        super().__init__()
        self.row = row

    @energon.stateless  # type: ignore[untyped-decorator]
    def encode_sample(self, sample: Document) -> Iterator[Tokens]:
        """Yield the document, cut at each row's length."""
        stored = isinstance(sample.content, bytes)
        found = np.frombuffer(sample.content, np.uint16).astype(np.int64) if stored else tokenize(sample.content)
        tokens = torch.from_numpy(found)
        for start in range(0, len(tokens), self.row):
            yield Tokens.derive_from(sample, tokens=tokens[start : start + self.row])

    def select_samples_to_pack(self, samples: list[Tokens]) -> list[list[Tokens]]:
        """Pack by best fit decreasing."""
        rows: list[list[Tokens]] = []
        free: list[int] = []
        for sample in sorted(samples, key=lambda each: len(each.tokens), reverse=True):
            size = len(sample.tokens)
            fits = [row for row, left in enumerate(free) if left >= size]
            if fits:
                row = min(fits, key=free.__getitem__)
            else:
                row = len(rows)
                rows.append([])
                free.append(self.row)
            rows[row].append(sample)
            free[row] -= size
        return rows

    @energon.stateless  # type: ignore[untyped-decorator]
    def pack_selected_samples(self, samples: list[Tokens]) -> Tokens:
        lengths = [len(sample.tokens) for sample in samples]
        return Tokens(
            __key__=",".join(sample.__key__ for sample in samples),
            __restore_key__=(),
            tokens=torch.cat([sample.tokens for sample in samples]),
            positions=torch.cat([torch.arange(length) for length in lengths]),
            documents=torch.repeat_interleave(torch.tensor(lengths)) + 1,
        )

    @energon.stateless  # type: ignore[untyped-decorator]
    def batch(self, samples: Sequence[Tokens]) -> Any:
        fields = ("tokens", "positions", "documents")
        return {field: pad_sequence([getattr(row, field) for row in samples], batch_first=True) for field in fields}


def write(folder: str) -> dict[str, Any]:
    path, documents = Path(folder), Corpus.of(folder).documents()
    prepare(path / "texts", write_tar(path / "texts", [text_of(document).encode() for document in documents], "txt"))
    stored = [document.astype(np.uint16).tobytes() for document in documents]
    prepare(path / "tokens", write_tar(path / "tokens", stored, "bin"))
    return {"ways": list(WAYS)}


def packed(setting: Setting, shards: str = "texts", buffer: int = 32) -> Any:
    """Pack so many pieces together; as many documents are shuffled."""
    workers = energon.WorkerConfig(
        rank=setting.rank, world_size=setting.world, num_workers=setting.workers, seed_offset=SEED
    )
    data = energon.get_train_dataset(
        str(setting.folder / shards),
        worker_config=workers,
        batch_size=setting.batch,
        shuffle_buffer_size=buffer,
        max_samples_per_sequence=100,
        shuffle_over_epochs_multiplier=1,
        packing_buffer_size=buffer,
        task_encoder=Packer(Corpus.of(setting.folder).row),
        repeat=False,
    )
    return energon.get_savable_loader(data)


def rows_of(batch: Any) -> Rows:
    return [row[row > 0].tolist() for row in batch["tokens"]]


WAYS = {"packing buffer, tokenized on the way": packed}
resume = packed_job(
    WAYS,
    rows_of,
    save=lambda loader: loader.save_state_rank(),
    load=lambda loader, state: loader.restore_state_rank(state),
)
TIMED = {"packing buffer": functools.partial(packed, shards="tokens", buffer=100)}
throughput, count = packed_speed_jobs(TIMED, lambda batch: (len(batch["tokens"]), batch["tokens"]))
