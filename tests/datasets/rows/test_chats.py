"""Conversations as token ids and labels: loss on the answers alone, by a template's blocks or by prefixes."""

import datetime
import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from chats_made import (
    CHATML,
    GEMMA,
    KINDS,
    LLAMA3,
    MISTRAL,
    PHI3,
    TEMPLATES,
    TOOLS,
    chat_of,
    make_tokenizer,
    records,
    untagged,
)
from drawing import equal
from hypothesis import given, settings
from hypothesis import strategies as st
from tier import examples

import loaderkit as lk
from loaderkit import testing
from loaderkit.sampling.fingerprint import fingerprint

TOKENIZER = make_tokenizer()


class Keep:
    """A collate that keeps samples as they are."""

    draws_nothing = True

    def __call__(self, samples: list[Any]) -> list[Any]:
        return samples


def answers_of(sample: dict[str, Any], tokenizer: Any = TOKENIZER) -> str:
    """Return the text that a sample trains on."""
    labels = sample["labels"]
    return str(tokenizer.decode(labels[labels != -100]))


def chats(messages: Any, **settings: Any) -> Any:
    return lk.ChatDataset([{"messages": messages}], TOKENIZER, **settings)


@pytest.mark.parametrize("train_on", ["assistant", "last"])
@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "phi3"])
def test_prefixes_find_the_tokens_that_the_templates_blocks_mark(name: str, train_on: Any) -> None:
    tokenizer = make_tokenizer(TEMPLATES[name])
    blocks = lk.ChatDataset(records(9), tokenizer, train_on=train_on)
    prefixes = lk.ChatDataset(records(9), tokenizer, chat_template=untagged(TEMPLATES[name]), train_on=train_on)
    assert [len(sample["labels"]) for sample in blocks] == [len(sample["labels"]) for sample in prefixes]
    assert all(int((sample["labels"] != -100).sum()) > 5 for sample in blocks)
    assert equal(list(blocks), list(prefixes))


@pytest.mark.parametrize("template", [*TEMPLATES.values(), *map(untagged, TEMPLATES.values())])
def test_the_ids_are_those_of_the_whole_conversation_and_labels_are_ids_in_answers(template: str) -> None:
    tokenizer = make_tokenizer(template)
    data = lk.ChatDataset(records(9), tokenizer)
    for record, sample in zip(records(9), data, strict=True):
        wanted = tokenizer.apply_chat_template(record["messages"], tokenize=True, return_dict=True)["input_ids"]
        trained = sample["labels"] != -100
        assert sample["input_ids"].tolist() == wanted
        assert sample["input_ids"].dtype == sample["labels"].dtype == torch.int64
        assert torch.equal(sample["labels"][trained], sample["input_ids"][trained])
        text = answers_of(sample, tokenizer)
        assert all(message["content"] in text for message in record["messages"] if message["role"] == "assistant")
        assert "Question" not in text


class Watched:
    """A tokenizer that notes the texts it is given; one that is not fast cannot tell where in a text its tokens are."""

    def __init__(self, tokenizer: Any, is_fast: bool) -> None:
        self.tokenizer, self.is_fast = tokenizer, is_fast
        self.texts: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __call__(self, text: str, **more: Any) -> Any:
        self.texts.append(text)
        return self.tokenizer(text, **more)


def outcome(rows: Any, tokenizer: Any, **more: Any) -> Any:
    """Return the first sample, or the error."""
    try:
        return lk.ChatDataset(rows, tokenizer, **more)[0]
    except ValueError as error:
        return str(error)


PIECES = ["a", " ", "  ", "\n", "the name", "A", "é😀", "\u2581", "<|im_end|>", "<|im_", "<eos>", "ﬁ", "~", "12"]
CONTENT = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)


@settings(deadline=None, max_examples=examples(300))
@given(
    st.lists(st.tuples(CONTENT, CONTENT), min_size=1, max_size=3),
    st.sampled_from(sorted(TEMPLATES)),
    st.sampled_from(KINDS),
    st.sampled_from(["assistant", "last"]),
)
def test_a_prefix_that_is_tokenized_in_part_has_the_tokens_of_its_whole_text(
    turns: Any, name: str, kind: str, train_on: Any
) -> None:
    """Only what follows a special token is tokenized again: the same samples and errors as if each prefix were as a whole."""
    messages = [
        {"role": role, "content": content}
        for turn in turns
        for role, content in zip(("user", "assistant"), turn, strict=True)
    ]
    tokenizer, rows = make_tokenizer(untagged(TEMPLATES[name]), kind), [{"messages": messages}]
    found = outcome(rows, tokenizer, train_on=train_on)
    assert equal(found, outcome(rows, Watched(tokenizer, is_fast=False), train_on=train_on))


@pytest.mark.parametrize("kind", KINDS)
def test_prefixes_cost_little_more_than_their_conversation(kind: str) -> None:
    tokenizer = Watched(make_tokenizer(untagged(CHATML), kind), is_fast=True)
    rows = [{"messages": [*chat_of(3, 12), {"role": "user", "content": "Thanks."}]}]
    whole = len(tokenizer.apply_chat_template(rows[0]["messages"], tokenize=False))
    sample = lk.ChatDataset(rows, tokenizer)[0]
    assert equal(sample, lk.ChatDataset(rows, Watched(tokenizer.tokenizer, is_fast=False))[0])
    tokenized = sum(map(len, tokenizer.texts))
    assert len(tokenizer.texts) == 25
    assert tokenized < 1.5 * whole if kind != "normalized" else tokenized > 9 * whole  # those do not cut a text


def test_a_conversation_of_two_answers() -> None:
    """The golden values: each way to train, with and without blocks."""
    for template in (CHATML, untagged(CHATML)):
        data = {how: chats(chat_of(1), train_on=how, chat_template=template)[0] for how in ("assistant", "last", "all")}
        assert answers_of(data["last"]) == "Answer 1.1, which is long, é.<|im_end|>\n"
        assert answers_of(data["assistant"]) == "Answer 1.0, which is long, é.<|im_end|>\n" + answers_of(data["last"])
        assert data["all"]["labels"].tolist() == [-100, *data["all"]["input_ids"][1:].tolist()]
        assert data["all"]["input_ids"][:3].tolist() == [3, 99, 97]  # <|im_start|>, "u", "s"


def test_what_a_template_writes_after_the_last_answer_is_no_obstacle() -> None:
    """Phi-3 ends every text with <eos>: it is part of the last answer, not of those before."""
    tokenizer = make_tokenizer(untagged(PHI3))
    text = answers_of(lk.ChatDataset(records(2), tokenizer)[1], tokenizer)
    assert text == "Answer 1.0, which is long, é.<|end|>\nAnswer 1.1, which is long, é.<|end|>\n<eos>"


@pytest.mark.parametrize("template", [CHATML, untagged(LLAMA3), PHI3])
def test_a_prompt_is_what_a_model_sees_before_it_answers(template: str) -> None:
    tokenizer = make_tokenizer(template)
    data = lk.ChatDataset(
        [{"messages": chat_of(n)[: len(chat_of(n)) - n % 2]} for n in range(6)], tokenizer, train_on="none"
    )
    for number, sample in enumerate(data):
        wanted = tokenizer.apply_chat_template(chat_of(number)[:-1], add_generation_prompt=True)["input_ids"]
        assert list(sample) == ["input_ids"]
        assert sample["input_ids"].dtype == torch.int64
        assert sample["input_ids"].tolist() == wanted
    assert number == 5
    batch: Any = lk.ChatCollate(pad_token=7, side="left")([data[0], data[5]])
    short, long = (len(data[number]["input_ids"]) for number in (0, 5))
    assert list(batch) == ["input_ids", "attention_mask"]
    assert batch["input_ids"].tolist() == [
        [7] * (long - short) + data[0]["input_ids"].tolist(),
        data[5]["input_ids"].tolist(),
    ]
    assert batch["attention_mask"].tolist() == [[0] * (long - short) + [1] * short, [1] * long]
    left = lk.ChatDataset(records(6), tokenizer, train_on="none", max_length=30, too_long="truncate_left")
    assert left[5]["input_ids"].tolist() == data[5]["input_ids"][-30:].tolist()
    with pytest.raises(ValueError, match=r"a sample has \d+ tokens, over max_length=30"):
        lk.ChatDataset(records(6), tokenizer, train_on="none", max_length=30)[5]


SHARE = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
OPEN = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
LAYOUTS: dict[str, tuple[dict[str, Any], list[dict[str, str]]]] = {
    "messages": ({"messages": OPEN, "id": 7}, OPEN),
    "messages with what Arrow fills in": ({"messages": [{**turn, "tool_calls": None} for turn in OPEN]}, OPEN),
    "messages as arrays": ({"messages": np.array(OPEN, dtype=object)}, OPEN),
    "conversations": ({"conversations": SHARE}, OPEN),
    "conversations with roles": ({"conversations": OPEN}, OPEN),
    "system": (
        {"conversations": [{"from": "system", "value": "Be kind."}, *SHARE]},
        [{"role": "system", "content": "Be kind."}, *OPEN],
    ),
    "alpaca": ({"instruction": "Hi", "input": "", "output": "Hello"}, OPEN),
    "alpaca with an input": (
        {"instruction": "Add", "input": "1, 2", "output": "3"},
        [{"role": "user", "content": "Add\n1, 2"}, {"role": "assistant", "content": "3"}],
    ),
    "alpaca with all": (
        {"instruction": "Hi", "output": "Hello", "system": "Be kind.", "history": [["Hm?", "Yes."]]},
        [
            *[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hm?"}],
            *[{"role": "assistant", "content": "Yes."}, *OPEN],
        ],
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_layout_gives_the_same_sample_as_messages_do(name: str) -> None:
    record, messages = LAYOUTS[name]
    assert equal(lk.ChatDataset([record], TOKENIZER)[0], chats(messages)[0])


def test_columns_and_roles_have_the_names_that_the_user_gives() -> None:
    rows = [{"q": "Hi", "a": "Hello", "input": None}]
    named = lk.ChatDataset(rows, TOKENIZER, columns={"instruction": "q", "output": "a"})
    assert equal(named[0], chats(OPEN)[0])
    rows = [{"dialog": [{"role": "visitor", "content": "Hi"}, {"role": "bot", "content": "Hello"}]}]
    settings: Any = {"columns": {"messages": "dialog"}, "roles": {"visitor": "user", "bot": "assistant"}}
    assert equal(lk.ChatDataset(rows, TOKENIZER, **settings)[0], chats(OPEN)[0])


def add(first: int, second: int) -> int:
    """Add two numbers.

    Args:
        first: One.
        second: The other.
    """
    return first + second


CALL = {"type": "function", "function": {"name": "add", "arguments": {"first": 1, "second": 2}}}
WITH_TOOLS = [
    {"role": "user", "content": "What is 1 + 2?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "3"},
    {"role": "assistant", "content": "It is 3."},
]


@pytest.mark.parametrize("template", [TOOLS, untagged(TOOLS)])
def test_calls_of_tools_are_trained_on_and_their_results_are_not(template: str) -> None:
    data = chats(WITH_TOOLS, tools=[add], chat_template=template)
    sample = pickle.loads(pickle.dumps(data))[0]
    assert answers_of(sample).startswith(
        '<tool_call>{"name": "add", "arguments": {"first": 1, "second": 2}}</tool_call>'
    )
    assert answers_of(sample).endswith("<|im_end|>\nIt is 3.<|im_end|>\n")
    assert "Add two numbers." in TOKENIZER.decode(sample["input_ids"])
    from transformers.utils import get_json_schema

    schemas = [get_json_schema(add)]
    for own in (schemas, json.dumps(schemas)):
        record = {"messages": WITH_TOOLS, "tools": own}
        assert equal(lk.ChatDataset([record], TOKENIZER, chat_template=template)[0], sample)


def test_variables_of_a_template_come_from_the_dataset_and_from_the_record() -> None:
    template = "{{ mood | default('none') }}" + CHATML
    plain, happy = (
        chats(OPEN, chat_template=template, template_values=given)[0] for given in (None, {"mood": "happy"})
    )
    assert TOKENIZER.decode(plain["input_ids"]).startswith("none<|im_start|>")
    assert TOKENIZER.decode(happy["input_ids"]).startswith("happy<|im_start|>")
    record = {"messages": OPEN, "chat_template_kwargs": {"mood": "happy"}}
    assert equal(lk.ChatDataset([record], TOKENIZER, chat_template=template)[0], happy)


def test_todays_date_is_fixed_as_a_resumed_run_must_see_the_same_tokens() -> None:
    template = "{{ strftime_now('%d %b %Y') }}" + CHATML
    sample = chats(OPEN, chat_template=template, date=datetime.date(2024, 7, 26))[0]
    assert TOKENIZER.decode(sample["input_ids"]).startswith("26 Jul 2024<|im_start|>")
    with pytest.raises(ValueError, match=r"writes today's date .strftime_now., .* date=datetime"):
        chats(OPEN, chat_template=template)
    with pytest.raises(ValueError, match="or a template without it"):
        chats(OPEN, chat_template="{{ strftime_now(form) }}" + CHATML, date=datetime.date(2024, 7, 26))


# The policies for long conversations.


def test_a_long_conversation_is_cut_at_an_end_or_after_a_whole_turn() -> None:
    whole = chats(chat_of(2))[0]  # three answers
    size = len(whole["input_ids"])
    two = chats(chat_of(2)[:4])[0]
    for most in (size - 1, len(two["input_ids"])):
        right, left, turns = (
            chats(chat_of(2), max_length=most, too_long=f"truncate_{how}")[0] for how in ("right", "left", "turns")
        )
        assert right["input_ids"].tolist() == whole["input_ids"][:most].tolist()
        assert right["labels"].tolist() == whole["labels"][:most].tolist()
        assert left["input_ids"].tolist() == whole["input_ids"][-most:].tolist()
        assert left["labels"].tolist() == [-100, *whole["labels"][-most:][1:].tolist()]
        assert equal(turns, two)
    for how in ("right", "left", "turns"):
        assert equal(chats(chat_of(2), max_length=size, too_long=f"truncate_{how}")[0], whole)


def test_what_is_too_long_or_has_nothing_to_train_on_is_an_error_that_a_policy_skips() -> None:
    size = len(chats(chat_of(2))[0]["input_ids"])
    with pytest.raises(ValueError, match=rf"a sample has {size} tokens, over max_length=50. .*lk.BadSamples\('skip'\)"):
        chats(chat_of(2), max_length=50)[0]
    with pytest.raises(ValueError, match="tokens up to its first answer, over max_length=9"):
        chats(chat_of(2), max_length=9, too_long="truncate_turns")[0]
    with pytest.raises(ValueError, match="none of the 9 tokens is left to train on"):
        chats(chat_of(2), max_length=9, too_long="truncate_right")[0]
    data = lk.ChatDataset(records(6), TOKENIZER, max_length=100)
    loader = lk.Loader(data, 6, collate_fn=list, bad_samples=lk.BadSamples("skip", max_rate=1))
    sizes = [len(sample["input_ids"]) for batch in loader for sample in batch]
    assert max(sizes) <= 100
    assert len(sizes) + len(loader.bad_samples) == 6
    assert len(loader.bad_samples) > 1
    assert "over max_length=100" in loader.bad_samples[0].error


def test_a_plan_drops_what_is_too_long_by_the_measured_lengths() -> None:
    data = lk.ChatDataset(records(12), TOKENIZER)
    lengths = lk.measure_lengths(data, "input_ids")
    assert lengths.tolist() == [len(sample["input_ids"]) for sample in data]
    plan = lk.PackPlan(lengths, 100, 2, too_long="drop")
    collate = lk.PackCollate(tokens="input_ids", labels=None, fields={"labels": -100}, row_length=100)
    batches = list(lk.Loader(data, plan=plan, collate_fn=collate))
    assert sum(len(lk.unpack(batch, "input_ids")) for batch in batches) == int((lengths <= 100).sum()) > 3


def test_packed_rows_keep_conversations_apart() -> None:
    """Each has positions of its own, and its first label is ignored: nothing of the row comes before it."""
    data = lk.ChatDataset(records(5), TOKENIZER, train_on="all")
    collate = lk.PackCollate(tokens="input_ids", labels=None, fields={"labels": -100})
    batch = collate([[data[0], data[3]], [data[1]]])
    sizes = [len(data[number]["input_ids"]) for number in (0, 3, 1)]
    long, short = sizes[0] + sizes[1], sizes[2]
    ends = [0, sizes[0], long, long + short, 2 * long] if short < long else [0, sizes[0], long, 2 * long]
    assert batch["cu_seqlens"].tolist() == ends
    assert batch["position_ids"][0].tolist() == [*range(sizes[0]), *range(sizes[1])]
    for place, number in enumerate((0, 3, 1)):
        assert equal(lk.unpack(batch, "labels")[place], data[number]["labels"])
    starts = batch["position_ids"] == 0
    assert int(starts.sum()) == 3 + (short < long)
    assert (batch["labels"][starts] == -100).all()


# The sources, and the laws.


def test_any_source_of_records_will_do(tmp_path: Path) -> None:
    rows = records(5)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = datasets.Dataset.from_list(rows)
    table.to_parquet(str(tmp_path / "a.parquet"))
    wanted = list(lk.ChatDataset(rows, TOKENIZER))
    sources = [lk.RecordDataset(rows), lk.JsonlDataset(tmp_path / "a.jsonl"), lk.ParquetDataset(tmp_path / "a.parquet")]
    for source in [*sources, table, lk.HFDataset(table), lk.SubsetDataset(lk.RecordDataset(rows), range(5))]:
        data = lk.ChatDataset(source, TOKENIZER)
        assert equal(data.__getitems__([4, 0]), [wanted[4], wanted[0]])
        assert equal([data[index] for index in range(5)], wanted)


def test_the_laws() -> None:
    data = lk.ChatDataset(lk.RecordDataset(records(13)), make_tokenizer(untagged(LLAMA3)))
    keys = [tuple(sample["input_ids"].tolist()) for sample in data]
    assert len(set(keys)) == 13

    def loader(**changes: Any) -> lk.Loader:
        settings = {"batch_size": 2, "shuffle": True, "seed": 5, "collate_fn": Keep(), **changes}
        return lk.Loader(data, **settings)

    def ids(batch: list[Any]) -> list[int]:
        return [keys.index(tuple(sample["input_ids"].tolist())) for sample in batch]

    testing.assert_exactly_once(loader, samples=13, worlds=[1, 2, 3], ids=ids)
    testing.assert_resumable(loader, epochs=2, stops=[1, 5, 7], ids=ids)
    testing.assert_workers_dont_matter(loader, workers=[0, 2], start_methods=["fork"], persistent=[False], ids=ids)
    whole = list(loader())
    assert equal(list(lk.Loader(pickle.loads(pickle.dumps(data)), 2, shuffle=True, seed=5, collate_fn=Keep())), whole)
    for engine in ("threads", "torch", "ring"):
        assert equal(list(loader(num_workers=2, engine=engine)), whole), engine


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3), (3, 2)])
def test_packed_conversations_come_once_if_a_run_resumes_on_other_ranks(before: int, after: int) -> None:
    data = lk.ChatDataset(lk.RecordDataset(records(40)), TOKENIZER)
    lengths = lk.measure_lengths(data, "input_ids")
    keys = [tuple(sample["input_ids"].tolist()) for sample in data]
    assert len(set(keys)) == 40

    def loader(rank: int, ranks: int) -> lk.Loader:
        plan = lk.PackPlan(lengths, 320, 1, seed=3)
        collate = lk.PackCollate(tokens="input_ids", row_length=320, labels=None, fields={"labels": -100})
        return lk.Loader(data, plan=plan, collate_fn=collate, world=lk.World(rank, ranks))

    def numbers(batches: Any) -> list[int]:
        return [keys.index(tuple(ids.tolist())) for batch in batches for ids in lk.unpack(batch, "input_ids")]

    found, states = [], []
    for rank in range(before):
        first = loader(rank, before)
        found += numbers(itertools.islice(first, 3))
        states.append(first.state_dict())
    assert 0 < len(found) < 40
    assert all(state == states[0] for state in states)
    for rank in range(after):
        second = loader(rank, after)
        second.load_state_dict(states[0])
        found += numbers(second)
    assert sorted(found) == list(range(40))


@pytest.mark.parametrize("place", ["memory", "folder"])
def test_a_cache_keeps_the_samples_of_one_template(place: str, tmp_path: Path) -> None:
    rows = lk.RecordDataset(records(5))
    for template in (CHATML, LLAMA3):
        data = lk.ChatDataset(rows, TOKENIZER, chat_template=template)
        cached = lk.CachedDataset(data, "memory" if place == "memory" else tmp_path, max_bytes=1 << 20)
        for _ in range(2):
            assert equal([cached[index] for index in range(5)], list(data))
    assert place == "memory" or len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_workers_that_are_not_forked_give_the_same_batches(method: str) -> None:
    data = lk.ChatDataset(lk.RecordDataset(records(7)), TOKENIZER)
    whole = list(lk.Loader(data, 2, shuffle=True, collate_fn=list))
    assert len(whole) == 4
    other = lk.Loader(data, 2, shuffle=True, collate_fn=list, num_workers=2, multiprocessing_context=method)
    assert equal(list(other), whole)


def test_a_fingerprint_tells_what_would_change_the_tokens() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"train_on": "all"},
        {"max_length": 500},
        {"max_length": 500, "too_long": "truncate_left"},
        {"chat_template": LLAMA3},
        {"template_values": {"mood": "happy"}},
        {"tools": [add]},
        {"roles": {"bot": "assistant"}},
        {"columns": {"messages": "messages"}},
        {"date": datetime.date(2024, 7, 26)},
    ]
    rows = lk.RecordDataset(records(5))
    made = [fingerprint(lk.ChatDataset(rows, TOKENIZER, **change), 5) for change in changes]
    made.append(fingerprint(lk.ChatDataset(lk.RecordDataset(records(6)), TOKENIZER), 5))
    more = make_tokenizer()
    more.add_tokens(["<new>"])
    made.append(fingerprint(lk.ChatDataset(rows, more), 5))
    assert len(set(made)) == len(made) == 12
    again = make_tokenizer()
    again(["a", "b c d"], padding=True, truncation=True, max_length=2)  # sets a state of the tokenizer
    assert fingerprint(lk.ChatDataset(rows, again), 5) == made[0]


def test_a_state_of_another_template_is_refused() -> None:
    rows = lk.RecordDataset(records(5))
    state = lk.Loader(lk.ChatDataset(rows, TOKENIZER), 2).state_dict()
    with pytest.raises(lk.StateError, match=r"template [0-9a-f]{16}, settings"):
        lk.Loader(lk.ChatDataset(rows, TOKENIZER, chat_template=LLAMA3), 2).load_state_dict(state)


# The errors.

BROKEN: dict[str, tuple[Any, str]] = {
    "no dict": ("text", "a record is of type str, wanted a dict"),
    "no layout": ({"text": "Hi"}, r"has the fields \['text'\], wanted 'messages', 'conversations'"),
    "empty": ({"messages": []}, "the conversation is empty"),
    "no list": ({"messages": "Hi"}, "the messages are of type str, wanted a list"),
    "no message": ({"messages": ["Hi"]}, "message 0 is of type str, wanted a dict"),
    "no role": ({"messages": [{"content": "Hi"}]}, "message 0 has the role None"),
    "odd role": ({"messages": [{"role": ["user"], "content": "Hi"}]}, r"message 0 has the role \['user'\]"),
    "unknown role": (
        {"messages": [{"role": "bot", "content": "Hi"}]},
        "has the role 'bot', wanted one of assistant, .*Add it: roles={'bot': 'user'}",
    ),
    "no content": (
        {"messages": [OPEN[0], {"role": "assistant"}]},
        r"message 1 \(assistant\) has a content of type NoneType",
    ),
    "parts": (
        {"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Hi"}]}]},
        "message 0 has a content of 2 parts, wanted text",
    ),
    "no answer": ({"messages": OPEN[:1]}, "has no answer of the assistant to train on"),
    "an empty answer": (
        {"instruction": "Hi", "output": None},
        r"message 1 \(assistant\) has a content of type NoneType",
    ),
    "an odd instruction": ({"instruction": 1, "output": "Hello"}, "instruction is 1 and input None, wanted texts"),
    "an odd history": (
        {"instruction": "Hi", "output": "Hello", "history": ["a"]},
        r"history is \['a'\], wanted a list of pairs",
    ),
    "odd tools": ({"messages": OPEN, "tools": [1]}, r"the tools are \[1\], wanted a list of JSON schemas"),
    "broken tools": ({"messages": OPEN, "tools": "[{"}, "the tools are no JSON"),
    "one tool": (
        {"messages": OPEN, "tools": {"type": "function"}},
        r"the tools are \{'type': 'function'\}, wanted a list",
    ),
    "one tool in JSON": (
        {"messages": OPEN, "tools": '{"type": "function"}'},
        r"the tools are \{'type': .*, wanted a list",
    ),
    "odd variables": (
        {"messages": OPEN, "chat_template_kwargs": ["mood"]},
        r"chat_template_kwargs is \['mood'\], wanted a dict",
    ),
    "an endless role": (
        {"messages": [{"role": "a" * 10**6, "content": "Hi"}]},
        r"has the role 'a{39}, wanted one of assistant, .{90,120}\.$",
    ),
    "half of a character": (
        {"messages": [OPEN[0], {"role": "assistant", "content": "Hello \ud83d"}]},
        r"message 1 \(assistant\) has '.ud83d' at character 6, a surrogate: half of a character, wanted text. .*Repair it",
    ),
    "half of a character in an instruction": (
        {"instruction": "\udc80", "output": "Hello"},
        r"message 0 \(user\) has '.udc80' at character 0",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_record_is_named_and_a_policy_leaves_it_out(name: str) -> None:
    record, message = BROKEN[name]
    rows = [{"messages": OPEN}, record, {"messages": OPEN}]
    data = lk.ChatDataset(rows, TOKENIZER)
    with pytest.raises(ValueError, match=f"^sample 1: ChatDataset: .*{message}"):
        data[1]
    loader = lk.Loader(data, 3, collate_fn=list, bad_samples=lk.BadSamples("skip", max_rate=1))
    assert [len(batch) for batch in loader] == [2]
    assert [bad.index for bad in loader.bad_samples] == [1]


def test_bytes_that_are_no_utf8_are_named_by_file_and_line(tmp_path: Path) -> None:
    lines = [json.dumps(row).encode() for row in records(5)]
    lines[2] = lines[2].replace(b"Question", b"Quest\xff\xfe")
    lines[3] = lines[3].replace(b"Question", b"Quest\\ud83d")  # valid UTF-8, and half of a character once it is parsed
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    data = lk.ChatDataset(lk.JsonlDataset(tmp_path / "a.jsonl"), TOKENIZER)
    with pytest.raises(lk.ShardError, match=r"a\.jsonl: line 3 .* is not JSON: 'utf-8' codec"):
        data[2]
    with pytest.raises(ValueError, match=r"has '.ud83d' at character 5"):
        data[3]
    loader = lk.Loader(data, 5, collate_fn=list, bad_samples=lk.BadSamples("skip", max_rate=1))
    assert equal(list(loader), [[lk.ChatDataset(records(5), TOKENIZER)[number] for number in (0, 1, 4)]])
    assert [bad.index for bad in loader.bad_samples] == [2, 3]


@pytest.mark.parametrize("template", [CHATML, untagged(CHATML)])
def test_a_message_of_a_million_tokens_is_read_cut_or_refused(template: str) -> None:
    answered = chats([OPEN[0], {**OPEN[1], "content": "~" * 10**6}], chat_template=template)[0]
    assert answered["labels"].tolist().count(-100) < 20
    assert answers_of(answered) == "~" * 10**6 + "<|im_end|>\n"
    asked: Any = [{**OPEN[0], "content": "~" * 10**6}, OPEN[1]]
    cut = chats(asked, chat_template=template, max_length=100, too_long="truncate_left")[0]
    assert answers_of(cut) == "Hello<|im_end|>\n"
    assert len(cut["input_ids"]) == 100
    with pytest.raises(ValueError, match=r"has 1,000,0\d\d tokens, over max_length=100") as error:
        chats(asked, chat_template=template, max_length=100)[0]
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("template", [CHATML, untagged(CHATML)])
def test_an_answer_without_text_trains_the_end_of_its_turn(template: str) -> None:
    empty = [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
    assert answers_of(chats(empty, chat_template=template)[0]) == "<|im_end|>\n"
    assert answers_of(chats([*empty, *OPEN], chat_template=template)[0]) == "<|im_end|>\nHello<|im_end|>\n"


def test_what_a_template_cannot_do_is_said() -> None:
    with pytest.raises(ValueError, match="the chat template raised TemplateSyntaxError: "):
        chats(OPEN, chat_template="{% for message in messages %}")[0]
    with pytest.raises(
        ValueError, match="the chat template raised UndefinedError: 'dict object' has no attribute 'name'"
    ):
        chats(OPEN, chat_template=TOOLS.replace("tool | tojson", "tool.name.first"), tools=[{"type": "function"}])[0]
    with pytest.raises(ValueError, match=r"raised TemplateError: System role not supported \(roles: system, user"):
        chats([{"role": "system", "content": "Be kind."}, *OPEN], chat_template=GEMMA)[0]
    with pytest.raises(ValueError, match="roles must alternate"):
        chats([OPEN[0], OPEN[0], OPEN[1]], chat_template=MISTRAL)[0]
    with pytest.raises(ValueError, match="generation blocks mark no token"):
        chats(OPEN, chat_template=untagged(CHATML) + "{% generation %}{% endgeneration %}")[0]
    with pytest.raises(ValueError, match="begins with an answer"):
        chats([OPEN[1], *OPEN], chat_template=untagged(CHATML))[0]
    with pytest.raises(ValueError, match="the conversation is an answer alone, wanted a message before it"):
        chats(OPEN[1:], train_on="none")[0]


def test_prefixes_that_do_not_match_are_an_error_that_says_why() -> None:
    # A template that writes earlier answers in another way than the last one, as templates that drop thoughts do.
    drops = untagged(CHATML).replace(
        "{{ message['content']", "{{ ('' if loop.last or message['role'] == 'user' else 'old ') + message['content']"
    )
    why = "the text up to answer 1 is rendered otherwise alone: 'Answer 1.0.*, in the whole 'old Answer"
    with pytest.raises(ValueError, match=rf"{why}.*generation %}} blocks, or train_on='last' or 'all'"):
        chats(chat_of(1), chat_template=drops)[0]
    assert answers_of(chats(chat_of(1), chat_template=drops, train_on="last")[0]).startswith("Answer 1.1")
    # A template whose prompt has more than the whole conversation.
    thinks = untagged(CHATML).replace("'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<think>'")
    with pytest.raises(
        ValueError, match=r"the prompt of answer 1 is rendered otherwise alone: '<think>', .*train_on='all'"
    ):
        chats(OPEN, chat_template=thinks)[0]
    # A template that ends the last turn with another token: the earlier ones would not be trained to end.
    ends = untagged(CHATML).replace(
        "'<|im_end|>\n'", "('<eos>' if loop.last and message['role'] == 'assistant' else '<|im_end|>')"
    )
    with pytest.raises(ValueError, match=r"up to answer 1 is rendered otherwise alone: 'eos>', in the whole '.im_end"):
        chats(chat_of(1), chat_template=ends)[0]
    # A prompt whose last token is another one if the answer follows.
    merges = "{% for m in messages %}{{ m['content'] + ' ' }}{% endfor %}"
    with pytest.raises(
        ValueError,
        match=r"tokens merge at the end of the prompt of answer 1, before 'the name '.* Give answers without white",
    ):
        chats([OPEN[0], {"role": "assistant", "content": "the name"}], chat_template=merges)[0]


class Slow:
    """A tokenizer that cannot say where in the text its tokens are."""

    is_fast = False

    def __init__(self) -> None:
        self.chat_template, self.special_tokens_map, self.all_special_ids = CHATML, {}, []

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, Any]:
        return {"input_ids": list(text.encode())}

    def get_vocab(self) -> dict[str, int]:
        return {chr(byte): byte for byte in range(256)}

    def get_chat_template(self, template: Any, tools: Any) -> Any:
        return template or self.chat_template

    def apply_chat_template(self, *args: Any, **settings: Any) -> Any:
        return TOKENIZER.apply_chat_template(*args, **settings)


def test_a_slow_tokenizer_uses_prefixes() -> None:
    sample = lk.ChatDataset([{"messages": OPEN}], Slow())[0]
    assert bytes(sample["labels"][sample["labels"] != -100].tolist()) == b"Hello<|im_end|>\n"
    assert lk.ChatDataset([{"messages": OPEN}], Slow()).fingerprint()


def test_wrong_settings_are_errors() -> None:
    with pytest.raises(TypeError, match="the source is of type str, wanted records by index"):
        lk.ChatDataset("chats.jsonl", TOKENIZER)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="with the splits"):
        lk.ChatDataset(datasets.DatasetDict(), TOKENIZER)
    with pytest.raises(TypeError, match="the tokenizer is of type function, wanted one of the package transformers"):
        lk.ChatDataset([], add)
    with pytest.raises(ValueError, match="chat_template is not set"):
        lk.ChatDataset([], make_tokenizer(None))
    with pytest.raises(ValueError, match=r"columns has 'mesages', wanted one of .* Did you mean 'messages'"):
        chats(OPEN, columns={"mesages": "dialog"})
    with pytest.raises(ValueError, match=r"a record has no \['dialog'\] \(columns=\), its fields are \['messages'\]"):
        chats(OPEN, columns={"messages": "dialog"})[0]
    with pytest.raises(ValueError, match="train_on is 'user', wanted one of 'assistant', 'last', 'all'"):
        chats(OPEN, train_on="user")
    with pytest.raises(ValueError, match=r"too_long is 'drop', wanted one of .* give too_long='drop' to a plan"):
        chats(OPEN, max_length=9, too_long="drop")
    with pytest.raises(ValueError, match="max_length is 1, wanted an integer of at least 2"):
        chats(OPEN, max_length=1)
    with pytest.raises(
        ValueError, match=r"too_long is 'truncate_turns' for prompts .*, wanted 'error' or 'truncate_left'"
    ):
        chats(OPEN, train_on="none", max_length=9, too_long="truncate_turns")
    for odd in ([1], {"type": "function"}, "add"):
        with pytest.raises(TypeError, match=r"tools are .*, wanted a list of JSON schemas"):
            chats(OPEN, tools=odd)
    with pytest.raises(ValueError, match="too_long is 'truncate_left' without max_length="):
        chats(OPEN, too_long="truncate_left")
