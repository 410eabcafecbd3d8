"""Conversations as token ids and labels, tokenized when a sample is read."""

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from loaderkit.datasets.base import MapStyle
from loaderkit.datasets.rows.encoder import RowDataset, RowEncoder, RowSettings, check_choice, labelled, records_of
from loaderkit.datasets.rows.messages import CHAT_COLUMNS, ROLES, Chat, read_chat
from loaderkit.datasets.rows.parts import Part, pictures_of
from loaderkit.datasets.rows.pictures import Pictures, Placeholders, Row
from loaderkit.datasets.rows.template import ChatTemplate, TrainOn
from loaderkit.system.digests import digest

TooLong = Literal["error", "truncate_right", "truncate_left", "truncate_turns"]


class ChatDataset(RowDataset):
    """Conversations, rendered by a chat template and tokenized in the workers.

    A sample is a dict: `input_ids` (T,) int64, and `labels` (T,) int64: the token ids to train on, and -100 elsewhere.
    Models of `transformers` shift labels themselves. The first label is always -100, as nothing comes before it.

    A record has one of these layouts:

    - `messages` or `conversations`: a list of dicts with `role` and `content`, or with `from` and `value` (ShareGPT).
    - `instruction`, `output`, and perhaps `input`, `system`, `history` (Alpaca). The input follows the instruction on a new line.

    With `pictures`, a message's content may have parts: `{"type": "text", "text": "..."}`, and `{"type": "image",
    "image": "a.png"}` or `{"type": "image_url", "image_url": {"url": ...}}`. A part of type "image" without a file
    stands for the next one of the record's `images`. The sample then also has `"images"`, a list of tensors (3, H, W)
    uint8, and its `input_ids` have a placeholder for each token of a picture. `measure_lengths(dataset)` reads only the
    headers of pictures. `ChatCollate(images=patches)` makes batches, and so does `PackCollate(..., fields={"labels":
    -100, "images": patches})` for a `PackPlan`.

    A record may also have `tools`, a list of JSON schemas or the JSON of one, and `chat_template_kwargs`.

    What to train on comes from the template's `{% generation %}` blocks. Without them the conversation is also rendered up to each
    answer and after it. An answer's tokens are then those between; its end-of-turn token belongs to it.

    Args:
        source: Records by index: any dataset, a list, or a `datasets.Dataset`.
        tokenizer: A tokenizer of the package `transformers`.
        columns: Names of columns in the data, by standard name: {"messages": "dialog"}.
        roles: The template's names of roles, by name in the data: {"bot": "assistant"}. Added to the usual ones.
        train_on: "assistant": all answers. "last": the last answer. "all": all tokens. "none": a sample is a prompt to
            generate from. It has only `input_ids`: the conversation without a final answer, and then the header of an
            answer.
        max_length: Largest number of tokens in a sample; None for any.
        too_long: What happens to a longer sample. "error": reading it fails; `BadSamples` or a plan may leave it out.
            "truncate_right" and "truncate_left" cut tokens at that end; a picture that does not fit as a whole is left
            out. "truncate_turns" leaves out the last messages with their pictures: it ends with the last answer that
            fits.
        tools: JSON schemas or functions, for conversations without tools of their own.
        chat_template: Instead of the tokenizer's: a Jinja template, or a name if the tokenizer has several.
        template_values: Variables of the template: {"enable_thinking": False}.
        date: The date for templates that write today's date. It is required for them, because a resumed run must see
            the same tokens.
        pictures: How pictures are read, and the token that the template writes for each.

    Raises:
        TypeError: If the source or the tokenizer is of another type.
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
        tokenizer: object,
        *,
        columns: Mapping[str, str] | None = None,
        roles: Mapping[str, str] | None = None,
        train_on: TrainOn = "assistant",
        max_length: int | None = None,
        too_long: TooLong = "error",
        tools: Sequence[Mapping[str, object] | Callable[..., object]] | None = None,
        chat_template: str | None = None,
        template_values: Mapping[str, object] | None = None,
        date: datetime.date | None = None,
        pictures: Pictures | None = None,
    ) -> None:
        name = type(self).__name__
        check_choice(name, "train_on", train_on, get_args(TrainOn))
        template = ChatTemplate(
            owner=name,
            tokenizer=tokenizer,
            template=chat_template,
            tools=tools,
            values=dict(template_values or {}),
            date=date,
        )
        settings = RowSettings.of(
            name,
            known=(*CHAT_COLUMNS, "images"),
            columns=columns,
            max_length=max_length,
            too_long=too_long,
            cuts=get_args(TooLong),
            placeholders=None if pictures is None else Placeholders.of(pictures, tokenizer, name),
        )
        if train_on == "none" and too_long not in ("error", "truncate_left"):
            raise ValueError(
                f"{name}: too_long is {too_long!r} for prompts (train_on='none'), wanted 'error' or 'truncate_left'."
            )
        self.train_on = train_on
        encoder = _Encoder(settings=settings, template=template, roles={**ROLES, **(roles or {})}, train_on=train_on)
        super().__init__(records_of(source, name), encoder)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Encoder(RowEncoder):
    """The encoder of conversations."""

    draws_nothing: ClassVar[bool] = True

    template: ChatTemplate
    roles: Mapping[str, str]
    train_on: TrainOn

    def read(self, record: Any) -> tuple[Chat, list[Part]]:
        if self.placeholders is None:
            return read_chat(record, self.columns, self.roles), []
        chat = read_chat(record, self.columns, self.roles, pictures=True)
        return chat, pictures_of(chat.messages, self.columns.get(record, "images"))

    def row(self, chat: Chat, sizes: list[tuple[int, int]]) -> tuple[Row, slice]:
        if self.train_on == "none":
            ids = self.template.prompt(chat)
            row = self.spread(ids, np.zeros(len(ids), dtype=bool), sizes)
            return self.cut(row)
        row, most = self.spread(*self.template.encode(chat, self.train_on), sizes), self.settings.max_length
        if most is None or len(row.ids) <= most or self.settings.too_long != "truncate_turns":
            return self.cut(row)
        for answer in reversed(chat.answers()):
            ids, mask = self.template.encode(chat.first(answer + 1), self.train_on)
            left = slice(0 if self.placeholders is None else int((ids == self.placeholders.placeholder).sum()))
            row = self.spread(ids, mask, sizes[left])
            if len(row.ids) <= most:
                return row, left
        raise self.too_many(len(row.ids), most, "up to its first answer")

    def sample(self, row: Row) -> dict[str, Tensor]:
        if self.train_on == "none":
            return {"input_ids": torch.from_numpy(row.ids.copy())}
        return labelled(row.ids, row.mask, self.owner)

    def fingerprint(self) -> str:
        settings = (self.columns.names, self.roles, self.train_on, self.settings.max_length, self.settings.too_long)
        return f"{self.template.fingerprint()}, settings {digest(repr(settings))}{self._pictures()}"
