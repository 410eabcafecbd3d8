"""A list of audio or video files: their paths, and the classes that their folders name."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from loaderkit.datasets.base import check_index
from loaderkit.datasets.find_shards import expand
from loaderkit.datasets.memory.packed import Packed
from loaderkit.datasets.places import Place
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls, is_remote, stat
from loaderkit.seeding.draws import Declares
from loaderkit.system.digests import digest

FILE, LABEL = "file", "label"  # fields of a sample


class MediaFiles(Declares):
    """The paths or URLs of files. A sample is `{"file": path}`, with `"label"` if there are labels.

    Args:
        urls: A path, folder, glob or URL, or a list of them.
        suffixes: Suffixes of the files to take from a folder, in lower case; those in upper case are added.
        labels: "folder": the folders in the one folder `urls` are classes, numbered in sorted order. Or a list with a
            value for each file.
        storage: How to reach remote files.

    Attributes:
        classes: Names of the classes, sorted; None without labels="folder".
    """

    def __init__(
        self,
        urls: Urls,
        suffixes: Sequence[str],
        labels: Literal["folder"] | Sequence[object] | None,
        storage: Storage | None,
    ) -> None:
        paths = expand(urls, (*suffixes, *(suffix.upper() for suffix in suffixes)), storage)
        tars = [path for path in paths if path.endswith(".tar")]
        if tars:
            raise ValueError(f"{tars[0]} is a tar shard, wanted files. Give the dataset: lk.TarDataset(...).")
        self.classes: list[str] | None = None
        if isinstance(labels, str):
            paths, labels = self._by_folder(urls, paths, labels)
        elif labels is not None and (isinstance(urls, str | os.PathLike) or len(labels) != len(paths)):
            raise ValueError(
                f"{len(labels)} labels for {len(paths)} files, wanted a list of files and a label for each, or labels='folder'."
            )
        self.storage = storage
        self._paths = Packed(paths, "path")
        self._labels = None if labels is None else np.asarray(labels)
        start = os.path.commonprefix(paths).rfind("/") + 1  # noqa: RUF071 - of folders, also of URLs
        self._digest = digest("\n".join(path[start:] for path in paths))

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        check_index(self, index)
        found = {FILE: self._paths.read_one(index % len(self))}
        return found if self._labels is None else found | {LABEL: self._labels[index].item()}

    def place(self, index: int) -> Place:
        """Return where a sample is stored: a file of its own."""
        return Place(self[index][FILE])

    def fingerprint(self) -> str:
        """Return a text of the number of files, and a digest of their paths relative to their common folder."""
        return f"media-1 {len(self)} files, {self._digest}"

    def version(self) -> str:
        """Return a digest of the files' sizes, times of change and etags."""
        return digest("\n".join(str(stat(path, self.storage)) for path in self._paths.read(range(len(self)))))

    def _by_folder(self, urls: Urls, paths: list[str], labels: str) -> tuple[list[str], list[int]]:
        if (
            labels != "folder"
            or not isinstance(urls, str | os.PathLike)
            or is_remote(os.fspath(urls))
            or not Path(urls).is_dir()
        ):
            raise ValueError(
                f"labels is {labels!r} for {urls!r}, wanted labels='folder' with one local folder of classes."
            )
        parts = {path: Path(path).relative_to(urls).parts for path in paths}
        paths = [path for path in paths if len(parts[path]) > 1]
        self.classes = sorted({parts[path][0] for path in paths})
        if not paths:
            raise FileNotFoundError(f"no folders with files in {urls}, wanted one for each class.")
        numbers = {name: number for number, name in enumerate(self.classes)}
        return paths, [numbers[parts[path][0]] for path in paths]
