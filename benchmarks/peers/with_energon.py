"""Megatron-Energon on tar shards; texts are tokenized, cut and packed by a task encoder, as its guide to packing says."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lib.packed import Rows, packed_job, packed_speed_jobs, write_tar
from lib.packed_documents import Corpus, text_of, tokenize
from lib.peer_jobs import SEED, Setting, resume_job
from lib.workloads import BATCH, pack, timed_job
from megatron import energon
from megatron.energon.epathlib import EPath
from megatron.energon.flavors import BaseWebdatasetFactory
from torch.nn.utils.rnn import pad_sequence

from peers.with_webdataset import write as write_webdataset
from peers.with_webdataset import write_tokens

NAME, VERSION = "Megatron-Energon", getattr(energon, "__version__", "7.4")
KIND = "__module__: megatron.energon\n__class__: CrudeWebdataset\n"


@dataclass
class Number(energon.Sample):  # type: ignore[misc]
    id: int
    draw: float


@energon.stateless  # type: ignore[untyped-decorator]
def cook(sample: dict[str, Any]) -> Number:
    return Number(**energon.basic_sample_keys(sample), id=int(sample["id"]), draw=0.0)


class Encoder(energon.DefaultTaskEncoder):  # type: ignore[misc]
    cookers = [energon.Cooker(cook)]  # noqa: RUF012 - as its documentation has it

    @energon.stateless(restore_seeds=True)  # type: ignore[untyped-decorator]
    def encode_sample(self, sample: Any) -> Any:
        sample.draw = float(torch.rand(()))
        return sample

    @energon.stateless  # type: ignore[untyped-decorator]
    def batch(self, samples: Sequence[Any]) -> Any:
        return {"id": [sample.id for sample in samples], "draw": [sample.draw for sample in samples]}


def write(folder: str) -> dict[str, Any]:
    found = write_webdataset(folder)
    path = Path(folder) / "tar"
    names = [Path(shard).name for shard in found["shards"]]
    prepare(path, names)
    return found


def prepare(folder: Path, names: list[str]) -> None:
    """Write what energon keeps beside tar shards: their index and the kind of the dataset."""
    BaseWebdatasetFactory.prepare_dataset(
        EPath(str(folder)), names, split_parts_ratio=[("train", 1.0)], shuffle_seed=None, workers=1
    )
    (folder / ".nv-meta" / "dataset.yaml").write_text(KIND)


def make(setting: Setting) -> Any:
    workers = energon.WorkerConfig(
        rank=setting.rank, world_size=setting.world, num_workers=setting.workers, seed_offset=SEED
    )
    data = energon.get_train_dataset(
        str(setting.folder / "tar"),
        worker_config=workers,
        batch_size=setting.batch,
        shuffle_buffer_size=100 if setting.shuffle else None,
        max_samples_per_sequence=100 if setting.shuffle else None,
        shuffle_over_epochs_multiplier=1 if setting.shuffle else None,
        parallel_shard_iters=None if setting.shuffle else 1,
        task_encoder=Encoder(),
        repeat=False,
    )
    return energon.get_savable_loader(data)


resume = resume_job(
    make, save=lambda loader: loader.save_state_rank(), load=lambda loader, state: loader.restore_state_rank(state)
)


@dataclass
class Tokens(energon.Sample):  # type: ignore[misc]
    tokens: Any


@energon.stateless  # type: ignore[untyped-decorator]
def cook_tokens(sample: dict[str, Any]) -> Tokens:
    return Tokens(**energon.basic_sample_keys(sample), tokens=np.frombuffer(sample["bin"], np.uint16))


class TokenEncoder(energon.DefaultTaskEncoder):  # type: ignore[misc]
    cookers = [energon.Cooker(cook_tokens)]  # noqa: RUF012 - as its documentation has it

    @energon.stateless  # type: ignore[untyped-decorator]
    def batch(self, samples: Sequence[Any]) -> Any:
        return pack([sample.tokens for sample in samples])


def write_data(folder: str, kind: str) -> dict[str, Any]:
    path = Path(folder) / f"energon-{kind}"
    write_tokens(folder, path)
    prepare(path, sorted(shard.name for shard in path.iterdir()))
    return {}


def loader_of(folder: str, kind: str, shuffle: bool, workers: int) -> Any:
    data = energon.get_train_dataset(
        str(Path(folder) / f"energon-{kind}"),
        worker_config=energon.WorkerConfig(rank=0, world_size=1, num_workers=workers),
        batch_size=BATCH,
        shuffle_buffer_size=1000 if shuffle else None,
        max_samples_per_sequence=100 if shuffle else None,
        shuffle_over_epochs_multiplier=1 if shuffle else None,
        parallel_shard_iters=None if shuffle else 1,
        task_encoder=TokenEncoder(),
        repeat=False,
    )
    return energon.get_savable_loader(data)


throughput = timed_job(loader_of)


@dataclass
class Document(energon.Sample):  # type: ignore[misc]
    content: Any  # its text, or the bytes of its tokens


@dataclass
class PackedTokens(energon.Sample):  # type: ignore[misc]
    tokens: Any
    positions: Any = None
    documents: Any = None  # 1, 2, 3, ... in a row


@energon.stateless  # type: ignore[untyped-decorator]
def cook_document(sample: dict[str, Any]) -> Document:
    return Document(**energon.basic_sample_keys(sample), content=sample["txt" if "txt" in sample else "bin"])


class Packer(energon.DefaultTaskEncoder):  # type: ignore[misc]
    cookers = [energon.Cooker(cook_document)]  # noqa: RUF012 - as its documentation has it

    def __init__(self, row: int) -> None:
        super().__init__()
        self.row = row

    @energon.stateless  # type: ignore[untyped-decorator]
    def encode_sample(self, sample: Document) -> Iterator[PackedTokens]:
        """Yield the document, cut at each row's length."""
        stored = isinstance(sample.content, bytes)
        found = np.frombuffer(sample.content, np.uint16).astype(np.int64) if stored else tokenize(sample.content)
        tokens = torch.from_numpy(found)
        for start in range(0, len(tokens), self.row):
            yield PackedTokens.derive_from(sample, tokens=tokens[start : start + self.row])

    def select_samples_to_pack(self, samples: list[PackedTokens]) -> list[list[PackedTokens]]:
        """Pack by best fit decreasing."""
        rows: list[list[PackedTokens]] = []
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
    def pack_selected_samples(self, samples: list[PackedTokens]) -> PackedTokens:
        lengths = [len(sample.tokens) for sample in samples]
        return PackedTokens(
            __key__=",".join(sample.__key__ for sample in samples),
            __restore_key__=(),
            tokens=torch.cat([sample.tokens for sample in samples]),
            positions=torch.cat([torch.arange(length) for length in lengths]),
            documents=torch.repeat_interleave(torch.tensor(lengths)) + 1,
        )

    @energon.stateless  # type: ignore[untyped-decorator]
    def batch(self, samples: Sequence[PackedTokens]) -> Any:
        fields = ("tokens", "positions", "documents")
        return {field: pad_sequence([getattr(row, field) for row in samples], batch_first=True) for field in fields}


def write_packed(folder: str) -> dict[str, Any]:
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
resume_packed = packed_job(
    WAYS,
    rows_of,
    save=lambda loader: loader.save_state_rank(),
    load=lambda loader, state: loader.restore_state_rank(state),
)
TIMED = {"packing buffer": functools.partial(packed, shards="tokens", buffer=100)}
throughput_packed, count_packed = packed_speed_jobs(TIMED, lambda batch: (len(batch["tokens"]), batch["tokens"]))
