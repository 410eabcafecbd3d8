"""A DataModule for labelled pictures: folders, torchvision's datasets, tar shards; normalised on the device."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from loaderkit.datasets.images.folder import EXTENSIONS, ImageFolder
from loaderkit.datasets.images.torchvision import (
    LabelledPictures,
    ToSize,
    default_splits,
    open_torchvision,
    torchvision_kind,
)
from loaderkit.datasets.remote.urls import Urls, expand
from loaderkit.datasets.tar.dataset import TarDataset
from loaderkit.lightning.base import DataModule
from loaderkit.lightning.parts import STAGES, Part, factories, given_stages, parts_of
from loaderkit.lightning.shards import index_shards
from loaderkit.loader.config import LoaderConfig

Transform = Callable[[Any], Any]
FOLDERS = ("train", "val", "test")
_PICTURES = tuple(extension.removeprefix(".") for extension in EXTENSIONS)


class ImageDataModule(DataModule):
    """Trains on pictures with labels: a batch is (pictures (B, 3, H, W), labels (B,) int64).

    Pictures are read as uint8 RGB and stay uint8 until they are on the device, a quarter of the bytes. There
    `on_after_batch_transfer` hands them to `to_input`, which scales them to [0, 1] and normalises
    them; override it for more, such as mixing pictures.

    Args:
        root: A folder with the folders train/, val/ and test/ (each is optional), which have a folder of
            pictures for each class, or tar shards; or a folder of classes itself: all of it is training data. With
            `dataset`: where torchvision keeps it.
        dataset: Name of a torchvision dataset, such as "CIFAR10".
        splits: Which of its splits is which part, such as {"train": "train", "val": "test"}, or with True and False
            where its class has `train=`; by default its training and test data, under these names. For evaluation a dict
            of splits by name is several sets.
        options: The torchvision dataset's other settings.
        download: Whether torchvision may download it.
        train: In place of `root`: a folder of classes, or tar shards (a path, folder, glob or URL, or a list of them).
        val: The same; or a dict of these by name: several sets, one after another, and `dataloader_idx` counts them.
        test: The same as val.
        predict: The same; pictures in tar shards need no label there.
        label: Extension of the files in tar shards that hold the label.
        classes: Their names; needed for tar shards, which have only numbers.
        size: Of all pictures, (height, width) or one number for both: they are scaled until they cover it, and cut.
        train_transform: From a training picture, uint8 (3, H, W), to what takes its place, such as
            torchvision's v2 transforms; its random numbers are the sample's own.
        eval_transform: The same for val, test and predict.
        mean: Of the three channels, in [0, 1]; taken off on the device.
        std: The same, divided by.
        index_dir: Where tar shards' index files lie; beside local shards by default.
        loader: The loaders' settings.
        eval_loader: Those for val, test and predict.

    Raises:
        FileNotFoundError: If there is no such folder, class, shard or dataset.
        ValueError: If settings contradict each other, or classes differ between folders.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        dataset: str | None = None,
        splits: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        download: bool = False,
        train: Urls | None = None,
        val: Urls | Mapping[str, Urls] | None = None,
        test: Urls | Mapping[str, Urls] | None = None,
        predict: Urls | Mapping[str, Urls] | None = None,
        label: str = "cls",
        classes: Sequence[str] | None = None,
        size: int | tuple[int, int] | None = None,
        train_transform: Transform | None = None,
        eval_transform: Transform | None = None,
        mean: tuple[float, float, float] = (0.0, 0.0, 0.0),
        std: tuple[float, float, float] = (1.0, 1.0, 1.0),
        index_dir: str | os.PathLike[str] | None = None,
        loader: LoaderConfig | None = None,
        eval_loader: LoaderConfig | None = None,
    ) -> None:
        given = given_stages(train=train, val=val, test=test, predict=predict)
        if (root is None) == (not given) and dataset is None:
            raise ValueError(
                f"ImageDataModule: found root={root!r} and {sorted(given)}, wanted root, or parts such as train and val."
            )
        if dataset is not None and (root is None or given):
            raise ValueError(f"ImageDataModule: dataset={dataset!r} lies in a root=, and has no train=, val= or test=.")
        self._root, self._download, self._options = root, download, dict(options or {})
        self._kind = None if dataset is None else torchvision_kind(dataset)
        if self._kind is not None:
            given = dict(splits or default_splits(self._kind))
        elif root is not None:
            given = dict(_folders_of(Path(root)))
        self._parts = parts_of("ImageDataModule", given)
        self._label, self._index_dir = label, index_dir
        self._classes = None if classes is None else list(classes)
        sizes = (size, size) if isinstance(size, int) else size
        self._transforms = {
            stage: transform if sizes is None else ToSize((sizes[0], sizes[1]), transform)
            for stage in STAGES
            for transform in [train_transform if stage == "train" else eval_transform]
        }
        super().__init__(**factories(self._parts, self._open), loader=loader, eval_loader=eval_loader)
        self.mean, self.std = mean, std

    @property
    def classes(self) -> list[str]:
        """The classes' names, each at the place of its label; read from the first folder's names.

        Raises:
            ValueError: If neither the data nor the caller names them.
        """
        if self._classes is None:
            self._classes = self._find_classes()
        return self._classes

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @override
    def prepare_data(self) -> None:
        if self._kind is None:
            tars = [part.data for part in self._parts if not _is_class_folder(part.data)]
            shards = [shard for urls in tars for shard in expand(urls, TarDataset.suffixes)]
            index_shards(dict.fromkeys(shards, TarDataset), index_dir=self._index_dir)
        elif self._download:
            for part in self._parts:
                self._open_torchvision(part, download=True)

    @override
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if isinstance(batch, list | tuple):
            return type(batch)([self.to_input(batch[0]), *batch[1:]])
        return self.to_input(batch)

    def to_input(self, pictures: Tensor) -> Tensor:
        """Turn a batch of pictures on the device (B, 3, H, W) into the model's input, float32."""
        if pictures.dtype == torch.uint8:
            pictures = pictures.float().div_(255)
        if tuple(self.mean) == (0, 0, 0) and tuple(self.std) == (1, 1, 1):
            return pictures
        mean = torch.tensor(self.mean, dtype=pictures.dtype, device=pictures.device)[:, None, None]
        std = torch.tensor(self.std, dtype=pictures.dtype, device=pictures.device)[:, None, None]
        return (pictures - mean) / std

    def _open(self, part: Part) -> Any:
        transform = self._transforms[part.stage]
        if self._kind is not None:
            return LabelledPictures(self._open_torchvision(part, download=False), transform)
        if not _is_class_folder(part.data):
            labelled = _Labelled(self._label, part.stage != "predict", transform)
            return TarDataset(part.data, transform=labelled, index_dir=self._index_dir)
        folder = ImageFolder(Path(part.data), transform=transform, allow_empty=part.stage != "train")
        if folder.classes != self.classes:
            raise ValueError(
                f"ImageDataModule: {part} has the classes {folder.classes}, wanted {self.classes}. "
                "Labels are the places of the names: give each part the same folders, if need be empty ones."
            )
        return folder

    def _open_torchvision(self, part: Part, *, download: bool) -> Any:
        root = "" if self._root is None else self._root
        return open_torchvision(self._kind, part.data, root, download=download, options=self._options)

    def _find_classes(self) -> list[str]:
        if self._kind is None:
            folders = [part.data for part in self._parts if _is_class_folder(part.data)]
            found = _class_names(Path(folders[0])) if folders else None
        else:
            found = getattr(self._open_torchvision(self._parts[0], download=self._download), "classes", None)
        if found is None:
            raise ValueError("ImageDataModule: the data does not name its classes. Name them: classes=[...].")
        return [str(name) for name in found]


class _Labelled:
    """From a tar sample to (picture, label); without a label to the picture."""

    def __init__(self, label: str, needed: bool, transform: Transform | None) -> None:
        self.label, self.needed, self.transform = label, needed, transform

    def __call__(self, sample: Mapping[str, Any]) -> Any:
        found = [name for name in sample if name.rpartition(".")[2] in _PICTURES]
        if len(found) != 1 or (self.needed and self.label not in sample):
            raise ValueError(
                f"ImageDataModule: sample {sample['__key__']!r} has the files {sorted(set(sample) - {'__key__'})}, "
                f"wanted one picture, and its label as {self.label!r} (label=)."
            )
        picture = sample[found[0]]
        picture = picture if self.transform is None else self.transform(picture)
        return (picture, sample[self.label]) if self.label in sample else picture


def _folders_of(root: Path) -> dict[str, Urls]:
    """Find the parts of a folder: those named as such, or else all of it is training data."""
    if not root.is_dir():
        raise FileNotFoundError(
            f"ImageDataModule: no folder at {root}, wanted one with train/, val/ and test/, or with classes. Tar shards by name: "
            "train=, val=; a torchvision dataset: root= and dataset='CIFAR10'."
        )
    found: dict[str, Urls] = {name: root / name for name in FOLDERS if (root / name).is_dir()}
    return found or {"train": root}


def _is_class_folder(urls: Urls) -> bool:
    """Say whether this is a folder without tar shards in it."""
    if not isinstance(urls, str | os.PathLike) or not Path(urls).is_dir():
        return False
    with os.scandir(urls) as entries:
        return not any(entry.name.endswith(TarDataset.suffixes) for entry in entries)


def _class_names(folder: Path) -> list[str]:
    found = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not found:
        raise FileNotFoundError(f"ImageDataModule: no folders in {folder}, wanted one for each class, or tar shards.")
    return found
