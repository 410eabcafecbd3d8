"""A DataModule for shards. Their suffix decides their format, and each node writes missing index files once."""

import inspect
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import override

from loaderkit.datasets.find_shards import expand
from loaderkit.datasets.formats import format_named, formats_of, known_suffixes
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls
from loaderkit.lightning.base import DataModule
from loaderkit.lightning.check_data import STAGES, StageData, factories, list_stage_data, sources_by_stage
from loaderkit.loader.config import LoaderConfig
from loaderkit.system.progress import with_progress
from loaderkit.system.suggest import suggest_argument, suggest_arguments

Transform = Callable[[Any], object]


class ShardDataModule(DataModule):
    """Trains on shards, given by path, folder, glob or URL.

    All shards of a stage are one dataset. `prepare_data` indexes shards without an index, once on
    each node. For many large shards, `loaderkit index` does this in parallel.

    Args:
        train: A path, folder, glob or URL, or a list of these: one dataset. A dict of these by name
            is several datasets, from which each step draws one batch each.
        val: The same. Several datasets are evaluated one after another; `dataloader_idx` counts them.
        test: The same as val.
        predict: The same as val.
        format: The format's name, such as "tar", "parquet", "csv" or "tokens", or MODULE:CLASS.
            Default: decide by suffix.
        options: Other arguments of the format's dataset, such as {"length": 1025, "dtype": "uint16"}
            for tokens, or {"storage": Storage(...)} for remote shards.
        train_transform: Maps a training sample to what the collate function gets. Its random numbers depend only on the
            seed, the epoch and the sample.
        eval_transform: The same for val, test and predict.
        index_dir: Folder of the index files. Default: LOADERKIT_INDEX_DIR, else
            ~/.cache/loaderkit/index. If nodes do not share this folder, each node writes its own indexes.
        loader: The loaders' settings.
        eval_loader: Settings of the loaders for val, test and predict.

    Raises:
        FileNotFoundError: In `prepare_data` and `setup`, if there are no shards.
        ValueError: If the format is unknown, or the suffix fits several formats.
        ShardError: If a shard can't be read.

    Examples:
        >>> _ = Path("a.jsonl").write_text('{"x": 1, "y": 0}' + chr(10) + '{"x": 2, "y": 1}')
        >>> data = lk.ShardDataModule(train="*.jsonl", loader=lk.LoaderConfig(batch_size=2))
        >>> data.prepare_data()
        >>> data.setup("fit")
        >>> batch = next(iter(data.train_dataloader()))
        >>> sorted(batch), batch["x"].shape, batch["x"].dtype
        (['x', 'y'], torch.Size([2]), torch.int64)
    """

    @suggest_arguments
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
        sources = sources_by_stage(train=train, val=val, test=test, predict=predict)
        self._stage_data = list_stage_data(type(self).__name__, sources, several=STAGES)
        self._transforms = (train_transform, eval_transform)
        self._format, self._options, self._index_dir = format, dict(options or {}), index_dir
        super().__init__(**factories(self._stage_data, self._open), loader=loader, eval_loader=eval_loader)

    @override
    def prepare_data(self) -> None:
        places = (self._options.get("storage"), self._options.get("split"))
        found = [find_shards(one.source, self._format, *places) for one in self._stage_data]
        to_index = {shard: kind for kind, shards in found if kind.keeps_index for shard in shards}
        options = {name: value for name, value in self._options.items() if name != "split"}
        index_shards(to_index, index_dir=self._index_dir, **options)

    def _open(self, data: StageData) -> ShardedDataset:
        transform = self._transforms[data.stage != "train"]
        return open_shards(
            data.source, format=self._format, transform=transform, index_dir=self._index_dir, **self._options
        )


def open_shards(urls: Urls, *, format: str | None = None, **settings: Any) -> ShardedDataset:  # noqa: A002
    """Open shards as one dataset."""
    kind, shards = find_shards(urls, format, settings.get("storage"), settings.get("split"))
    by_folder = kind.reads_folders or settings.get("split") is not None  # the folder says which samples a split has
    source = urls if by_folder else shards
    if not kind.keeps_index:
        settings.pop("index_dir", None)
    try:
        inspect.signature(kind).bind(source, **settings)
    except TypeError as error:
        hint = suggest_argument(kind, settings)
        raise TypeError(f"{kind.__name__}: {error}.{hint} Pass its arguments as options={{name: value}}.") from None
    return kind(source, **settings)


def find_shards(
    urls: Urls,
    format: str | None,  # noqa: A002
    storage: Storage | None = None,
    split: str | None = None,
) -> tuple[type[ShardedDataset], list[str]]:
    """Return the dataset class that reads the shards, and the shards' paths: none if `format` reads whole folders."""
    if format is not None:
        kind = format_named(format)
        return kind, [] if kind.reads_folders else expand(urls, kind.suffixes, storage, split=split)
    shards = expand(urls, known_suffixes(), storage, split=split)
    found = {name: kind for shard in shards for name, kind in formats_of(shard).items()}
    if len(found) > 1:
        raise ValueError(f"{shards[0]}: {len(shards)} shards may be {' or '.join(sorted(found))}. Say which: format=.")
    return next(iter(found.values())), shards


def index_shards(shards: Mapping[str, type[ShardedDataset]], **settings: Any) -> None:
    """Index each shard without an up-to-date index, with a progress bar; warn once about all changed shards."""
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
