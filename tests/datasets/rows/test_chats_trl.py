"""The same conversations through trl's trainers: the same ids, masks and labels."""

import datetime
import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from chats_made import CHATML, TEMPLATES, TOOLS, chat_of, make_tokenizer, records, untagged

import loaderkit as lk

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # theirs are not ours
SIZE = 12


@pytest.fixture(scope="module")
def trl() -> Iterator[Any]:
    """The package, and less of what it logs."""
    found = pytest.importorskip("trl", reason="trl is not installed: pip install '.[test]'")
    logging.disable(logging.WARNING)
    yield found
    logging.disable(logging.NOTSET)


def model(tokenizer: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes))


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    return {"output_dir": str(folder), "use_cpu": True, "bf16": False, "report_to": [], "max_length": None, **more}


def sft(trl: Any, rows: list[dict[str, Any]], tokenizer: Any, folder: Path, **more: Any) -> Any:
    """Return trl's trainer, whose data is prepared."""
    from datasets import Dataset

    args = trl.SFTConfig(**settings(folder, **{"assistant_only_loss": True, **more}))
    return trl.SFTTrainer(model(tokenizer), args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)


def check_same(theirs: Any, ours: Any) -> int:
    """Compare all samples; return how many there are."""
    assert len(theirs) == len(ours)
    for their, our in zip(theirs, ours, strict=True):
        assert their["input_ids"] == our["input_ids"].tolist()
        labels = torch.tensor(their["labels"])
        labels[0] = -100  # theirs has the first id if all are trained on; a model's shift drops it
        assert torch.equal(labels, our["labels"])
    return len(theirs)


@pytest.mark.parametrize("name", TEMPLATES)
def test_ids_and_labels_are_those_of_the_sft_trainer(name: str, trl: Any, tmp_path: Path) -> None:
    tokenizer, rows = make_tokenizer(TEMPLATES[name]), records(SIZE)
    assert check_same(sft(trl, rows, tokenizer, tmp_path).train_dataset, lk.ChatDataset(rows, tokenizer)) == SIZE
    everything = sft(trl, rows, tokenizer, tmp_path, assistant_only_loss=False).train_dataset
    assert check_same(everything, lk.ChatDataset(rows, tokenizer, train_on="all")) == SIZE


def test_layouts_and_tools_are_those_of_the_sft_trainer(trl: Any, tmp_path: Path) -> None:
    share = [{"conversations": [{"from": t["role"], "value": t["content"]} for t in chat_of(n)]} for n in range(SIZE)]
    tokenizer = make_tokenizer()
    theirs = sft(trl, share, tokenizer, tmp_path, assistant_only_loss=False).train_dataset  # it refuses them with True
    assert check_same(theirs, lk.ChatDataset(share, tokenizer, train_on="all")) == SIZE
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        *[{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "", "tool_calls": [call]}],
        *[{"role": "tool", "content": "2"}, {"role": "assistant", "content": "2."}],
    ]
    rows, tokenizer = [{"messages": messages, "tools": [tool]}] * 2, make_tokenizer(TOOLS)
    assert check_same(sft(trl, rows, tokenizer, tmp_path).train_dataset, lk.ChatDataset(rows, tokenizer)) == 2


def test_prompts_and_completions_of_trl_are_what_prefixes_find(trl: Any, tmp_path: Path) -> None:
    """It compares a prompt with the whole too, for one answer; `train_on="last"` is the same."""
    tokenizer = make_tokenizer(untagged(CHATML))
    chats = [chat_of(number) for number in range(SIZE)]
    rows = [{"prompt": chat[:-1], "completion": chat[-1:]} for chat in chats]
    theirs = sft(trl, rows, tokenizer, tmp_path, assistant_only_loss=False).train_dataset
    ours = lk.ChatDataset([{"messages": chat} for chat in chats], tokenizer, train_on="last")
    assert check_same(theirs, ours) == SIZE


@pytest.mark.parametrize(("mode", "ours"), [("keep_start", "truncate_right"), ("keep_end", "truncate_left")])
def test_a_cut_is_that_of_the_sft_trainer(mode: str, ours: Any, trl: Any, tmp_path: Path) -> None:
    tokenizer, rows = make_tokenizer(), records(SIZE)
    theirs = sft(trl, rows, tokenizer, tmp_path, max_length=60, truncation_mode=mode).train_dataset
    data = lk.ChatDataset(rows, tokenizer, max_length=60, too_long=ours)
    assert max(len(sample["input_ids"]) for sample in data) == 60
    assert check_same(theirs, data) == SIZE


def test_padded_and_packed_batches_are_those_of_its_collate(trl: Any, tmp_path: Path) -> None:
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    tokenizer, rows = make_tokenizer(), records(SIZE)
    data = lk.ChatDataset(rows, tokenizer, train_on="all")
    samples = [data[number] for number in range(SIZE)]
    theirs = DataCollatorForLanguageModeling(tokenizer.pad_token_id, pad_to_multiple_of=8)(samples)
    ours: Any = lk.ChatCollate(pad_token=tokenizer.pad_token_id, multiple_of=8)(samples)
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in ours)
    theirs = DataCollatorForLanguageModeling(tokenizer.pad_token_id, padding_free=True)(samples)
    ours = lk.PackCollate(tokens="input_ids", labels=None, fields={"labels": -100})(samples)
    for name in ("input_ids", "labels", "position_ids"):
        assert torch.equal(theirs[name], ours[name])
    assert torch.equal(theirs["cu_seq_lens_q"], ours["cu_seqlens"])
    assert torch.equal(theirs["seq_idx"], ours["document_ids"])
    assert theirs["max_length_q"] == ours["max_seqlen"]


PAIRS = {
    "messages": [
        {
            "prompt": chat_of(n)[:-1],
            "chosen": chat_of(n)[-1:],
            "rejected": [{"role": "assistant", "content": f"No {n}."}],
        }
        for n in range(SIZE)
    ],
    "messages without a prompt": [
        {"chosen": chat_of(n), "rejected": [*chat_of(n)[:-1], {"role": "assistant", "content": f"No {n}."}]}
        for n in range(SIZE)
    ],
    "texts": [{"prompt": f"Which {n}?", "chosen": f" the name {n}", "rejected": f" no{n}"} for n in range(SIZE)],
    "texts without a prompt": [
        {"chosen": f"User: which {n}? Bot: the name {n}", "rejected": f"User: which {n}? Bot: a name"}
        for n in range(SIZE)
    ],
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_and_their_batches_are_those_of_the_dpo_trainer(name: str, trl: Any, tmp_path: Path) -> None:
    from datasets import Dataset

    tokenizer, rows = make_tokenizer(), PAIRS[name]
    args = trl.DPOConfig(**settings(tmp_path))
    theirs = trl.DPOTrainer(
        model(tokenizer), model(tokenizer), args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    data = lk.PreferenceDataset(rows, tokenizer)
    for their, our in zip(theirs.train_dataset, data, strict=True):
        for side in ("chosen", "rejected"):
            ids, labels = our[side]["input_ids"], our[side]["labels"]
            assert their["prompt_ids"] == ids[labels == -100].tolist()
            assert their[f"{side}_ids"] == labels[labels != -100].tolist()
    batch = theirs.data_collator([theirs.train_dataset[number] for number in range(SIZE)])
    ours = lk.ChatCollate(pad_token=tokenizer.pad_token_id)([data[number] for number in range(SIZE)])
    assert torch.equal(batch["input_ids"], ours["input_ids"])
    assert torch.equal(batch["attention_mask"], ours["attention_mask"])
    assert torch.equal(batch["completion_mask"].bool(), ours["labels"] != -100)
    assert len(ours["labels"]) == 2 * SIZE


def test_prefixes_of_published_templates_find_what_the_blocks_of_trls_variants_mark(trl: Any) -> None:
    """The package has published templates, and variants with blocks.

    Where prefixes work, they find the marked tokens, or these without the header of an answer, which the prompt has. Where a template
    does not render prompts as it renders the whole, it is an error.
    """
    folder = Path(trl.__file__).parent / "chat_templates"
    chats = [chat_of(3, 1), chat_of(4, 2), [{"role": "system", "content": "Be kind."}, *chat_of(5, 2)]]
    equal = fewer = refused = 0
    errors: list[str] = []
    for tagged, chat in itertools.product(sorted(folder.glob("*_training.jinja")), chats):
        plain = tagged.with_name(tagged.name.replace("_training", ""))
        tokenizer, found = make_tokenizer(plain.read_text()), []
        for template in (plain, tagged):
            data = lk.ChatDataset(
                [{"messages": chat}], tokenizer, chat_template=template.read_text(), date=datetime.date(2024, 7, 26)
            )
            try:
                found.append(data[0])
            except ValueError as error:
                errors.append(str(error))
        if len(found) < 2:
            refused += 1
        elif torch.equal(found[0]["input_ids"], found[1]["input_ids"]):  # else it is another text
            by_prefix, by_blocks = (sample["labels"] != -100 for sample in found)
            assert by_prefix.any()
            assert not (by_prefix & ~by_blocks).any()
            same = torch.equal(by_prefix, by_blocks)
            equal, fewer = equal + same, fewer + (not same)
    assert all("cannot be told from the rest" in error or "chat template raised" in error for error in errors)
    assert (equal > 40, fewer < 20, refused < 40) == (True, True, True), (equal, fewer, refused)
