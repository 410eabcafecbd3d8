"""ShardDataModule: shards of each format, indexed once a node; exact resumes; from a YAML file."""

import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import datamodule_runs as runs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from drawing import draws
from lightning.pytorch.cli import LightningCLI

import loaderkit as lk
from loaderkit.datasets.shards.index import INDEX_SUFFIX

ROWS, SHARDS = 60, 4


def write_shard(path: Path, kind: str, ids: range) -> None:
    if kind == "parquet":
        pq.write_table(pa.table({"id": list(ids)}), path)
    elif kind == "csv":
        path.write_text("id\n" + "".join(f"{i}\n" for i in ids))
    elif kind == "npy":
        np.save(path, np.array(ids)[:, None])
    elif kind == "tokens":
        np.array(ids, dtype=np.uint16).tofile(path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"id": i}) + "\n" for i in ids))
    else:
        with tarfile.open(path, "w") as tar:
            for i in ids:
                file = path.with_name("content")
                file.write_text(str(i))
                tar.add(file, f"{i:04}.cls")
                file.unlink()


SUFFIXES = {"parquet": ".parquet", "csv": ".csv", "npy": ".npy", "tokens": ".bin", "jsonl": ".jsonl", "tar": ".tar"}
OPTIONS: dict[str, dict[str, Any]] = {"tokens": {"length": 1, "dtype": "uint16"}}


def write(folder: Path, kind: str, name: str = "train", rows: int = ROWS, shards: int = SHARDS) -> str:
    for number in range(shards):
        ids = range(number * rows // shards, (number + 1) * rows // shards)
        write_shard(folder / f"{name}-{number}{SUFFIXES[kind]}", kind, ids)
    return str(folder / f"{name}-*{SUFFIXES[kind]}")


def number_of(sample: Any) -> int:
    if isinstance(sample, dict):
        return int(sample.get("id", sample.get("cls")))
    return int(sample[0])


def with_noise(sample: Any) -> dict[str, Any]:
    """An augmentation from each generator."""
    return {"id": number_of(sample), "noise": draws()}


def numbers(batch: Any) -> torch.Tensor:
    return torch.cat([batch["id"][:, None].float(), batch["noise"].float()], dim=1)


def model() -> runs.Recorder:
    return runs.Recorder(numbers, 8)


@pytest.mark.parametrize("kind", SUFFIXES)
def test_each_format_is_read_by_its_suffix_or_name(kind: str, tmp_path: Path) -> None:
    urls = write(tmp_path, kind)
    given = kind if kind in ("npy", "tokens") else None
    data = lk.ShardDataModule(
        urls,
        val=urls,
        format=given,
        options=OPTIONS.get(kind),
        train_transform=with_noise,
        eval_transform=number_of,
        loader=lk.LoaderConfig(batch_size=7),
    )
    data.prepare_data()
    has_index = kind not in ("npy", "tokens")
    assert len(list(tmp_path.glob(f"*{INDEX_SUFFIX}"))) == SHARDS * has_index
    data.setup("fit")
    assert sorted(i for batch in data.train_dataloader() for i in batch["id"].tolist()) == list(range(ROWS))
    assert [i for batch in data.val_dataloader() for i in batch.tolist()] == list(range(ROWS))


@pytest.mark.parametrize("kind", ["tar", "tokens"])
def test_resume_equals_the_uninterrupted_run(kind: str, tmp_path: Path) -> None:
    urls = write(tmp_path, kind)

    def data(workers: int) -> lk.ShardDataModule:
        config = lk.LoaderConfig(batch_size=8, num_workers=workers, seed=2)
        return lk.ShardDataModule(
            urls, format=kind, options=OPTIONS.get(kind), train_transform=with_noise, loader=config
        )

    checkpoint = runs.check_resumes(data, model, tmp_path, stops=[3, 8, 11])
    assert len(str(torch.load(checkpoint, weights_only=True)["ShardDataModule"])) < 1024


def test_a_stage_opens_only_its_own_data(tmp_path: Path) -> None:
    """Predicting does not need the training data."""
    data = lk.ShardDataModule(str(tmp_path / "gone.csv"), predict=write(tmp_path, "csv"))
    data.setup("predict")
    assert len(data.predict_dataloader().dataset) == ROWS
    with pytest.raises(FileNotFoundError, match=r"no shards at '.*gone.csv'"):
        data.setup("fit")


def test_changed_shards_are_said_once(tmp_path: Path) -> None:
    data = lk.ShardDataModule(write(tmp_path, "jsonl"))
    data.prepare_data()
    write(tmp_path, "jsonl", rows=2 * ROWS)
    with pytest.warns(UserWarning, match=r"4 of 4 shards had changed since they were indexed") as caught:
        data.prepare_data()
    assert len(caught) == 1
    data.setup("fit")
    assert len(data.train_dataloader().dataset) == 2 * ROWS


def test_index_files_lie_where_they_are_wanted(tmp_path: Path) -> None:
    urls = write(tmp_path, "csv")
    lk.ShardDataModule(urls, index_dir=tmp_path / "indexes").prepare_data()
    assert not list(tmp_path.glob(f"*{INDEX_SUFFIX}"))
    assert len(list((tmp_path / "indexes").iterdir())) == SHARDS


def test_what_is_not_clear_is_named(tmp_path: Path) -> None:
    tokens = write(tmp_path, "npy")
    with pytest.raises(ValueError, match=r"may be npy or token. Say which: format="):
        lk.ShardDataModule(tokens).prepare_data()
    write(tmp_path, "csv")
    with pytest.raises(ValueError, match=r"8 shards may be csv or npy or token. Say which: format="):
        lk.ShardDataModule(tmp_path).prepare_data()
    with pytest.raises(ValueError, match="format 'tsv' is not known"):
        lk.ShardDataModule(tokens, format="tsv").prepare_data()
    with pytest.raises(ValueError, match="needs test data, and there is none"):
        lk.ShardDataModule(tokens).test_dataloader()


def test_it_pickles(tmp_path: Path) -> None:
    data = lk.ShardDataModule(write(tmp_path, "csv"), train_transform=with_noise)
    data.setup("fit")
    assert len(pickle.loads(pickle.dumps(data)).train_dataloader().dataset) == ROWS


class Net(runs.Recorder):
    def __init__(self) -> None:
        super().__init__(numbers, 8)


CONFIG = """
trainer: {max_epochs: 1, accelerator: cpu, logger: false, enable_checkpointing: false, enable_progress_bar: false,
          enable_model_summary: false}
data:
  class_path: loaderkit.ShardDataModule
  init_args:
    train: {urls}
    val: [{urls}]
    format: tokens
    options: {{length: 1, dtype: uint16}}
    train_transform: test_shard_datamodule.with_noise
    eval_transform: test_shard_datamodule.with_noise
    loader: {{batch_size: 10}}
""".replace("trainer: {", "trainer: {{").replace("false}\n", "false}}\n")


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_a_yaml_file_describes_it(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(urls=write(tmp_path, "tokens")))
    cli = LightningCLI(
        Net, lk.DataModule, subclass_mode_data=True, save_config_callback=None, args=["fit", "--config", str(config)]
    )
    assert len(cli.model.seen) == ROWS / 10
    assert isinstance(cli.datamodule, lk.ShardDataModule)


TABLE = """
data:
  class_path: loaderkit.TableDataModule
  init_args:
    train: {path}
    columns: {{target: y, categorical: [c], missing: mean}}
    loader: {{batch_size: 2}}
"""
IMAGES = """
data:
  class_path: loaderkit.ImageDataModule
  init_args:
    root: {path}
    size: [8, 8]
    mean: [0.5, 0.5, 0.5]
    train_transform: {{class_path: torchvision.transforms.v2.RandomHorizontalFlip}}
    loader: {{batch_size: 2}}
"""
TEXTS = """
data:
  class_path: loaderkit.TextDataModule
  init_args:
    train: {path}
    text: c
    label: y
    batching: {{how: budget, max_tokens: 100}}
    splits: {{train: 0.9, val: 0.1}}
    loader: {{batch_size: 2}}
"""
BOXES = """
data:
  class_path: loaderkit.DetectionDataModule
  init_args:
    train: {path}/boxes.json
    classes: [cat]
    images: stack
    train_transform: {{class_path: torchvision.transforms.v2.RandomHorizontalFlip}}
    loader: {{batch_size: 2}}
"""
KINDS = [(TABLE, "TableDataModule", 2), (IMAGES, "ImageDataModule", 1), (TEXTS, "TextDataModule", 2)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("text", "kind", "classes"), [*KINDS, (BOXES, "DetectionDataModule", 2)])
def test_a_yaml_file_describes_the_others(text: str, kind: str, classes: int, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("x,c,y\n1,a,0\n2,b,1\n")
    (tmp_path / "cat").mkdir()
    path = tmp_path / "table.csv" if kind in ("TableDataModule", "TextDataModule") else tmp_path
    config = tmp_path / "config.yaml"
    config.write_text(text.format(path=path))
    cli = LightningCLI(
        Net,
        lk.DataModule,
        subclass_mode_data=True,
        save_config_callback=None,
        run=False,
        args=["--config", str(config), "--trainer.logger=false", "--trainer.accelerator=cpu"],
    )
    assert type(cli.datamodule).__name__ == kind
    assert cli.datamodule.loader_config.batch_size == 2
    assert cli.datamodule.num_classes == classes
