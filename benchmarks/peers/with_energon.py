"""Megatron-Energon on tar shards."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import SEED, Setting, resume_job
from megatron import energon
from megatron.energon.epathlib import EPath
from megatron.energon.flavors import BaseWebdatasetFactory
from with_webdataset import write as write_tar
from with_webdataset import write_tokens
from workloads import BATCH, memory_job, pack, resume_jobs, timed_job

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
    found = write_tar(folder)
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
    make,
    save=lambda loader: loader.save_state_rank(),
    load=lambda loader, state: loader.restore_state_rank(state),
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
memory = memory_job(loader_of)
save_state, resume_from_state = resume_jobs(
    loader_of,
    save=lambda loader: loader.save_state_rank(),
    load=lambda loader, state: loader.restore_state_rank(state),
)
