"""ShardDataModule: shards of each format, indexed once a node; exact resumes; from a YAML file."""

import json
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
from loaderkit.datasets.shards.index import index_path
from loaderkit.files.urls import INDEX_SUFFIX

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
    shards = list(tmp_path.iterdir())
    assert len(shards) == SHARDS  # and nothing else
    assert sum(index_path(str(shard), None).exists() for shard in shards) == SHARDS * has_index
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


class Net(runs.Recorder):
    def __init__(self) -> None:
        super().__init__(numbers, 8)


def command_line(folder: Path, kind: str, settings: str, *command: str, **more: Any) -> LightningCLI:
    """Give a DataModule in a YAML file to Lightning's command line."""
    config = folder / "config.yaml"
    config.write_text(f"data: {{class_path: loaderkit.{kind}, init_args: {{{settings}, loader: {{batch_size: 2}}}}}}")
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    args = [*command, f"--config={config}", "--trainer.accelerator=cpu", "--trainer.max_epochs=1"]
    args += [f"--trainer.{name}=false" for name in off]
    return LightningCLI(Net, lk.DataModule, subclass_mode_data=True, save_config_callback=None, args=args, **more)


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_a_yaml_file_describes_it(tmp_path: Path) -> None:
    path, transform = write(tmp_path, "tokens"), "test_shard_datamodule.with_noise"
    settings = f"train: {path}, val: [{path}], format: tokens, options: {{length: 1, dtype: uint16}}"
    settings += f", train_transform: {transform}, eval_transform: {transform}"
    cli = command_line(tmp_path, "ShardDataModule", settings, "fit")
    assert len(cli.model.seen) == ROWS / 2
    assert isinstance(cli.datamodule, lk.ShardDataModule)


FLIP = "{class_path: torchvision.transforms.v2.RandomHorizontalFlip}"
TEXTS = "train: table.csv, text: c, label: y, batching: {how: budget, max_tokens: 100}, splits: {train: 0.9, val: 0.1}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "classes", "settings"),
    [
        ("TableDataModule", 2, "train: table.csv, columns: {target: y, categorical: [c], missing: mean}"),
        ("ImageDataModule", 1, f"root: ., size: [8, 8], mean: [0.5, 0.5, 0.5], train_transform: {FLIP}"),
        ("TextDataModule", 2, TEXTS),
        ("DetectionDataModule", 2, f"train: boxes.json, classes: [cat], images: stack, train_transform: {FLIP}"),
    ],
)
def test_a_yaml_file_describes_the_others(
    kind: str, classes: int, settings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "table.csv").write_text("x,c,y\n1,a,0\n2,b,1\n")
    (tmp_path / "cat").mkdir()
    monkeypatch.chdir(tmp_path)
    data = command_line(tmp_path, kind, settings, run=False).datamodule
    assert (type(data).__name__, data.loader_config.batch_size, data.num_classes) == (kind, 2, classes)
