"""Preference pairs as token ids and labels, and both answers in one batch."""

import datetime
import pickle
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from chats_made import CHATML, TEMPLATES, chat_of, make_tokenizer, untagged
from drawing import equal

import loaderkit as lk
from loaderkit import testing

TOKENIZER = make_tokenizer()


def say(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def pair_of(number: int) -> dict[str, Any]:
    """Return a pair whose prompt has one to three turns."""
    return {
        "prompt": chat_of(number)[:-1],
        "chosen": say(f"Good {number}" + "!" * number),
        "rejected": say(f"Bad {number}"),
    }


def pairs(*records: Any, **settings: Any) -> Any:
    return lk.PreferenceDataset(list(records), TOKENIZER, **settings)


def texts_of(sample: Any, side: str, tokenizer: Any = TOKENIZER) -> tuple[str, str]:
    """Return the prompt and the answer of a side as texts."""
    ids, labels = sample[side]["input_ids"], sample[side]["labels"]
    assert torch.equal(labels[labels != -100], ids[labels != -100])
    return tokenizer.decode(ids[labels == -100]), tokenizer.decode(ids[labels != -100])


@pytest.mark.parametrize("template", [*TEMPLATES.values(), untagged(CHATML)])
def test_both_answers_follow_the_prompt_and_are_all_that_is_trained_on(template: str) -> None:
    tokenizer = make_tokenizer(template)
    data = lk.PreferenceDataset([pair_of(number) for number in range(6)], tokenizer)
    for number, sample in enumerate(data):
        prompt = tokenizer.apply_chat_template(pair_of(number)["prompt"], tokenize=False, add_generation_prompt=True)
        for side, answer in (("chosen", f"Good {number}" + "!" * number), ("rejected", f"Bad {number}")):
            found = texts_of(sample, side, tokenizer)
            assert found[0] == prompt
            assert found[1].lstrip().startswith(answer)
    assert number == 5


def test_two_texts() -> None:
    """The golden value: <eos> ends each, and a token across the border belongs to the answer."""
    sample = pairs({"prompt": "What is a name?", "chosen": " An object", "rejected": " A thing<eos>"})[0]
    assert texts_of(sample, "chosen") == ("What is a name?", " An object<eos>")
    assert texts_of(sample, "rejected") == ("What is a name?", " A thing<eos>")
    merged = pairs({"prompt": "Hi ", "chosen": "the name", "rejected": "~"})[0]
    assert texts_of(merged, "chosen") == ("Hi", " the name<eos>")
    assert texts_of(merged, "rejected") == ("Hi", " ~<eos>")


MESSAGES = chat_of(1)[:-1]
SAME: dict[str, dict[str, Any]] = {
    "messages without a prompt": {"chosen": [*MESSAGES, *say("Good")], "rejected": [*MESSAGES, *say("Bad")]},
    "messages with the prompt as a text": {
        "prompt": MESSAGES[-1]["content"],
        "chosen": [*MESSAGES, *say("Good")],
        "rejected": [*MESSAGES, *say("Bad")],
    },
    "a prompt of messages with answers as texts": {"prompt": MESSAGES, "chosen": "Good", "rejected": "Bad"},
    "from and value": {
        "prompt": [
            {"from": "human" if turn["role"] == "user" else "gpt", "value": turn["content"]} for turn in MESSAGES
        ],
        "chosen": [{"from": "gpt", "value": "Good"}],
        "rejected": [{"from": "gpt", "value": "Bad"}],
    },
}


@pytest.mark.parametrize("name", SAME)
def test_each_layout_gives_the_same_pair(name: str) -> None:
    wanted = pairs({"prompt": MESSAGES, "chosen": say("Good"), "rejected": say("Bad")})[0]
    assert equal(pairs(SAME[name])[0], wanted)
    named = {"p": SAME[name].get("prompt"), "good": SAME[name]["chosen"], "bad": SAME[name]["rejected"]}
    assert equal(pairs(named, columns={"prompt": "p", "chosen": "good", "rejected": "bad"})[0], wanted)


def test_a_prompt_that_two_texts_share_ends_before_the_space_of_the_first_other_word() -> None:
    for chosen, rejected in (("the name", "a name"), ("~", "^")):  # with the space in one token, and not
        sample = pairs({"chosen": f"User: Hi. Bot: {chosen}", "rejected": f"User: Hi. Bot: {rejected}"})[0]
        assert texts_of(sample, "chosen") == ("User: Hi. Bot:", f" {chosen}<eos>")
        assert texts_of(sample, "rejected") == ("User: Hi. Bot:", f" {rejected}<eos>")


def test_long_pairs_are_cut_or_refused() -> None:
    whole = pairs(pair_of(3))[0]
    size, short = (len(whole[side]["input_ids"]) for side in ("chosen", "rejected"))
    assert short < size
    with pytest.raises(
        ValueError, match=rf"^sample 0: PreferenceDataset: a sample has {size} tokens, over max_length={short}"
    ):
        pairs(pair_of(3), max_length=short)[0]
    right = pairs(pair_of(3), max_length=size - 2, too_long="truncate_right")[0]
    left = pairs(pair_of(3), max_length=size - 2, too_long="truncate_left")[0]
    assert right["chosen"]["input_ids"].tolist() == whole["chosen"]["input_ids"][:-2].tolist()
    assert left["chosen"]["labels"].tolist() == whole["chosen"]["labels"][2:].tolist()
    with pytest.raises(ValueError, match="none of the 4 tokens is left to train on"):
        pairs(pair_of(3), max_length=4, too_long="truncate_right")[0]


def test_a_batch_has_the_chosen_answers_and_then_the_rejected_ones() -> None:
    data = pairs(*(pair_of(number) for number in range(5)))
    batch = next(iter(lk.Loader(data, 3, collate_fn=lk.ChatCollate(pad_token=7, multiple_of=8))))
    samples = [data[number][side] for side in ("chosen", "rejected") for number in range(3)]
    assert batch["input_ids"].shape == batch["labels"].shape == batch["attention_mask"].shape
    assert batch["input_ids"].shape[0] == 6
    assert batch["input_ids"].shape[1] % 8 == 0
    for row, sample in enumerate(samples):
        size = len(sample["input_ids"])
        assert torch.equal(batch["input_ids"][row, :size], sample["input_ids"])
        assert torch.equal(batch["labels"][row, :size], sample["labels"])
        assert (batch["input_ids"][row, size:] == 7).all()
        assert (batch["labels"][row, size:] == -100).all()
        assert batch["attention_mask"][row].tolist() == [1] * size + [0] * (batch["input_ids"].shape[1] - size)
    assert all(value.dtype == torch.int64 for value in batch.values())


def test_a_collate_names_the_pair_that_does_not_fit() -> None:
    sample = pairs(pair_of(0))[0]
    odd = {**sample, "rejected": {**sample["rejected"], "labels": sample["rejected"]["labels"].int()}}
    with pytest.raises(lk.CollateError, match="labels") as error:
        lk.ChatCollate()([sample, odd])
    assert max(error.value.rows) <= 1


def test_a_token_budget_counts_both_answers_of_a_pair() -> None:
    data = pairs(*(pair_of(number) for number in range(9)))
    lengths = lk.measure_lengths(data, lambda pair: 2 * max(len(side["input_ids"]) for side in pair.values()))
    plan = lk.TokenBudget(lengths, 1500)
    batches = list(lk.Loader(data, plan=plan, collate_fn=lk.ChatCollate()))
    assert sum(len(batch["labels"]) for batch in batches) == 18
    assert 1 < len(batches) < 9
    assert max(batch["labels"].numel() for batch in batches) <= 1500


def test_the_laws(tmp_path: Path) -> None:
    datasets.Dataset.from_list([pair_of(number) for number in range(13)]).to_parquet(str(tmp_path / "a.parquet"))
    data = lk.PreferenceDataset(lk.ParquetDataset(tmp_path / "a.parquet"), TOKENIZER)
    keys = [tuple(sample["chosen"]["input_ids"].tolist()) for sample in data]
    assert len(set(keys)) == 13
    assert equal(list(data), list(pairs(*(pair_of(number) for number in range(13)))))

    def loader(**changes: Any) -> lk.Loader:
        settings = {"batch_size": 2, "shuffle": True, "seed": 5, "collate_fn": lk.ChatCollate(), **changes}
        return lk.Loader(data, **settings)

    def ids(batch: dict[str, Any]) -> list[int]:
        sizes = batch["attention_mask"].sum(1).tolist()
        rows = [tuple(row[:size].tolist()) for row, size in zip(batch["input_ids"], sizes, strict=True)]
        return [keys.index(row) for row in rows[: len(rows) // 2]]

    testing.assert_exactly_once(loader, samples=13, worlds=[1, 2, 3], ids=ids)
    testing.assert_resumable(loader, epochs=2, stops=[1, 5, 7], ids=ids)
    testing.assert_workers_dont_matter(loader, workers=[0, 2], start_methods=["fork"], persistent=[False], ids=ids)
    whole = list(loader())
    for engine in ("threads", "torch", "ring"):
        assert equal(list(loader(num_workers=2, engine=engine)), whole), engine
    again = pickle.loads(pickle.dumps(data))
    assert equal(list(lk.Loader(again, 2, shuffle=True, seed=5, collate_fn=lk.ChatCollate())), whole)


def test_a_fingerprint_tells_what_would_change_the_tokens() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"max_length": 500},
        {"max_length": 500, "too_long": "truncate_left"},
        {"chat_template": untagged(CHATML)},
        {"roles": {"bot": "assistant"}},
        {"date": datetime.date(2024, 7, 26)},
    ]
    made = [pairs(pair_of(0), **change).fingerprint() for change in changes]
    assert len(set(made)) == 6


HELLO = say("Hello")
BROKEN: dict[str, tuple[Any, str]] = {
    "no column": (
        {"prompt": "a", "chosen": "b"},
        r"has the fields \['prompt', 'chosen'\], wanted 'chosen' and 'rejected'",
    ),
    "no dict": ("text", "a record is of type str"),
    "equal texts": ({"prompt": "a", "chosen": "b", "rejected": "b"}, "are the same"),
    "equal messages": ({"prompt": MESSAGES, "chosen": HELLO, "rejected": HELLO}, "are the same"),
    "empty": ({"prompt": MESSAGES, "chosen": [], "rejected": HELLO}, "the conversation is empty"),
    "nothing in common": ({"chosen": HELLO, "rejected": say("Hi")}, "0 messages of prompt, 1 chosen and 1 rejected"),
    "one is the prompt": (
        {"chosen": MESSAGES, "rejected": [*MESSAGES, *HELLO]},
        "3 messages of prompt, 0 chosen and 1 rej",
    ),
    "another prompt": (
        {"prompt": "Hm?", "chosen": [*MESSAGES, *HELLO], "rejected": [*MESSAGES, *say("Hi")]},
        "the prompt is 'Hm.', which is none of the messages",
    ),
    "unknown role": ({"prompt": [{"role": "bot", "content": ""}], "chosen": "a", "rejected": "b"}, "the role 'bot'"),
    "half of a character": (
        {"prompt": "a", "chosen": "b\ud83d", "rejected": "c"},
        "chosen has '.ud83d' at character 1",
    ),
    "numbers": ({"prompt": MESSAGES, "chosen": 1, "rejected": 2}, "the messages are of type int, wanted a list"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_record_is_named_and_a_policy_leaves_it_out(name: str) -> None:
    record, message = BROKEN[name]
    data = pairs(pair_of(0), record, pair_of(1))
    with pytest.raises(ValueError, match=f"^sample 1: PreferenceDataset: .*{message}"):
        data[1]
    loader = lk.Loader(data, 3, collate_fn=lk.ChatCollate(), bad_samples=lk.BadSamples("skip", max_rate=1))
    assert [len(batch["labels"]) for batch in loader] == [4]
    assert [bad.index for bad in loader.bad_samples] == [1]


def test_a_prompt_that_the_whole_does_not_begin_with_is_an_error_that_says_why() -> None:
    thinks = untagged(CHATML).replace("'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<think>'")
    with pytest.raises(ValueError, match=r"rendered otherwise alone: '<think>', .* Give a chat_template= that"):
        pairs(pair_of(0), chat_template=thinks)[0]


def test_texts_need_no_template_and_messages_do() -> None:
    tokenizer = make_tokenizer(None)
    texts = {"prompt": "a", "chosen": " b", "rejected": " c"}
    assert equal(lk.PreferenceDataset([texts], tokenizer)[0], pairs(texts)[0])
    with pytest.raises(ValueError, match="chat_template is not set"):
        lk.PreferenceDataset([pair_of(0)], tokenizer)[0]


def test_wrong_settings_are_errors() -> None:
    with pytest.raises(ValueError, match="too_long is 'truncate_turns', wanted one of 'error', 'truncate_right'"):
        pairs(max_length=9, too_long="truncate_turns")
    with pytest.raises(ValueError, match=r"columns has 'choosen', .* Did you mean 'chosen'"):
        pairs(columns={"choosen": "a"})
    with pytest.raises(TypeError, match="the source is of type dict"):
        lk.PreferenceDataset({"chosen": np.array([])}, TOKENIZER)  # type: ignore[arg-type]
