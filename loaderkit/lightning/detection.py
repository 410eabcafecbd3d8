"""A DataModule for pictures with boxes, from COCO annotation files or lists of dicts."""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from loaderkit.collate.detection import DetectionCollate
from loaderkit.collate.rules import Pad
from loaderkit.datasets.combine import SubsetDataset
from loaderkit.datasets.images.checks import MAX_PIXELS, check_max_pixels
from loaderkit.datasets.images.decode import decode_picture
from loaderkit.datasets.images.decoders import PictureDecoder, check_decoder, decoder_fingerprint
from loaderkit.datasets.splits import split
from loaderkit.files.regular_file import read_regular
from loaderkit.lightning.base import DataModule
from loaderkit.lightning.check_data import StageData, factories, list_stage_data, sources_by_stage
from loaderkit.loader.config import LoaderConfig
from loaderkit.system.checks import listed
from loaderkit.system.digests import digest
from loaderkit.system.suggest import suggest_arguments

DetectionData = str | os.PathLike[str] | Sequence[Mapping[str, Any]]
Transform = Callable[[Any, Any], tuple[Any, Any]]


class DetectionDataModule(DataModule):
    """Trains detectors on batches (pictures, targets).

    `DetectionCollate` makes the batches.
    Labels start at 1, because 0 is the background in torchvision's detectors. Pictures stay uint8
    until they are on the device, where `on_after_batch_transfer` scales them to [0, 1].

    Args:
        train: A JSON file in COCO's format, or a list of dicts with `image` (a path, or uint8 (3, H, W)),
            `boxes` (N, 4) and `labels` (N,). Labels are names of `classes`. Other fields join the target.
        val: The same, or a dict of these by name: several datasets, evaluated one after another;
            `dataloader_idx` counts them.
        test: The same as val.
        predict: The same as val. The dicts need no boxes and no labels.
        root: Folder of relative picture paths. Default: the JSON file's folder.
        classes: The classes' names. Default: COCO's categories in the order of their ids, or the sorted
            labels of the training data.
        box_format: Format of the dicts' boxes, in pixels: "XYXY", "XYWH" or "CXCYWH".
        masks: Whether to rasterise COCO's segmentations.
        images: How to batch pictures: see `DetectionCollate`.
        max_pixels: The largest picture to decode, width times height; None for any.
        decoder: What decodes JPEG, as for `ImageFolder`.
        train_transform: Maps (picture, target) to another pair, such as a torchvision v2 transform. Boxes
            and masks are tv_tensors, so they follow the picture. A transform that drops boxes must drop
            their `area` and `iscrowd` too. Its random numbers depend only on the seed, the epoch and the sample.
        eval_transform: The same for val, test and predict.
        splits: Shares of the training data, such as {"train": 0.9, "val": 0.1}. A picture's share depends on the seed and on
            its path, or on its number in the list if it has no path.
        loader: The loaders' settings.
        eval_loader: Settings of the loaders for val, test and predict.

    Raises:
        FileNotFoundError: If a file is missing when the data is read.
        ValueError: If settings contradict each other, or the data is invalid.

    Examples:
        >>> samples = [{"image": torch.zeros(3, 8, 8, dtype=torch.uint8), "boxes": [[0, 0, 4, 4]], "labels": ["cat"]}]
        >>> data = lk.DetectionDataModule(train=samples, loader=lk.LoaderConfig(batch_size=1))
        >>> data.setup("fit")
        >>> pictures, targets = next(iter(data.train_dataloader()))
        >>> pictures[0].shape, targets[0]["boxes"].shape, targets[0]["labels"], data.num_classes
        (torch.Size([3, 8, 8]), torch.Size([1, 4]), tensor([1]), 2)
    """

    @suggest_arguments
    def __init__(
        self,
        train: DetectionData | None = None,
        val: DetectionData | Mapping[str, DetectionData] | None = None,
        test: DetectionData | Mapping[str, DetectionData] | None = None,
        predict: DetectionData | Mapping[str, DetectionData] | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        classes: Sequence[str] | None = None,
        box_format: Literal["XYXY", "XYWH", "CXCYWH"] = "XYXY",
        masks: bool = False,
        images: Literal["list", "stack"] | Pad = "list",
        max_pixels: int | None = MAX_PIXELS,
        decoder: PictureDecoder | None = None,
        train_transform: Transform | None = None,
        eval_transform: Transform | None = None,
        splits: Mapping[str, float] | None = None,
        loader: LoaderConfig | None = None,
        eval_loader: LoaderConfig | None = None,
    ) -> None:
        sources = sources_by_stage(train=train, val=val, test=test, predict=predict)
        check_max_pixels("DetectionDataModule", max_pixels)
        check_decoder("DetectionDataModule", decoder)
        self._splits = dict(splits or {})
        self._stage_data = list_stage_data("DetectionDataModule", sources, splits)
        super().__init__(**factories(self._stage_data, self._open), loader=loader, eval_loader=eval_loader)
        collate = DetectionCollate(images=images)
        if self.loader_config.collate_fn is None:
            self.loader_config = dataclasses.replace(self.loader_config, collate_fn=collate)
        if eval_loader is not None and eval_loader.collate_fn is None:
            self._eval_config = dataclasses.replace(eval_loader, collate_fn=collate)
        self._root = None if root is None else Path(root)
        self._classes = listed("DetectionDataModule", "classes", classes)
        self._box_format, self._masks = box_format, masks
        self._max_pixels, self._decoder = max_pixels, decoder
        self._transforms = (train_transform, eval_transform)
        self._annotations: dict[str, _Annotations] = {}

    @property
    def classes(self) -> list[str]:
        """Names of the classes; the first one has label 1.

        Raises:
            ValueError: If neither the data nor `classes=` names them.
        """
        if self._classes is None:
            if not self._stage_data:
                raise ValueError("DetectionDataModule: no classes, because there is no data. Give classes=[...].")
            self._classes = self._read(self._stage_data[0]).names()
        return self._classes

    @property
    def num_classes(self) -> int:
        """Number of classes, including the background."""
        return len(self.classes) + 1

    @override
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        pictures = batch[0]
        made = [self.to_input(one) for one in pictures] if isinstance(pictures, list) else self.to_input(pictures)
        return (made, *batch[1:])

    def to_input(self, pictures: Tensor) -> Tensor:
        """Return the model's input, float32 in [0, 1], for pictures (C, H, W) or (B, C, H, W) on the device."""
        return pictures.float().div_(255) if pictures.dtype == torch.uint8 else pictures

    def _open(self, data: StageData) -> Any:
        annotations = self._read(data)
        ids = annotations.category_ids(self.classes)
        targets = DetectionCollate(box_format=self._box_format, masks=self._masks and ids is not None, classes=ids)
        transform = self._transforms[data.stage != "train"]
        dataset = BoxedPictures(annotations.samples, self.classes, targets, transform, self._max_pixels, self._decoder)
        if not data.is_share:
            return dataset
        shares = split(
            list(range(len(dataset))), self._splits, seed=self.loader_config.seed, group_by=annotations.pictures
        )
        return SubsetDataset(dataset, shares.indices(data.stage))

    def _read(self, data: StageData) -> "_Annotations":
        key, source = data.key, data.source
        if key not in self._annotations:
            self._annotations[key] = (
                _read_coco(Path(source), self._root)
                if isinstance(source, str | os.PathLike)
                else _read_dicts(source, self._root, data.is_share or data.stage != "predict")
            )
        return self._annotations[key]


class BoxedPictures:
    """Pictures with their targets: a sample is (picture, target), with boxes and masks as tv_tensors."""

    def __init__(
        self,
        samples: Sequence[Mapping[str, object]],  # with `image`, and `annotations` or the target's fields
        classes: Sequence[str],
        targets: DetectionCollate,
        transform: Transform | None,
        max_pixels: int | None,
        decoder: PictureDecoder | None,
    ) -> None:
        self.samples, self.transform, self._targets = samples, transform, targets
        self._max_pixels, self._decoder = max_pixels, decoder
        self._labels = {name: label for label, name in enumerate(classes, 1)}

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        target = dict(self.samples[index])
        picture = target.pop("image")
        if isinstance(picture, str | os.PathLike):
            content = read_regular(picture)
            try:
                picture = decode_picture(content, max_pixels=self._max_pixels, decoder=self._decoder)
            except ValueError as error:
                raise ValueError(f"{picture}: {error}") from error
        elif not hasattr(picture, "shape") or len(picture.shape) != 3 or picture.shape[0] > 4:
            found = tuple(picture.shape) if hasattr(picture, "shape") else type(picture).__name__
            raise ValueError(
                f"DetectionDataModule: sample {index} has an image {found}, wanted a path or uint8 (3, H, W)."
            )
        if "labels" in target:
            target["labels"] = [self._label(label, index) for label in _names_of(target["labels"])]
        elif "annotations" not in target:
            target |= {"boxes": torch.zeros(0, 4), "labels": []}  # for prediction
        (picture,), (target,) = self._targets([(torch.as_tensor(picture), target)])
        return (picture, target) if self.transform is None else self.transform(picture, target)

    def fingerprint(self) -> str:
        """Return a digest of the pictures' file names and the targets, and whether Pillow decodes JPEG."""
        texts = []
        for name, sample in zip(_picture_names(self.samples), self.samples, strict=True):
            target = {field: _plain(value) for field, value in sample.items() if field != "image"}
            texts.append(json.dumps([Path(name).name, target], default=str, sort_keys=True))
        return digest(*texts) + decoder_fingerprint(self._decoder)

    def _label(self, label: object, index: int) -> int:
        if label not in self._labels:
            raise ValueError(
                f"DetectionDataModule: sample {index} has the label {label!r}, wanted one of {list(self._labels)[:10]} (classes=)."
            )
        return self._labels[label]


@dataclasses.dataclass(frozen=True, slots=True)
class _Annotations:
    """The samples of one source: a COCO file, or a list of dicts."""

    samples: list[Mapping[str, Any]]  # with `image`, and `annotations` or the target's fields
    pictures: list[str]  # each picture's path as the source gives it, or its number
    categories: dict[int, str] | None  # COCO's, id to name; None for lists of dicts

    def names(self) -> list[str]:
        """Return the classes' names, in the order of their labels."""
        if self.categories is not None:
            return [self.categories[number] for number in sorted(self.categories)]
        found = {label for sample in self.samples for label in _names_of(sample.get("labels", ()))}
        if numbers := [label for label in found if not isinstance(label, str)]:
            raise ValueError(
                f"DetectionDataModule: labels are {type(numbers[0]).__name__}s such as {numbers[0]!r}, wanted names. Or list the "
                "labels that become 1, 2, ...: classes=[...]."
            )
        return sorted(found)

    def category_ids(self, classes: Sequence[str]) -> dict[int, int] | None:
        """Return the label of each of COCO's category ids; None for lists of dicts.

        Raises:
            ValueError: If a category is not among `classes`.
        """
        if self.categories is None:
            return None
        unknown = sorted(set(self.categories.values()) - set(classes))
        if unknown:
            raise ValueError(f"DetectionDataModule: categories {unknown} are not among the classes {list(classes)}.")
        return {number: classes.index(name) + 1 for number, name in self.categories.items()}


def _names_of(labels: Any) -> list[Any]:
    """Return labels as plain Python values."""
    return [label.item() if hasattr(label, "item") else label for label in labels]


def _plain(value: Any) -> object:
    """Return numbers, arrays or tensors as nested lists."""
    try:
        return np.asarray(value).tolist()
    except ValueError:  # polygons of different lengths
        return [_plain(one) for one in value]


def _picture_names(samples: Sequence[Mapping[str, object]]) -> list[str]:
    """Return each picture's path as given, or its number."""
    return [
        str(sample["image"]) if isinstance(sample["image"], str | os.PathLike) else str(number)
        for number, sample in enumerate(samples)
    ]


def _read_dicts(data: Sequence[Mapping[str, Any]], root: Path | None, labelled: bool) -> _Annotations:
    wanted = ("image", "boxes", "labels") if labelled else ("image",)
    for index, sample in enumerate(data):
        if not isinstance(sample, Mapping) or not sample.keys() >= set(wanted):
            found = f"has {list(sample)}" if isinstance(sample, Mapping) else f"is {type(sample).__name__}"
            raise ValueError(f"DetectionDataModule: sample {index} {found}, wanted a dict with {', '.join(wanted)}.")
    samples = [
        {**sample, "image": root / sample["image"]}
        if root and isinstance(sample["image"], str | os.PathLike)
        else sample
        for sample in data
    ]
    return _Annotations(samples, _picture_names(data), None)


def _read_coco(path: Path, root: Path | None) -> _Annotations:
    found = read_regular(path)
    try:
        content = json.loads(found)
        by_picture: dict[int, list[object]] = {int(picture["id"]): [] for picture in content["images"]}
        for annotation in content.get("annotations", []):
            by_picture[int(annotation["image_id"])].append(annotation)
        categories = {int(category["id"]): str(category["name"]) for category in content["categories"]}
        samples: list[Mapping[str, Any]] = [
            {
                "image": (root or path.parent) / picture["file_name"],
                "annotations": by_picture[int(picture["id"])],
                "image_id": int(picture["id"]),
            }
            for picture in content["images"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: can't be read as COCO annotations ({type(error).__name__}: {error}); wanted images, annotations with "
            "their ids, and categories."
        ) from error
    return _Annotations(samples, [str(picture["file_name"]) for picture in content["images"]], categories)
