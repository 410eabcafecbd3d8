"""Several sets for evaluation by name, of each ready-made DataModule: each sample once a validation, exact resumes."""

import json
import pickle
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import lightning_job as launcher
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_runs import quiet_trainer
from PIL import Image

import loaderkit as lk

TRAIN, NEAR, FAR = range(12), range(100, 105), range(200, 203)
SETS = {"near": NEAR, "far": FAR}
KINDS = ("shards", "pictures", "table", "text", "boxes")


def write(kind: str, folder: Path, name: str, ids: range) -> Any:
    """Write or make a set whose samples can be told by their ids."""
    if kind == "shards":
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"id": i}) + "\n" for i in ids))
        return str(path)
    if kind == "pictures":
        (folder / name / "one").mkdir(parents=True)
        for i in ids:
            Image.fromarray(np.full((1, 1, 3), i, dtype=np.uint8)).save(folder / name / "one" / f"{i}.png")
        return str(folder / name)
    if kind == "table":
        return {"x": [0.5 * i for i in ids], "id": list(ids)}
    if kind == "text":
        return {"text": [f"text {i}" for i in ids], "id": list(ids)}
    picture = torch.zeros(3, 2, 2, dtype=torch.uint8)
    return [{"image": picture, "boxes": [[0, 0, 1, 1]], "labels": ["one"], "image_id": i} for i in ids]


def make(kind: str, folder: Path, **stages: Any) -> lk.DataModule:
    stages = {"loader": lk.LoaderConfig(batch_size=2, seed=3), **stages}
    if kind == "shards":
        return lk.ShardDataModule(**stages)
    if kind == "pictures":
        return lk.ImageDataModule(**stages)
    if kind == "table":
        return lk.TableDataModule(**stages, columns=lk.TableColumns(target="id", task="regression"))
    if kind == "text":
        return lk.TextDataModule(**stages, label="id", classes=range(300), batching=lk.TextBatching(how="random"))
    return lk.DetectionDataModule(**stages, classes=["one"])


def ids_of(kind: str, batch: Any) -> list[int]:
    if kind == "shards":
        found = batch["id"]
    elif kind == "pictures":
        found = batch[0][:, 0, 0, 0].mul(255).round()
    elif kind == "boxes":
        found = torch.tensor([int(target["image_id"]) for target in batch[1]])
    else:
        found = batch["target" if kind == "table" else "label"]
    return [int(i) for i in found]


class Model(pl.LightningModule):
    """Notes what it is given: in training, and in each set of each evaluation."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.net = torch.nn.Linear(1, 1)
        self.trained: list[list[int]] = []
        self.evaluations: list[dict[int, list[int]]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        ids = ids_of(self.kind, batch)
        self.trained.append(ids)
        return self.net(torch.tensor([[float(i)] for i in ids])).square().mean() / 1000

    def evaluate(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.evaluations[-1][dataloader_idx] += ids_of(self.kind, batch)

    def begin(self) -> None:
        self.evaluations.append(defaultdict(list))

    validation_step = test_step = predict_step = evaluate
    on_validation_epoch_start = on_test_epoch_start = on_predict_epoch_start = begin

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def trainer(folder: Path, *callbacks: pl.Callback, **settings: Any) -> pl.Trainer:
    settings |= {"callbacks": list(callbacks), "enable_checkpointing": bool(callbacks)}
    return quiet_trainer(folder, max_epochs=2, num_sanity_val_steps=0, **settings)


def sorted_sets(evaluations: list[dict[int, list[int]]]) -> list[dict[int, list[int]]]:
    return [{number: sorted(ids) for number, ids in found.items()} for found in evaluations]


WANTED = {0: list(NEAR), 1: list(FAR)}


@pytest.mark.filterwarnings("ignore")  # Lightning's own
@pytest.mark.parametrize("kind", KINDS)
def test_each_set_is_read_once_a_validation_and_a_resume_stays_exact(kind: str, tmp_path: Path) -> None:
    sets = {name: write(kind, tmp_path, name, ids) for name, ids in SETS.items()}
    train = write(kind, tmp_path, "train", TRAIN)

    def fit(ckpt: Path | None = None) -> Model:
        model = Model(kind)
        saving = ModelCheckpoint(tmp_path / "saved", "{step}", every_n_train_steps=1, save_top_k=-1)
        data = make(kind, tmp_path, train=train, val=sets)
        trainer(tmp_path, *([] if ckpt else [saving]), val_check_interval=3).fit(model, datamodule=data, ckpt_path=ckpt)
        return model

    whole = fit()
    assert sorted_sets(whole.evaluations) == [WANTED] * 4  # in the middle and at the end of each epoch
    assert whole.evaluations[1:] == whole.evaluations[:-1]
    for epoch in range(2):
        assert sorted(i for batch in whole.trained[6 * epoch :][:6] for i in batch) == list(TRAIN)
    for stop, validations in ((2, 4), (4, 3), (6, 2), (11, 1)):
        resumed = fit(tmp_path / "saved" / f"step={stop}.ckpt")
        assert resumed.trained == whole.trained[stop:]
        assert len(resumed.evaluations) in (validations, validations + 1)  # Lightning validates again at the stop
        assert sorted_sets(resumed.evaluations) == [WANTED] * len(resumed.evaluations)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_each_set_is_read_once_in_test_and_prediction(kind: str, tmp_path: Path) -> None:
    """Without a fit, and one set by name is one of several too."""
    sets = {name: write(kind, tmp_path, name, ids) for name, ids in SETS.items()}
    stages: dict[str, Any] = {"test": {"only": sets["far"]}, "predict": sets}
    if kind == "table":
        stages["train"] = write(kind, tmp_path, "train", TRAIN)  # its statistics
    model, data = Model(kind), make(kind, tmp_path, **stages)
    trainer(tmp_path).test(model, datamodule=data, verbose=False)
    if kind not in ("table", "text"):  # those read no labels to predict
        trainer(tmp_path).predict(model, datamodule=data, return_predictions=False)
        assert sorted_sets(model.evaluations[1:]) == [WANTED]
    else:
        assert [len(loader.dataset) for loader in data.predict_dataloader().values()] == [5, 3]
    assert sorted_sets(model.evaluations[:1]) == [{0: list(FAR)}]


class Written(Model):
    def on_validation_end(self) -> None:
        path = Path(str(self.trainer.default_root_dir), f"{self.global_rank}.json")
        path.write_text(json.dumps(self.evaluations))


def validate(job: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder = Path(job["dir"])
    sets = {name: write("table", folder, name, ids) for name, ids in SETS.items()}
    data = make("table", folder, val=sets, train=write("table", folder, "train", TRAIN))
    ranks = trainer(folder, devices=2, strategy="ddp_fork")
    ranks.validate(Written("table"), datamodule=data, verbose=False)


def check_shared(parts: list[dict[str, list[int]]]) -> None:
    for number, ids in enumerate(SETS.values()):
        found = [part[str(number)] for part in parts]
        assert all(found)
        assert sorted(found[0] + found[1]) == list(ids)


def test_two_ranks_share_each_set(tmp_path: Path) -> None:
    job = {"dir": str(tmp_path), "name": "ranks"}
    assert launcher.launch(job, validate) == 0, launcher.log_of(job)
    parts = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [len(part) for part in parts] == [1, 1]
    check_shared([part[0] for part in parts])


@pytest.mark.parametrize("kind", ["shards", "pictures", "text", "boxes"])
def test_two_worlds_share_each_set(kind: str, tmp_path: Path) -> None:
    sets = {name: write(kind, tmp_path, name, ids) for name, ids in SETS.items()}
    parts = []
    for rank in range(2):
        data = make(kind, tmp_path, val=sets, eval_loader=lk.LoaderConfig(batch_size=2, world=lk.World(rank, 2)))
        loaders = enumerate(data.val_dataloader().values())
        model = data.on_after_batch_transfer if kind == "pictures" else lambda batch, _: batch
        parts.append({str(n): [i for batch in one for i in ids_of(kind, model(batch, n))] for n, one in loaders})
    check_shared(parts)


@pytest.mark.parametrize("kind", KINDS)
def test_several_training_sets_are_refused_where_a_batch_is_of_one(kind: str, tmp_path: Path) -> None:
    sets = {name: write(kind, tmp_path, name, ids) for name, ids in SETS.items()}
    if kind == "shards":
        loaders = make(kind, tmp_path, train=sets).train_dataloader()
        found = {name: sorted(i for batch in loader for i in batch["id"].tolist()) for name, loader in loaders.items()}
        assert found == {name: list(ids) for name, ids in SETS.items()}
        return
    with pytest.raises(ValueError, match=r"train has 2 datasets by name \(\['far', 'near'\]\), wanted one"):
        make(kind, tmp_path, train=sets)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pickled_datamodule_has_the_same_batches(kind: str, tmp_path: Path) -> None:
    data = make(kind, tmp_path, train=write(kind, tmp_path, "train", TRAIN))
    data.setup("fit")
    copy = pickle.loads(pickle.dumps(data))
    batches, copied = ([ids_of(kind, batch) for batch in one.train_dataloader()] for one in (data, copy))
    assert copied == batches
    assert len(batches) > 3


@pytest.mark.parametrize("kind", ["shards", "pictures", "boxes"])
def test_no_set_at_all_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="val has 0 datasets by name"):
        make(kind, tmp_path, val={})


def test_columns_are_told_from_sets() -> None:
    """A dict of columns is one table; a dict of tables is several."""
    table = {"x": [1.0, 2.0], "c": ["a", "b"]}
    data = lk.TableDataModule(table, val={"same": table, "more": table})
    assert list(data.val_dataloader()) == ["same", "more"]
    one = lk.TableDataModule(table, val={name: np.array(column) for name, column in table.items()})
    assert len(one.val_dataloader()) == 2
    rows = [{"text": "a"}, {"text": "b"}]
    texts = lk.TextDataModule(rows, val={"rows": rows, "columns": {"text": ["a"]}})
    assert {name: len(loader.dataset) for name, loader in texts.val_dataloader().items()} == {"rows": 2, "columns": 1}
    assert len(lk.TextDataModule(rows, val={"text": ["a", "b", "c"]}).val_dataloader()) == 3


def test_messages_name_the_set() -> None:
    data = lk.TableDataModule({"x": [1.0]}, val={"near": {"x": [1.0]}, "far": {"y": [1.0]}})
    with pytest.raises(ValueError, match="val 'far'"):
        data.val_dataloader()
