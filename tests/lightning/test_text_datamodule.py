"""TextDataModule: each token is learnt once however texts are batched, splits don't leak, runs resume exactly."""

import itertools
import json
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import datamodule_runs as runs
import numpy as np
import pytest
import torch

import loaderkit as lk
from loaderkit import LoaderConfig, TextBatching, TextDataModule

TEXTS = [text for _, text in sorted(topics.items())][:40]
TEXTS = [text[: 40 + 37 * row % 900] for row, text in enumerate(TEXTS)]
ROWS = [{"text": text, "label": "long" if len(text) > 300 else "short"} for text in TEXTS]
COLUMNS = {name: [row[name] for row in ROWS] for name in ("text", "label")}


def tokens_of(text: str) -> list[int]:
    return list(text.encode())


def collect(loader: Any) -> list[Any]:
    batches = list(loader)
    assert batches
    return batches


def texts_in(batches: list[Any]) -> list[str]:
    return [
        bytes(row[:length].tolist()).decode()
        for batch in batches
        for row, length in zip(batch["tokens"], batch["tokens_lengths"].tolist(), strict=True)
    ]


@pytest.mark.parametrize("how", ["random", "buckets", "budget"])
@pytest.mark.parametrize("workers", [0, 2])
def test_texts_to_classify_come_once_each_with_its_label(how: Any, workers: int) -> None:
    batching = TextBatching(how=how, max_tokens=4000 if how == "budget" else None)
    data = TextDataModule(
        COLUMNS,
        val=ROWS[10:30],
        label="label",
        batching=batching,
        loader=LoaderConfig(batch_size=4, num_workers=workers),
    )
    assert (data.vocab_size, data.num_classes, data.classes) == (257, 2, ["long", "short"])  # without setup
    batches = collect(data.train_dataloader())
    assert Counter(texts_in(batches)) == Counter(TEXTS)
    for batch in batches:
        for text, code in zip(texts_in([batch]), batch["label"].tolist(), strict=True):
            assert data.classes[code] == ("long" if len(text) > 300 else "short")
        assert how != "budget" or batch["tokens"].numel() <= 4000
    assert sorted(texts_in(collect(data.val_dataloader()))) == sorted(TEXTS[10:30])


def pairs(batches: list[Any]) -> Counter[tuple[int, int]]:
    """What is learnt: each token with the next."""
    found: Counter[tuple[int, int]] = Counter()
    for batch in batches:
        learnt = batch["labels"] != -100
        found.update(zip(batch["tokens"].long()[learnt].tolist(), batch["labels"][learnt].tolist(), strict=True))
    return found


@pytest.mark.each_value
@pytest.mark.parametrize("how", ["random", "buckets", "budget", "packed", "windows"])
@pytest.mark.parametrize("max_length", [64, 2, 1000])
def test_a_language_model_learns_each_token_once(how: Any, max_length: int) -> None:
    batching = TextBatching(how=how, max_length=max_length, max_tokens=2048 if how == "budget" else None)
    loader = LoaderConfig(batch_size=8)
    data = TextDataModule({"text": TEXTS}, splits={"train": 1}, batching=batching, loader=loader)
    ended = [[*tokens_of(text), 256] for text in TEXTS]
    stretches = [list(itertools.chain(*ended))] if how == "windows" else ended
    wanted = Counter(pair for stretch in stretches for pair in itertools.pairwise(stretch))
    batches = collect(data.train_dataloader())
    assert pairs(batches) == wanted
    assert wanted.total() > 5000
    assert all(batch["tokens"].shape[1] <= max_length for batch in batches)
    assert how != "packed" or all(batch["tokens"].shape[1] == max_length for batch in batches)
    for batch in batches if how != "packed" else ():  # a window's last label is no token of it
        learnt = (batch["labels"] != -100).sum(dim=1)
        assert torch.equal(batch["tokens_lengths"], learnt if how == "windows" else learnt + 1)


def test_batches_cost_alike_if_the_model_says_what_a_text_costs() -> None:
    cost = lk.AttentionCost(64)
    for how in ("packed", "buckets"):
        batching = TextBatching(how=how, max_length=128, balance=cost)  # type: ignore[arg-type]
        data = TextDataModule({"text": TEXTS}, splits={"train": 1}, batching=batching)
        plan = data.train_dataloader().config.plan
        assert isinstance(plan, lk.PackPlan | lk.LengthBuckets)
        assert plan.balance == cost


def test_splits_share_no_text_and_stay_when_texts_are_added() -> None:
    twice = [*TEXTS, *TEXTS, "new", "newer"]
    config: Any = {"splits": {"train": 0.6, "val": 0.2, "test": 0.2}, "end_token": 0}
    sides = []
    for texts in (twice[:-2], twice):
        data = TextDataModule({"text": texts}, **config)
        loaders = (data.train_dataloader(), data.val_dataloader(), data.test_dataloader())
        sides.append([set(texts_in(collect(loader))) for loader in loaders])
        assert sum(len(side) for side in sides[-1]) == len(set(texts))
        assert set.union(*sides[-1]) == {text + "\0" for text in texts}
    assert all(before <= after for before, after in zip(*sides, strict=True))


def test_each_setting_reaches_the_batches() -> None:
    def make(**settings: Any) -> TextDataModule:
        return TextDataModule(COLUMNS, val=COLUMNS, **settings)

    padded = next(iter(make(pad_token=7, loader=LoaderConfig(batch_size=9)).train_dataloader()))
    there = torch.arange(padded["tokens"].shape[1]) < padded["tokens_lengths"][:, None]
    assert not there.all()
    assert (padded["tokens"].int()[~there] == 7).all()
    packed = next(iter(make(pad_token=7, batching=TextBatching(how="packed", max_length=900)).train_dataloader()))
    assert (packed["tokens"].int()[packed["document_ids"] < 0] == 7).all()
    assert (packed["document_ids"] < 0).any()
    classified = make(label="label", end_token=5)
    assert sorted(texts_in(collect(classified.train_dataloader()))) == sorted(TEXTS)  # none ends with it

    config = LoaderConfig(batch_size=16, tail="drop")
    assert [len(batch["tokens"]) for batch in make(loader=config).train_dataloader()] == [16, 16]
    batching = TextBatching(window=20)
    by_windows = make(batching=batching, loader=LoaderConfig(batch_size=4))
    longest = [
        [int(batch["tokens_lengths"].max()) for batch in loader]
        for loader in (by_windows.train_dataloader(), by_windows.val_dataloader())
    ]
    for order in longest:
        assert len(order) == 10
        assert order != sorted(order)  # of all of the data
    assert longest[1] == [*sorted(longest[1][:5]), *sorted(longest[1][5:])]  # in order, but for their lengths
    assert longest[0] != [*sorted(longest[0][:5]), *sorted(longest[0][5:])]


def test_a_tenth_is_validation_data_by_default() -> None:
    texts = [f"text {number}" for number in range(500)]
    data = TextDataModule({"text": texts})
    assert 25 < sum(len(batch["tokens"]) for batch in data.val_dataloader()) < 75


def test_files_of_several_formats(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for row, text in enumerate(TEXTS):
        (tmp_path / f"{row:02}.txt").write_text(text)
    labelled = TextDataModule(tmp_path / "a.jsonl", label="label", splits={"train": 1})
    labelled.prepare_data()
    assert labelled.num_classes == 2
    assert Counter(texts_in(collect(labelled.train_dataloader()))) == Counter(TEXTS)
    plain = TextDataModule(str(tmp_path / "*.txt"), splits={"train": 1}, tokenizer=tokens_of, vocab_size=256)
    assert Counter(texts_in(collect(plain.train_dataloader()))) == Counter(TEXTS)


class Words:
    """As Hugging Face's: called with a text, it gives a mapping."""

    vocab_size = 70_000

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [len(word) + 69_000 for word in text.split()]}


class Encoding:
    def __init__(self, ids: list[int]) -> None:
        self.ids = ids


class Encoder:
    """As tokenizers': its method gives an object."""

    def get_vocab_size(self) -> int:
        return 300

    def encode(self, text: str) -> Encoding:
        return Encoding([len(word) for word in text.split()])


@pytest.mark.parametrize(
    ("tokenizer", "size", "dtype"), [(Words(), 70_000, torch.uint32), (Encoder().encode, 300, torch.uint16)]
)
def test_others_tokenizers(tokenizer: Any, size: int, dtype: torch.dtype) -> None:
    data = TextDataModule({"text": ["a bb ccc"]}, tokenizer=tokenizer, splits={"train": 1})
    assert data.vocab_size == size
    (batch,) = data.train_dataloader()
    assert batch["tokens"].dtype == dtype
    assert (batch["tokens"].long() % 69_000).tolist() == [[1, 2, 3]]
    assert (batch["labels"] % 69_000).tolist()[0][:2] == [2, 3]


def numbers(batch: Any) -> torch.Tensor:
    """Two numbers that tell a row of tokens and their labels from others."""
    assert batch["tokens"].dtype == torch.int64
    places = torch.arange(1, 1 + batch["tokens"].shape[1])
    return torch.stack([(batch[name] * places).sum(dim=1) for name in ("tokens", "labels")], dim=1) / 1e6


@pytest.mark.parametrize("how", ["buckets", "budget", "packed", "windows"])
def test_a_training_resumes_with_the_batches_that_were_left(tmp_path: Path, how: Any) -> None:
    batching = TextBatching(how=how, max_length=128, max_tokens=1000 if how == "budget" else None, window=16)

    def data(workers: int) -> TextDataModule:
        loader = LoaderConfig(batch_size=4, num_workers=workers)
        return TextDataModule({"text": TEXTS}, splits={"train": 1}, batching=batching, loader=loader)

    runs.check_resumes(data, lambda: runs.Recorder(numbers, 2), tmp_path, stops=[13])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batching": {"how": "sorted"}}, "how is 'sorted'"),
        ({"batching": {"how": "budget"}}, "only 'budget' takes max_tokens"),
        ({"batching": {"how": "packed"}}, "needs max_length="),
        ({"batching": {"how": "packed", "max_length": 8}, "label": "label"}, "to classify are batched as"),
        ({"batching": {"max_length": 1}}, "wanted an integer of at least 2"),
        ({"batching": {"max_length": 8.5}}, "max_length is 8.5, wanted an integer"),
        ({"batching": {"how": "budget", "max_tokens": 0}}, "max_tokens is 0, wanted an integer of at least 1"),
        ({"batching": {"how": "random", "balance": lk.AttentionCost(64)}}, "wanted 'buckets', 'budget' or 'packed'"),
        ({"vocab_size": "50"}, "vocab_size is '50', wanted an integer"),
        ({"end_token": -1}, "end_token is -1, wanted an integer of at least 0"),
        ({"pad_token": None}, "pad_token is None, wanted an integer of at least 0"),
        ({"loader": {"order": lk.Sequential(3)}}, "plan= or order="),
        ({"splits": {"train": 0.5, "dev": 0.5}}, "wanted shares of the training data"),
        ({"splits": {"train": 0.5, "val": 0.5}, "val": COLUMNS}, "without their own data"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    kinds = {"batching": TextBatching, "loader": LoaderConfig}
    with pytest.raises(ValueError, match=message):
        TextDataModule(
            COLUMNS, **{name: kinds[name](**value) if name in kinds else value for name, value in settings.items()}
        )


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        ({"text": ["a", 5]}, {}, "text 1 is int, wanted a string"),
        ({"text": []}, {}, "fields of lengths {'text': 0}"),
        ({"body": ["a"]}, {}, r"has no \['text'\], its fields are \['body'\]"),
        ({"text": ["a"]}, {"label": "label"}, r"has no \['label'\], its fields are \['text'\]"),
        ({"text": ["a b"]}, {"tokenizer": str.split, "vocab_size": 9}, "wanted a list of integers"),
        (
            {"text": ["abc"]},
            {"tokenizer": lambda text: [300], "vocab_size": 9},
            "tokens from 300 to 300, wanted 0 to 8",
        ),
        ({"text": ["abc"]}, {"tokenizer": lambda text: [1, 9], "vocab_size": 9}, "tokens from 1 to 9, wanted 0 to 8"),
        ({"text": ["abc"]}, {"end_token": 257}, "end_token is 257, wanted less than vocab_size, which is 257"),
        (
            {"text": ["abc"] * 9},
            {"splits": {"train": 0.9, "val": 0.1}},
            r"splits=.* gives val none of the 9 texts.*val=",
        ),
        (
            COLUMNS,
            {"batching": TextBatching(how="budget", max_tokens=90)},
            r"over max_tokens=90.*TextBatching\(max_length",
        ),
        ({"text": ["a", "b"], "label": [1, None]}, {"label": "label"}, "text 1 of train has the label None"),
        ({"text": ["a", "b"], "label": [0.0, float("nan")]}, {"label": "label"}, "text 1 of train has the label nan"),
        ({"text": ["a", "b"], "label": [1, "x"]}, {"label": "label"}, "labels of train can't be sorted"),
        ({"text": ["a", "b"], "label": [[1], [2]]}, {"label": "label"}, "labels of train can't be sorted .*unhashable"),
        ({"text": ["abc"]}, {"tokenizer": len}, "vocab_size="),
        (COLUMNS, {"label": "label", "classes": ["long"]}, r"has the labels \['short'\], which are not among the 1"),
    ],
)
def test_data_that_is_not_what_the_settings_say_is_refused(data: Any, settings: dict[str, Any], message: str) -> None:
    module = TextDataModule(data, **{"splits": {"train": 1}, **settings})
    with pytest.raises(ValueError, match=message):
        [module.train_dataloader(), module.val_dataloader()]


def test_the_text_that_a_tokenizer_fails_at_is_named() -> None:
    data = TextDataModule({"text": ["a", "b"]}, tokenizer=lambda text: {"a": [1]}[text], vocab_size=9)
    with pytest.raises(KeyError) as caught:
        data.train_dataloader()
    assert caught.value.__notes__ == ["loaderkit: raised by the tokenizer for text 1."]


def test_classes_need_training_data_or_names() -> None:
    data = TextDataModule(predict={"text": TEXTS}, label="label", classes=["a", "b"])
    assert data.num_classes == 2
    assert sorted(texts_in(collect(data.predict_dataloader()))) == sorted(TEXTS)
    assert "label" not in next(iter(data.predict_dataloader()))
    with pytest.raises(ValueError, match=r"classes=\[...\]"):
        TextDataModule(predict={"text": TEXTS}, label="label").num_classes  # noqa: B018


def test_lengths_are_known_without_reading() -> None:
    data = TextDataModule({"text": TEXTS}, splits={"train": 1}, end_token=None, tokenizer=tokens_of, vocab_size=256)
    data.setup("fit")
    lengths = lk.measure_lengths(data._data("train"))
    assert lengths.tolist() == [len(text.encode()) for text in TEXTS]
    assert np.diff(lengths).any()
