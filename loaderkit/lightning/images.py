"""A DataModule for labelled pictures in folders, tar shards or torchvision's datasets."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from loaderkit.datasets.find_shards import expand
from loaderkit.datasets.images.checks import MAX_PIXELS, check_max_pixels
from loaderkit.datasets.images.decoders import PictureDecoder, check_decoder
from loaderkit.datasets.images.folder import EXTENSIONS, ImageFolder
from loaderkit.datasets.images.torchvision import (
    LabelledPictures,
    ToSize,
    default_splits,
    open_torchvision,
    torchvision_kind,
)
from loaderkit.datasets.tar.dataset import TarDataset
from loaderkit.files.urls import Urls
from loaderkit.lightning.base import DataModule
from loaderkit.lightning.check_data import STAGES, StageData, factories, list_stage_data, sources_by_stage
from loaderkit.lightning.shards import index_shards
from loaderkit.loader.config import LoaderConfig
from loaderkit.system.checks import listed
from loaderkit.system.containers import with_parts
from loaderkit.system.suggest import suggest_arguments

Transform = Callable[[Any], object]
_PICTURES = tuple(extension.removeprefix(".") for extension in EXTENSIONS)


class ImageDataModule(DataModule):
    """Trains on pictures (B, 3, H, W) with labels (B,) int64.

    Pictures are read as uint8 RGB. They stay uint8 until they are on the device, which saves three
    quarters of the bytes. There `on_after_batch_transfer` calls `to_input`, which scales them to
    [0, 1] and normalises them. Override `to_input` for more, such as mixing pictures.
    `classes` and `num_classes` give a model its size. The folders must exist when the DataModule is made.

    Args:
        root: A folder with any of the folders train/, val/ and test/. Each holds one folder of pictures
            for each class, or tar shards. A folder of classes alone is training data. With `dataset`:
            torchvision's folder for that dataset.
        dataset: Name of a torchvision dataset, such as "CIFAR10".
        splits: The dataset's split for each stage, such as {"train": "train", "val": "test"}. If its
            class takes `train=`, the splits are True and False. Default: its training and test data as
            "train" and "test". A dict of splits by name makes several evaluation datasets.
        options: Other arguments of the torchvision dataset.
        download: Whether torchvision may download the dataset.
        train: Instead of `root`: a folder of classes, or tar shards (a path, folder, glob or URL, or a
            list of these).
        val: The same, or a dict of these by name: several datasets, evaluated one after another;
            `dataloader_idx` counts them.
        test: The same as val.
        predict: The same as val. Tar shards need no labels here.
        label: Extension of the label's file in tar shards.
        classes: The classes' names. Tar shards hold only numbers, so they need it.
        size: Size of all pictures, (height, width) or one number for both. Pictures are scaled until they just cover this
            size, then cropped at the center.
        max_pixels: The largest picture to decode from folders and tar shards, width times height; None for any.
            torchvision's datasets have Pillow's limit.
        decoder: What decodes JPEG in folders and tar shards, as for `ImageFolder`.
        train_transform: Maps a training picture, uint8 (3, H, W), to another, such as a torchvision v2
            transform. Its random numbers depend only on the seed, the epoch and the sample.
        eval_transform: The same for val, test and predict.
        mean: Mean of each channel, in [0, 1]; subtracted on the device.
        std: Standard deviation of each channel; divided by on the device.
        index_dir: Folder of the tar shards' index files. Default: LOADERKIT_INDEX_DIR, else ~/.cache/loaderkit/index.
        loader: The loaders' settings.
        eval_loader: Settings of the loaders for val, test and predict.

    Raises:
        FileNotFoundError: If there is no such folder, class, shard or dataset.
        ValueError: If settings contradict each other, or classes differ between folders.

    Examples:
        >>> from PIL import Image
        >>> for name in ("cat", "dog"):
        ...     Path("train", name).mkdir(parents=True)
        ...     Image.new("RGB", (8, 8)).save(Path("train", name, "0.png"))
        >>> data = lk.ImageDataModule(".", loader=lk.LoaderConfig(batch_size=2))
        >>> data.setup("fit")
        >>> pictures, labels = next(iter(data.train_dataloader()))
        >>> pictures.shape, pictures.dtype, labels.dtype, data.classes
        (torch.Size([2, 3, 8, 8]), torch.uint8, torch.int64, ['cat', 'dog'])
    """

    @suggest_arguments
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
        max_pixels: int | None = MAX_PIXELS,
        decoder: PictureDecoder | None = None,
        train_transform: Transform | None = None,
        eval_transform: Transform | None = None,
        mean: tuple[float, float, float] = (0.0, 0.0, 0.0),
        std: tuple[float, float, float] = (1.0, 1.0, 1.0),
        index_dir: str | os.PathLike[str] | None = None,
        loader: LoaderConfig | None = None,
        eval_loader: LoaderConfig | None = None,
    ) -> None:
        sources = sources_by_stage(train=train, val=val, test=test, predict=predict)
        _check_sources(root, dataset, sources)
        check_max_pixels("ImageDataModule", max_pixels)
        check_decoder("ImageDataModule", decoder)
        self._pictures: dict[str, Any] = {"max_pixels": max_pixels, "decoder": decoder}
        self._root, self._download, self._options = root, download, dict(options or {})
        self._kind = None if dataset is None else torchvision_kind(dataset)
        if self._kind is not None:
            sources = dict(splits or default_splits(self._kind))
        elif root is not None:
            sources = dict(_folders_of(Path(root)))
        self._stage_data = list_stage_data("ImageDataModule", sources)
        self._label, self._index_dir = label, index_dir
        self._classes = listed("ImageDataModule", "classes", classes)
        self._transforms = {
            stage: _to_size(size, train_transform if stage == "train" else eval_transform) for stage in STAGES
        }
        super().__init__(**factories(self._stage_data, self._open), loader=loader, eval_loader=eval_loader)
        self.mean, self.std = mean, std

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order of their labels; read from the first folder.

        Raises:
            ValueError: If neither the data nor `classes=` names them.
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
            tars = [one.source for one in self._stage_data if not _is_class_folder(one.source)]
            shards = [shard for urls in tars for shard in expand(urls, TarDataset.suffixes)]
            index_shards(dict.fromkeys(shards, TarDataset), index_dir=self._index_dir)
        elif self._download:
            for one in self._stage_data:
                self._open_torchvision(one, download=True)

    @override
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if isinstance(batch, list | tuple):
            return with_parts(batch, [self.to_input(batch[0]), *batch[1:]])
        return self.to_input(batch)

    def to_input(self, pictures: Tensor) -> Tensor:
        """Return the model's input, float32 (B, 3, H, W), for a batch of pictures on the device."""
        if pictures.dtype == torch.uint8:
            pictures = pictures.float().div_(255)
        if tuple(self.mean) == (0, 0, 0) and tuple(self.std) == (1, 1, 1):
            return pictures
        mean = torch.tensor(self.mean, dtype=pictures.dtype, device=pictures.device)[:, None, None]
        std = torch.tensor(self.std, dtype=pictures.dtype, device=pictures.device)[:, None, None]
        return (pictures - mean) / std

    def _open(self, data: StageData) -> object:
        transform = self._transforms[data.stage]
        if self._kind is not None:
            return LabelledPictures(self._open_torchvision(data, download=False), transform)
        if not _is_class_folder(data.source):
            labelled = _Labelled(self._label, data.stage != "predict", transform)
            return TarDataset(data.source, transform=labelled, index_dir=self._index_dir, **self._pictures)
        folder = ImageFolder(
            Path(data.source), transform=transform, allow_empty=data.stage != "train", **self._pictures
        )
        if folder.classes != self.classes:
            raise ValueError(
                f"ImageDataModule: {data} has the classes {folder.classes}, wanted {self.classes}. Labels number the sorted "
                "folders, so each stage needs the same folders. Add empty ones."
            )
        return folder

    def _open_torchvision(self, data: StageData, *, download: bool) -> object:
        root = "" if self._root is None else self._root
        return open_torchvision(self._kind, data.source, root, download=download, options=self._options)

    def _find_classes(self) -> list[str]:
        if self._kind is None:
            folders = [one.source for one in self._stage_data if _is_class_folder(one.source)]
            found = _class_names(Path(folders[0])) if folders else None
        else:
            found = getattr(self._open_torchvision(self._stage_data[0], download=self._download), "classes", None)
        if found is None:
            raise ValueError("ImageDataModule: the data does not name its classes. Give classes=[...].")
        return [str(name) for name in found]


class _Labelled:
    """Maps a tar sample to (picture, label), or to the picture if there is no label."""

    def __init__(self, label: str, needed: bool, transform: Transform | None) -> None:
        self.label, self.needed, self.transform = label, needed, transform

    def __call__(self, sample: Mapping[str, object]) -> object:
        found = [name for name in sample if name.rpartition(".")[2] in _PICTURES]
        if len(found) != 1 or (self.needed and self.label not in sample):
            raise ValueError(
                f"ImageDataModule: sample {sample['__key__']!r} has the files {sorted(set(sample) - {'__key__'})}, "
                f"wanted one picture and a label {self.label!r} (label=)."
            )
        picture = sample[found[0]]
        picture = picture if self.transform is None else self.transform(picture)
        return (picture, sample[self.label]) if self.label in sample else picture


def _to_size(size: int | tuple[int, int] | None, transform: Transform | None) -> Transform | None:
    """Return a transform that scales and crops pictures to `size`, then applies `transform`; `transform` if `size` is None."""
    if size is None:
        return transform
    return ToSize((size, size) if isinstance(size, int) else (size[0], size[1]), transform)


def _check_sources(root: str | os.PathLike[str] | None, dataset: str | None, sources: Mapping[str, object]) -> None:
    """Raise a ValueError unless exactly one is given: a folder (`root`), or sources for stages (train=, val=, ...).

    A torchvision `dataset` needs `root`.
    """
    if (root is None) == (not sources) and dataset is None:
        raise ValueError(
            f"ImageDataModule: found root={root!r} and {sorted(sources)}, wanted either root, or stages such as train= and "
            "val=."
        )
    if dataset is not None and (root is None or sources):
        raise ValueError(f"ImageDataModule: dataset={dataset!r} needs root=, and takes no train=, val= or test=.")


def _folders_of(root: Path) -> dict[str, Urls]:
    """Return the folders train/, val/ and test/, or the whole folder as training data if there are none."""
    if not root.is_dir():
        raise FileNotFoundError(
            f"ImageDataModule: no folder at {root}, wanted one with train/, val/ and test/, or with classes. For tar shards "
            "give train= and val=; for a torchvision dataset root= and dataset='CIFAR10'."
        )
    found: dict[str, Urls] = {name: root / name for name in STAGES[:3] if (root / name).is_dir()}
    return found or {"train": root}


def _is_class_folder(urls: Urls) -> bool:
    """Return whether `urls` is one folder without tar shards."""
    if not isinstance(urls, str | os.PathLike) or not Path(urls).is_dir():
        return False
    with os.scandir(urls) as entries:
        return not any(entry.name.endswith(TarDataset.suffixes) for entry in entries)


def _class_names(folder: Path) -> list[str]:
    found = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not found:
        raise FileNotFoundError(f"ImageDataModule: no folders in {folder}, wanted one for each class, or tar shards.")
    return found
