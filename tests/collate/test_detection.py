"""Detection batches: each form of sample gives the same images and targets, COCO's annotations included."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from drawing import equal
from hypothesis import given
from hypothesis import strategies as st
from torchvision import tv_tensors

import loaderkit as lk
from loaderkit.datasets.images.boxes import draw_segmentation
from loaderkit.system.stack import CollateError


@st.composite
def images_with_boxes(draw: st.DrawFn) -> list[tuple[tuple[int, int], list[list[int]]]]:
    """Draw sizes, and boxes as x, y, width, height within them."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        height, width = draw(st.integers(2, 9)), draw(st.integers(2, 9))
        boxes = []
        for _ in range(draw(st.integers(0, 3))):
            x, y = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
            boxes.append([x, y, draw(st.integers(1, width - x)), draw(st.integers(1, height - y))])
        found.append(((height, width), boxes))
    return found


def as_format(box: list[int], name: str) -> list[float]:
    x, y, w, h = box
    return {"XYWH": [x, y, w, h], "XYXY": [x, y, x + w, y + h], "CXCYWH": [x + w / 2, y + h / 2, w, h]}[name]


FORMS = ["pair", "dict", "tv", "coco", "coco dict"]


def make_sample(size: tuple[int, int], boxes: list[list[int]], form: str, box_format: str) -> Any:
    image = torch.full((3, *size), (size[0] * 10 + size[1]) % 250, dtype=torch.uint8)
    labels = [box[2] for box in boxes]
    if form.startswith("coco"):
        polygon = [{"counts": [0, size[0] * size[1]], "size": list(size)} for _ in boxes]
        annotations = [
            {"bbox": box, "category_id": box[2], "iscrowd": 0, "segmentation": mask}
            for box, mask in zip(boxes, polygon, strict=True)
        ]
        return image, annotations if form == "coco" else {"annotations": annotations, "image_id": 7}
    corners = torch.tensor([as_format(box, box_format) for box in boxes]).reshape(-1, 4)
    if form == "tv":
        corners = tv_tensors.BoundingBoxes(corners, format=box_format, canvas_size=size)
        return tv_tensors.Image(image), {"boxes": corners, "labels": torch.tensor(labels, dtype=torch.int64)}
    target = {
        "boxes": corners.tolist() if form == "dict" else corners,
        "labels": labels,
        "masks": torch.ones(len(boxes), *size),
    }
    return {"image": image, **target} if form == "dict" else (image, target)


@given(images_with_boxes(), st.sampled_from(FORMS), st.sampled_from(["XYWH", "XYXY", "CXCYWH"]), st.integers(1, 4))
def test_each_form_of_sample_becomes_the_same_target(
    drawn: list[tuple[tuple[int, int], list[list[int]]]], form: str, box_format: Any, multiple: int
) -> None:
    samples = [make_sample(size, boxes, form, box_format) for size, boxes in drawn]
    images, targets = lk.DetectionCollate(box_format=box_format, masks=True)(samples)
    assert len(images) == len(targets) == len(drawn) > 0
    for (size, boxes), image, target in zip(drawn, images, targets, strict=True):
        assert isinstance(image, tv_tensors.Image)
        assert image.shape == (3, *size)
        assert isinstance(target["boxes"], tv_tensors.BoundingBoxes)
        assert target["boxes"].format == tv_tensors.BoundingBoxFormat.XYXY
        assert target["boxes"].canvas_size == size
        assert target["boxes"].tolist() == [as_format(box, "XYXY") for box in boxes]
        assert target["labels"].tolist() == [box[2] for box in boxes]
        assert target["labels"].dtype == torch.int64
        if form != "tv":
            assert isinstance(target["masks"], tv_tensors.Mask)
            assert target["masks"].shape == (len(boxes), *size)
            assert bool((target["masks"] == 1).all())
        if form.startswith("coco"):
            assert target["area"].tolist() == [box[2] * box[3] for box in boxes]
            assert target["iscrowd"].tolist() == [0] * len(boxes)
            assert target.get("image_id") == (7 if form == "coco dict" else None)

    rule = lk.Pad(dims=(1, 2), multiple_of=multiple, lengths=True, mask=True)
    padded, again, lengths, mask = lk.DetectionCollate(images=rule, box_format=box_format)(samples)
    assert [target["boxes"].tolist() for target in again] == [target["boxes"].tolist() for target in targets]
    assert padded.shape[2] % multiple == padded.shape[3] % multiple == 0
    assert lengths.tolist() == [list(size) for size, _ in drawn]
    assert mask.sum((1, 2)).tolist() == [height * width for (height, width), _ in drawn]
    for image, left in zip(images, lk.unpad(padded, lengths, dims=(1, 2)), strict=True):
        assert torch.equal(image, left)


def test_images_of_one_size_are_stacked() -> None:
    samples = [make_sample((4, 5), [[0, 0, 2, 3]], "pair", "XYXY") for _ in range(3)]
    collate = pickle.loads(pickle.dumps(lk.DetectionCollate(images="stack")))
    images, targets = collate(samples)
    assert isinstance(images, tv_tensors.Image)
    assert images.shape == (3, 3, 4, 5)
    assert len(targets) == 3
    with pytest.raises(CollateError, match="'image' has shape") as caught:
        collate([*samples, make_sample((4, 6), [], "pair", "XYXY")])
    assert caught.value.rows == (0, 3)


def counts_as_text(counts: list[int]) -> str:
    """Compress run lengths as COCO's tools do."""
    text = ""
    for place, count in enumerate(counts):
        left = count - counts[place - 2] if place > 2 else count
        while True:
            bits, left = left & 0x1F, left >> 5
            more = left != (-1 if bits & 0x10 else 0)
            text += chr((bits | (0x20 if more else 0)) + 48)
            if not more:
                break
    return text


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_run_lengths_are_decoded_down_the_columns(height: int, width: int, seed: int) -> None:
    mask = np.random.default_rng(seed).integers(0, 5, (height, width)) > 1
    flat, counts, now = mask.T.reshape(-1), [0], False
    for value in flat.tolist():
        if value != now:
            counts.append(0)
            now = value
        counts[-1] += 1
    for form in (counts, counts_as_text(counts), counts_as_text(counts).encode()):
        drawn = draw_segmentation({"counts": form, "size": [height, width]}, (height, width))
        assert drawn.dtype == torch.uint8
        assert np.array_equal(drawn.numpy(), mask)


def test_polygons_are_drawn_and_categories_become_labels() -> None:
    annotation: dict[str, Any] = {"bbox": [1, 1, 3, 2], "category_id": 18, "area": 5.5, "iscrowd": 1}
    annotation["segmentation"] = [[1, 1, 3, 1, 3, 2, 1, 2]]
    collate = lk.DetectionCollate(classes={18: 1}, masks=True)
    (_,), (target,) = collate([(torch.zeros(3, 5, 6), [annotation])])
    assert target["labels"].tolist() == [1]
    assert target["area"].tolist() == [5.5]
    assert target["iscrowd"].tolist() == [1]
    assert target["masks"][0].nonzero().tolist() == [[y, x] for y in (1, 2) for x in (1, 2, 3)]


IMAGE = torch.zeros(3, 4, 5)


@pytest.mark.parametrize("empty", [[], np.zeros((0, 4, 5), bool), torch.zeros(0, 4, 5), np.zeros((0, 4, 5), np.uint8)])
def test_a_image_without_objects_has_masks_of_its_size(empty: Any) -> None:
    some = {"boxes": [[0, 0, 1, 1]], "labels": [1], "masks": np.ones((1, 4, 5), bool)}
    _, targets = lk.DetectionCollate()([(IMAGE, {"boxes": [], "labels": [], "masks": empty}), (IMAGE, some)])
    assert [tuple(target["masks"].shape) for target in targets] == [(0, 4, 5), (1, 4, 5)]
    assert targets[0]["masks"].dtype == (torch.as_tensor(empty).dtype if len(np.shape(empty)) == 3 else torch.uint8)


def test_boxes_in_lists_are_float32_and_those_of_arrays_keep_their_dtype() -> None:
    """With one float64 among them, a detector's loss becomes float64."""
    for boxes, dtype in (
        ([[0.5, 0, 1, 1]], torch.float32),
        ([[0, 0, 1, 1]], torch.float32),
        ([], torch.float32),
        (np.zeros((1, 4)), torch.float64),
        (torch.zeros(1, 4, dtype=torch.bfloat16), torch.bfloat16),
        (torch.zeros(0, 4, dtype=torch.int64), torch.float32),
    ):
        _, (target,) = lk.DetectionCollate()([(IMAGE, {"boxes": boxes})])
        assert target["boxes"].dtype == dtype
        assert target["boxes"].shape == (len(boxes), 4)


def test_masks_and_boxes_that_numpy_has_flipped_are_taken() -> None:
    masks = np.zeros((1, 4, 5), np.uint8)
    masks[:, :, 0] = 1
    sample = {"boxes": np.array([[0, 0, 1, 1]], ">f4")[::-1], "labels": np.array([1])[::-1], "masks": masks[:, :, ::-1]}
    _, (target,) = lk.DetectionCollate()([(IMAGE, sample)])
    assert target["boxes"].tolist() == [[0, 0, 1, 1]]
    assert target["labels"].tolist() == [1]
    assert target["masks"].sum(1).tolist() == [[0, 0, 0, 0, 4]]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"photo": IMAGE}, r"a dict of \['photo'\], wanted an image and its target"),
        ((np.zeros((4, 5, 3)), {}), r"an image is ndarray, wanted a tensor \(C, H, W\)"),
        ((IMAGE, {"labels": [1]}), r"it has \['labels'\], wanted boxes"),
        ((IMAGE, {"boxes": [], "labels": ["cat"]}), r"its labels are \['cat'\], wanted numbers"),
        ((IMAGE, {"boxes": [[1, 2, 3]]}), r"boxes are \(1, 3\), wanted \(N, 4\)"),
        ((IMAGE, {"boxes": [[0, 0, 1, 1]], "labels": [1, 2]}), r"'boxes': 1, 'labels': 2"),
        ((IMAGE, {"boxes": [], "masks": torch.zeros(0, 5, 5)}), r"masks are \(0, 5, 5\), the image is \(4, 5\)"),
        (
            (IMAGE, {"boxes": tv_tensors.BoundingBoxes(torch.zeros(1, 4), format="XYXY", canvas_size=(5, 5))}),
            r"canvas of \(5, 5\), the image is \(4, 5\)",
        ),
        ((IMAGE, [{"bbox": [0, 0, 1, 1]}]), r"annotation 0 has \['bbox'\], wanted \['category_id'\] too"),
        ((IMAGE, [{"bbox": [0, 0, 1], "category_id": 1}]), "wanted x, y, width, height"),
    ],
)
def test_what_does_not_fit_is_named(sample: Any, message: str) -> None:
    with pytest.raises(CollateError, match=message) as caught:
        lk.DetectionCollate()([(IMAGE, {"boxes": []}), sample])
    assert caught.value.rows == (1,)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="images is 'pad', wanted"):
        lk.DetectionCollate(images="pad")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the boxes would be wrong"):
        lk.DetectionCollate(images=lk.Pad(dims=(1, 2), side="left"))
    with pytest.raises(ValueError, match="box_format is 'xyxy'"):
        lk.DetectionCollate(box_format="xyxy")  # type: ignore[arg-type]
    coco = [{"bbox": [0, 0, 1, 1], "category_id": 3, "segmentation": {"counts": [1], "size": [1, 1]}}]
    with pytest.raises(CollateError, match=r"category_id 3, wanted one of \[4\]"):
        lk.DetectionCollate(classes={4: 0})([(IMAGE, coco)])
    with pytest.raises(CollateError, match=r"of size \[1, 1\], 1 pixels; wanted \(4, 5\)"):
        lk.DetectionCollate(masks=True)([(IMAGE, coco)])


def test_no_samples_and_images_of_several_sizes_are_refused() -> None:
    for images in ("list", "stack", lk.Pad(dims=(1, 2))):
        with pytest.raises(ValueError, match="DetectionCollate: no samples given"):
            lk.DetectionCollate(images=images)([])  # type: ignore[arg-type]
    samples = [(IMAGE, []), (IMAGE, []), (torch.zeros(3, 4, 6), [])]
    with pytest.raises(CollateError, match=r"shape \(3, 4, 5\) and \(3, 4, 6\).*use images='list'") as caught:
        lk.DetectionCollate(images="stack")(samples)
    assert caught.value.rows == (0, 2)


class Boxes:
    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        return make_sample((100 + index, 200), [[index, 1, 2, 3]] * (index % 3), "pair", "XYXY")


def test_workers_change_nothing() -> None:
    collate = lk.DetectionCollate(images=lk.Pad(dims=(1, 2), mask=True))
    inline, sent = (list(lk.Loader(Boxes(), 4, collate_fn=collate, num_workers=workers)) for workers in (0, 2))
    assert len(inline) == len(sent) == 3
    assert equal(inline, sent)
    assert type(sent[0][0]) is tv_tensors.Image
    canvases = [[target["boxes"].canvas_size for batch in batches for target in batch[1]] for batches in (inline, sent)]
    assert canvases[0] == canvases[1]
