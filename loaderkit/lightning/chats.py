"""A DataModule for conversations and preference pairs, batched by length or packed."""

import dataclasses
import functools
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from typing_extensions import override

from loaderkit.collate.chats import ChatCollate
from loaderkit.collate.pack import PackCollate
from loaderkit.collate.rules import Side
from loaderkit.datasets.base import MapStyle
from loaderkit.datasets.combine import SubsetDataset
from loaderkit.datasets.images.decode import is_picture
from loaderkit.datasets.rows.chats import ChatDataset
from loaderkit.datasets.rows.encoder import records_of
from loaderkit.datasets.rows.messages import CHAT_COLUMNS
from loaderkit.datasets.rows.preferences import PREFERENCE_COLUMNS, PreferenceDataset
from loaderkit.datasets.splits import Split, split
from loaderkit.lightning.base import DataModule
from loaderkit.lightning.check_data import StageData, factories, is_dict_of_tables, list_stage_data, sources_by_stage
from loaderkit.lightning.loaders import TrainerLoader
from loaderkit.lightning.shards import open_shards
from loaderkit.lightning.text_batching import TextBatching, check_batching
from loaderkit.lightning.text_sources import is_urls
from loaderkit.loader.config import LoaderConfig
from loaderkit.reading.lengths import measure_lengths
from loaderkit.system.arrays import Int64Array
from loaderkit.system.cpus import Cpus, ranks_on_host
from loaderkit.system.digests import digest
from loaderkit.system.suggest import suggest_argument, suggest_arguments

L = TypeVar("L", bound=TrainerLoader)
TooLong = Literal["error", "drop", "truncate_right", "truncate_left", "truncate_turns"]
ChatData = Any  # records by index, or Urls
_logger = logging.getLogger("loaderkit")


class ChatDataModule(DataModule):
    """Fine-tunes on conversations, or on preference pairs.

    ChatDataset tokenizes the conversations, in the workers. ChatCollate makes the batches, or PackCollate if they are packed.

    Batches by length need the length of each conversation, in tokens. `setup` measures them once, with the loader's workers. A
    conversation that cannot be read counts as empty then. When its batch is made, the loader's `bad_samples` decides about it.

    Args:
        train: Records by index, or files: a path, folder, glob or URL, or a list of these, in any format of ShardDataModule.
        val: The same, or a dict of these by name: several datasets, evaluated one after another. Default: a share of the training
            data.
        test: The same as val, without a default.
        predict: The same as test, for `generate`. A batch has prompts: conversations without their last answer, with the header of an
            answer. Its fields are `input_ids` and `attention_mask`, padded on the left. Batches are in the order of the records.
            Prompts over `batching.max_length` are cut on the left, unless too_long is "error". Pairs are batched as for test.
        tokenizer: A tokenizer of the package `transformers`.
        pairs: Whether records are preference pairs.
        options: Other arguments of ChatDataset, or of PreferenceDataset for pairs: {"train_on": "last"}. With "pictures", their `Patches`
            collate the pictures too.
        batching: How conversations become batches: "random", "buckets", "budget" or "packed". A pair counts as twice its longer side,
            and cannot be packed.
        too_long: What happens to conversations of more than `batching.max_length` tokens: as for ChatDataset, or "drop", which leaves
            them out and logs how many.
        lengths_dir: Folder that keeps the measured lengths for later runs, and for all ranks of a node. Default: each rank measures.
        splits: Shares of the training data, such as {"train": 0.8, "val": 0.1, "test": 0.1}. Default: {"train": 0.9, "val": 0.1} without
            val. Equal records get the same share, whatever is in columns that are not used.
        format: The files' format, as for ShardDataModule.
        loader: The loaders' settings.
        eval_loader: Settings of the loaders for val, test and predict.

    Raises:
        TypeError: If the tokenizer or an option has the wrong type, or an option is unknown.
        ValueError: If settings contradict each other, or the data does not fit them when it is read.

    Examples:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import PreTrainedTokenizerFast
        >>> words = Tokenizer(models.WordLevel({"user": 0, "assistant": 1, "Hi": 2, "Hello": 3, "you": 4}))
        >>> words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        >>> template = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
        >>> template += "{% if add_generation_prompt %}assistant{% endif %}"
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, chat_template=template)
        >>> rows = [{"instruction": "Hi", "output": answer} for answer in ("Hello", "Hello you")]
        >>> data = lk.ChatDataModule(rows, tokenizer=tokenizer, splits={"train": 1}, loader=lk.LoaderConfig(batch_size=2))
        >>> data.setup("fit")
        >>> batch = next(iter(data.train_dataloader()))
        >>> {name: tuple(value.shape) for name, value in batch.items()}
        {'input_ids': (2, 5), 'attention_mask': (2, 5), 'labels': (2, 5)}
    """

    @suggest_arguments
    def __init__(
        self,
        train: ChatData = None,
        val: ChatData = None,
        test: ChatData = None,
        predict: ChatData = None,
        *,
        tokenizer: Any,
        pairs: bool = False,
        options: Mapping[str, Any] | None = None,
        batching: TextBatching | None = None,
        too_long: TooLong = "error",
        lengths_dir: str | os.PathLike[str] | None = None,
        splits: Mapping[str, float] | None = None,
        format: str | None = None,  # noqa: A002 - the field's name for it
        loader: LoaderConfig | None = None,
        eval_loader: LoaderConfig | None = None,
    ) -> None:
        self.batching = check_batching("ChatDataModule", batching, loader, eval_loader)
        _check_lengths(self.batching, too_long, pairs=pairs)
        sources = sources_by_stage(train=train, val=val, test=test, predict=predict)
        if splits is None and train is not None and val is None:
            splits = {"train": 0.9, "val": 0.1}
        self._splits = dict(splits or {})
        self._stage_data = list_stage_data("ChatDataModule", sources, splits, is_several=is_dict_of_tables)
        super().__init__(**factories(self._stage_data, self._open), loader=loader, eval_loader=eval_loader)
        self._pairs, self._too_long, self._format = pairs, too_long, format
        self._lengths_dir = None if lengths_dir is None else Path(lengths_dir)
        pad = tokenizer.pad_token_id if getattr(tokenizer, "pad_token_id", None) is not None else 0
        self._pad_token = int(pad)
        kind: Any = PreferenceDataset if pairs else ChatDataset
        _check_options(options or {})
        self._make_chats: functools.partial[Any] = functools.partial(kind, tokenizer=tokenizer, **dict(options or {}))
        try:
            self._make_chats([], **self._cut())
        except TypeError as error:
            raise TypeError(f"{error}{suggest_argument(kind.__init__, options or {})}") from error

    @override
    def prepare_data(self) -> None:
        for one in self._stage_data:
            if is_urls(one.source):
                open_shards(one.source, format=self._format)  # writes the index files, once on each node
            if self._lengths_dir is not None and self._needs_lengths():
                self._open(one)  # writes the lengths

    @override
    def _make_loader(self, kind: type[L], dataset: Any, config: LoaderConfig, shuffle: bool) -> L:
        prompts = isinstance(dataset, ChatDataset) and dataset.train_on == "none"
        arranged = self.batching.how != "random" and not prompts
        plan = self.batching.plan(dataset.lengths(), config, shuffle=shuffle) if arranged else None
        own = self._collate("left" if prompts else "right", packed=self.batching.how == "packed" and not prompts)
        collate = own if config.collate_fn is None else config.collate_fn
        changed = dataclasses.replace(config, plan=plan, collate_fn=collate, shuffle=None)
        return super()._make_loader(kind, dataset, changed, shuffle and plan is None)

    def _collate(self, side: Side, *, packed: bool) -> Callable[[list[Any]], object]:
        pictures = self._make_chats.keywords.get("pictures")
        images = pictures.patches if pictures is not None and callable(pictures.patches) else None
        if not packed:
            return ChatCollate(pad_token=self._pad_token, side=side, images=images)
        return PackCollate(
            tokens="input_ids",
            row_length=self.batching.max_length,
            pad_value=self._pad_token,
            labels=None,
            fields={"labels": -100, **({} if images is None else {"images": images})},
        )

    def _cut(self) -> dict[str, object]:
        """Return the dataset's arguments that cut or refuse long samples as they are read.

        They are empty without a `max_length`, and if `_open` refuses or drops long samples by their measured lengths.
        """
        most = self.batching.max_length
        if most is None or (self._needs_lengths() and self._too_long in ("error", "drop")):
            return {}
        return {"max_length": most, "too_long": self._too_long}

    def _needs_lengths(self) -> bool:
        return self.batching.how != "random" or self._too_long == "drop"

    def _open(self, data: StageData) -> object:
        if data.stage == "predict" and not self._pairs:
            cut = "error" if self._too_long == "error" else "truncate_left"
            prompts = {"train_on": "none", "max_length": self.batching.max_length, "too_long": cut}
            return self._make_chats(self._records(data), **prompts)
        chats = self._make_chats(self._records(data), **self._cut())
        if not self._needs_lengths():
            return chats
        workers = self.loader_config.num_workers
        lengths = measure_lengths(
            chats,
            num_workers=Cpus.detect().workers(ranks_on_host()) if workers == "auto" else workers,
            cache=self._lengths_file(data),
            bad_length=0,
        )
        kept, most = np.arange(len(lengths)), self.batching.max_length
        if most is not None and not self._cut():
            kept = np.flatnonzero(lengths <= (2 * most if self._pairs else most))
            self._say_dropped(str(data), len(lengths) - len(kept), len(lengths), most)
        return _Measured(chats, kept, lengths[kept])

    def _say_dropped(self, stage: str, dropped: int, size: int, most: int) -> None:
        said = f"ChatDataModule: {dropped:,} of {size:,} samples of {stage} have more than max_length={most:,} tokens"
        if dropped == size and size:
            raise ValueError(
                f"{said}, so none is left. Raise TextBatching(max_length=...), or cut them: too_long='truncate_right'."
            )
        if dropped and self._too_long == "error":
            raise ValueError(f"{said}. Leave them out: too_long='drop'. Or cut them: too_long='truncate_right'.")
        if dropped:
            _logger.warning("%s and are left out.", said)

    def _records(self, data: StageData) -> MapStyle[object]:
        """Return the records of a stage."""
        records = self._whole(data.key, data.source)
        if not data.is_share:
            return records
        indices = self._shares.indices(data.stage)
        if not len(indices):
            raise ValueError(
                f"ChatDataModule: splits={self._splits} gives {data.stage} none of the {len(records):,} records. Give more records, a "
                f"larger share, or {data.stage}=; splits={{'train': 1}} keeps all for training."
            )
        return SubsetDataset(records, indices)

    def _whole(self, key: str, source: ChatData) -> MapStyle[object]:
        if key not in self._opened:
            self._opened[key] = (
                open_shards(source, format=self._format) if is_urls(source) else records_of(source, "ChatDataModule")
            )
        return self._opened[key]

    @functools.cached_property
    def _opened(self) -> dict[str, MapStyle[object]]:
        return {}

    @functools.cached_property
    def _shares(self) -> Split[list[int]]:
        """The shares of the training data. Records whose used columns are equal get the same share."""
        train = next(one for one in self._stage_data if one.is_share)
        records = self._whole(train.key, train.source)
        return split(
            list(range(len(records))),
            self._splits,
            seed=self.loader_config.seed,
            group_by=[self._digest(records[index]) for index in range(len(records))],
        )

    def _digest(self, record: object) -> str:
        names = self._make_chats.keywords.get("columns") or {}
        known = PREFERENCE_COLUMNS if self._pairs else CHAT_COLUMNS
        used = [record.get(names.get(name, name)) for name in known] if isinstance(record, Mapping) else record
        return digest(json.dumps(used, sort_keys=True, default=_as_text))

    def _lengths_file(self, data: StageData) -> Path | None:
        if self._lengths_dir is None:
            return None
        self._lengths_dir.mkdir(parents=True, exist_ok=True)
        return self._lengths_dir / f"{data.stage if data.name is None else f'{data.stage}-{digest(data.name)}'}.npz"


def _as_text(value: Any) -> str:
    """Return a text for a value that JSON cannot hold, the same in each process: str() of a picture has its memory address."""
    return f"{value.mode} {value.size}" if is_picture(value) else str(value)


class _Measured(SubsetDataset[object]):
    """The samples `indices` (N,) of a dataset, with their measured lengths (N,) in tokens."""

    def __init__(self, dataset: MapStyle[object], indices: Int64Array, lengths: Int64Array) -> None:
        super().__init__(dataset, indices)
        self._known = lengths

    def lengths(self, indices: Int64Array | None = None) -> Int64Array:
        return self._known if indices is None else self._known[indices]


def _check_lengths(batching: TextBatching, too_long: str, *, pairs: bool) -> None:
    """Raise a ValueError if conversations, or pairs, cannot be batched or limited in this way."""
    how, most = batching.how, batching.max_length
    if how == "windows" or (pairs and how == "packed"):
        raise ValueError(
            f"ChatDataModule: how is {how!r}, wanted 'random', 'buckets' or 'budget', or for chats 'packed'."
        )
    if too_long not in get_args(TooLong) or (most is None and too_long != "error"):
        raise ValueError(
            f"ChatDataModule: too_long is {too_long!r} and batching.max_length {most}, wanted one of "
            f"{', '.join(map(repr, get_args(TooLong)))}, and with any but 'error' TextBatching(max_length=...)."
        )


def _check_options(options: Mapping[str, object]) -> None:
    """Raise a ValueError if the dataset's options include one that the DataModule sets itself."""
    own = {"max_length", "too_long"} & options.keys()
    if own:
        raise ValueError(
            f"ChatDataModule: options has {sorted(own)}, wanted TextBatching(max_length=) and too_long= of the DataModule."
        )
    if options.get("train_on") == "none":
        raise ValueError("ChatDataModule: options has train_on='none'. Give prompts as predict=.")
