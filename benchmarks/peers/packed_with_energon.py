"""Megatron-Energon: texts in tar shards, tokenized, cut and packed by a task encoder, as its guide to packing says."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import webdataset
from common import SEED, SHARDS, Setting
from megatron import energon
from packed import Rows, packed_job
from packed_documents import ROW, documents, text_of, tokenize
from with_energon import NAME, VERSION, prepare

__all__ = ["NAME", "VERSION", "WAYS", "resume", "write"]
BUFFER = 32  # pieces that are packed together; as many documents are shuffled


@dataclass
class Document(energon.Sample):  # type: ignore[misc]
    text: str


@dataclass
class Tokens(energon.Sample):  # type: ignore[misc]
    tokens: Any


@energon.stateless  # type: ignore[untyped-decorator]
def cook(sample: dict[str, Any]) -> Document:
    return Document(**energon.basic_sample_keys(sample), text=sample["txt"])


class Packer(energon.DefaultTaskEncoder):  # type: ignore[misc]
    cookers = [energon.Cooker(cook)]  # noqa: RUF012 - as its documentation has it

    @energon.stateless  # type: ignore[untyped-decorator]
    def encode_sample(self, sample: Document) -> Iterator[Tokens]:
        """Yield the document, cut at each row's length."""
        tokens = torch.from_numpy(tokenize(sample.text))
        for start in range(0, len(tokens), ROW):
            yield Tokens.derive_from(sample, tokens=tokens[start : start + ROW])

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
                free.append(ROW)
            rows[row].append(sample)
            free[row] -= size
        return rows

    @energon.stateless  # type: ignore[untyped-decorator]
    def pack_selected_samples(self, samples: list[Tokens]) -> Tokens:
        keys = ",".join(sample.__key__ for sample in samples)
        return Tokens(__key__=keys, __restore_key__=(), tokens=torch.cat([sample.tokens for sample in samples]))

    @energon.stateless  # type: ignore[untyped-decorator]
    def batch(self, samples: Sequence[Tokens]) -> Any:
        return {"rows": [sample.tokens.tolist() for sample in samples]}


def write(folder: str) -> dict[str, Any]:
    path = Path(folder) / "tar"
    path.mkdir()
    texts = [text_of(document) for document in documents()]
    for shard in range(SHARDS):
        with webdataset.TarWriter(str(path / f"{shard:03}.tar"), encoder=False) as writer:
            for number in range(shard, len(texts), SHARDS):
                writer.write({"__key__": f"{number:06}", "txt": texts[number].encode()})
    prepare(path, sorted(shard.name for shard in path.iterdir()))
    return {"ways": list(WAYS)}


def packed(setting: Setting) -> Any:
    workers = energon.WorkerConfig(
        rank=setting.rank, world_size=setting.world, num_workers=setting.workers, seed_offset=SEED
    )
    data = energon.get_train_dataset(
        str(setting.folder / "tar"),
        worker_config=workers,
        batch_size=setting.batch,
        shuffle_buffer_size=BUFFER,
        max_samples_per_sequence=100,
        shuffle_over_epochs_multiplier=1,
        packing_buffer_size=BUFFER,
        task_encoder=Packer(),
        repeat=False,
    )
    return energon.get_savable_loader(data)


def rows_of(batch: Any) -> Rows:
    found: Rows = batch["rows"]
    return found


WAYS = {"packing buffer, tokenized on the way": packed}
resume = packed_job(
    WAYS,
    rows_of,
    save=lambda loader: loader.save_state_rank(),
    load=lambda loader, state: loader.restore_state_rank(state),
)
