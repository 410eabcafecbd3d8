"""Interleaved documents: each token of a picture has a placeholder, no cut is inside a picture, and lengths need no pixels."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chats_made import make_tokenizer
from drawing import equal
from images_made import encode, picture
from multimodal_made import PLACEHOLDER, SIZES, documents, json_lines, name_of, write_pictures
from PIL import Image

import loaderkit as lk
from loaderkit import testing
from loaderkit.datasets.images.decode import decode_picture
from loaderkit.sampling.fingerprint import fingerprint

PATCHES = lk.Patches(size=14, merge=2, max_tokens=6)
BEFORE, AFTER = 257, 258
COUNT = 17


def text_ids(text: str) -> list[int]:
    return list(text.encode())


text_ids.draws_nothing = True  # type: ignore[attr-defined]


def pictures(folder: Path, **settings: Any) -> lk.Pictures:
    return lk.Pictures(PATCHES, **{"placeholder": PLACEHOLDER, "root": folder} | settings)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "pictures")


def make_data(folder: Path, rows: Any = None, around: bool = False, **settings: Any) -> Any:
    tokens = {"before": BEFORE, "after": AFTER} if around else {}
    return lk.MultimodalDataset(
        documents(COUNT) if rows is None else rows, text_ids, pictures(folder, **tokens), **settings
    )


def parts_of(record: dict[str, Any]) -> list[Any]:
    """Return texts, and pictures as (name,)."""
    if "texts" in record:
        pairs = zip(record["texts"], record["images"], strict=True)
        return [(image,) if text is None else text for text, image in pairs]
    return [(part["image"],) if part["type"] == "image" else part["text"] for part in record["content"]]


@pytest.mark.parametrize("around", [False, True])
def test_a_row_has_each_text_and_a_placeholder_for_each_token_of_a_picture(folder: Path, around: bool) -> None:
    rows = documents(COUNT)
    data = make_data(folder, around=around, end=0)
    assert sum(isinstance(part, tuple) for row in rows for part in parts_of(row)) > 20
    for record, sample in zip(rows, data, strict=True):
        wanted: list[int] = []
        images = []
        for part in parts_of(record):
            if isinstance(part, tuple):
                images.append(decode_picture((folder / part[0]).read_bytes()))
                tokens = [PLACEHOLDER] * PATCHES.tokens(images[-1])
                wanted += [BEFORE, *tokens, AFTER] if around else tokens
            else:
                wanted += part.encode()
        assert sample["input_ids"].tolist() == [*wanted, 0]
        assert sample["input_ids"].dtype == sample["labels"].dtype == torch.int64
        assert equal(sample["images"], images)
        is_text = sample["input_ids"] != PLACEHOLDER
        is_text[0] = False
        assert torch.equal(sample["labels"], torch.where(is_text, sample["input_ids"], -100))


def test_both_layouts_and_other_names_give_the_same_row(folder: Path) -> None:
    image = name_of(0)
    records: list[dict[str, Any]] = [
        {"texts": ["a", None, "b"], "images": [None, image, None]},
        {"texts": np.array(["a", None, "b"], dtype=object), "images": np.array([None, image, None], dtype=object)},
        {"content": ["a", {"type": "image", "image": image}, "b"]},
        {"content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": image}}, "b"]},
        {
            "content": [
                "a",
                {"type": "image", "image": image, "text": None},
                {"type": "text", "text": "b", "image": None},
            ]
        },
        {"content": ["a", {"type": "image", "image": decode_picture((folder / image).read_bytes())}, "b"]},
        {"content": ["a", {"type": "image", "image": {"bytes": (folder / image).read_bytes(), "path": None}}, "b"]},
        {"texts": ["a", None, None, "b"], "images": [None, None, image, None]},
    ]
    found = list(make_data(folder, records))
    assert found[0]["input_ids"].tolist() == [97, PLACEHOLDER, 98]
    assert all(equal(sample, found[0]) for sample in found)
    other = make_data(folder, [{"parts": records[2]["content"]}], columns={"content": "parts"})
    assert equal(other[0], found[0])


def borders(record: dict[str, Any], folder: Path, around: bool) -> list[int]:
    """Return where a row may be cut: after each byte, and after each whole picture."""
    found = [0]
    for part in parts_of(record):
        if isinstance(part, tuple):
            image = decode_picture((folder / part[0]).read_bytes())
            found.append(found[-1] + PATCHES.tokens(image) + 2 * around)
        else:
            found += [found[-1] + count for count in range(1, len(part.encode()) + 1)]
    return found


@pytest.mark.each_value
@pytest.mark.parametrize("too_long", ["truncate_right", "truncate_left"])
@pytest.mark.parametrize("around", [False, True])
def test_a_cut_is_never_inside_a_picture(folder: Path, around: bool, too_long: Any) -> None:
    rows = [row for row in documents(COUNT) if any(isinstance(part, tuple) for part in parts_of(row))][:6]
    whole = list(make_data(folder, rows, around))
    cuts = 0
    for most in range(2, max(len(sample["input_ids"]) for sample in whole) + 1, 2):
        data = make_data(folder, rows, around, max_length=most, too_long=too_long)
        for row, sample in enumerate(whole):
            ids = sample["input_ids"]
            try:
                found = data[row]
            except ValueError as error:
                assert "is left to train on" in str(error)  # noqa: PT017 - a picture takes the whole place
                continue
            length = len(found["input_ids"])
            kept = slice(length) if too_long == "truncate_right" else slice(len(ids) - length, None)
            assert torch.equal(found["input_ids"], ids[kept])
            costs = [PATCHES.tokens(image) for image in found["images"]]
            assert int((found["input_ids"] == PLACEHOLDER).sum()) == sum(costs)
            count = len(costs)
            assert equal(
                found["images"],
                sample["images"][:count] if kept.start is None else sample["images"][len(sample["images"]) - count :],
            )
            allowed = borders(rows[row], folder, around)
            places = allowed if too_long == "truncate_right" else [allowed[-1] - place for place in allowed]
            assert length == max(place for place in places if place <= most)  # as long as it can be
            if around:
                assert int((found["input_ids"] == BEFORE).sum()) == int((found["input_ids"] == AFTER).sum()) == count
            cuts += length < min(most, len(ids))
    assert cuts > 5


def test_a_row_that_is_too_long_is_an_error_by_default(folder: Path) -> None:
    data = make_data(folder, [{"content": ["abc", {"type": "image", "image": name_of(2)}]}], max_length=5)
    with pytest.raises(ValueError, match=r"sample 0: MultimodalDataset: a sample has 9 tokens, over max_length=5"):
        data[0]


# Lengths and plans


def header(name: str, folder: Path) -> None:
    """Damage the pixels of a picture, so that its header alone can be read."""
    path = folder / name
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize(
    "settings",
    [{}, {"end": 0}, {"max_length": 40, "too_long": "truncate_right"}, {"max_length": 30, "too_long": "truncate_left"}],
)
@pytest.mark.parametrize("kind", ["jsonl", "bytes"])
def test_lengths_are_those_of_the_samples_without_their_pixels(folder: Path, settings: Any, kind: str) -> None:
    rows: Any = documents(COUNT)
    if kind == "jsonl":
        rows = lk.JsonlDataset(json_lines(folder.parent / "rows.jsonl", rows))
    else:
        contents = {name_of(number): (folder / name_of(number)).read_bytes() for number in range(5)}
        rows = [
            {
                "content": [
                    {"type": "image", "image": contents[p[0]]} if isinstance(p, tuple) else p for p in parts_of(r)
                ]
            }
            for r in rows
        ]
    data = make_data(folder, rows, around=True, **settings)
    wanted = [len(sample["input_ids"]) for sample in data]
    assert len(set(wanted)) > 3
    for number in range(5):
        header(name_of(number), folder)
    found = lk.measure_lengths(data, num_workers=2, cache=folder.parent / "lengths.npz")
    assert found.tolist() == wanted
    assert lk.measure_lengths(data, cache=folder.parent / "lengths.npz").tolist() == wanted
    if kind == "jsonl":
        with pytest.raises(ValueError, match=r"rows\.jsonl, sample .*part .*pictures/.*png: .*is cut"):
            list(data)


def test_lengths_of_rows_that_cannot_be_read_are_what_is_asked(folder: Path) -> None:
    rows = [*documents(3), {"content": [{"type": "image", "image": "missing.png"}, "a"]}, {"content": []}]
    data = make_data(folder, rows)
    assert lk.measure_lengths(data, bad_length=1).tolist()[3:] == [1, 1]
    with pytest.raises(RuntimeError, match=r"FileNotFoundError: sample 3: part 0: .*missing.png"):
        lk.measure_lengths(data)


class Shorter(lk.MultimodalDataset):
    """Leaves out the last token."""

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        return sample | {"input_ids": sample["input_ids"][:-1]}


def test_lengths_are_those_that_a_subclass_reads(folder: Path) -> None:
    data = Shorter(documents(3), text_ids, pictures(folder))
    wanted = [len(sample["input_ids"]) for sample in data]
    assert lk.measure_lengths(data, "input_ids").tolist() == wanted
    with pytest.raises(RuntimeError, match="a sample is a dict, whose own length"):
        lk.measure_lengths(data)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP"])
def test_a_header_gives_the_size_that_decoding_gives(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encode(picture(size=(90, 20)), kind, **({} if kind in ("GIF", "BMP") else {"exif": exif}))
    decoded = decode_picture(content)
    data = make_data(Path(), [{"content": [{"type": "image", "image": content}, "a"]}])
    counted = lk.measure_lengths(data, bad_length=0).tolist()
    assert counted == [PATCHES.tokens(decoded) + 1]
    assert data.transform.placeholders.files.size(content) == tuple(decoded.shape[1:])


def batches_by(plan: Any, data: Any, collate: Any, **settings: Any) -> list[Any]:
    return list(lk.Loader(data, plan=plan, collate_fn=collate, **settings))


PADDED = lk.MultimodalCollate({"input_ids": lk.Pad(lengths=True), "labels": lk.Pad(value=-100), "images": PATCHES})


@pytest.mark.parametrize("workers", [0, 2])
def test_a_token_budget_holds_with_pictures(folder: Path, workers: int) -> None:
    data = make_data(folder)
    lengths = lk.measure_lengths(data)
    batches = batches_by(lk.TokenBudget(lengths, max_tokens=160), data, PADDED, num_workers=workers)
    assert len(batches) > 3
    assert max(batch["input_ids"].numel() for batch in batches) <= 160
    for batch in batches:
        assert int((batch["input_ids"] == PLACEHOLDER).sum()) == len(batch["images"]["patches"]) // 4
        assert torch.equal(batch["labels"] == -100, (batch["input_ids"] == PLACEHOLDER) | (batch["labels"] == -100))
    assert sum(int(batch["input_ids_lengths"].sum()) for batch in batches) == lengths.sum()


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_are_packed_with_the_patches_of_their_pictures_in_order(folder: Path, workers: int) -> None:
    data = make_data(folder)
    plan = lk.PackPlan(lk.measure_lengths(data), 160, 2)
    collate = lk.PackCollate(
        tokens="input_ids", row_length=160, labels=None, fields={"labels": -100, "images": PATCHES}
    )
    assert collate.draws_nothing
    found: dict[tuple[int, ...], Any] = {}
    for batch in batches_by(plan, data, collate, num_workers=workers):
        assert int((batch["input_ids"] == PLACEHOLDER).sum()) == len(batch["images"]["patches"]) // 4
        at = grid = 0
        for ids, count in zip(lk.unpack(batch, "input_ids"), batch["images"]["pictures"].tolist(), strict=True):
            patches = int(batch["images"]["grids"][grid : grid + count].prod(1).sum())
            found[tuple(ids.tolist())] = batch["images"]["patches"][at : at + patches]
            at, grid = at + patches, grid + count
    assert len(found) == COUNT
    for sample in data:
        assert torch.equal(found[tuple(sample["input_ids"].tolist())], PATCHES([sample["images"]])["patches"])


def test_a_plan_that_cuts_samples_anywhere_is_refused(folder: Path) -> None:
    data = make_data(folder)
    plan = lk.PackPlan(lk.measure_lengths(data), 64, 2, too_long="split")
    collate = lk.PackCollate(tokens="input_ids", labels=None, fields={"labels": -100, "images": PATCHES})
    with pytest.raises(
        ValueError, match=r"fields \['images'\] have one value for a whole sample.*too_long='truncate_right'"
    ):
        lk.Loader(data, plan=plan, collate_fn=collate)


# The laws


def ids(batch: dict[str, Any]) -> list[bytes]:
    lengths = batch["input_ids_lengths"].tolist()
    return [bytes(row[:length].numpy().tobytes()) for row, length in zip(batch["input_ids"], lengths, strict=True)]


@pytest.mark.parametrize("plan", [False, True])
def test_each_document_comes_once_and_a_resume_is_exact(folder: Path, plan: bool) -> None:
    data = make_data(folder, lk.JsonlDataset(json_lines(folder.parent / "rows.jsonl", documents(COUNT))))
    lengths = lk.measure_lengths(data)
    known = [sample["input_ids"].numpy().tobytes() for sample in data]
    assert len(set(known)) == COUNT

    def make(**settings: Any) -> Any:
        given: dict[str, Any] = {"batch_size": 3, "shuffle": True}
        if plan:
            given = {"plan": lk.TokenBudget(lengths, max_tokens=150, shuffle=True, seed=2)}
        return lk.Loader(data, **given | {"collate_fn": PADDED} | settings)

    testing.assert_exactly_once(make, worlds=(1, 2, 3), samples=known, ids=ids)
    testing.assert_resumable(make, epochs=1, ids=ids)
    testing.assert_elastic(
        make, [{"world_size": 1}, {"world_size": 2}, {"world_size": 3}], stops=[1, 2], samples=known, ids=ids
    )
    if plan:
        settings: dict[str, Any] = {"start_methods": ("forkserver",), "persistent": (False,), "epochs": 1}
        testing.assert_workers_dont_matter(make, workers=(0, 1), **settings, ids=ids)
    whole = list(make())
    assert len(whole) > 4
    assert all(equal(list(make(engine=engine, num_workers=2)), whole) for engine in ("threads", "ring", "torch"))


def test_a_tokenizer_of_transformers_takes_texts_alone(folder: Path) -> None:
    tokenizer = make_tokenizer()
    data = lk.MultimodalDataset(
        [{"content": ["Some text.", {"type": "image", "image": name_of(0)}, "More."]}],
        tokenizer,
        pictures(folder, placeholder="<pad>", before="<bos>"),
        end="<eos>",
    )
    wanted = "Some text.<bos><pad>More.<eos>"
    assert data[0]["input_ids"].tolist() == tokenizer(wanted, add_special_tokens=False)["input_ids"]
    assert data.draws_nothing
    assert equal(pickle.loads(pickle.dumps(data))[0], data[0])


def test_a_fingerprint_changes_with_what_decides_the_tokens_alone(folder: Path) -> None:
    def of(**settings: Any) -> str:
        given = {"placeholder": PLACEHOLDER, "root": folder, "patches": PATCHES} | settings
        rest = {name: given.pop(name) for name in ("end", "max_length", "columns") if name in given}
        return fingerprint(lk.MultimodalDataset(documents(3), text_ids, lk.Pictures(**given), **rest), 3)

    others = [
        *[
            {"placeholder": 300},
            {"before": 1},
            {"after": 1},
            {"end": 1},
            {"max_length": 99},
            {"columns": {"content": "x"}},
        ],
        {"patches": lk.Patches(size=14, merge=1)},
    ]
    assert of() == of(root="elsewhere") == of(max_pixels=9) == of(storage=lk.Storage())
    assert len({of(), *(of(**each) for each in others)}) == len(others) + 1


# Bad documents


def test_a_picture_of_one_pixel_is_one_token(folder: Path) -> None:
    assert SIZES[1] == (1, 1)
    sample = make_data(folder, [{"content": [{"type": "image", "image": name_of(1)}, "a"]}])[0]
    assert sample["input_ids"].tolist() == [PLACEHOLDER, 97]
    assert sample["images"][0].shape == (3, 1, 1)
    batch = PADDED([sample])
    assert batch["images"]["grids"].tolist() == [[2, 2]]


class Free:
    """Says that pictures cost nothing."""

    def tokens_of(self, height: int, width: int) -> int:
        return 0


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"content": []}, "the document is empty"),
        ({"texts": [], "images": []}, "the document is empty"),
        ({"texts": [None], "images": [None]}, "the document is empty"),
        ({"content": [""]}, "none of the 0 tokens is left to train on"),
        ({"content": [{"type": "image", "image": "0.png"}]}, r"none of the \d tokens is left"),
        ({"texts": ["a"], "images": ["0.png"]}, "place 0 has a text and a picture"),
        ({"texts": ["a"], "images": []}, r"wanted 'content', or 'texts' and 'images' of one length.*ChatDataset"),
        ({"texts": ["a"]}, r"the fields \['texts'\], wanted 'content'"),
        ({"content": "a"}, "content is of type str"),
        ({"content": [{"type": "smell"}]}, "part 0 has the type 'smell', wanted 'text' or one of 'image'"),
        ({"content": [{"image": "0.png"}]}, "part 0 has the type None"),
        ({"content": ["a", 7]}, "part 1 is of type int"),
        ({"content": ["a", {"type": "text", "text": 3}]}, "part 1 is .*, wanted a text"),
        ({"content": ["a\ud800"]}, "part 0 has '.ud800' at character 1, a surrogate"),
        ({"content": ["a", {"type": "image"}]}, "part 1: found None of type NoneType, wanted a path"),
        ({"content": ["a", {"type": "image", "image": "../a.png"}]}, "part 1: '../a.png' leaves the root"),
        ({"content": ["a", {"type": "image", "image": b"no"}]}, "part 1: not a picture that can be decoded"),
        ([], "a record is of type list"),
    ],
)
def test_a_bad_document_says_what_is_wrong(folder: Path, record: Any, said: str) -> None:
    data = make_data(folder, [record])
    for read in (lambda: data[0], lambda: data.counted()[0]):
        with pytest.raises(ValueError, match=f"sample 0: .*{said}"):
            read()


def test_a_text_with_the_placeholder_is_refused(folder: Path) -> None:
    tokenizer = make_tokenizer()
    data = lk.MultimodalDataset([{"content": ["a <pad> b"]}], tokenizer, pictures(folder, placeholder="<pad>"))
    with pytest.raises(ValueError, match=r"1 placeholders \(id 0\) and 0 pictures"):
        data[0]


def test_settings_are_checked(folder: Path) -> None:
    with pytest.raises(ValueError, match="the tokenizer has no token '<image>'"):
        lk.MultimodalDataset([], text_ids, pictures(folder, placeholder="<image>"))
    with pytest.raises(ValueError, match="the tokenizer has no token '<end>'"):
        make_data(folder, [], end="<end>")
    with pytest.raises(ValueError, match="the placeholder of pictures is None"):
        lk.MultimodalDataset([], text_ids, pictures(folder, placeholder=None))
    with pytest.raises(TypeError, match="the tokenizer is of type int"):
        lk.MultimodalDataset([], 3, pictures(folder))
    with pytest.raises(ValueError, match="too_long is 'cut', wanted"):
        make_data(folder, [], max_length=9, too_long="cut")
    with pytest.raises(ValueError, match=r"columns has 'image'.*Did you mean 'images'"):
        make_data(folder, [], columns={"image": "a"})
    with pytest.raises(ValueError, match="Pictures: max_pixels is -1"):
        pictures(folder, max_pixels=-1)
    free = lk.MultimodalDataset(documents(4), text_ids, lk.Pictures(Free(), placeholder=1, root=folder))
    with pytest.raises(ValueError, match="costs 0 tokens, wanted at least 1"):
        list(free)
