"""Conversations with pictures have the ids and patches of Qwen2-VL's processor, and labels on the answers alone."""

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chats_made import AROUND, CHATML, QWEN2_VL, make_tokenizer, qwen2_vl_processor, vision_tokenizer
from drawing import equal
from multimodal_made import chats, json_lines, name_of, write_pictures
from PIL import Image

import loaderkit as lk
from loaderkit import testing
from loaderkit.datasets.images.decode import decode_picture

PATCHES = lk.Patches(size=14, merge=2, max_tokens=12)
COUNT = 14


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "pictures")


def pictures(folder: Path, **settings: Any) -> lk.Pictures:
    return lk.Pictures(PATCHES, placeholder="<|image_pad|>", root=folder, **settings)


def make_data(folder: Path, rows: Any = None, **settings: Any) -> Any:
    return lk.ChatDataset(
        chats(COUNT) if rows is None else rows, vision_tokenizer(), pictures=pictures(folder, **AROUND), **settings
    )


def names_in(messages: list[dict[str, Any]]) -> list[str]:
    contents = [message["content"] for message in messages if isinstance(message["content"], list)]
    return [part["image"] for content in contents for part in content if part["type"] == "image"]


def answers_of(sample: dict[str, Any]) -> str:
    return str(vision_tokenizer().decode(sample["labels"][sample["labels"] != -100]))


@pytest.mark.slow
def test_ids_and_patches_are_those_of_the_processor_of_qwen2_vl(folder: Path) -> None:
    processor = qwen2_vl_processor(12)
    checked = 0
    for record, sample in zip(chats(COUNT), make_data(folder), strict=True):
        names = names_in(record["messages"])
        found = [decode_picture((folder / name).read_bytes()) for name in names]
        text = processor.apply_chat_template(record["messages"], tokenize=False)
        wanted = processor(images=found or None, text=[text], return_tensors="pt")
        assert sample["input_ids"].tolist() == wanted["input_ids"][0].tolist()
        if names:
            ours = PATCHES([sample["images"]])
            assert wanted["image_grid_thw"][:, 1:].tolist() == ours["grids"].tolist()
            pixels = wanted["pixel_values"].reshape(-1, 3, 2, 14 * 14)[:, :, 0].flatten(1)
            difference = (pixels - ours["patches"].to(pixels.dtype)).abs()
            assert float(difference.max()) <= 1  # of 255: where a picture is resized, both round
            checked += len(names)
    assert checked > 20


@pytest.mark.slow
def test_masks_are_those_of_the_processor_of_qwen2_vl(folder: Path) -> None:
    """Of a template with blocks; ours is the same without them."""
    answer = "{{ message['content'] }}<|im_end|>\n"
    marked = QWEN2_VL.replace(
        f"string %}}{answer}{{% else %}}",
        f"string %}}{{% if message['role'] == 'assistant' %}}{{% generation %}}{answer}{{% endgeneration %}}{{% else %}}{answer}"
        "{% endif %}{% else %}",
    )
    assert marked != QWEN2_VL
    processor, checked = qwen2_vl_processor(12), 0
    both = zip(chats(COUNT), make_data(folder, chat_template=marked), make_data(folder), strict=True)
    for record, sample, without_blocks in both:
        assert equal(sample, without_blocks)
        messages = [dict(message) for message in record["messages"]]
        for message in messages:
            if isinstance(message["content"], list):
                message["content"] = [
                    {"type": "image", "image": Image.open(folder / part["image"])} if "image" in part else part
                    for part in message["content"]
                ]
        asked = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
        wanted = processor.apply_chat_template(messages, chat_template=marked, **asked)
        assert sample["input_ids"].tolist() == wanted["input_ids"][0]
        assert (sample["labels"] != -100).long().tolist() == wanted["assistant_masks"][0]
        checked += len(names_in(record["messages"]))
    assert checked > 20


def test_labels_are_the_answers_alone_and_pictures_come_in_order(folder: Path) -> None:
    rows = chats(COUNT)
    assert sum(len(names_in(row["messages"])) for row in rows) > 20
    for record, sample in zip(rows, make_data(folder), strict=True):
        answers = [message["content"] for message in record["messages"] if message["role"] == "assistant"]
        assert answers_of(sample) == "".join(f"{answer}<|im_end|>\n" for answer in answers)
        wanted = [decode_picture((folder / name).read_bytes()) for name in names_in(record["messages"])]
        assert equal(sample["images"], wanted)
        placeholder = vision_tokenizer().get_vocab()["<|image_pad|>"]
        assert int((sample["input_ids"] == placeholder).sum()) == PATCHES.tokens(wanted)
        assert not bool((sample["labels"] == placeholder).any())


def test_pictures_carry_no_loss_even_if_all_tokens_do(folder: Path) -> None:
    placeholder, shown = vision_tokenizer().get_vocab()["<|image_pad|>"], 0
    for sample in make_data(folder, train_on="all"):
        trained = sample["input_ids"] != placeholder
        trained[0] = False
        assert torch.equal(sample["labels"], torch.where(trained, sample["input_ids"], -100))
        shown += len(sample["images"])
    assert shown > 20


def test_a_conversation_without_pictures_is_what_it_is_without_the_setting(folder: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}]
    plain = lk.ChatDataset(rows, vision_tokenizer())[0]
    assert equal(make_data(folder, rows)[0], plain | {"images": []})
    rows[0]["messages"][1]["content"] = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo."}]  # type: ignore[assignment]
    assert equal(make_data(folder, rows)[0], plain | {"images": []})


def test_pictures_may_be_a_column_of_the_record(folder: Path) -> None:
    def rows(*parts: Any, **columns: Any) -> list[Any]:
        content = [*parts, {"type": "text", "text": "What?"}]
        return [{"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "A."}], **columns}]

    first, second = {"type": "image", "image": name_of(0)}, {"type": "image", "image": name_of(2)}
    bare = {"type": "image"}
    wanted = make_data(folder, rows(first, second))[0]
    assert len(wanted["images"]) == 2
    for given in (
        rows(bare, bare, images=[name_of(0), name_of(2)]),
        rows(first, bare, images=[name_of(2)]),
        rows(first, bare, images=name_of(2)),
        rows({**first, "text": None}, {"type": "image_url", "image_url": {"url": name_of(2)}, "image": None}),
    ):
        assert equal(make_data(folder, given)[0], wanted)
    other = rows(bare, bare, pics=[name_of(0), name_of(2)])
    assert equal(make_data(folder, other, columns={"images": "pics"})[0], wanted)
    with pytest.raises(ValueError, match="message 0, part 1 names no picture, and the record has no further one"):
        make_data(folder, rows(bare, bare, images=[name_of(0)]))[0]
    with pytest.raises(ValueError, match=r"1 placeholders .* and 2 pictures"):
        make_data(folder, rows(bare, images=[name_of(0), name_of(2)]))[0]


@pytest.mark.parametrize("too_long", ["truncate_right", "truncate_left", "truncate_turns"])
def test_a_cut_keeps_the_pictures_whose_tokens_it_keeps(folder: Path, too_long: Any) -> None:
    vocabulary = vision_tokenizer().get_vocab()
    placeholder, before, after = (vocabulary[name] for name in ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>"))
    whole = list(make_data(folder))
    cuts = 0
    for most in range(20, 160, 7):
        data = make_data(folder, max_length=most, too_long=too_long)
        lengths = lk.measure_lengths(data, bad_length=0)
        for row, sample in enumerate(whole):
            try:
                found = data[row]
            except ValueError as error:
                assert "left to train on" in str(error) or "up to its first answer" in str(error)  # noqa: PT017
                assert lengths[row] == 0
                continue
            ids = found["input_ids"]
            length, count = len(ids), len(found["images"])
            assert lengths[row] == length <= most
            left = too_long == "truncate_left"
            assert torch.equal(
                ids, sample["input_ids"][len(sample["input_ids"]) - length :] if left else sample["input_ids"][:length]
            )
            assert equal(
                found["images"], sample["images"][len(sample["images"]) - count :] if left else sample["images"][:count]
            )
            assert int((ids == placeholder).sum()) == PATCHES.tokens(found["images"])
            assert int((ids == before).sum()) == int((ids == after).sum()) == count
            if too_long == "truncate_turns":
                assert answers_of(found).endswith("long.<|im_end|>\n")
            cuts += length < len(sample["input_ids"])
    assert cuts > 20


def test_lengths_are_counted_from_headers(folder: Path) -> None:
    data = make_data(folder)
    wanted = [len(sample["input_ids"]) for sample in data]
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-20])
    assert lk.measure_lengths(data, num_workers=2).tolist() == wanted
    with pytest.raises(ValueError, match=r"sample \d+: message 0, part \d: .*(png|jpeg): .*(is cut|is truncated)"):
        list(data)
    plain = [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}]
    without = lk.ChatDataset(plain, make_tokenizer())
    assert lk.measure_lengths(without).tolist() == [len(without[0]["input_ids"])]


def test_chat_collate_makes_the_batch_of_the_rules(folder: Path) -> None:
    samples = list(make_data(folder))[:6]
    assert len({len(sample["images"]) for sample in samples}) > 1
    rules = {"input_ids": lk.Pad(value=7, mask=True), "labels": lk.Pad(value=-100), "images": PATCHES}
    wanted = lk.MultimodalCollate(rules)(samples)
    wanted["attention_mask"] = wanted.pop("input_ids_mask").long()
    collate = lk.ChatCollate(pad_token=7, images=PATCHES)
    batch = collate(samples)
    assert list(batch) == ["input_ids", "attention_mask", "labels", "images"]
    assert all(equal(batch[name], wanted[name]) for name in batch)
    assert collate.draws_nothing
    assert not lk.ChatCollate(images=lambda pictures: pictures).draws_nothing
    prompts = [{name: sample[name] for name in ("input_ids", "images")} for sample in samples]
    assert list(collate(prompts)) == ["input_ids", "attention_mask", "images"]
    with pytest.raises(lk.CollateError, match="keys"):
        collate([samples[0], {name: samples[1][name] for name in ("input_ids", "labels")}])


def test_a_picture_that_cannot_be_read_is_a_bad_sample(folder: Path) -> None:
    rows = chats(COUNT)
    (folder / name_of(3)).write_bytes((folder / name_of(3)).read_bytes()[:-20])
    (folder / name_of(4)).unlink()
    bad = [n for n, row in enumerate(rows) if {name_of(3), name_of(4)} & set(names_in(row["messages"]))]
    assert 2 < len(bad) < COUNT - 2
    loader = lk.Loader(make_data(folder, rows), COUNT, collate_fn=list, bad_samples=lk.BadSamples("skip", max_rate=1))
    found = [sample["input_ids"].tolist() for batch in loader for sample in batch]
    assert sorted(each.index for each in loader.bad_samples) == bad
    good = [n for n in range(COUNT) if n not in bad]
    assert found == [make_data(folder, rows)[n]["input_ids"].tolist() for n in good]
    assert all(re.search(r"message \d, part \d: ", each.error) for each in loader.bad_samples)
    with pytest.raises((ValueError, OSError), match=rf"sample {bad[0]}: message \d, part \d: .*[34]\.png"):
        list(lk.Loader(make_data(folder, rows), 3, collate_fn=list))


def test_rows_of_a_stream_never_cut_a_picture(folder: Path) -> None:
    data = make_data(folder)
    lengths = lk.measure_lengths(data)
    most = int(lengths.max())
    collate = lk.PackCollate(
        tokens="input_ids", row_length=most, labels=None, fields={"labels": -100, "images": PATCHES}
    )
    fields: dict[str, Any] = {"tokens": "input_ids", "fields": {"labels": -100}}
    for rows in (lk.Pipeline(data).stream(lanes=2).pack(most, **fields), lk.Pipeline(data).pack(most, **fields)):
        found = []
        for batch in lk.Loader(rows, 2, collate_fn=collate):
            placeholders = batch["input_ids"] == vision_tokenizer().get_vocab()["<|image_pad|>"]
            assert int(placeholders.sum()) == len(batch["images"]["patches"]) // 4
            found += [len(ids) for ids in lk.unpack(batch, "input_ids")]
        assert sorted(found) == sorted(lengths.tolist())
    short = int(np.sort(lengths)[COUNT // 2])
    kept = sorted(lengths[lengths <= short].tolist())
    for rows in (lk.Pipeline(data).stream(lanes=2), lk.Pipeline(data)):
        dropped = rows.pack(short, **fields, too_long="drop")
        assert (
            sorted(len(chat["input_ids"]) for row in lk.Loader(dropped, None, collate_fn=list) for chat in row) == kept
        )
        with pytest.raises(ValueError, match=r"has \d pictures and more tokens than fit.* too_long='drop'"):
            list(lk.Loader(rows.pack(short, **fields), 1, collate_fn=list))
    with pytest.raises(ValueError, match=r"PieceDataset: document \d+ has \d pictures and more tokens"):
        list(lk.PieceDataset(data, short, lengths=lengths, fields=("input_ids", "labels")))


@pytest.mark.parametrize("packed", [False, True])
def test_each_conversation_comes_once_and_a_resume_is_exact(folder: Path, packed: bool) -> None:
    data = make_data(folder, lk.JsonlDataset(json_lines(folder.parent / "rows.jsonl", chats(COUNT))))
    data = pickle.loads(pickle.dumps(data))
    lengths = lk.measure_lengths(data)
    if packed:
        plan: Any = lk.PackPlan(lengths, 256, 2)
        collate: Any = lk.PackCollate(
            tokens="input_ids", row_length=256, labels=None, fields={"labels": -100, "images": PATCHES}
        )
    else:
        plan = lk.TokenBudget(lengths, max_tokens=400)
        rules = {"input_ids": lk.Pad(mask=True), "labels": lk.Pad(value=-100), "images": PATCHES}
        collate = lk.MultimodalCollate(rules)

    def make(**settings: Any) -> Any:
        return lk.Loader(data, **{"plan": plan, "collate_fn": collate} | settings)

    def ids(batch: dict[str, Any]) -> list[tuple[int, ...]]:
        if packed:
            return [tuple(row.tolist()) for row in lk.unpack(batch, "input_ids")]
        return [
            tuple(row[mask].tolist()) for row, mask in zip(batch["input_ids"], batch["input_ids_mask"], strict=True)
        ]

    known = [tuple(sample["input_ids"].tolist()) for sample in data]
    assert len(set(known)) == COUNT
    testing.assert_exactly_once(make, worlds=(1, 2, 3), samples=known, ids=ids)
    testing.assert_resumable(make, epochs=1, ids=ids)
    testing.assert_elastic(make, [{"world_size": 1}, {"world_size": 2}], stops=[1, 2], samples=known, ids=ids)
    whole = list(make())
    assert len(whole) > 2
    assert all(equal(list(make(engine=engine, num_workers=2)), whole) for engine in ("threads", "ring", "torch"))


def test_a_prompt_has_the_pictures_of_its_questions(folder: Path) -> None:
    prompts, whole = make_data(folder, train_on="none"), make_data(folder)
    assert lk.measure_lengths(prompts).tolist() == [len(prompt["input_ids"]) for prompt in prompts]
    for prompt, sample in zip(prompts, whole, strict=True):
        assert prompt.keys() == {"input_ids", "images"}
        assert torch.equal(prompt["input_ids"], sample["input_ids"][: len(prompt["input_ids"])])
        assert equal(prompt["images"], sample["images"])


def test_what_has_no_place_for_pictures_says_so(folder: Path) -> None:
    data = make_data(folder)
    with pytest.raises(lk.CollateError, match=r"ChatCollate: the samples have pictures, .*images=Patches"):
        next(iter(lk.Loader(data, 2, collate_fn=lk.ChatCollate())))
    with pytest.raises(
        ValueError, match=r"sample 0: ChatDataset: message 0 has a content of \d parts, .*pictures=lk.Pictures"
    ):
        lk.ChatDataset(chats(1), vision_tokenizer())[0]
    with pytest.raises(ValueError, match="the tokenizer has no token"):
        lk.ChatDataset(chats(1), make_tokenizer(), pictures=pictures(folder))
    with pytest.raises(ValueError, match=r"the chat template raised|0 placeholders"):
        lk.ChatDataset(chats(4), vision_tokenizer(), chat_template=CHATML, pictures=pictures(folder))[3]
    rows = [{"messages": [{"role": "user", "content": [{"type": "video", "video": "a"}]}]}]
    with pytest.raises(ValueError, match="message 0, part 0 has the type 'video'"):
        make_data(folder, rows)[0]
