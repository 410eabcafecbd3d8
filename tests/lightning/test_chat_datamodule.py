"""ChatDataModule: each conversation once however they are batched, splits that do not leak, and runs that resume."""

import json
import logging
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import datamodule_runs as runs
import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from chats_made import AROUND, CHATML, chat_of, make_tokenizer, records, untagged, vision_tokenizer
from lightning_runs import quiet_trainer
from multimodal_made import SIZES, chats, pairs, write_pictures
from PIL import Image

import loaderkit as lk
from loaderkit import ChatDataModule, LoaderConfig, TextBatching

TOKENIZER = make_tokenizer()
SIZE = 20
ROWS = records(SIZE)
LENGTHS = [len(sample["input_ids"]) for sample in lk.ChatDataset(ROWS, TOKENIZER)]
PAIRS = [
    {"prompt": chat_of(n)[:-1], "chosen": chat_of(n)[-1:], "rejected": [{"role": "assistant", "content": f"No {n}."}]}
    for n in range(SIZE)
]


def make(rows: Any = ROWS, **settings: Any) -> ChatDataModule:
    given = {"tokenizer": TOKENIZER, "splits": {"train": 1}, "loader": LoaderConfig(batch_size=3), **settings}
    return ChatDataModule(rows, **{name: value for name, value in given.items() if value is not None})


def ids_in(batches: Any) -> Counter[tuple[int, ...]]:
    """Count the conversations of padded or packed batches by their ids."""
    found: Counter[tuple[int, ...]] = Counter()
    for batch in batches:
        if "attention_mask" in batch:
            rows = zip(batch["input_ids"], batch["attention_mask"].sum(1).tolist(), strict=True)
            found.update(tuple(row[:size].tolist()) for row, size in rows)
        else:
            found.update(tuple(row.tolist()) for row in lk.unpack(batch, "input_ids"))
    return found


def wanted(rows: Any = ROWS, **settings: Any) -> Counter[tuple[int, ...]]:
    return Counter(tuple(sample["input_ids"].tolist()) for sample in lk.ChatDataset(rows, TOKENIZER, **settings))


BATCHINGS: dict[str, dict[str, Any]] = {
    "random": {},
    "buckets": {},
    "budget": {"max_tokens": 1200},
    "packed": {"max_length": 512},
}


@pytest.mark.parametrize("how", BATCHINGS)
@pytest.mark.parametrize("workers", [0, 2])
def test_each_conversation_comes_once_however_they_are_batched(how: Any, workers: int) -> None:
    batching = TextBatching(how=how, **BATCHINGS[how])
    loaders = {"loader": LoaderConfig(batch_size=3, num_workers=workers), "eval_loader": LoaderConfig(batch_size=3)}
    data = make(val=ROWS[5:9], splits=None, batching=batching, **loaders)
    batches = list(data.train_dataloader())
    assert ids_in(batches) == wanted()
    assert ids_in(data.val_dataloader()) == wanted(ROWS[5:9])
    assert 1 < len(batches) < SIZE
    assert how != "budget" or max(batch["input_ids"].numel() for batch in batches) <= 1200
    assert how != "packed" or all(batch["input_ids"].shape[1] == 512 for batch in batches)
    for batch in batches:
        learnt = batch["labels"] != -100
        assert learnt.any()
        assert torch.equal(batch["labels"][learnt], batch["input_ids"][learnt])


@pytest.mark.parametrize("how", ["random", "buckets", "budget"])
def test_pairs_come_with_both_answers(how: Any) -> None:
    data = make(PAIRS, pairs=True, batching=TextBatching(how=how, **BATCHINGS[how]))
    batches = list(data.train_dataloader())
    assert sum(len(batch["labels"]) for batch in batches) == 2 * SIZE
    assert how != "budget" or max(batch["input_ids"].numel() for batch in batches) <= 1200
    assert all("No " in TOKENIZER.decode(row) for batch in batches for row in batch["input_ids"].chunk(2)[1])


@pytest.mark.parametrize("how", BATCHINGS)
@pytest.mark.parametrize("rows", [chats(SIZE), pairs(SIZE)], ids=["chats", "pairs"])
def test_pictures_come_with_their_conversations(tmp_path: Path, rows: Any, how: Any) -> None:
    are_pairs = "prompt" in rows[0]
    if are_pairs and how == "packed":
        pytest.skip("pairs are not packed")
    patches = lk.Patches(size=14, merge=2, max_tokens=6)
    root = write_pictures(tmp_path / "pictures")
    pictures = lk.Pictures(patches, placeholder="<|image_pad|>", root=root, **AROUND)  # type: ignore[arg-type]
    settings: dict[str, Any] = {"tokenizer": vision_tokenizer(), "options": {"pictures": pictures}, "pairs": are_pairs}
    data = make(rows, batching=TextBatching(how=how, **BATCHINGS[how]), splits={"train": 0.7, "val": 0.3}, **settings)
    found = 0
    for batch in [*data.train_dataloader(), *data.val_dataloader()]:
        placeholders = batch["input_ids"] == vision_tokenizer().get_vocab()["<|image_pad|>"]
        tokens = len(batch["images"]["patches"]) // patches.merge**2
        assert int(placeholders.sum()) == tokens * (2 if are_pairs else 1)
        assert (batch["labels"][placeholders] == -100).all()
        found += len(batch["images"]["grids"])
    assert found == json.dumps(rows).count('"type": "image"') > 30
    predicted = list(make(None, predict=chats(SIZE), splits=None, **settings | {"pairs": False}).predict_dataloader())
    assert sum(len(batch["images"]["grids"]) for batch in predicted) == json.dumps(chats(SIZE)).count('"type": "image"')


def test_decoded_pictures_get_the_same_split_in_each_process(tmp_path: Path) -> None:
    patches = lk.Patches(size=14, merge=2, max_tokens=6)
    pictures = lk.Pictures(patches, placeholder="<|image_pad|>")
    found = []
    for _ in range(2):
        images = [Image.new("RGB", SIZES[number % 5]) for number in range(SIZE)]  # each with its own address
        rows = [
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image", "image": image}]},
                    {"role": "assistant", "content": f"{n}."},
                ]
            }
            for n, image in enumerate(images)
        ]
        data = make(
            rows, tokenizer=vision_tokenizer(), options={"pictures": pictures}, splits={"train": 0.5, "val": 0.5}
        )
        found.append(ids_in(data.train_dataloader()))
    assert found[0] == found[1]
    assert 2 < sum(found[0].values()) < SIZE - 2


def test_what_is_too_long_is_refused_dropped_or_cut(caplog: pytest.LogCaptureFixture) -> None:
    long = sum(length > 150 for length in LENGTHS)
    assert 2 < long < SIZE - 2
    batching = TextBatching(how="packed", max_length=150)
    with pytest.raises(ValueError, match=rf"{long} of 20 samples of train have more than max_length=150 tokens. Leave"):
        make(batching=batching).train_dataloader()
    with caplog.at_level(logging.WARNING, "loaderkit"):
        assert ids_in(make(batching=batching, too_long="drop").train_dataloader()) == {
            ids: count for ids, count in wanted().items() if len(ids) <= 150
        }
    assert f"{long} of 20 samples of train have more than max_length=150 tokens and are left out" in caplog.text
    for how in ("truncate_right", "truncate_left", "truncate_turns"):
        rows = ROWS[:9]
        cut = make(rows, batching=batching, too_long=how).train_dataloader()
        assert ids_in(cut) == wanted(rows, max_length=150, too_long=how)
    with pytest.raises(ValueError, match="so none is left"):
        make(batching=TextBatching(how="packed", max_length=9), too_long="drop").train_dataloader()


def test_what_cannot_be_read_is_left_to_the_loaders_policy() -> None:
    rows = [*ROWS, {"messages": []}, {"text": "a"}]
    policy = lk.BadSamples("skip", max_rate=0.2)
    data = make(rows, batching=TextBatching(how="packed", max_length=512), loader=LoaderConfig(bad_samples=policy))
    loader = data.train_dataloader()
    assert ids_in(loader) == wanted()
    assert sorted(bad.index for bad in loader.bad_samples) == [20, 21]
    with pytest.raises(ValueError, match=r"the conversation is empty|has the fields"):
        list(make(rows).train_dataloader())


def test_lengths_are_measured_once_for_all_runs(tmp_path: Path) -> None:
    settings: Any = {"lengths_dir": tmp_path / "kept", "val": {"a": ROWS[:4], "b/c": ROWS[4:9]}, "splits": None}
    data = make(**settings)
    data.prepare_data()
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}
    assert len(files) == 3
    again = make(**settings)
    assert ids_in(again.train_dataloader()) == wanted()
    assert list(map(ids_in, again.val_dataloader().values())) == [wanted(ROWS[:4]), wanted(ROWS[4:9])]
    assert {path: path.stat().st_mtime_ns for path in files} == files
    with pytest.warns(UserWarning, match="kept lengths of other data"):
        list(make(**{**settings, "options": {"chat_template": untagged(CHATML)}}).train_dataloader())


def test_splits_share_no_conversation_and_stay_when_records_are_added() -> None:
    twice = [*ROWS, *({**row, "id": 7} for row in ROWS), *records(25)[20:]]
    sides = []
    for rows in (twice[:-5], twice):
        data = make(rows, splits={"train": 0.6, "val": 0.2, "test": 0.2})
        loaders = (data.train_dataloader(), data.val_dataloader(), data.test_dataloader())
        sides.append([set(ids_in(loader)) for loader in loaders])
        assert sum(map(len, sides[-1])) == len(wanted(rows))
        assert set.union(*sides[-1]) == set(wanted(rows))
    assert all(before <= after for before, after in zip(*sides, strict=True))
    with pytest.raises(ValueError, match=r"gives val none of the 1 records. .*val="):
        make(ROWS[:1], splits=None).val_dataloader()


def test_files_and_options(tmp_path: Path) -> None:
    for shard in range(2):
        rows = [{"dialog": row["messages"]} for row in ROWS[shard::2]]
        (tmp_path / f"{shard}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = make(str(tmp_path / "*.jsonl"), options={"columns": {"messages": "dialog"}, "train_on": "all"})
    data.prepare_data()
    batches = list(data.train_dataloader())
    assert ids_in(batches) == wanted()
    assert all((batch["labels"][:, 1:] != -100).sum() == batch["attention_mask"][:, 1:].sum() for batch in batches)


class Asked(pl.LightningModule):
    """Returns the prompts that it is to answer, without their padding on the left."""

    def predict_step(self, batch: Any, batch_idx: int) -> list[list[int]]:
        assert list(batch) == ["input_ids", "attention_mask"]
        assert batch["attention_mask"][:, -1].all()
        return [
            ids[mask.bool()].tolist() for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
        ]


def prompts_of(rows: Any) -> list[list[int]]:
    """Return the ids of the conversations up to their last question, with the header of an answer."""
    asked = [row["messages"][: -1 if row["messages"][-1]["role"] == "assistant" else None] for row in rows]
    return [TOKENIZER.apply_chat_template(turns, add_generation_prompt=True)["input_ids"] for turns in asked]


@pytest.mark.parametrize("how", BATCHINGS)
def test_predictions_are_asked_for_in_the_order_of_the_records(how: Any, tmp_path: Path) -> None:
    rows = [*ROWS, {"messages": chat_of(7)[:-1]}]  # some answered, one not
    batching = TextBatching(how=how, **BATCHINGS[how])
    data = make(None, predict=rows, splits=None, batching=batching)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Any = quiet_trainer(tmp_path).predict(Asked(), datamodule=data)
    assert [prompt for batch in found for prompt in batch] == prompts_of(rows)
    ranks = [
        make(
            None, predict=rows, splits=None, loader=LoaderConfig(batch_size=2, world=lk.World(rank, 2))
        ).predict_dataloader()
        for rank in (0, 1)
    ]
    seen = [prompt for loader in ranks for batch in loader for prompt in Asked().predict_step(batch, 0)]
    assert sorted(seen) == sorted(prompts_of(rows))


def test_long_prompts_are_cut_on_the_left_or_refused() -> None:
    given: Any = {"predict": ROWS, "splits": None, "batching": TextBatching(how="packed", max_length=40)}
    assert max(map(len, prompts_of(ROWS))) > 40
    for too_long in ("drop", "truncate_right", "truncate_turns"):
        batches = list(make(None, **given, too_long=too_long).predict_dataloader())
        found = [prompt for batch in batches for prompt in Asked().predict_step(batch, 0)]
        assert found == [prompt[-40:] for prompt in prompts_of(ROWS)]
    with pytest.raises(ValueError, match="tokens, over max_length=40"):
        list(make(None, **given).predict_dataloader())


def test_pairs_are_predicted_as_they_are_tested() -> None:
    data = make(PAIRS, test=PAIRS[:5], predict=PAIRS[:5], pairs=True)
    tested, predicted = list(data.test_dataloader()), list(data.predict_dataloader())
    assert len(tested) == len(predicted) == 2
    for one, other in zip(tested, predicted, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def numbers(batch: Any) -> torch.Tensor:
    """Two numbers that tell a row of ids and its labels from others."""
    places = torch.arange(1, 1 + batch["input_ids"].shape[1])
    return torch.stack([(batch[name] * places).sum(dim=1) for name in ("input_ids", "labels")], dim=1) / 1e6


@pytest.mark.parametrize("how", ["random", "buckets", "budget", "packed"])
def test_a_training_resumes_with_the_batches_that_were_left(tmp_path: Path, how: Any) -> None:
    def data(workers: int) -> ChatDataModule:
        batching = TextBatching(how=how, **BATCHINGS[how], window=None if how == "random" else 8)
        return make(batching=batching, loader=LoaderConfig(batch_size=2, num_workers=workers))

    runs.check_resumes(data, lambda: runs.Recorder(numbers, 2), tmp_path, stops=[3])


def test_a_state_in_the_middle_of_an_epoch_gives_the_batches_that_were_left() -> None:
    batching = TextBatching(how="packed", max_length=512)
    loader = make(batching=batching).train_dataloader()
    whole = list(loader)
    first = make(batching=batching).train_dataloader()
    batches = iter(first)
    next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    resumed = make(batching=batching, loader=LoaderConfig(batch_size=3, num_workers=2)).train_dataloader()
    resumed.load_state_dict(state)
    left = list(resumed)
    assert len(left) == len(whole) - 1 > 0
    for found, was in zip(left, whole[1:], strict=True):
        assert all(np.array_equal(found[name], was[name]) for name in was)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batching": TextBatching(how="windows", max_length=9)}, "how is 'windows', wanted"),
        ({"batching": TextBatching(how="packed", max_length=9), "pairs": True}, "how is 'packed', wanted"),
        ({"too_long": "drop"}, "too_long is 'drop' and batching.max_length None"),
        ({"too_long": "cut", "batching": TextBatching(max_length=9)}, "too_long is 'cut'"),
        ({"loader": LoaderConfig(order=lk.Sequential(3))}, "plan= or order="),
        ({"options": {"max_length": 9}}, r"options has \['max_length'\], wanted TextBatching\(max_length=\)"),
        ({"options": {"train_on": "user"}}, "train_on is 'user'"),
        ({"options": {"train_on": "none"}}, r"options has train_on='none'. Give prompts as predict="),
        (
            {"pairs": True, "batching": TextBatching(max_length=9), "too_long": "truncate_turns"},
            "'truncate_turns', wanted",
        ),
        ({"splits": {"train": 0.5, "dev": 0.5}}, "wanted shares of the training data"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**settings)


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'train_om'.* Did you mean 'train_on'"):
        make(options={"train_om": "last"})
    with pytest.raises(TypeError, match="the tokenizer is of type type"):
        make(tokenizer=str)
    with pytest.raises(TypeError, match="batching is 'packed', wanted a TextBatching"):
        make(batching="packed")
    with pytest.raises(TypeError, match="ChatDataModule: the source is of type dict, wanted records by index"):
        make({"messages": [1]}).train_dataloader()
