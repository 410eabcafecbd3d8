"""A DataModule for texts, which are tokenized once and batched by length."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from loaderkit.collate.collates import PadCollate
from loaderkit.collate.pack import PackCollate
from loaderkit.collate.rules import Pad
from loaderkit.datasets.rows.texts import TokenSpans, tokenize
from loaderkit.datasets.splits import split
from loaderkit.lightning.base import DataModule
from loaderkit.lightning.check_data import StageData, factories, is_dict_of_tables, list_stage_data, sources_by_stage
from loaderkit.lightning.loaders import TrainerLoader
from loaderkit.lightning.shards import open_shards
from loaderkit.lightning.text_batching import TextBatching, check_batching
from loaderkit.lightning.text_sources import TextData, classes_of, is_text_files, is_urls, read_texts
from loaderkit.loader.config import LoaderConfig
from loaderkit.sampling.plan import Plan
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import check_integer
from loaderkit.system.suggest import suggest_arguments
from loaderkit.writing.tokens import encode_bytes

L = TypeVar("L", bound=TrainerLoader)
BYTE_END, BYTE_VOCABULARY = 256, 257
_IGNORED = -100  # the default ignore_index of torch's cross_entropy


class TextDataModule(DataModule):
    """Trains on texts: classifies them, or models their language.

    Texts are tokenized once and kept in memory in the smallest integer type that holds the
    vocabulary. Under a Trainer the tokens on the device are int64. A batch is a dict:

    - A classifier's has `tokens` (B, T), `tokens_lengths` (B,) and `label` (B,).
    - A language model's (no `label=`) has `tokens` (B, T), `tokens_lengths` (B,) and `labels` (B, T),
      the next tokens, with -100 after the last one. If packed, `PackCollate` makes the batch.

    `vocab_size`, `classes` and `num_classes` give a model its sizes.

    For more text than fits in memory use `loaderkit shard --format tokens` and ShardDataModule.

    Args:
        train: Columns by name (also a DataFrame), a dataset of dicts, or files: a path, folder, glob or URL, or a list
            of these. Files have any format of ShardDataModule, or are `.txt` with one text each.
        val: The same, or a dict of these by name: several datasets, evaluated one after another;
            `dataloader_idx` counts them. Default: a share of the training data.
        test: The same as val, without a default.
        predict: The same as test. It needs no labels.
        text: Field of the text.
        label: Field of the class. None: a language model.
        classes: The labels, in the order of their codes. Default: the sorted labels of the training data.
        tokenizer: Maps a text to a list of tokens: any tokenizer of transformers, or the method `encode` of one of tokenizers.
            Default: UTF-8 bytes.
        vocab_size: Number of different tokens. Default: the tokenizer's.
        end_token: Language models only: token to add after each text. Default: 256 for bytes, else none.
        pad_token: Token for padding.
        batching: How texts become batches.
        splits: Shares of the training data, such as {"train": 0.8, "val": 0.1, "test": 0.1}. Default:
            {"train": 0.9, "val": 0.1} without val. A text's share depends only on the loader's seed and
            the text's tokens, so equal texts get the same share.
        format: The files' format, as for ShardDataModule.
        loader: The loaders' settings.
        eval_loader: Settings of the loaders for val, test and predict.

    Raises:
        ValueError: If settings contradict each other, or the data does not fit them when it is read.

    Examples:
        >>> texts = {"text": ["good", "bad", "fine", "poor"], "label": [1, 0, 1, 0]}
        >>> data = lk.TextDataModule(texts, label="label", splits={"train": 1}, loader=lk.LoaderConfig(batch_size=4))
        >>> data.setup("fit")
        >>> batch = next(iter(data.train_dataloader()))
        >>> {name: tuple(value.shape) for name, value in batch.items()}
        {'tokens': (4, 4), 'tokens_lengths': (4,), 'label': (4,)}
    """

    @suggest_arguments
    def __init__(
        self,
        train: TextData = None,
        val: TextData = None,
        test: TextData = None,
        predict: TextData = None,
        *,
        text: str = "text",
        label: str | None = None,
        classes: Sequence[Any] | None = None,
        tokenizer: Callable[[str], Any] | None = None,
        vocab_size: int | None = None,
        end_token: int | None = None,
        pad_token: int = 0,
        batching: TextBatching | None = None,
        splits: Mapping[str, float] | None = None,
        format: str | None = None,  # noqa: A002 - the field's name for it
        loader: LoaderConfig | None = None,
        eval_loader: LoaderConfig | None = None,
    ) -> None:
        self.batching = check_batching("TextDataModule", batching, loader, eval_loader)
        if tokenizer is not None and not callable(tokenizer):
            raise TypeError(
                f"TextDataModule: tokenizer is of type {type(tokenizer).__name__}, wanted a function from a text to its tokens. "
                "For a Tokenizer of the package tokenizers: tokenizer=tokenizer.encode."
            )
        for name, number in (("vocab_size", vocab_size), ("end_token", end_token), ("pad_token", pad_token)):
            if number is not None or name == "pad_token":
                check_integer("TextDataModule", name, number, 0)
        sources = sources_by_stage(train=train, val=val, test=test, predict=predict)
        if splits is None and train is not None and val is None:
            splits = {"train": 0.9, "val": 0.1}
        self._splits = dict(splits or {})
        self._stage_data = list_stage_data("TextDataModule", sources, splits, is_several=is_dict_of_tables)
        super().__init__(**factories(self._stage_data, self._open), loader=loader, eval_loader=eval_loader)
        self._text, self._label, self._format = text, label, format
        self._classes = None if classes is None else list(classes)
        self._tokenizer, self._vocab_size, self._pad_token = tokenizer, vocab_size, pad_token
        self.end_token = BYTE_END if tokenizer is None and end_token is None and label is None else end_token
        self._read: dict[str, tuple[TokenSpans, list[object] | None]] = {}
        if label is not None and self.batching.how in ("packed", "windows"):
            raise ValueError(
                f"TextDataModule: label={label!r} and how={self.batching.how!r}; texts to classify are batched as 'random', "
                "'buckets' or 'budget'."
            )

    @property
    def vocab_size(self) -> int:
        """Number of different tokens.

        Raises:
            ValueError: If neither `vocab_size=` nor the tokenizer gives it.
        """
        if self._vocab_size is not None:
            return self._vocab_size
        if self._tokenizer is None:
            return BYTE_VOCABULARY
        owner = getattr(self._tokenizer, "__self__", self._tokenizer)  # for a method, such as tokenizer.encode
        if hasattr(owner, "__len__"):
            return len(owner)
        size = getattr(owner, "vocab_size", None) or getattr(owner, "get_vocab_size", lambda: None)()
        if size is None:
            raise ValueError("TextDataModule: the tokenizer has neither a length nor vocab_size. Give vocab_size=.")
        return int(size)

    @property
    def classes(self) -> list[Any]:
        """The labels, in the order of their codes.

        Raises:
            ValueError: If there are no labels, or neither `classes=` nor training data.
        """
        if self._classes is None:
            train = next((one for one in self._stage_data if one.stage == "train"), None)
            if self._label is None or train is None:
                raise ValueError("TextDataModule: no classes: wanted label= and training data, or classes=[...].")
            self._classes = classes_of(self._tokens(train)[1] or [], str(train))
        return self._classes

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @override
    def prepare_data(self) -> None:
        for source in [one.source for one in self._stage_data]:
            if is_urls(source) and not is_text_files(source):
                open_shards(source, format=self._format)  # writes the index files, once on each node

    @override
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if isinstance(batch, dict) and isinstance(batch.get("tokens"), Tensor):
            return {**batch, "tokens": batch["tokens"].long()}
        return batch

    @override
    def _make_loader(self, kind: type[L], dataset: Any, config: LoaderConfig, shuffle: bool) -> L:
        plan = self._plan(dataset, config, shuffle)
        collate = self._collate() if config.collate_fn is None else config.collate_fn
        changed = dataclasses.replace(config, plan=plan, collate_fn=collate, shuffle=None)
        return super()._make_loader(kind, dataset, changed, shuffle and plan is None)

    def _plan(self, dataset: TokenSpans, config: LoaderConfig, shuffle: bool) -> Plan | None:
        most = self.batching.max_tokens
        if most is not None and (longest := int(dataset.lengths().max(initial=0))) > most:
            raise ValueError(
                f"TextDataModule: a text has {longest:,} tokens, over max_tokens={most:,}. Raise max_tokens, or cut texts: "
                "TextBatching(max_length=...)."
            )
        return self.batching.plan(dataset.lengths(), config, shuffle=shuffle)

    def _collate(self) -> Callable[[Any], object]:
        if self.batching.how == "packed":
            return PackCollate(row_length=self.batching.max_length, pad_value=self._pad_token)
        pad = PadCollate({"tokens": Pad(value=self._pad_token, lengths=True)})
        return pad if self._label is not None else _NextTokens(pad, overlapping=self.batching.how == "windows")

    def _open(self, data: StageData) -> TokenSpans:
        spans, labels = self._tokens(data)
        if self._label is not None and labels is not None:
            spans = TokenSpans(spans.flat, spans.starts, spans.sizes, self._codes(labels, data.key))
        if data.is_share:
            shares = split(
                list(range(len(spans))), self._splits, seed=self.loader_config.seed, group_by=spans.digests()
            )
            spans = spans.take(shares.indices(data.stage))
        if not len(spans):
            raise ValueError(
                f"TextDataModule: splits={self._splits} gives {data.stage} none of the {len(self._tokens(data)[0]):,} texts. Give "
                f"more texts, a larger share, or {data.stage}=; splits={{'train': 1}} keeps all texts for training."
            )
        length = self.batching.max_length
        if self.batching.how == "windows" and length is not None:
            return spans.joined().cut_up(length + 1)
        if length is None:
            return spans
        return spans.cut_up(length) if self._label is None else spans.cut_short(length)

    def _tokens(self, data: StageData) -> tuple[TokenSpans, list[object] | None]:
        """Return the tokens and labels of a dataset's source. A source is read and tokenized once."""
        key = data.key
        if key not in self._read:
            label = self._label
            labelled = data.is_share or data.stage != "predict"
            texts, labels = read_texts(data.source, key, self._text, label, labelled, self._format)
            if label is None and self.end_token is not None and self.end_token >= self.vocab_size:
                raise ValueError(
                    f"TextDataModule: end_token is {self.end_token}, wanted less than vocab_size, which is {self.vocab_size}. If "
                    "the tokenizer has no such token, give a larger vocab_size=."
                )
            tokens = tokenize(
                texts,
                self._tokenizer or encode_bytes,
                vocab_size=self.vocab_size,
                end_token=self.end_token if label is None else None,
            )
            self._read[key] = tokens, labels
        return self._read[key]

    def _codes(self, labels: list[object], name: str) -> Int64Array:
        codes = {value: code for code, value in enumerate(self.classes)}
        unknown = sorted({str(value) for value in labels if value not in codes})
        if unknown:
            raise ValueError(
                f"TextDataModule: {name} has the labels {unknown[:5]}, which are not among the {len(codes)} known classes. List "
                "all classes: classes=[...]."
            )
        return np.array([codes[value] for value in labels], dtype=np.int64)


@dataclasses.dataclass(frozen=True, slots=True)
class _NextTokens:
    """A collate function that pads texts on the right and adds `labels`: for each token the next one."""

    draws_nothing: ClassVar[bool] = True
    thread_safe: ClassVar[bool] = True

    pad: PadCollate
    overlapping: bool  # whether a text's last token is only a label

    def __call__(self, samples: Sequence[object]) -> dict[str, object]:
        return self._label(self.pad(samples))

    def collate_batch(self, batch: object) -> dict[str, object]:
        """Return the batch that a call returns, from the result of a dataset's `read_batch`."""
        return self._label(self.pad.collate_batch(batch))

    def _label(self, batch: dict[str, Any]) -> dict[str, object]:
        tokens, lengths = batch["tokens"], batch["tokens_lengths"]
        labels = torch.full(tokens.shape, _IGNORED)
        labels[:, :-1] = tokens[:, 1:]
        labels[torch.arange(tokens.shape[1]) >= lengths[:, None] - 1] = _IGNORED
        if self.overlapping:
            steps = max(1, tokens.shape[1] - 1)
            return {**batch, "tokens": tokens[:, :steps], "labels": labels[:, :steps], "tokens_lengths": lengths - 1}
        return {**batch, "labels": labels}
