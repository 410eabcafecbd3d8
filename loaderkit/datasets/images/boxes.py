"""Convert COCO annotations to the target of a detector: boxes, labels, areas, crowds and masks."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loaderkit.system.types import Array


def coco_target(
    annotations: Sequence[Mapping[str, Any]],
    size: tuple[int, int],
    *,
    classes: Mapping[int, int] | None = None,
    masks: bool = False,
) -> dict[str, Tensor]:
    """Return the target of one image.

    Args:
        annotations: A dict for each of N objects, with `bbox` (x, y, width, height, in pixels) and `category_id`.
            Optional are `area` (default: the area of the box), `iscrowd` (default: 0) and `segmentation`.
        size: Height and width of the image, in pixels.
        classes: The label for each category id. None: the id is the label.
        masks: Whether to draw each `segmentation`, given as polygons or run lengths, as a mask.

    Returns:
        boxes (N, 4) float32, x1 y1 x2 y2; labels (N,) int64; area (N,) float32; iscrowd (N,) int64; masks (N, H, W) uint8.

    Raises:
        ValueError: If an annotation is not valid. The message has its number.
    """
    boxes = torch.zeros(len(annotations), 4)
    labels, areas, crowds = [], [], []
    for number, annotation in enumerate(annotations):
        lacking = [name for name in ("bbox", "category_id", *["segmentation"] * masks) if name not in annotation]
        if lacking:
            raise ValueError(f"annotation {number} has {list(annotation)}, wanted {lacking} too")
        if len(annotation["bbox"]) != 4:
            raise ValueError(f"annotation {number} has bbox {annotation['bbox']}, wanted x, y, width, height")
        x, y, width, height = map(float, annotation["bbox"])
        boxes[number] = torch.tensor([x, y, x + width, y + height])
        category = int(annotation["category_id"])
        if classes is not None and category not in classes:
            raise ValueError(f"annotation {number} has category_id {category}, wanted one of {sorted(classes)}")
        labels.append(category if classes is None else classes[category])
        areas.append(float(annotation.get("area", width * height)))
        crowds.append(int(annotation.get("iscrowd", 0)))
    target: dict[str, Tensor] = {
        "boxes": boxes,
        "labels": torch.tensor(labels, dtype=torch.int64),
        "area": torch.tensor(areas, dtype=torch.float32),
        "iscrowd": torch.tensor(crowds, dtype=torch.int64),
    }
    if masks:
        drawn = [draw_segmentation(annotation["segmentation"], size) for annotation in annotations]
        target["masks"] = torch.stack(drawn) if drawn else torch.zeros(0, *size, dtype=torch.uint8)
    return target


def draw_segmentation(segmentation: Any, size: tuple[int, int]) -> Tensor:
    """Return the mask of an object: 1 inside and 0 outside, (H, W) uint8.

    Args:
        segmentation: Polygons [[x, y, x, y, ...], ...], or run lengths {"counts": ..., "size": ...}.
        size: Height and width of the mask.
    """
    if isinstance(segmentation, Mapping):
        return torch.from_numpy(_from_runs(segmentation, size))
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise ImportError(
            "masks of polygons need Pillow. Install it: pip install '.[images]' in a checkout of loaderkit."
        ) from error
    mask = Image.new("L", (size[1], size[0]))
    draw = ImageDraw.Draw(mask)
    for polygon in segmentation:
        draw.polygon([float(number) for number in polygon], fill=1, outline=1)
    return torch.from_numpy(np.array(mask))


def _from_runs(runs: Mapping[str, Any], size: tuple[int, int]) -> Array:
    """Decode run lengths to a mask (H, W) uint8.

    Runs of 0 and of 1 alternate, starting with 0, down each column in turn.
    """
    counts = runs["counts"]
    if isinstance(counts, str | bytes):
        counts = _read_counts(counts if isinstance(counts, bytes) else counts.encode())
    if tuple(runs["size"]) != size or sum(counts) != size[0] * size[1]:
        raise ValueError(f"a segmentation is of size {runs['size']}, {sum(counts)} pixels; wanted {size} as the image")
    flat = np.zeros(size[0] * size[1], dtype=np.uint8)
    ends = list(accumulate(counts))
    for low, high in zip(ends[::2], ends[1::2], strict=False):
        flat[low:high] = 1
    return np.ascontiguousarray(flat.reshape(size[1], size[0]).T)


def _read_counts(text: bytes) -> list[int]:
    """Read COCO's compressed counts (pycocotools, maskApi.c).

    Each character holds 5 bits of a count. From the fourth count on, the text has the difference to the count two
    before.
    """
    counts: list[int] = []
    value = shift = 0
    for character in text:
        bits = character - 48
        value |= (bits & 0x1F) << shift
        shift += 5
        if not bits & 0x20:
            if bits & 0x10:
                value -= 1 << shift
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = shift = 0
    return counts
