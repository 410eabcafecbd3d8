"""A DataModule for labelled pictures: folders, torchvision's datasets, tar shards; normalised on the device."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from loaderkit.config import LoaderConfig
from loaderkit.datamodules.base import DataModule
from loaderkit.datamodules.shards import index_shards
from loaderkit.datasets.images import EXTENSIONS, ImageFolder
from loaderkit.datasets.tar import TarDataset
from loaderkit.datasets.urls import Urls, expand
from loaderkit.datasets.vision import LabelledPictures, ToSize, default_splits, open_torchvision, torchvision_kind

Transform = Callable[[Any], Any]
SPLITS = ("train", "val", "test")
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
            where its class has `train=`; by default its training and test data, under these names.
        options: The torchvision dataset's other settings.
        download: Whether torchvision may download it.
        train: In place of `root`: a folder of classes, or tar shards (a path, folder, glob or URL, or a list of them).
        val: The same, as are the others.
        test: The same.
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
        val: Urls | None = None,
        test: Urls | None = None,
        predict: Urls | None = None,
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
        parts = {"train": train, "val": val, "test": test, "predict": predict}
        given = {name: urls for name, urls in parts.items() if urls is not None}
        if (root is None) == (not given) and dataset is None:
            raise ValueError(
                f"ImageDataModule: found root={root!r} and {sorted(given)}, wanted root, or parts such as train and val."
            )
        if dataset is not None and (root is None or given):
            raise ValueError(f"ImageDataModule: dataset={dataset!r} lies in a root=, and has no train=, val= or test=.")
        self._root, self._download, self._options = root, download, dict(options or {})
        self._kind = None if dataset is None else torchvision_kind(dataset)
        self._splits = {} if self._kind is None else dict(splits or default_splits(self._kind))
        self._parts: dict[str, Urls] = given or ({} if dataset or root is None else _parts_of(Path(root)))
        self._label, self._index_dir = label, index_dir
        self._classes = None if classes is None else list(classes)
        sizes = (size, size) if isinstance(size, int) else size
        self._transforms = {
            part: transform if sizes is None else ToSize((sizes[0], sizes[1]), transform)
            for part in parts
            for transform in [train_transform if part == "train" else eval_transform]
        }
        names = self._splits or self._parts
        super().__init__(
            **{name: functools.partial(self._open, name) for name in names}, loader=loader, eval_loader=eval_loader
        )
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
        if self._download:
            for part in self._splits:
                self._open_torchvision(part, download=True)
        tars = [urls for urls in self._parts.values() if not _is_class_folder(urls)]
        shards = [shard for urls in tars for shard in expand(urls, TarDataset.suffixes)]
        index_shards(dict.fromkeys(shards, TarDataset), index_dir=self._index_dir)

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

    def _open(self, part: str) -> Any:
        transform = self._transforms[part]
        if self._kind is not None:
            return LabelledPictures(self._open_torchvision(part, download=False), transform)
        urls = self._parts[part]
        if not _is_class_folder(urls):
            labelled = _Labelled(self._label, part != "predict", transform)
            return TarDataset(urls, transform=labelled, index_dir=self._index_dir)
        path = Path(urls)  # type: ignore[arg-type]  # one path, as _is_class_folder says
        folder = ImageFolder(path, transform=transform, allow_empty=part != "train")
        if folder.classes != self.classes:
            raise ValueError(
                f"ImageDataModule: {part} has the classes {folder.classes}, wanted {self.classes}. "
                "Labels are the places of the names: give each part the same folders, if need be empty ones."
            )
        return folder

    def _open_torchvision(self, part: str, *, download: bool) -> Any:
        root = "" if self._root is None else self._root
        return open_torchvision(self._kind, self._splits[part], root, download=download, options=self._options)

    def _find_classes(self) -> list[str]:
        for urls in self._parts.values():
            if _is_class_folder(urls):
                return _class_names(Path(urls))  # type: ignore[arg-type]
        opened = self._open_torchvision(next(iter(self._splits)), download=self._download) if self._kind else None
        found = getattr(opened, "classes", None)
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


def _parts_of(root: Path) -> dict[str, Urls]:
    """Find the parts of a folder: those named as such, or else all of it is training data."""
    if not root.is_dir():
        raise FileNotFoundError(
            f"ImageDataModule: no folder at {root}, wanted one with train/, val/ and test/, or with classes."
        )
    found: dict[str, Urls] = {name: root / name for name in SPLITS if (root / name).is_dir()}
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
