"""A DataModule for texts: tokenized once, batched by length."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from torch import Tensor
from typing_extensions import override

from loaderkit.collate.pack import PackCollate
from loaderkit.collate.pad import PadCollate
from loaderkit.collate.rules import Pad
from loaderkit.datasets.splits import split
from loaderkit.datasets.texts import TokenSpans, tokenize
from loaderkit.lightning.base import DataModule
from loaderkit.lightning.loaders import TrainerLoader
from loaderkit.lightning.next_tokens import NextTokens
from loaderkit.lightning.parts import Part, factories, given_stages, is_dict_of_tables, parts_of
from loaderkit.lightning.shards import open_shards
from loaderkit.lightning.text_sources import TextData, classes_of, is_text_files, is_urls, read_texts
from loaderkit.loader.config import LoaderConfig
from loaderkit.sampling.by_length.packing import PackPlan
from loaderkit.sampling.by_length.plans import LengthBuckets, TokenBudget
from loaderkit.sampling.plan import Plan
from loaderkit.writing.tokens import encode_bytes

L = TypeVar("L", bound=TrainerLoader)
How = Literal["random", "buckets", "budget", "packed", "windows"]
BYTE_END, BYTE_VOCABULARY = 256, 257


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TextBatching:
    """How texts become batches.

    Args:
        how: "random": any texts, padded. "buckets": `batch_size` texts of like lengths, padded. "budget": as many texts
            as `max_tokens` allow, padded. For language models also "packed": `batch_size` rows of `max_length` tokens,
            each with several texts; and "windows": all texts end to end, in stretches of `max_length`.
        max_length: Of a text, in tokens. To classify, what is behind it is cut off; for a language model the text is
            cut into pieces.
        max_tokens: Of a batch, padding included.
        window: How many texts are arranged by length together; half of them, from 1,024 to 32,768, by default.

    Raises:
        ValueError: If a setting is out of range, missing, or not for this way.
    """

    how: How = "buckets"
    max_length: int | None = None
    max_tokens: int | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        if self.how not in get_args(How):
            raise ValueError(f"TextBatching: how is {self.how!r}, wanted one of {', '.join(map(repr, get_args(How)))}.")
        if (self.max_tokens is not None) != (self.how == "budget"):
            raise ValueError(
                f"TextBatching: how={self.how!r} and max_tokens={self.max_tokens}; 'budget', and only it, has one."
            )
        if self.how in ("packed", "windows") and self.max_length is None:
            raise ValueError(f"TextBatching: how={self.how!r} needs max_length=, the tokens of a row.")
        for name, number, least in (("max_length", self.max_length, 2), ("max_tokens", self.max_tokens, 1)):
            if number is not None and (not isinstance(number, int | np.integer) or number < least):
                raise ValueError(f"TextBatching: {name} is {number!r}, wanted an integer of at least {least}.")


class TextDataModule(DataModule):
    """Trains on texts, to classify them or to model their language.

    Texts are tokenized once, and kept in memory as the smallest integers that hold the vocabulary; under a Trainer they
    are int64 on the device. A batch is a dict. To classify: `tokens` (B, T), `tokens_lengths` (B,), `label` (B,). For a
    language model (no `label=`): `tokens` (B, T), `labels` (B, T), the next token at each place, -100 where there is
    none, and `tokens_lengths`; packed as `PackCollate` says. For more text than fits in memory: `loaderkit shard --format tokens`
    and ShardDataModule.

    Args:
        train: Columns by name (also a DataFrame), a dataset of dicts, or files: a path, folder, glob or URL, or a list
            of them, in any format that ShardDataModule reads, or `.txt`, each file a text.
        val: The same; or a dict of these by name: several sets, one after another, and `dataloader_idx` counts them.
            Without it, some of the training data.
        test: The same as val.
        predict: The same; it needs no label.
        text: The field with the text.
        label: The field with the class; None: a language model.
        classes: The labels' values, each at the place of its code; by default those of the training data, sorted.
        tokenizer: From a text to a list of tokens; Hugging Face's will do. The bytes of UTF-8 by default.
        vocab_size: Number of tokens; by default the tokenizer says it.
        end_token: For a language model, put after each text; 256 by default for bytes, else none.
        pad_token: Written as padding.
        batching: How texts become batches.
        splits: Shares of the training data, such as {"train": 0.8, "val": 0.1, "test": 0.1}. By default 0.1 are "val" if there is
            no val. The side of a text depends on the loader's seed and on its tokens alone, so that equal ones are on one.
        format: Of files, as for ShardDataModule.
        loader: The loaders' settings.
        eval_loader: Those for val, test and predict.

    Raises:
        ValueError: If settings contradict each other, or, when the data is read, if it is not what they say.
    """

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
        if batching is not None and not isinstance(batching, TextBatching):
            raise TypeError(
                f"TextDataModule: batching is {batching!r}, wanted a TextBatching such as lk.TextBatching(how='random')."
            )
        if tokenizer is not None and not callable(tokenizer):
            raise TypeError(
                f"TextDataModule: tokenizer is {tokenizer!r}, wanted a function from a text to its tokens. "
                "Of a tokenizers.Tokenizer: lambda text: tokenizer.encode(text).ids."
            )
        for name, number in (("vocab_size", vocab_size), ("end_token", end_token), ("pad_token", pad_token)):
            missing = number is None and name != "pad_token"
            if not missing and (not isinstance(number, int | np.integer) or number < 0):
                raise ValueError(f"TextDataModule: {name} is {number!r}, wanted an integer of at least 0.")
        given = given_stages(train=train, val=val, test=test, predict=predict)
        if splits is None and train is not None and val is None:
            splits = {"train": 0.9, "val": 0.1}
        self._splits = dict(splits or {})
        self._parts = parts_of("TextDataModule", given, splits, is_several=is_dict_of_tables)
        super().__init__(**factories(self._parts, self._open), loader=loader, eval_loader=eval_loader)
        self.batching = batching or TextBatching()
        self._text, self._label, self._format = text, label, format
        self._classes = None if classes is None else list(classes)
        self._tokenizer, self._vocab_size, self._pad_token = tokenizer, vocab_size, pad_token
        self.end_token = BYTE_END if tokenizer is None and end_token is None and label is None else end_token
        self._read: dict[str, tuple[TokenSpans, list[Any] | None]] = {}
        for config in (loader, eval_loader):
            if config is not None and (config.plan is not None or config.order is not None):
                raise ValueError(
                    "TextDataModule: the loader has plan= or order=, wanted batching=TextBatching(...) here."
                )
        if label is not None and self.batching.how in ("packed", "windows"):
            raise ValueError(
                f"TextDataModule: label={label!r} and how={self.batching.how!r}; texts to classify are batched as 'random', "
                "'buckets' or 'budget'."
            )

    @property
    def vocab_size(self) -> int:
        """Number of tokens.

        Raises:
            ValueError: If neither the caller nor the tokenizer says it.
        """
        if self._vocab_size is not None:
            return self._vocab_size
        own = self._tokenizer
        if own is None:
            return BYTE_VOCABULARY
        owner = getattr(own, "__self__", own)  # of a method, such as tokenizers' encode
        if hasattr(owner, "__len__"):
            return len(owner)
        size = getattr(owner, "vocab_size", None) or getattr(owner, "get_vocab_size", lambda: None)()
        if size is None:
            raise ValueError("TextDataModule: the tokenizer has neither a length nor vocab_size. Say it: vocab_size=.")
        return int(size)

    @property
    def classes(self) -> list[Any]:
        """The labels' values, each at the place of its code.

        Raises:
            ValueError: If texts are not classified, or nothing says the classes.
        """
        if self._classes is None:
            train = next((part for part in self._parts if part.stage == "train"), None)
            if self._label is None or train is None:
                raise ValueError(
                    "TextDataModule: no classes: wanted label= and training data to find them in, or classes=[...]."
                )
            self._classes = classes_of(self._source(train)[1] or [], str(train))
        return self._classes

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @override
    def prepare_data(self) -> None:
        for data in [part.data for part in self._parts]:
            if is_urls(data) and not is_text_files(data):
                open_shards(data, format=self._format)  # makes the index files, once a node

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
        how, size = self.batching, config.batch_size or 1
        more: dict[str, Any] = {
            "window": how.window,
            "shuffle": shuffle,
            "seed": config.seed,
            "tail": config.tail_policy,
        }
        if how.how == "buckets":
            return LengthBuckets(dataset.lengths(), size, **more)
        if how.how == "budget" and how.max_tokens is not None:
            longest = int(dataset.lengths().max(initial=0))
            if longest > how.max_tokens:
                raise ValueError(
                    f"TextDataModule: a text has {longest:,} tokens, over max_tokens={how.max_tokens:,}. Raise that, or cut texts: "
                    "TextBatching(max_length=...)."
                )
            return TokenBudget(dataset.lengths(), how.max_tokens, **more)
        if how.how == "packed" and how.max_length is not None:
            return PackPlan(dataset.lengths(), how.max_length, size, **more)
        return None

    def _collate(self) -> Callable[[Any], Any]:
        if self.batching.how == "packed":
            return PackCollate(row_length=self.batching.max_length, pad_value=self._pad_token)
        pad = PadCollate({"tokens": Pad(value=self._pad_token, lengths=True)})
        return pad if self._label is not None else NextTokens(pad, overlapping=self.batching.how == "windows")

    def _open(self, part: Part) -> TokenSpans:
        spans, labels = self._source(part)
        if self._label is not None and labels is not None:
            spans = TokenSpans(spans.flat, spans.starts, spans.sizes, self._codes(labels, part.source))
        if part.is_share:
            sides = split(list(range(len(spans))), self._splits, seed=self.loader_config.seed, group_by=spans.digests())
            spans = spans.take(sides.indices(part.stage))
        if not len(spans):
            raise ValueError(
                f"TextDataModule: none of {len(self._source(part)[0]):,} texts is {part.stage} by splits={self._splits}. Give more "
                f"texts, another share, or {part.stage}= data of its own (splits={{'train': 1}} leaves all to the training)."
            )
        length = self.batching.max_length
        if self.batching.how == "windows" and length is not None:
            return spans.joined().cut_up(length + 1)
        if length is None:
            return spans
        return spans.cut_up(length) if self._label is None else spans.cut_short(length)

    def _source(self, part: Part) -> tuple[TokenSpans, list[Any] | None]:
        name = part.source
        if name not in self._read:
            label = self._label
            labelled = part.is_share or part.stage != "predict"
            texts, labels = read_texts(part.data, name, self._text, label, labelled, self._format)
            if label is None and self.end_token is not None and self.end_token >= self.vocab_size:
                raise ValueError(
                    f"TextDataModule: end_token is {self.end_token}, wanted less than vocab_size, which is {self.vocab_size}. A "
                    "token that the tokenizer does not have: vocab_size=, one more."
                )
            tokens = tokenize(
                texts,
                self._tokenizer or encode_bytes,
                vocab_size=self.vocab_size,
                end_token=self.end_token if label is None else None,
            )
            self._read[name] = tokens, labels
        return self._read[name]

    def _codes(self, labels: list[Any], name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        codes = {value: code for code, value in enumerate(self.classes)}
        unknown = sorted({str(value) for value in labels if value not in codes})
        if unknown:
            raise ValueError(
                f"TextDataModule: {name} has classes {unknown[:5]}, which are not among the {len(codes)} known ones. Name all: "
                "classes=[...]."
            )
        return np.array([codes[value] for value in labels], dtype=np.int64)
