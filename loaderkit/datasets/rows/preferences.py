"""Pairs of a better and a worse answer to one prompt, as token ids and labels."""

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import numpy as np

from loaderkit.datasets.base import MapStyle
from loaderkit.datasets.rows.encoder import Cut, RowDataset, RowEncoder, RowSettings, labelled, records_of
from loaderkit.datasets.rows.messages import ROLES, Message, check_text, read_messages, with_tools
from loaderkit.datasets.rows.parts import Part, is_list, pictures_of
from loaderkit.datasets.rows.pictures import Pictures, Placeholders, Row
from loaderkit.datasets.rows.template import ChatTemplate, common_prefix
from loaderkit.system.digests import digest

Answers = list[tuple[list[int], int]]  # for each answer: ids of the prompt and the answer, and where the answer begins

PREFERENCE_COLUMNS = ("prompt", "chosen", "rejected", "tools", "chat_template_kwargs")


class PreferenceDataset(RowDataset):
    """Pairs of a chosen and a rejected answer, for DPO and reward models.

    They are tokenized in the workers, when they are read. A sample is a dict with `chosen` and `rejected`. Each is a
    dict like a ChatDataset's sample: `input_ids` (T,) int64 of the prompt and the answer, and `labels` (T,) int64 with
    -100 at the prompt. `ChatCollate` puts both into one batch. For `measure_lengths(dataset)`, a pair has twice the
    tokens of its longer side.

    A record has `chosen` and `rejected`, and perhaps `prompt`, `tools` and `chat_template_kwargs`:

    - Lists of messages are rendered by the chat template. Without `prompt`, the messages that both answers begin with
      are the prompt.
    - Texts are tokenized as they are, and end with the tokenizer's `eos_token`. Without `prompt`, the text that both
      answers begin with is the prompt. A token that crosses the prompt's end belongs to the answer.

    With `pictures`, the prompt may have pictures, as for ChatDataset; in a text the placeholder stands for each of the record's `images`.
    Both answers share them: the sample has `"images"` once, a list of tensors (3, H, W) uint8.

    Args:
        source: Records by index: any dataset, a list, or a `datasets.Dataset`.
        tokenizer: A tokenizer of the package `transformers`.
        columns: Names of columns in the data, by standard name: {"chosen": "better"}.
        roles: As for ChatDataset.
        max_length: Largest number of tokens in a prompt with an answer; None for any.
        too_long: What happens to a longer one: an error, or a cut at the right or left end. On the left, both answers
            of a pair with pictures lose the same part of their prompt; a picture that does not fit as a whole is left
            out.
        tools: As for ChatDataset.
        chat_template: As for ChatDataset.
        template_values: As for ChatDataset.
        date: As for ChatDataset.
        pictures: As for ChatDataset.

    Raises:
        TypeError: If the source or the tokenizer is of another type.
        ValueError: If a setting is wrong. When a sample is read: if a column is missing, both answers are the same, or one is empty, too
            long or damaged, or has a picture.

    Examples:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import PreTrainedTokenizerFast
        >>> words = Tokenizer(models.WordLevel({"2+2?": 0, "4": 1, "5": 2, ".": 3}))
        >>> words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
        >>> pairs = lk.PreferenceDataset([{"prompt": "2+2? ", "chosen": "4 .", "rejected": "5"}], tokenizer)
        >>> pairs[0]["chosen"]
        {'input_ids': tensor([0, 1, 3]), 'labels': tensor([-100,    1,    3])}
        >>> next(iter(lk.Loader(pairs, collate_fn=lk.ChatCollate())))["input_ids"]
        tensor([[0, 1, 3],
                [0, 2, 0]])
    """

    def __init__(
        self,
        source: MapStyle,
        tokenizer: object,
        *,
        columns: Mapping[str, str] | None = None,
        roles: Mapping[str, str] | None = None,
        max_length: int | None = None,
        too_long: Cut = "error",
        tools: Sequence[Mapping[str, object] | Callable[..., object]] | None = None,
        chat_template: str | None = None,
        template_values: Mapping[str, object] | None = None,
        date: datetime.date | None = None,
        pictures: Pictures | None = None,
    ) -> None:
        name = type(self).__name__
        template = ChatTemplate(
            owner=name,
            tokenizer=tokenizer,
            template=chat_template,
            tools=tools,
            values=dict(template_values or {}),
            date=date,
            needed=False,
        )
        settings = RowSettings.of(
            name,
            known=(*PREFERENCE_COLUMNS, "images"),
            columns=columns,
            max_length=max_length,
            too_long=too_long,
            cuts=get_args(Cut),
            placeholders=None if pictures is None else Placeholders.of(pictures, tokenizer, name),
        )
        encoder = _Encoder(settings=settings, template=template, roles={**ROLES, **(roles or {})})
        super().__init__(records_of(source, name), encoder)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Encoder(RowEncoder):
    """The encoder of pairs. It makes two rows, one for each answer."""

    draws_nothing: ClassVar[bool] = True

    template: ChatTemplate
    roles: Mapping[str, str]

    def read(self, record: object) -> tuple[Answers, list[Part]]:
        record = self.columns.checked(record)
        prompt, chosen, rejected = (self.columns.get(record, name) for name in ("prompt", "chosen", "rejected"))
        if chosen is None or rejected is None:
            raise ValueError(
                f"{self.owner}: a record has the fields {list(record)}, wanted 'chosen' and 'rejected'. Name them: "
                "columns={'chosen': ..., 'rejected': ...}."
            )
        listed = None if self.placeholders is None else self.columns.get(record, "images")
        if isinstance(chosen, str) and isinstance(rejected, str) and (prompt is None or isinstance(prompt, str)):
            return self._of_texts(prompt, chosen, rejected), pictures_of([], listed)
        asked, *answers = self._split(prompt, chosen, rejected)
        found = []
        for answer in answers:
            chat = with_tools(asked + answer, record, self.columns)
            whole = self.template.rendered(chat)
            way_out = "a chat_template= that writes the prompt in the same way"
            found.append((whole.ids, self.template.prompt_end(whole, len(asked), way_out)))
        return found, pictures_of(asked, listed)

    def row(self, answers: Answers, sizes: list[tuple[int, int]]) -> tuple[list[Row], slice]:
        rows = [
            self.spread(np.array(ids, dtype=np.int64), np.arange(len(ids)) >= start, sizes) for ids, start in answers
        ]
        longest, most, too_long = max(len(row.ids) for row in rows), self.settings.max_length, self.settings.too_long
        if most is not None and longest > most and too_long == "truncate_left" and sizes:
            cut = longest - most  # of both rows, so that they have the same pictures
            kept = [row.kept(len(row.ids) - cut, too_long) for row in rows]
        else:
            kept = [self.cut(row) for row in rows]
        return [row for row, _ in kept], kept[0][1]

    def sample(self, rows: list[Row]) -> dict[str, Any]:
        sides = zip(("chosen", "rejected"), rows, strict=True)
        return {side: labelled(row.ids, row.mask, self.owner) for side, row in sides}

    def length(self, sample: dict[str, Any]) -> int:
        return 2 * max(len(side["input_ids"]) for side in sample.values())

    def _of_texts(self, prompt: str | None, chosen: str, rejected: str) -> Answers:
        self._check_differ(chosen, rejected)
        for name, text in (("prompt", prompt or ""), ("chosen", chosen), ("rejected", rejected)):
            check_text(text, name, self.owner)
        if prompt is None:
            same = common_prefix(chosen, rejected)
            same -= chosen[:same].endswith(" ")  # a word is tokenized with the space before it
            prompt, chosen, rejected = chosen[:same], chosen[same:], rejected[same:]
        tokenizer = self.template.tokenizer
        end = tokenizer.eos_token or ""
        both = [tokenizer(prompt + answer.removesuffix(end) + end)["input_ids"] for answer in (chosen, rejected)]
        alone = tokenizer(prompt)["input_ids"]
        start = min(common_prefix(alone, ids) for ids in both)
        return [(ids, start) for ids in both]

    def _split(
        self, prompt: object, chosen: object, rejected: object
    ) -> tuple[list[Message], list[Message], list[Message]]:
        """Return the messages of the prompt, of the chosen answer and of the rejected one."""
        better, worse = self._messages(chosen), self._messages(rejected)
        self._check_differ(better, worse)
        if prompt is None or isinstance(prompt, str):
            same = common_prefix(better, worse)
            asked, better, worse = better[:same], better[same:], worse[same:]
            if prompt is not None and prompt not in [message.get("content") for message in asked]:
                raise ValueError(
                    f"{self.owner}: the prompt is {prompt!r:.80}, which is none of the messages that both answers begin with."
                )
        else:
            asked = self._messages(prompt)
        if not (asked and better and worse):
            raise ValueError(
                f"{self.owner}: a record has {len(asked)} messages of prompt, {len(better)} chosen and {len(worse)} rejected ones, "
                "wanted at least one of each."
            )
        contents = [message.get("content") for message in better + worse]
        if any(part["type"] != "text" for content in contents if is_list(content) for part in content):
            raise ValueError(
                f"{self.owner}: an answer has a picture, wanted pictures in the prompt alone, which both share."
            )
        return asked, better, worse

    def _messages(self, answer: object) -> list[Message]:
        turns = [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer
        return read_messages(turns, self.roles, self.owner, pictures=self.placeholders is not None)

    def _check_differ(self, chosen: object, rejected: object) -> None:
        if chosen == rejected:
            raise ValueError(f"{self.owner}: the chosen and the rejected answer are the same, wanted a preference.")

    def fingerprint(self) -> str:
        settings = (self.columns.names, self.roles, self.settings.max_length, self.settings.too_long)
        return f"{self.template.fingerprint()}, settings {digest(repr(settings))}{self._pictures()}"
