"""Preference pairs with pictures: both answers share the pictures of their prompt, as trl's collator repeats them."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from chats_made import AROUND, qwen2_vl_processor, vision_tokenizer
from drawing import equal
from multimodal_made import json_lines, name_of, pairs, write_pictures
from PIL import Image

import loaderkit as lk
from loaderkit import testing
from loaderkit.datasets.images.decode import decode_picture

PATCHES = lk.Patches(size=14, merge=2, max_tokens=12)
SIDES = ("chosen", "rejected")
COUNT = 14
COLLATE = lk.ChatCollate(images=PATCHES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "pictures")


def make_data(folder: Path, rows: Any = None, **settings: Any) -> Any:
    pictures = lk.Pictures(PATCHES, placeholder="<|image_pad|>", root=folder, **AROUND)
    return lk.PreferenceDataset(
        pairs(COUNT) if rows is None else rows, vision_tokenizer(), pictures=pictures, **settings
    )


def token(name: str) -> int:
    return int(vision_tokenizer().get_vocab()[name])


def pictures_in(record: dict[str, Any], folder: Path) -> list[Any]:
    contents = [message["content"] for message in record["prompt"] if isinstance(message["content"], list)]
    names = [part["image"] for content in contents for part in content if part["type"] == "image"]
    return [decode_picture((folder / name).read_bytes()) for name in names]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # theirs are not ours
def test_a_batch_is_that_of_trls_collator(folder: Path) -> None:
    trl = pytest.importorskip("trl.trainer.dpo_trainer", reason="trl is not installed: pip install '.[test]'")
    theirs = trl.DataCollatorForVisionPreference(qwen2_vl_processor(12))
    rows = [row for row in pairs(3 * COUNT) if pictures_in(row, folder)]
    data, checked = make_data(folder, rows), 0
    for start in range(0, len(rows) - 3, 4):
        examples = [bare(row, folder) for row in rows[start : start + 4]]
        wanted, batch = theirs(examples), COLLATE([data[number] for number in range(start, start + 4)])
        assert len(wanted["input_ids"]) == len(batch["input_ids"]) == 8
        for row in range(8):
            there, here = wanted["attention_mask"][row].bool(), batch["attention_mask"][row].bool()
            assert torch.equal(wanted["input_ids"][row][there], batch["input_ids"][row][here])
            assert torch.equal(wanted["completion_mask"][row][there].bool(), batch["labels"][row][here] != -100)
        assert torch.equal(wanted["image_grid_thw"][:, 1:], batch["images"]["grids"].repeat(2, 1))
        pixels = wanted["pixel_values"].reshape(-1, 3, 2, 14 * 14)[:, :, 0].flatten(1)
        difference = (pixels - batch["images"]["patches"].repeat(2, 1).to(pixels.dtype)).abs()
        assert float(difference.max()) <= 1  # of 255: where a picture is resized, both round
        checked += len(batch["images"]["grids"])
    assert checked > 20


def bare(record: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a pair as trl takes it: the pictures in a list of their own."""
    images, prompt = [], []
    for message in record["prompt"]:
        content = message["content"]
        if isinstance(content, list):
            images += [Image.open(folder / part["image"]).convert("RGB") for part in content if "image" in part]
            content = [{"type": "image"} if "image" in part else part for part in content]
        prompt.append({**message, "content": content})
    return {"images": images, "prompt": prompt, "chosen": record["chosen"], "rejected": record["rejected"]}


def test_both_answers_are_all_that_is_trained_on_and_share_the_pictures(folder: Path) -> None:
    rows, shown = pairs(COUNT), 0
    for record, sample in zip(rows, make_data(folder), strict=True):
        wanted = pictures_in(record, folder)
        assert list(sample) == ["chosen", "rejected", "images"]
        assert equal(sample["images"], wanted)
        for side in SIDES:
            ids, labels = sample[side]["input_ids"], sample[side]["labels"]
            answer = vision_tokenizer().decode(labels[labels != -100])
            content = record[side][-1]["content"]
            assert answer == f"{content}<|im_end|>\n"
            assert int((ids == token("<|image_pad|>")).sum()) == PATCHES.tokens(wanted)
            assert not bool((labels == token("<|image_pad|>")).any())
        shown += len(wanted)
    assert shown > 20


def test_a_batch_has_the_pictures_once(folder: Path) -> None:
    samples = list(make_data(folder))[:5]
    batch = COLLATE(samples)
    assert list(batch) == ["input_ids", "attention_mask", "labels", "images"]
    assert equal(batch["images"], PATCHES([sample["images"] for sample in samples]))
    plain = lk.ChatCollate()([{side: sample[side] for side in SIDES} for sample in samples])
    assert all(equal(batch[name], plain[name]) for name in plain)
    tokens = len(batch["images"]["patches"]) // PATCHES.merge**2
    assert [int((half == token("<|image_pad|>")).sum()) for half in batch["input_ids"].chunk(2)] == [tokens, tokens]
    for mixed in (
        [samples[0], {side: samples[1][side] for side in SIDES}],
        [{side: samples[1][side] for side in SIDES}, samples[0]],
    ):
        with pytest.raises(lk.CollateError, match="keys"):
            COLLATE(mixed)
    with pytest.raises(lk.CollateError, match=r"have pictures, wanted what collates them: ChatCollate\(images=Patches"):
        lk.ChatCollate()(samples)


def test_each_layout_gives_the_same_pair(folder: Path) -> None:
    ask: list[Any] = [
        {"role": "user", "content": [{"type": "image", "image": name_of(0)}, {"type": "text", "text": "What?"}]}
    ]
    url = [{"type": "image_url", "image_url": {"url": name_of(0)}}, {"type": "text", "text": "What?", "image": None}]
    good, bad = [{"role": "assistant", "content": "Good."}], [{"role": "assistant", "content": "Bad."}]
    wanted = make_data(folder, [{"prompt": ask, "chosen": good, "rejected": bad}])[0]
    assert len(wanted["images"]) == 1
    listed = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}]
    parts = [{"role": "assistant", "content": [{"type": "text", "text": "Good."}]}]
    text = vision_tokenizer().apply_chat_template(ask, tokenize=False, add_generation_prompt=True)
    records: list[dict[str, Any]] = [
        {"chosen": ask + good, "rejected": ask + bad},
        {"prompt": [{"role": "user", "content": url}], "chosen": good, "rejected": bad},
        {"prompt": listed, "chosen": parts, "rejected": bad, "images": [name_of(0)]},
        {"chosen": listed + good, "rejected": listed + bad, "images": name_of(0)},
        {"prompt": listed, "chosen": good, "rejected": bad, "images": [{"bytes": (folder / name_of(0)).read_bytes()}]},
    ]
    for record in records:
        assert equal(make_data(folder, [record])[0], wanted)
    renamed = make_data(folder, [{**records[2], "images": None, "pics": [name_of(0)]}], columns={"images": "pics"})
    assert equal(renamed[0], wanted)
    texts = make_data(folder, [{"prompt": text, "chosen": "Good.", "rejected": "Bad.", "images": [name_of(0)]}])[0]
    for side in SIDES:
        ids, theirs = texts[side]["input_ids"], wanted[side]["input_ids"]
        same = int((wanted[side]["labels"] == -100).sum())
        assert torch.equal(ids[:same], theirs[:same])
        assert bool((texts[side]["labels"][:same] == -100).all())
    assert equal(texts["images"], wanted["images"])


def test_a_pair_without_pictures_is_what_it_is_without_the_setting(folder: Path) -> None:
    row = {"prompt": [{"role": "user", "content": "Hi" * 9}], "chosen": "Hello.", "rejected": "No, I do not want to."}
    whole = lk.PreferenceDataset([row], vision_tokenizer())[0]
    shorter = {"max_length": max(len(whole[side]["input_ids"]) for side in SIDES) - 2}
    cuts: list[dict[str, Any]] = [
        {},
        {**shorter, "too_long": "truncate_left"},
        {**shorter, "too_long": "truncate_right"},
    ]
    for settings in cuts:
        plain = lk.PreferenceDataset([row], vision_tokenizer(), **settings)[0]
        assert equal(make_data(folder, [row], **settings)[0], plain | {"images": []})
        assert bool(settings) == (len(plain["rejected"]["input_ids"]) < len(whole["rejected"]["input_ids"]))
        assert equal(plain["chosen"], whole["chosen"])


@pytest.mark.parametrize("too_long", ["truncate_right", "truncate_left"])
def test_a_cut_leaves_both_answers_the_same_pictures(folder: Path, too_long: Any) -> None:
    whole, cuts, lost = list(make_data(folder)), 0, 0
    left = too_long == "truncate_left"
    for most in range(20, 160, 5):
        data = make_data(folder, max_length=most, too_long=too_long)
        lengths = lk.measure_lengths(data, bad_length=0)
        for row, sample in enumerate(whole):
            try:
                found = data[row]
            except ValueError as error:
                assert "left to train on" in str(error)  # noqa: PT017
                assert lengths[row] == 0
                continue
            count = len(found["images"])
            assert lengths[row] == 2 * max(len(found[side]["input_ids"]) for side in SIDES) <= 2 * most
            assert equal(
                found["images"], sample["images"][len(sample["images"]) - count :] if left else sample["images"]
            )
            for side in SIDES:
                ids, before = found[side]["input_ids"], sample[side]["input_ids"]
                assert torch.equal(ids, before[len(before) - len(ids) :] if left else before[: len(ids)])
                assert int((ids == token("<|image_pad|>")).sum()) == PATCHES.tokens(found["images"])
                assert (
                    int((ids == token(AROUND["before"])).sum()) == int((ids == token(AROUND["after"])).sum()) == count
                )
                cuts += len(ids) < len(before)
            if left:
                assert (
                    len({len(sample[side]["input_ids"]) - len(found[side]["input_ids"]) for side in SIDES}) == 1
                    or not sample["images"]
                )
            lost += count < len(sample["images"])
    assert cuts > 20
    assert lost > 5 or not left


def test_lengths_are_counted_from_headers(folder: Path) -> None:
    data = make_data(folder)
    wanted = [2 * max(len(sample[side]["input_ids"]) for side in SIDES) for sample in data]
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-20])
    assert lk.measure_lengths(data, num_workers=2).tolist() == wanted
    with pytest.raises(ValueError, match=r"sample \d+: message 0, part \d: .*(png|jpeg): .*(is cut|is truncated)"):
        list(data)


def test_the_laws(folder: Path) -> None:
    data = make_data(folder, lk.JsonlDataset(json_lines(folder.parent / "rows.jsonl", pairs(COUNT))))
    data = pickle.loads(pickle.dumps(data))
    keys = [tuple(sample["chosen"]["input_ids"].tolist()) for sample in data]
    assert len(set(keys)) == COUNT
    plan = lk.TokenBudget(lk.measure_lengths(data), max_tokens=900, shuffle=True, seed=3)

    def ids(batch: dict[str, Any]) -> list[int]:
        sizes = batch["attention_mask"].sum(1).tolist()
        rows = [tuple(row[:size].tolist()) for row, size in zip(batch["input_ids"], sizes, strict=True)]
        return [keys.index(row) for row in rows[: len(rows) // 2]]

    for given in ({"plan": plan}, {"batch_size": 2, "shuffle": True, "seed": 5}):

        def make(given: Any = given, **changes: Any) -> Any:
            return lk.Loader(data, **{**given, "collate_fn": COLLATE, **changes})

        whole = list(make())
        assert len(whole) > 4
        assert "plan" not in given or max(batch["input_ids"].numel() for batch in whole) <= 900
        testing.assert_exactly_once(make, samples=range(COUNT), worlds=(1, 2, 3), ids=ids)
        testing.assert_resumable(make, epochs=2, stops=[1, 3, 4], ids=ids)
        worlds = [{"world_size": 1}, {"world_size": 2}, {"world_size": 3}]
        testing.assert_elastic(make, worlds, stops=[1, 2], samples=range(COUNT), ids=ids)
        testing.assert_workers_dont_matter(make, workers=[0, 2], start_methods=["fork"], persistent=[False], ids=ids)
        for engine in ("threads", "torch", "ring"):
            assert equal(list(make(num_workers=2, engine=engine)), whole), engine


def test_the_fingerprint_has_the_pictures(folder: Path) -> None:
    other = lk.Pictures(lk.Patches(size=14), placeholder="<|image_pad|>", root=folder)
    made = [
        make_data(folder).fingerprint(),
        lk.PreferenceDataset(pairs(COUNT), vision_tokenizer(), pictures=other).fingerprint(),
        lk.PreferenceDataset(pairs(COUNT), vision_tokenizer()).fingerprint(),
    ]
    assert len(set(made)) == 3


def asked(**image: Any) -> dict[str, Any]:
    """A pair whose prompt is a picture."""
    return {"prompt": [{"role": "user", "content": [{"type": "image", **image}]}], "chosen": "A", "rejected": "B"}


ASK = asked(image="0.png")
BROKEN: dict[str, tuple[Any, str]] = {
    "a picture in an answer": ({**ASK, "chosen": ASK["prompt"]}, "an answer has a picture, wanted .* in the prompt"),
    "one that is missing": (asked(image="x.png"), "message 0, part 0: .*x.png"),
    "one that is damaged": (asked(image=b"no"), "message 0, part 0: not a picture"),
    "none left in the record": (asked(), "message 0, part 0 names no picture"),
    "more than parts": ({**ASK, "images": ["1.png"]}, r"1 placeholders .* and 2 pictures"),
    "a placeholder in an answer": ({**ASK, "chosen": "<|image_pad|>"}, r"2 placeholders .* and 1 pictures"),
    "text without a placeholder": ({**ASK, "prompt": "a", "images": ["0.png"]}, r"0 placeholders .* and 1 pictures"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_pair_is_named_and_a_policy_leaves_it_out(folder: Path, name: str) -> None:
    record, message = BROKEN[name]
    good = pairs(COUNT)
    data = make_data(folder, [good[0], record, good[1]])
    with pytest.raises((ValueError, OSError), match=f"^sample 1: .*{message}"):
        data[1]
    assert lk.measure_lengths(data, bad_length=0).tolist().index(0) == 1
    loader = lk.Loader(data, 3, collate_fn=COLLATE, bad_samples=lk.BadSamples("skip", max_rate=1))
    assert [len(batch["labels"]) for batch in loader] == [4]
    assert [bad.index for bad in loader.bad_samples] == [1]


def test_pictures_without_the_setting_are_an_error(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"message 0 has a content of \d parts, .*pictures=lk.Pictures"):
        lk.PreferenceDataset([ASK], vision_tokenizer())[0]
