"""Open torchvision's datasets by name, and bring pictures to one size."""

import importlib
import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loaderkit.datasets.base import Transform

_FUNCTIONAL, _SIZE = "transforms.v2.functional", "ImageDataModule: size="


def torchvision_module(name: str, wanted_by: str) -> ModuleType:
    """Import a module of torchvision; raise an ImportError that says what needs it, and how to install it."""
    try:
        return importlib.import_module(f"torchvision.{name}")
    except ImportError as error:
        raise ImportError(
            f"{wanted_by} needs torchvision: pip install '.[images]' in a checkout of loaderkit."
        ) from error


class LabelledPictures:
    """A dataset of `(picture, label)` whose Pillow images are converted to uint8 RGB tensors (3, H, W).

    Pictures that are tensors already stay as they are.
    """

    def __init__(self, dataset: Any, transform: Transform | None = None) -> None:
        self.dataset = dataset
        self.transform = transform

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        picture, label = self.dataset[index]
        if not isinstance(picture, Tensor):
            pixels = np.array(picture.convert("RGB"))  # a Pillow image
            picture = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
        return picture if self.transform is None else self.transform(picture), label

    def fingerprint(self) -> str:
        """Return the name and length of the dataset, as torchvision gives nothing else that identifies it."""
        return f"{type(self.dataset).__name__} {len(self.dataset)}"


@dataclass(frozen=True)
class ToSize:
    """Scale a picture (*, H, W) until it just covers `size` (height, width), and crop its center; then apply `then`."""

    size: tuple[int, int]
    then: Transform | None = None

    def __post_init__(self) -> None:
        torchvision_module(_FUNCTIONAL, _SIZE)  # raise a missing torchvision here, not in a worker

    def __call__(self, picture: Tensor) -> object:
        functional = torchvision_module(_FUNCTIONAL, _SIZE)
        height, width = picture.shape[-2:]
        factor = max(self.size[0] / height, self.size[1] / width)
        covering = [max(self.size[0], round(height * factor)), max(self.size[1], round(width * factor))]
        fitted = functional.center_crop(functional.resize(picture, covering, antialias=True), list(self.size))
        return fitted if self.then is None else self.then(fitted)


def torchvision_kind(name: str) -> Any:
    """Return torchvision's dataset class of this name; raise a ValueError if it has none."""
    datasets = torchvision_module("datasets", "ImageDataModule: dataset=")
    kind = getattr(datasets, name, None) if name in datasets.__all__ else None
    if not inspect.isclass(kind):
        known = ", ".join(sorted(datasets.__all__))
        raise ValueError(f"torchvision has no dataset {name!r}, it has {known}.")
    return kind


def default_splits(kind: Any) -> dict[str, bool | str | None]:
    """Return the usual splits of a torchvision dataset class, each with its value of `train` or `split`."""
    settings = inspect.signature(kind).parameters
    if "train" in settings:
        return {"train": True, "test": False}
    return {"train": "train", "test": "test"} if "split" in settings else {"train": None}


def open_torchvision(
    kind: Any, split: object, root: str | os.PathLike[str], *, download: bool, options: Mapping[str, object]
) -> Any:
    """Open a split of a torchvision dataset.

    Raise a FileNotFoundError if its files are missing or damaged in `root`.
    """
    settings = inspect.signature(kind).parameters
    given = {"root": os.fspath(root), "download": download, "train": split, "split": split}
    known = {key: value for key, value in given.items() if key in settings}
    try:
        return kind(**{**known, **options})
    except RuntimeError as error:
        raise FileNotFoundError(
            f"torchvision's {kind.__name__} is not in {os.fspath(root)!r}: {error}"
            f"{'' if download else ' With ImageDataModule: download=True, or another root=.'}"
        ) from error
