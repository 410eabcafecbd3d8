"""Pairs of a better and a worse answer to one prompt, as token ids and labels."""

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import numpy as np
from torch import Tensor

from loaderkit.datasets.base import MapStyle
from loaderkit.datasets.chats.dataset import Cut, EncodedDataset, check_cut, cut, labelled, records_of
from loaderkit.datasets.chats.messages import ROLES, Columns, Message, check_text, read_messages, with_tools
from loaderkit.datasets.chats.template import ChatTemplate, common_prefix
from loaderkit.sampling.order import digest

PREFERENCE_COLUMNS = ("prompt", "chosen", "rejected", "tools", "chat_template_kwargs")


class PreferenceDataset(EncodedDataset[dict[str, dict[str, Tensor]]]):
    """Pairs of a chosen and a rejected answer, tokenized when they are read, in the workers: for DPO and reward models.

    A sample is a dict with `chosen` and `rejected`. Each is a dict as a ChatDataset's sample: `input_ids` (T,) int64 of the prompt and
    the answer, and `labels` (T,) int64 with -100 at the prompt. `ChatCollate` puts both into one batch.

    A record has `chosen` and `rejected`, and perhaps `prompt`, `tools` and `chat_template_kwargs`:

    - Lists of messages are rendered by the chat template. Without a prompt it is the messages that both begin with.
    - Texts are tokenized as they are, and end with the tokenizer's `eos_token`. Without a prompt it is the text that both begin with. A
      token across the border belongs to the answer.

    Args:
        source: Records by index: any dataset, a list, or a `datasets.Dataset`.
        tokenizer: A tokenizer of the package `transformers`.
        columns: The data's own names of columns: {"chosen": "better"}.
        roles: As for ChatDataset.
        max_length: The most tokens of a prompt with an answer.
        too_long: What happens to a longer one: an error, or a cut at the right or left end.
        tools: As for ChatDataset.
        chat_template: As for ChatDataset.
        template_values: As for ChatDataset.
        date: As for ChatDataset.

    Raises:
        TypeError: If the source or the tokenizer is something else.
        ValueError: If a setting is wrong. When a sample is read: if a column is missing, both answers are the same, or one is empty, too
            long or damaged.

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
        tokenizer: Any,
        *,
        columns: Mapping[str, str] | None = None,
        roles: Mapping[str, str] | None = None,
        max_length: int | None = None,
        too_long: Cut = "error",
        tools: Sequence[dict[str, Any] | Callable[..., Any]] | None = None,
        chat_template: str | None = None,
        template_values: Mapping[str, Any] | None = None,
        date: datetime.date | None = None,
    ) -> None:
        name = type(self).__name__
        check_cut(name, max_length, too_long, get_args(Cut))
        template = ChatTemplate(
            owner=name,
            tokenizer=tokenizer,
            template=chat_template,
            tools=tools,
            values=dict(template_values or {}),
            date=date,
            needed=False,
        )
        fields = Columns(known=PREFERENCE_COLUMNS, names=dict(columns or {}), owner=name)
        super().__init__(
            records_of(source, name), _Encoder(template, fields, {**ROLES, **(roles or {})}, max_length, too_long)
        )


@dataclass(frozen=True, slots=True)
class _Encoder:
    """A function from a record to the token ids and labels of both answers."""

    draws_nothing: ClassVar[bool] = True

    template: ChatTemplate
    columns: Columns
    roles: Mapping[str, str]
    max_length: int | None
    too_long: Cut

    def __call__(self, record: Any) -> dict[str, dict[str, Tensor]]:
        self.columns.check(record)
        prompt, chosen, rejected = (self.columns.get(record, name) for name in ("prompt", "chosen", "rejected"))
        if chosen is None or rejected is None:
            raise ValueError(
                f"{self._owner}: a record has the fields {list(record)}, wanted 'chosen' and 'rejected'. Name them: "
                "columns={'chosen': ..., 'rejected': ...}."
            )
        texts = isinstance(chosen, str) and isinstance(rejected, str) and (prompt is None or isinstance(prompt, str))
        if texts:
            start, both = self._of_texts(prompt, chosen, rejected)
            sides = [(ids, start) for ids in both]
        else:
            sides = self._of_messages(record, prompt, chosen, rejected)
        return {
            side: self._labelled(ids, begin) for side, (ids, begin) in zip(("chosen", "rejected"), sides, strict=True)
        }

    def _of_texts(self, prompt: str | None, chosen: str, rejected: str) -> tuple[int, list[list[int]]]:
        """Return where both answers begin, and the ids of the prompt with each."""
        self._check_differ(chosen, rejected)
        for name, text in (("prompt", prompt or ""), ("chosen", chosen), ("rejected", rejected)):
            check_text(text, name, self._owner)
        if prompt is None:
            same = common_prefix(chosen, rejected)
            same -= chosen[:same].endswith(" ")  # a word is tokenized with the space before it
            prompt, chosen, rejected = chosen[:same], chosen[same:], rejected[same:]
        tokenizer = self.template.tokenizer
        end = tokenizer.eos_token or ""
        both = [tokenizer(prompt + answer.removesuffix(end) + end)["input_ids"] for answer in (chosen, rejected)]
        alone = tokenizer(prompt)["input_ids"]
        return min(common_prefix(alone, ids) for ids in both), both

    def _of_messages(self, record: Any, prompt: Any, chosen: Any, rejected: Any) -> list[tuple[list[int], int]]:
        """Return the ids of the prompt with each answer, and where the answer begins."""
        better, worse = self._messages(chosen), self._messages(rejected)
        self._check_differ(better, worse)
        if prompt is None or isinstance(prompt, str):
            same = common_prefix(better, worse)
            asked, better, worse = better[:same], better[same:], worse[same:]
            if prompt is not None and prompt not in [message.get("content") for message in asked]:
                raise ValueError(
                    f"{self._owner}: the prompt is {prompt!r:.80}, which is none of the messages that both answers begin with."
                )
        else:
            asked = read_messages(prompt, self.roles, self._owner)
        if not (asked and better and worse):
            raise ValueError(
                f"{self._owner}: a record has {len(asked)} messages of prompt, {len(better)} chosen and {len(worse)} rejected ones, "
                "wanted at least one of each."
            )
        found = []
        for answer in (better, worse):
            chat = with_tools(asked + answer, record, self.columns)
            whole = self.template.rendered(chat)
            way_out = "a chat_template= that writes the prompt in the same way"
            found.append((whole.ids, self.template.prompt_end(whole, len(asked), way_out)))
        return found

    def _messages(self, answer: Any) -> list[Message]:
        turns = [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer
        return read_messages(turns, self.roles, self._owner)

    def _check_differ(self, chosen: Any, rejected: Any) -> None:
        if chosen == rejected:
            raise ValueError(f"{self._owner}: the chosen and the rejected answer are the same, wanted a preference.")

    def _labelled(self, found: list[int], start: int) -> dict[str, Tensor]:
        ids = np.array(found, dtype=np.int64)
        mask = np.arange(len(ids)) >= start
        if self.max_length is not None:
            kept = cut(len(ids), self.max_length, self.too_long, self._owner)
            ids, mask = ids[kept], mask[kept]
        return labelled(ids, mask, self._owner)

    @property
    def _owner(self) -> str:
        return self.template.owner

    def fingerprint(self) -> str:
        settings = (self.columns.names, self.roles, self.max_length, self.too_long)
        return f"{self.template.fingerprint()}, settings {digest(repr(settings))}"
