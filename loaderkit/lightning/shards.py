"""A DataModule for data in shards: formats by suffix, indexes made once a node."""

import inspect
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import override

from loaderkit.datasets.formats import format_named, formats_of, known_suffixes
from loaderkit.datasets.remote.storage import Storage
from loaderkit.datasets.remote.urls import Urls, expand
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.lightning.base import DataModule
from loaderkit.lightning.parts import STAGES, Part, factories, given_stages, parts_of
from loaderkit.loader.config import LoaderConfig
from loaderkit.system.progress import with_progress

Transform = Callable[[Any], Any]


class ShardDataModule(DataModule):
    """Trains on shards, found by path, folder, glob or URL.

    Each part is one dataset over all its shards. `prepare_data` indexes those that have
    no index, once a node; for many large shards `loaderkit index` does it in parallel.

    Args:
        train: A path, folder, glob or URL, or a list of them: one dataset. A dict of these by name is several, which
            are drawn from side by side.
        val: The same; several are evaluated one after another, and `dataloader_idx` counts them.
        test: The same.
        predict: The same.
        format: Name of the format, such as "tar", "parquet", "csv" or "tokens", or MODULE:CLASS of one's own; by
            default the suffix says it.
        options: The dataset's other settings, such as {"length": 1025, "dtype": "uint16"} for tokens, or
            {"storage": Storage(...)} for shards that are remote.
        train_transform: From a training sample to what is collated; its random numbers are the sample's own.
        eval_transform: The same for val, test and predict.
        index_dir: Where index files lie; beside local shards by default. Nodes that don't share the shards' folder
            index on their own.
        loader: The loaders' settings.
        eval_loader: Those for val, test and predict.

    Raises:
        FileNotFoundError: In `prepare_data` and `setup`, if there are no shards.
        ValueError: If a format is not known, or not clear from the suffix.
        ShardError: If a shard is not what it should be.
    """

    def __init__(
        self,
        train: Urls | Mapping[str, Urls] | None = None,
        val: Urls | Mapping[str, Urls] | None = None,
        test: Urls | Mapping[str, Urls] | None = None,
        predict: Urls | Mapping[str, Urls] | None = None,
        *,
        format: str | None = None,  # noqa: A002 - the field's name for it
        options: Mapping[str, Any] | None = None,
        train_transform: Transform | None = None,
        eval_transform: Transform | None = None,
        index_dir: str | os.PathLike[str] | None = None,
        loader: LoaderConfig | None = None,
        eval_loader: LoaderConfig | None = None,
    ) -> None:
        given = given_stages(train=train, val=val, test=test, predict=predict)
        self._parts = parts_of(type(self).__name__, given, several=STAGES)
        self._transforms = (train_transform, eval_transform)
        self._format, self._options, self._index_dir = format, dict(options or {}), index_dir
        super().__init__(**factories(self._parts, self._open), loader=loader, eval_loader=eval_loader)

    @override
    def prepare_data(self) -> None:
        storage = self._options.get("storage")
        found = [shards_at(part.data, self._format, storage) for part in self._parts]
        todo = {shard: kind for kind, shards in found if kind.keeps_index for shard in shards}
        index_shards(todo, index_dir=self._index_dir, **self._options)

    def _open(self, part: Part) -> ShardedDataset:
        transform = self._transforms[part.stage != "train"]
        return open_shards(
            part.data, format=self._format, transform=transform, index_dir=self._index_dir, **self._options
        )


def open_shards(urls: Urls, *, format: str | None = None, **settings: Any) -> ShardedDataset:  # noqa: A002
    """Open shards as a dataset.

    Raises:
        FileNotFoundError: If there are none.
        ValueError: If their format is not known, not clear, or not one.
        TypeError: If the format has no such setting.
    """
    kind, shards = shards_at(urls, format, settings.get("storage"))
    if not kind.keeps_index:
        settings.pop("index_dir", None)
    try:
        inspect.signature(kind).bind(shards, **settings)
    except TypeError as error:
        raise TypeError(f"{kind.__name__}: {error}. Settings of the format go to options={{name: value}}.") from None
    return kind(shards, **settings)


def shards_at(
    urls: Urls,
    format: str | None,  # noqa: A002
    storage: Storage | None = None,
) -> tuple[type[ShardedDataset], list[str]]:
    """Return what reads the shards, and their paths."""
    if format is not None:
        kind = format_named(format)
        return kind, expand(urls, kind.suffixes, storage)
    shards = expand(urls, known_suffixes(), storage)
    found = {name: kind for shard in shards for name, kind in formats_of(shard).items()}
    if len(found) > 1:
        raise ValueError(f"{shards[0]}: {len(shards)} shards may be {' or '.join(sorted(found))}. Say which: format=.")
    return next(iter(found.values())), shards


def index_shards(shards: Mapping[str, type[ShardedDataset]], **settings: Any) -> None:
    """Index each shard that has no fresh index, under a progress bar; say once what has changed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for shard in with_progress(shards, len(shards), "indexing"):
            shards[shard](shard, **settings)
    changed = [warning for warning in caught if "changed since they were" in str(warning.message)]
    for warning in caught:
        if warning not in changed:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if changed:
        warnings.warn(
            f"{len(changed)} of {len(shards)} shards had changed since they were indexed: {changed[0].message}",
            stacklevel=2,
        )
