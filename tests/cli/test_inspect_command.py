"""`loaderkit inspect` says in words where a saved run stands, and what is wrong with a damaged file."""

import json
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringModel

import loaderkit as lk
from loaderkit.cli.command import main

BATCHES = 3

# zipfile of Python 3.14.8 finds no end in it.
ZEROS = "damaged, its end is missing" if sys.version_info >= (3, 14) else "damaged, or no file of torch.save"


class Thing:
    """No tensor, and no plain value."""


def saved(dataset: Any = None) -> dict[str, Any]:
    loader = lk.Loader(range(100) if dataset is None else dataset, batch_size=8, seed=7)
    batches = iter(loader)
    for _ in range(BATCHES):
        next(batches)
    return loader.state_dict()


def stream_of(world: lk.World) -> dict[str, Any]:
    stream = lk.StreamDataset(["a", "b"], lambda shard, start: range(start, 60), lanes=2)
    loader = lk.Loader(stream, batch_size=2, world=world, steps=4)
    next(iter(loader))
    return loader.state_dict()


def inspect(path: Path, *options: str) -> int:
    return main(["inspect", str(path), *options])


@pytest.mark.parametrize("kind", ["json", "torch"])
def test_a_loaders_state(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, content = tmp_path / "run", {"model": [1, 2], "data": {"train": saved()}}
    if kind == "json":
        path.write_text(json.dumps(content))
    else:
        torch.save(content | {"weights": torch.zeros(3)}, path)
    assert inspect(path) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{path}: a saved state\n\ndata.train\n")
    assert "epoch 0, after 3 batches of each rank: 24 samples of the epoch are done, over all ranks" in text
    assert "data: 100 samples" in text
    assert "seed: 7" in text


@pytest.mark.parametrize(("ranks", "words"), [(1, "after 1 batch of each rank"), (2, "rank 1 did not answer")])
def test_a_streams_state(ranks: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps(stream_of(lk.World(0, ranks))))
    assert inspect(path) == 0
    assert words in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # of Lightning
@pytest.mark.parametrize("own", [True, False])
def test_a_checkpoint_of_lightning(own: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a DataModule its state counts; without one, the Loader's in the Trainer's loops."""
    data = torch.utils.data.TensorDataset(torch.zeros(64, 32))
    loader = lk.Loader(data, batch_size=4, collate_fn=lambda rows: torch.stack([row[0] for row in rows]))
    module = lk.DataModule(data, loader=lk.LoaderConfig(batch_size=4, collate_fn=loader.config.collate_fn))
    trainer = pl.Trainer(
        max_steps=5,
        limit_val_batches=0,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    if own:
        trainer.fit(BoringModel(), datamodule=module)
    else:
        trainer.fit(BoringModel(), loader)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    assert inspect(tmp_path / "last.ckpt") == 0
    text = capsys.readouterr().out
    assert f"a checkpoint of Lightning {pl.__version__}, after 5 optimizer steps\n" in text
    assert ("5 batches of the epoch are trained on" in text) == own
    assert text.count("epoch 0, after 5 batches of each rank: 20 samples of the epoch are done") == 1


def test_an_edited_state_does_not_hide_a_whole_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edited = saved()
    edited["cursor"]["samples"] += 8
    lacking = {name: value for name, value in saved().items() if name != "step"}
    path = tmp_path / "state.json"
    path.write_text(
        json.dumps({"whole": saved(), "edited": edited, "lacking": lacking, "old": saved() | {"version": 1}})
    )
    assert inspect(path) == 1
    found = capsys.readouterr()
    assert found.out.count("24 samples of the epoch are done") == 1
    assert found.err.count("damaged or not readable: cannot resume: ") == 3
    for words in ("its fields give", "wanted ['step'] too", "has version 1"):
        assert words in found.err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty", "the file is empty"),
        ("half.json", "damaged, not whole JSON"),
        ("half.pt", "damaged, its end is missing"),
        ("text", "damaged, or no file of torch.save"),
        ("zeros.pt", ZEROS),
        ("objects.pt", "give --trust: loading them runs code that the file contains"),
        ("none.pt", "no state of a Loader or a DataModule in it; it has the keys 'model'"),
        ("nowhere", "there is no such file"),
        ("folder", "a folder without meta.pt or trainer_state.json"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(
    name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "whole.pt"
    torch.save({"data": saved()}, whole)
    content = whole.read_bytes()
    contents = {
        "empty": b"",
        "half.json": json.dumps(saved()).encode()[:100],
        "half.pt": content[: len(content) // 2],
        "text": b"hello",
        "zeros.pt": content[:100] + bytes(len(content) - 200) + content[-100:],
    }
    path = tmp_path / name
    if name in contents:
        path.write_bytes(contents[name])
    elif name == "folder":
        path.mkdir()
    elif name != "nowhere":
        torch.save({"model": Thing() if name == "objects.pt" else 1}, path)
    assert inspect(path) == 1
    found = capsys.readouterr()
    assert not found.out
    assert found.err.startswith("loaderkit inspect: ")
    assert str(path) in found.err
    assert message in found.err


def test_with_trust_python_objects_are_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "objects.pt"
    torch.save({"model": Thing(), "data": saved()}, path)
    assert inspect(path) == 1
    assert inspect(path, "--trust") == 0
    assert "24 samples of the epoch are done" in capsys.readouterr().out


PLANS = {
    "up to 1,500 tokens, padding included": lk.TokenBudget([100] * 40, 1500),
    "2 rows of packed samples": lk.PackPlan([100] * 40, 150, batch_size=2),
    "5 samples": lk.LengthBuckets([100] * 40, 5),
}


@pytest.mark.parametrize("words", PLANS)
def test_a_step_is_told_in_the_plans_own_unit(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = lk.Loader(range(40), plan=PLANS[words], collate_fn=len)
    next(iter(loader))
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    assert inspect(tmp_path / "state.json") == 0
    assert f"a step of all ranks took {words}\n" in capsys.readouterr().out


def test_a_folder_of_the_hugging_face_trainer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its checkpoint is a folder, and the loader's state is in trainer_state.json."""
    state = {"global_step": 3, "stateful_callbacks": {"loaderkit": {"samples": 8, "loader": saved()}}}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    assert inspect(tmp_path) == 0
    assert "epoch 0, after 3 batches of each rank" in capsys.readouterr().out
    (tmp_path / "trainer_state.json").unlink()
    assert inspect(tmp_path) == 1
    assert "a folder without meta.pt or trainer_state.json" in capsys.readouterr().err
