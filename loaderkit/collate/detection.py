"""Detection batches: images, and for each a target with boxes, labels and masks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from loaderkit.collate.padding import pad_field
from loaderkit.collate.rules import Pad
from loaderkit.datasets.images.boxes import coco_target
from loaderkit.datasets.images.torchvision import torchvision_module
from loaderkit.system.stack import CollateError, difference, from_array, stack_field

_NAME = "DetectionCollate"
_PER_OBJECT = ("boxes", "labels", "masks", "area", "iscrowd")
_DTYPES = {"labels": torch.int64, "area": torch.float32, "iscrowd": torch.int64}


@dataclass(frozen=True, kw_only=True, slots=True)
class DetectionCollate:
    """Make batches of images with boxes, as torchvision's detectors take them.

    A sample is a pair of an image (C, H, W) and its target, or a dict with the image and the fields of the target. A target
    is a dict with `boxes` (N, 4), `labels` (N,) and optional `masks` (N, H, W), `area`, `iscrowd` and other fields. It may
    also be COCO's list of annotations, or a dict with that list as `annotations`.

    A call takes B samples and returns the images as tv_tensors, the list of B targets, and the lengths and mask of a `Pad`.
    In a target, `boxes` are BoundingBoxes (N, 4) in XYXY on a canvas of the image's size. `labels` (N,) are int64, and
    `masks` are a Mask (N, H, W). `area` is float32 and `iscrowd` int64. Other fields stay as they are.

    Args:
        images: "list" keeps a list. "stack" makes (B, C, H, W) of images of one size. A `Pad` with dims (1, 2) pads
            images at the right and at the bottom, which keeps boxes valid.
        box_format: The format of boxes that are neither tv_tensors nor COCO's: "XYXY", "XYWH" or "CXCYWH", in pixels.
        classes: The label of each COCO category id. With None, the label is the id.
        masks: Whether to draw COCO's segmentations.
        image: The image's field in dict samples.

    Raises:
        ImportError: If torchvision is not installed.
        CollateError: If a target does not fit its image, or images do not fit together. The message names the samples.

    Examples:
        >>> target = {"boxes": [[0, 0, 2, 1]], "labels": [3]}
        >>> images, targets = lk.DetectionCollate(images="stack", box_format="XYWH")([(torch.zeros(3, 4, 5), target)] * 2)
        >>> images.shape, targets[0]["boxes"].tolist(), targets[0]["labels"].dtype
        (torch.Size([2, 3, 4, 5]), [[0.0, 0.0, 2.0, 1.0]], torch.int64)
    """

    draws_nothing: ClassVar[bool] = True
    thread_safe: ClassVar[bool] = True

    images: Literal["list", "stack"] | Pad = "list"
    box_format: Literal["XYXY", "XYWH", "CXCYWH"] = "XYXY"
    classes: Mapping[int, int] | None = None
    masks: bool = False
    image: str = "image"

    def __post_init__(self) -> None:
        torchvision_module("tv_tensors", _NAME)  # if torchvision is missing, raise the error here and not in a worker
        if isinstance(self.images, Pad):
            rule = self.images
            if set(rule.each_dim) not in ({1, 2}, {-1, -2}) or rule.side != "right" or rule.too_long != "error":
                raise ValueError(
                    f"DetectionCollate: images is {rule}, wanted Pad(dims=(1, 2), side='right', too_long='error'). "
                    "Otherwise the boxes would be wrong."
                )
        elif self.images not in ("list", "stack"):
            raise ValueError(f"DetectionCollate: images is {self.images!r}, wanted 'list', 'stack' or a Pad.")
        if self.box_format not in ("XYXY", "XYWH", "CXCYWH"):
            raise ValueError(f"DetectionCollate: box_format is {self.box_format!r}, wanted 'XYXY', 'XYWH' or 'CXCYWH'.")

    def __call__(self, samples: Sequence[object]) -> tuple[Any, ...]:
        if not len(samples):
            raise ValueError("DetectionCollate: no samples given, wanted at least one.")
        pairs = [self._pair(sample, row) for row, sample in enumerate(samples)]
        images = [self._image(image, row) for row, (image, _) in enumerate(pairs)]
        targets = [self._target(target, images[row], row) for row, (_, target) in enumerate(pairs)]
        if isinstance(self.images, Pad):
            padded, extras = pad_field(images, self.image, self.images)
            return (padded, targets, *extras.values())
        if self.images == "list":
            return images, targets
        shapes = [tuple(image.shape) for image in images]
        if len(set(shapes)) > 1:
            way_out = ": use images='list', or images=Pad(dims=(1, 2)) to pad them to one"
            raise difference("shape", shapes, self.image, "DetectionCollate", way_out)
        return stack_field(images, self.image), targets

    def _pair(self, sample: object, row: int) -> tuple[object, object]:
        if isinstance(sample, Mapping) and self.image in sample:
            return sample[self.image], {name: value for name, value in sample.items() if name != self.image}
        if isinstance(sample, tuple | list) and len(sample) == 2:
            return sample[0], sample[1]
        found = f"a dict of {list(sample)}" if isinstance(sample, Mapping) else type(sample).__name__
        raise CollateError(
            f"DetectionCollate: a sample is {found}, wanted an image and its target, or a dict with {self.image!r}",
            [row],
        )

    @staticmethod
    def _image(image: object, row: int) -> Tensor:
        tv_tensors = torchvision_module("tv_tensors", _NAME)
        if not isinstance(image, Tensor) or image.ndim != 3:
            found = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
            raise CollateError(
                f"DetectionCollate: an image is {found}, wanted a tensor (C, H, W). Use torchvision's v2.ToImage()",
                [row],
            )
        made: Tensor = image if isinstance(image, tv_tensors.Image) else tv_tensors.Image(image)
        return made

    def _target(self, target: Any, image: Tensor, row: int) -> dict[str, object]:
        tv_tensors = torchvision_module("tv_tensors", _NAME)
        size = (int(image.shape[1]), int(image.shape[2]))
        rest: dict[str, object] = {}
        try:
            if isinstance(target, Mapping) and "annotations" in target:
                rest = {name: value for name, value in target.items() if name != "annotations"}
                target = target["annotations"]
            if not isinstance(target, Mapping):
                made = coco_target(target, size, classes=self.classes, masks=self.masks)
                boxes = tv_tensors.BoundingBoxes(made["boxes"], format="XYXY", canvas_size=size)
                target = {**made, "boxes": boxes, **rest}
            return self._check(target, size)
        except (ValueError, TypeError) as error:
            raise CollateError(f"DetectionCollate: a target does not fit: {error}", [row]) from error

    def _check(self, target: Mapping[str, Any], size: tuple[int, int]) -> dict[str, object]:
        tv_tensors = torchvision_module("tv_tensors", _NAME)
        functional = torchvision_module("transforms.v2.functional", _NAME)
        if "boxes" not in target:
            raise ValueError(f"it has {list(target)}, wanted boxes or annotations")
        made = dict(target)
        boxes = target["boxes"]
        if isinstance(boxes, tv_tensors.BoundingBoxes):
            if tuple(boxes.canvas_size) != size:
                raise ValueError(f"its boxes are on a canvas of {tuple(boxes.canvas_size)}, the image is {size}")
        else:
            plain = _tensor(boxes, "boxes", None)
            plain = plain.reshape(-1, 4) if not len(boxes) else plain
            if plain.ndim != 2 or plain.shape[1] != 4:
                raise ValueError(f"its boxes are {tuple(plain.shape)}, wanted (N, 4)")
            plain = plain if plain.is_floating_point() else plain.float()
            boxes = tv_tensors.BoundingBoxes(plain, format=self.box_format, canvas_size=size)
        made["boxes"] = functional.convert_bounding_box_format(boxes, new_format=tv_tensors.BoundingBoxFormat.XYXY)
        for name in _DTYPES.keys() & target.keys():
            made[name] = _tensor(target[name], name, _DTYPES[name])
        if "masks" in target:
            masks = target["masks"]
            if not isinstance(masks, Tensor | np.ndarray) and not len(masks):
                masks = torch.zeros(0, *size, dtype=torch.uint8)
            made["masks"] = (
                masks if isinstance(masks, tv_tensors.Mask) else tv_tensors.Mask(_tensor(masks, "masks", None))
            )
            if tuple(made["masks"].shape[-2:]) != size:
                raise ValueError(f"its masks are {tuple(made['masks'].shape)}, the image is {size}")
        counts = {name: len(made[name]) for name in _PER_OBJECT if name in made}
        if len(set(counts.values())) > 1:
            raise ValueError(f"it has {counts}, wanted one of each for each object")
        return made


def _tensor(values: object, name: str, dtype: torch.dtype | None) -> Tensor:
    """Return a target's values as a tensor. Floats in lists get torch's default dtype."""
    if isinstance(values, Tensor):
        return values if dtype is None else values.to(dtype)
    found = np.asarray(values)
    if found.dtype.kind not in "biuf":
        raise ValueError(f"its {name} are {values!r:.60}, wanted numbers")
    if dtype is None and found.dtype == np.float64 and not isinstance(values, np.ndarray):
        dtype = torch.get_default_dtype()
    made = from_array(found)
    return made if dtype is None else made.to(dtype)
