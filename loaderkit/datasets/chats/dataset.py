"""Conversations as token ids and labels, made when they are read."""

import datetime
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from loaderkit.datasets.base import MapStyle, Sample
from loaderkit.datasets.chats.messages import CHAT_COLUMNS, ROLES, Chat, Columns, read_chat
from loaderkit.datasets.chats.parts import Part, pictures_of
from loaderkit.datasets.chats.template import ChatTemplate, Mask, TrainOn
from loaderkit.datasets.hf import HFDataset, is_theirs
from loaderkit.datasets.multimodal.pictures import Pictures, Placeholders, Row
from loaderkit.datasets.named_rows import NamedRows
from loaderkit.sampling.fingerprint import fingerprint
from loaderkit.sampling.order import digest
from loaderkit.seeding.draws import draws_nothing
from loaderkit.system.arrays import Int64Array
from loaderkit.system.overrides import is_map_style

IGNORED = -100  # the default ignore_index of torch's cross_entropy
Cut = Literal["error", "truncate_right", "truncate_left"]
TooLong = Literal["error", "truncate_right", "truncate_left", "truncate_turns"]


class EncodedDataset(NamedRows[Sample]):
    """Records with an encoder that has a fingerprint of its own."""

    def fingerprint(self) -> str:
        """Return a digest of the source, the tokenizer, the template and all settings."""
        return f"{fingerprint(self.dataset, len(self.dataset))}, {self._encoder}"

    @functools.cached_property
    def _encoder(self) -> str:
        return str(self.transform.fingerprint())  # type: ignore[attr-defined]  # each encoder has one


class RowEncoder(ABC):
    """A function from a record to its row of tokens, or to several, with labels and pictures."""

    placeholders: Placeholders | None

    @property
    @abstractmethod
    def owner(self) -> str:
        """The dataset's name, for messages."""

    @abstractmethod
    def read(self, record: Any) -> tuple[Any, list[Part]]:
        """Return the content of a record, and its pictures."""

    @abstractmethod
    def row(self, content: Any, sizes: list[tuple[int, int]]) -> tuple[Any, slice]:
        """Return the row of a content whose pictures have these heights and widths, and which of them are left in it.

        A subclass may return several rows, for its own `sample`.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Return digests of all settings that decide the rows."""

    def sample(self, row: Any) -> dict[str, Any]:
        """Return the sample of a row, without its pictures."""
        return labelled(row.ids, row.mask, self.owner)

    def length(self, sample: dict[str, Any]) -> int:
        """Return the tokens that a sample takes in a batch."""
        return len(sample["input_ids"])

    def spread(self, ids: Int64Array, mask: Mask, sizes: list[tuple[int, int]]) -> Row:
        """Return the row of ids with one placeholder for each picture, and which of them to train on."""
        if self.placeholders is None:
            return Row(ids, mask, np.empty((0, 2), dtype=np.int64))
        return self.placeholders.spread(ids, mask, sizes)

    def __call__(self, record: Any) -> dict[str, Any]:
        content, parts = self.read(record)
        images = self.placeholders.decode(parts) if self.placeholders else []
        row, left = self.row(content, [(image.shape[1], image.shape[2]) for image in images])
        sample = self.sample(row)
        return {**sample, "images": images[left]} if self.placeholders else sample

    def count(self, record: Any) -> int:
        """Return the tokens of a record's sample. Of its pictures only the headers are read."""
        content, parts = self.read(record)
        row, _ = self.row(content, self.placeholders.measure(parts) if self.placeholders else [])
        return self.length(self.sample(row))


@dataclass(frozen=True, slots=True)
class _Count:
    """A function from a record to its number of tokens."""

    encoder: RowEncoder

    @property
    def draws_nothing(self) -> bool:
        return draws_nothing(self.encoder)

    def __call__(self, record: Any) -> int:
        return self.encoder.count(record)

    def fingerprint(self) -> str:
        return f"tokens of {self.encoder.fingerprint()}"


class RowDataset(EncodedDataset[dict[str, Any]]):
    """Records with a `RowEncoder`."""

    def counted(self) -> EncodedDataset[int]:
        """Return a dataset of the numbers of tokens: what `measure_lengths` reads instead of the samples."""
        return EncodedDataset(self.dataset, _Count(self.transform))  # type: ignore[arg-type]  # it is called as a transform is


class ChatDataset(RowDataset):
    """Conversations, rendered by a chat template and tokenized in the workers.

    A sample is a dict: `input_ids` (T,) int64, and `labels` (T,) int64, which are the ids to train on and -100 elsewhere. Models of
    `transformers` shift labels themselves. The first label is always -100, as nothing comes before it.

    A record has one of these layouts:

    - `messages` or `conversations`: a list of dicts with `role` and `content`, or with `from` and `value` (ShareGPT).
    - `instruction`, `output`, and perhaps `input`, `system`, `history` (Alpaca). The input follows the instruction on a new line.

    With `pictures`, a message's content may have parts: `{"type": "text", "text": "..."}`, and `{"type": "image", "image": "a.png"}` or
    `{"type": "image_url", "image_url": {"url": ...}}`. A part of a picture without a file takes the next one of the record's `images`.
    The sample then also has `"images"`, a list of tensors (3, H, W) uint8, and the row a placeholder for each of their tokens.
    `measure_lengths(dataset)` reads only the headers of pictures. `ChatCollate(images=patches)` makes batches, and so does
    `PackCollate(..., fields={"labels": -100, "images": patches})` for a `PackPlan`.

    A record may also have `tools`, a list of JSON schemas or the JSON of one, and `chat_template_kwargs`.

    What to train on comes from the template's `{% generation %}` blocks. Without them the conversation is also rendered up to each
    answer and after it. An answer's tokens are then those between; its end-of-turn token belongs to it.

    Args:
        source: Records by index: any dataset, a list, or a `datasets.Dataset`.
        tokenizer: A tokenizer of the package `transformers`.
        columns: The data's own names of columns: {"messages": "dialog"}.
        roles: Roles of the data, and what the template calls them: {"bot": "assistant"}. Added to the usual ones.
        train_on: "assistant": all answers. "last": the last answer. "all": all tokens. "none": a sample is a prompt to generate from. It
            has `input_ids` alone: the conversation without its last answer, with the header of an answer.
        max_length: The most tokens of a sample.
        too_long: What happens to a longer one. "error": reading it fails; `BadSamples` or a plan may leave it out.
            "truncate_right" and "truncate_left" cut tokens at that end; a picture that does not fit as a whole is left out.
            "truncate_turns" leaves out the last messages with their pictures: it ends with the last answer that fits.
        tools: JSON schemas or functions, for conversations without tools of their own.
        chat_template: Instead of the tokenizer's: a Jinja template, or a name if the tokenizer has several.
        template_values: Variables of the template: {"enable_thinking": False}.
        date: The day that templates write which ask for today's date. They need it, as a resumed run must see the same tokens.
        pictures: How pictures are read, and the token that the template writes for each.

    Raises:
        TypeError: If the source or the tokenizer is something else.
        ValueError: If a setting is wrong. When a sample is read: if it has none of the layouts, is empty or too long, or has
            an unknown role or no text. Also if the template refuses it, or if nothing of it is left to train on.

    Examples:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import PreTrainedTokenizerFast
        >>> words = Tokenizer(models.WordLevel({"user": 0, "assistant": 1, ":": 2, "Hi": 3, "Hello": 4}, unk_token="user"))
        >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> template = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"
        >>> template += "{% if add_generation_prompt %}assistant:{% endif %}"
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, chat_template=template)
        >>> rows = [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}]
        >>> lk.ChatDataset(rows, tokenizer)[0]
        {'input_ids': tensor([0, 2, 3, 1, 2, 4]), 'labels': tensor([-100, -100, -100, -100, -100,    4])}
    """

    def __init__(
        self,
        source: MapStyle,
        tokenizer: Any,
        *,
        columns: Mapping[str, str] | None = None,
        roles: Mapping[str, str] | None = None,
        train_on: TrainOn = "assistant",
        max_length: int | None = None,
        too_long: TooLong = "error",
        tools: Sequence[dict[str, Any] | Callable[..., Any]] | None = None,
        chat_template: str | None = None,
        template_values: Mapping[str, Any] | None = None,
        date: datetime.date | None = None,
        pictures: Pictures | None = None,
    ) -> None:
        name = type(self).__name__
        check_choice(name, "train_on", train_on, get_args(TrainOn))
        check_cut(name, max_length, too_long, get_args(TooLong))
        if train_on == "none" and too_long not in ("error", "truncate_left"):
            raise ValueError(
                f"{name}: too_long is {too_long!r} for prompts (train_on='none'), wanted 'error' or 'truncate_left'."
            )
        self.train_on = train_on
        template = ChatTemplate(
            owner=name,
            tokenizer=tokenizer,
            template=chat_template,
            tools=tools,
            values=dict(template_values or {}),
            date=date,
        )
        fields = Columns(known=(*CHAT_COLUMNS, "images"), names=dict(columns or {}), owner=name)
        placeholders = None if pictures is None else Placeholders.of(pictures, tokenizer, name)
        known = {**ROLES, **(roles or {})}
        encoder = _Encoder(template, fields, known, train_on, max_length, too_long, placeholders)
        super().__init__(records_of(source, name), encoder)


@dataclass(frozen=True, slots=True)
class _Encoder(RowEncoder):
    """The encoder of conversations."""

    draws_nothing: ClassVar[bool] = True

    template: ChatTemplate
    columns: Columns
    roles: Mapping[str, str]
    train_on: TrainOn
    max_length: int | None
    too_long: TooLong
    placeholders: Placeholders | None

    @property
    def owner(self) -> str:
        return self.template.owner

    def read(self, record: Any) -> tuple[Chat, list[Part]]:
        if self.placeholders is None:
            return read_chat(record, self.columns, self.roles), []
        chat = read_chat(record, self.columns, self.roles, pictures=True)
        return chat, pictures_of(chat.messages, self.columns.get(record, "images"))

    def row(self, chat: Chat, sizes: list[tuple[int, int]]) -> tuple[Row, slice]:
        if self.train_on == "none":
            ids = self.template.prompt(chat)
            row = self.spread(ids, np.zeros(len(ids), dtype=bool), sizes)
            return cut_row(row, self.max_length, self.too_long, self.owner)
        row = self.spread(*self.template.encode(chat, self.train_on), sizes)
        if self.max_length is None or len(row.ids) <= self.max_length or self.too_long != "truncate_turns":
            return cut_row(row, self.max_length, self.too_long, self.owner)
        for answer in reversed(chat.answers()):
            ids, mask = self.template.encode(chat.first(answer + 1), self.train_on)
            left = slice(0 if self.placeholders is None else int((ids == self.placeholders.placeholder).sum()))
            row = self.spread(ids, mask, sizes[left])
            if len(row.ids) <= self.max_length:
                return row, left
        raise too_many(self.owner, len(row.ids), self.max_length, "up to its first answer")

    def sample(self, row: Row) -> dict[str, Tensor]:
        if self.train_on == "none":
            return {"input_ids": torch.from_numpy(row.ids.copy())}
        return labelled(row.ids, row.mask, self.owner)

    def fingerprint(self) -> str:
        settings = (self.columns.names, self.roles, self.train_on, self.max_length, self.too_long)
        pictures = "" if self.placeholders is None else f", {self.placeholders.name}"
        return f"{self.template.fingerprint()}, settings {digest(repr(settings))}{pictures}"


def records_of(source: Any, owner: str) -> Any:
    """Return a dataset of records, with a fingerprint if it is a `datasets.Dataset`."""
    if is_theirs(source):
        return HFDataset(source)
    if isinstance(source, str | Mapping) or not is_map_style(source):
        raise TypeError(
            f"{owner}: the source is of type {type(source).__name__}, wanted records by index. For files: "
            "lk.JsonlDataset(path) or lk.ParquetDataset(path)."
        )
    return source


def labelled(ids: Int64Array, mask: Mask, owner: str) -> dict[str, Tensor]:
    """Return a sample of the ids, with labels where the mask is true."""
    labels = np.where(mask, ids, IGNORED)
    labels[:1] = IGNORED
    if not (labels != IGNORED).any():
        raise ValueError(
            f"{owner}: none of the {len(ids):,} tokens is left to train on. Raise max_length=, or skip it."
        )
    return {"input_ids": torch.from_numpy(ids.copy()), "labels": torch.from_numpy(labels)}


def cut_row(row: Row, most: int | None, too_long: str, owner: str) -> tuple[Row, slice]:
    """Return a row with at most `most` tokens, and which of its pictures are left; raise a ValueError if it may not be cut."""
    if most is None or len(row.ids) <= most:
        return row, slice(None)
    if too_long == "error":
        raise too_many(owner, len(row.ids), most, "")
    return row.kept(most, too_long)


def too_many(owner: str, length: int, most: int, where: str) -> ValueError:
    """Return the error for a sample that is too long."""
    found = f"a sample has {length:,} tokens {where}".rstrip()
    return ValueError(
        f"{owner}: {found}, over max_length={most:,}. Cut it: too_long='truncate_right'. Or leave it out: lk.BadSamples('skip'), or "
        "too_long='drop' of a plan, without max_length here."
    )


def check_choice(owner: str, name: str, found: str, known: Sequence[str]) -> None:
    """Raise a ValueError for an unknown setting."""
    if found not in known:
        hint = " To drop samples, measure lengths and give too_long='drop' to a plan." if found == "drop" else ""
        raise ValueError(f"{owner}: {name} is {found!r}, wanted one of {', '.join(map(repr, known))}.{hint}")


def check_cut(owner: str, max_length: int | None, too_long: str, known: Sequence[str]) -> None:
    """Raise a ValueError for settings of the length that are out of range."""
    check_choice(owner, "too_long", too_long, known)
    if max_length is not None and (not isinstance(max_length, int | np.integer) or max_length < 2):
        raise ValueError(f"{owner}: max_length is {max_length!r}, wanted an integer of at least 2.")
    if max_length is None and too_long != "error":
        raise ValueError(f"{owner}: too_long is {too_long!r} without max_length=, wanted the most tokens of a sample.")
