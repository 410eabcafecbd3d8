"""`loaderkit locate` says which samples were in a step, and where they are."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import loaderkit

import loaderkit as lk

SIZE, BATCH, RANKS = 24, 3, 2


def read(shard: str, start: int) -> Iterator[int]:
    return iter(range(start, 30))


def make_loader() -> lk.Loader:
    return lk.Loader(list(range(100, 124)), plan=lk.LengthBuckets([1 + row % 5 for row in range(SIZE)], 4, window=12))


def make_stream() -> lk.StreamDataset:
    return lk.StreamDataset(["a", "b"], read, lanes=2)


def make_stream_loader() -> lk.Loader:
    return lk.Loader(make_stream(), 5)


def make_module() -> lk.DataModule:
    return lk.DataModule(train=list(range(SIZE)), loader=lk.LoaderConfig(batch_size=BATCH, seed=2))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two ranks read a folder of lines in two epochs; each step is logged, and the state is saved in the second epoch."""
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    for part in range(3):
        Path(f"texts/{part}.jsonl").write_text(
            "".join(json.dumps({"text": f"{part}/{row}"}) + "\n" for row in range(8))
        )
    ranks = [
        lk.Loader(lk.JsonlDataset("texts"), BATCH, shuffle=True, seed=4, world=lk.World(rank, RANKS))
        for rank in range(RANKS)
    ]
    log, seen, step = lk.StepLog("steps.log"), [], 0
    for _ in range(2):
        for batches in zip(*ranks, strict=True):
            log.record(ranks[0], step)
            seen.append([batch["text"] for batch in batches])
            if step == 5:
                state = ranks[0].state_dict()
                Path("state.json").write_text(json.dumps(state))
                torch.save({"model": torch.zeros(2), "data": state}, "last.ckpt")
            step += 1
    assert step == 8
    Path("seen.json").write_text(json.dumps(seen))
    return tmp_path


def rows(text: str) -> list[tuple[int, int, str]]:
    """Each sample's rank, number in the dataset and place."""
    found = re.findall(r"^ *(\d+) +\d+ +(\d+) *(.*)$", text, re.MULTILINE)
    return [(int(rank), int(index), place) for rank, index, place in found]


def names(text: str) -> list[list[str]]:
    """The samples' names by rank, from their places."""
    found: list[list[str]] = [[] for _ in range(RANKS)]
    for rank, _, place in rows(text):
        part, row = re.findall(r"texts/(\d)\.jsonl, sample (\d+), byte \d+", place)[0]
        found[rank].append(f"{part}/{row}")
    return found


@pytest.mark.parametrize("step", range(8))
def test_a_log_knows_each_step(folder: Path, step: int) -> None:
    done = loaderkit("locate", "steps.log", "texts", "--step", step)
    assert done.returncode == 0, done.stderr
    assert names(done.stdout) == json.loads(Path("seen.json").read_text())[step]
    epoch, batch = divmod(step, 4)
    assert done.stdout.startswith(
        f"step {step} of steps.log: epoch {epoch}, batch {batch} of each rank, after {6 * batch} samples of all ranks; 2 ranks "
        "with batches of 3\n"
    )


@pytest.mark.parametrize("file", ["state.json", "last.ckpt"])
@pytest.mark.parametrize("step", [None, 0, 3])
def test_a_checkpoint_knows_the_steps_of_its_epoch(folder: Path, step: int | None, file: str) -> None:
    """By default the next one."""
    done = loaderkit("locate", file, "texts", "--ranks", 2, *([] if step is None else ["--step", step]))
    assert done.returncode == 0, done.stderr
    assert names(done.stdout) == json.loads(Path("seen.json").read_text())[4 + (2 if step is None else step)]
    assert ("right if ranks and batch size are the same" in done.stdout) == (step == 0)
    whole = loaderkit("locate", file, "texts", *([] if step is None else ["--step", step]))
    assert "give --ranks to see each rank's part" in whole.stdout
    assert sorted(index for _, index, _ in rows(whole.stdout)) == sorted(index for _, index, _ in rows(done.stdout))


def test_one_rank_with_its_samples(folder: Path) -> None:
    done = loaderkit("locate", "steps.log", "texts", "--step", 6, "--rank", 1, "--show", 2)
    wanted = json.loads(Path("seen.json").read_text())[6][1]
    assert names(done.stdout) == [[], wanted]
    assert [text for text in wanted if f"'{text}'" in done.stdout] == wanted[:2]


def test_a_loader_of_your_own_and_a_datamodule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loader, log = make_loader(), lk.StepLog("steps.log")
    batches = []
    for step, batch in enumerate(loader):
        log.record(loader, step)
        batches.append(batch.tolist())
        if step == 1:
            Path("state.json").write_text(json.dumps(loader.state_dict()))
    for command in (("steps.log", "--step", 2), ("state.json",)):
        done = loaderkit("locate", command[0], f"{__name__}:make_loader", *command[1:])
        assert [100 + index for _, index, _ in rows(done.stdout)] == batches[2], done.stderr
    module = make_module()
    module.setup("fit")
    iterator = iter(module.train_dataloader())
    next(iterator)
    Path("module.json").write_text(json.dumps(module.state_dict()))
    done = loaderkit("locate", "module.json", f"{__name__}:make_module")
    assert [index for _, index, _ in rows(done.stdout)] == next(iterator).tolist(), done.stderr


def test_a_streams_checkpoint_and_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loader, log = make_stream_loader(), lk.StepLog("steps.log")
    for step, _ in zip(range(3), loader, strict=False):
        log.record(loader, step)
    Path("state.json").write_text(json.dumps(loader.state_dict()))
    done = loaderkit("locate", "state.json", f"{__name__}:make_stream_loader", "--step", 5)
    assert "b: samples 10 to 14; if it has fewer, the lane ends" in done.stdout, done.stderr
    assert "Nobody knows without reading how many samples a shard has" in done.stdout
    same = loaderkit("locate", "state.json", f"{__name__}:make_stream", "--step", 5, "--batch-size", 5)
    assert same.stdout == done.stdout
    failed = loaderkit("locate", "steps.log", f"{__name__}:make_stream", "--step", 2)
    assert failed.returncode == 1
    assert "step 2 was batch 2 of epoch 0, on each rank. Where the lanes were is in a checkpoint" in failed.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("steps.log", "texts"), r"which step\? It has steps from 0 to 7: --step N"),
        (("steps.log", "texts", "--step", "9"), "no step 9 in steps.log, which has steps from 0 to 7"),
        (("steps.log", "texts", "--step", "1", "--rank", "2"), "rank 2, wanted one of the 2 ranks"),
        (
            ("steps.log", "texts/0.jsonl", "--step", "1"),
            r"the state is for dataset '24 samples .*this loader has '8 samples",
        ),
        (("state.json", "texts", "--step", "4"), "batch 2 asked for, wanted one of the 2 left in epoch 1"),
        (("state.json", "texts", "--ranks", "4"), "a step of all ranks has 6 samples, which 4 ranks cannot share"),
        (("other.json", "texts"), r"the run has the order 'subset-3.*returns the run's Loader as SOURCE"),
        (("stream.json", "texts"), "SOURCE gives a JsonlDataset, wanted an lk.StreamDataset"),
        (("stream.json", f"{__name__}:make_stream"), "does not say the batch size. Give --batch-size"),
        (("seen.json", "texts"), "it has 0 states of training data"),
        (("missing", "texts"), "missing"),
    ],
)
def test_what_is_wrong_is_said(folder: Path, command: tuple[str, ...], message: str) -> None:
    other = lk.Loader(lk.JsonlDataset("texts"), 2, order=lk.Subset([1, 2, 3, 4]), seed=4)
    Path("other.json").write_text(json.dumps(other.state_dict()))
    Path("stream.json").write_text(json.dumps(make_stream_loader().state_dict()))
    done: Any = loaderkit("locate", *command)
    assert done.returncode == 1
    assert re.search(message, done.stderr, re.DOTALL), done.stderr
    assert "Traceback" not in done.stderr
