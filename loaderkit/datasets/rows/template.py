"""Render a conversation with a chat template of `transformers`, and find the tokens of its answers.

A template with `{% generation %}` blocks marks the answers itself. With any other template, the conversation is also
rendered up to each answer, and up to the answer's end. The token ids of both must be prefixes of the whole
conversation's ids: then the model is trained on what it will see at inference.
"""

import datetime
import functools
import json
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from loaderkit.datasets.rows.messages import Chat, Message
from loaderkit.datasets.rows.parts import text_of
from loaderkit.system.arrays import Int64Array
from loaderkit.system.digests import digest

TrainOn = Literal["assistant", "last", "all", "none"]
Mask = npt.NDArray[np.bool_]

_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
_TODAY = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")
_BLOCKS = "a template with {% generation %} blocks,"
_SHOWN = 40  # characters of a text in an error


class _Marking:
    """Lets one thread at a time render with generation blocks.

    transformers 5.0 notes their places in the compiled template, which all tokenizers with this template share.
    """

    def __init__(self) -> None:
        self.free()

    def free(self) -> None:
        self.lock = threading.Lock()


_marking = _Marking()
os.register_at_fork(after_in_child=_marking.free)  # the thread that holds the lock does not exist in the child


class Rendered(NamedTuple):
    """A whole conversation as a template writes it.

    A border is a special token at which the tokenizer splits the text first, so text after a border does not change the
    ids before it. It is given as its index among the ids, and its start and end in the text.
    """

    chat: Chat
    text: str
    ids: list[int]
    borders: list[tuple[int, int, int]]  # empty for a slow tokenizer, which cannot locate tokens in the text


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """A tokenizer with its chat template.

    Args:
        owner: The dataset's name, for messages.
        tokenizer: A tokenizer of `transformers`.
        template: A template, or the name of one of the tokenizer's; None for the tokenizer's own.
        tools: JSON schemas, or functions to make them from, for conversations without their own.
        values: Variables for the template.
        date: The date that `strftime_now` writes.
        needed: Whether a tokenizer without a template is an error.
    """

    owner: str
    tokenizer: Any
    template: str | None = None
    tools: Sequence[Mapping[str, object] | Callable[..., object]] | None = None
    values: Mapping[str, object] = field(default_factory=dict)
    date: datetime.date | None = None
    needed: bool = True

    def __post_init__(self) -> None:
        for name in ("apply_chat_template", "get_chat_template", "get_vocab"):
            if not hasattr(self.tokenizer, name):
                kind = type(self.tokenizer).__name__
                hint = " Give the processor's tokenizer." if hasattr(self.tokenizer, "tokenizer") else ""
                raise TypeError(
                    f"{self.owner}: the tokenizer is of type {kind}, wanted one of the package transformers.{hint}"
                )
        if self.tools is not None:
            tools = [_schema(tool) for tool in self.tools] if isinstance(self.tools, list | tuple) else None
            if tools is None or not all(isinstance(tool, Mapping) for tool in tools):
                raise TypeError(
                    f"{self.owner}: tools are {self.tools!r:.80}, wanted a list of JSON schemas (dicts) or functions."
                )
            object.__setattr__(self, "tools", tools)
        if self.needed or self.template is not None or self.tokenizer.chat_template is not None:
            self._source(None)

    def render(self, chat: Chat, *, prompt: bool = False) -> str:
        """Return the text of a conversation. With `prompt`, the header of an answer follows."""
        text: str = self._apply(chat, tokenize=False, add_generation_prompt=prompt)
        return text

    def tokens(self, text: str) -> list[int]:
        """Return the ids of a rendered text, which already contains its special tokens."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def prompt(self, chat: Chat) -> Int64Array:
        """Return the ids (n,) of a conversation and the header of its next answer. A final answer is left out."""
        asked = chat.first(len(chat) - (chat.messages[-1]["role"] == "assistant"))
        if not len(asked):
            raise ValueError(f"{self.owner}: the conversation is an answer alone, wanted a message before it.")
        return np.array(self.tokens(self.render(asked, prompt=True)), dtype=np.int64)

    def rendered(self, chat: Chat) -> Rendered:
        """Return the text of a whole conversation with its ids and borders."""
        text = self.render(chat)
        found = self.tokenizer(text, add_special_tokens=False)
        ids: list[int] = found["input_ids"]
        if not self.tokenizer.is_fast:
            return Rendered(chat, text, ids, [])
        places = [place for place, token in enumerate(ids) if token in self._border_tokens]
        spans: list[tuple[int, int]] = [found.encodings[0].token_to_chars(place) for place in places]
        return Rendered(chat, text, ids, [(place, *span) for place, span in zip(places, spans, strict=True)])

    @functools.cached_property
    def _border_tokens(self) -> frozenset[int]:
        added = self.tokenizer.added_tokens_decoder.items()
        return frozenset(number for number, token in added if not (token.normalized or token.single_word))

    def encode(self, chat: Chat, train_on: TrainOn) -> tuple[Int64Array, Mask]:
        """Return the ids (n,) of a conversation, and a mask (n,) bool of those to train on.

        Raises:
            ValueError: If the template refuses the conversation, or its answers cannot be told from the rest.
        """
        answers = chat.answers()
        if train_on != "all" and not answers:
            raise ValueError(f"{self.owner}: the conversation has no answer of the assistant to train on.")
        marked = _GENERATION.search(self._source(chat.tools)) and self.tokenizer.is_fast
        if train_on != "all" and marked:
            with _marking.lock:
                found = self._apply(chat, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
            ids, mask = np.array(found["input_ids"]), np.array(found["assistant_masks"], dtype=bool)
            if not mask.any():
                raise ValueError(f"{self.owner}: the template's generation blocks mark no token of this conversation.")
            return ids, _last_run(mask) if train_on == "last" else mask
        if train_on == "all":
            all_ids = np.array(self.tokens(self.render(chat)))
            return all_ids, np.ones(len(all_ids), dtype=bool)
        whole = self.rendered(chat)
        mask = np.zeros(len(whole.ids), dtype=bool)
        for answer in answers[-1:] if train_on == "last" else answers:
            start = self.prompt_end(whole, answer, f"{_BLOCKS} or train_on='all'")
            mask[start : self._answer_end(whole, answer)] = True
        return np.array(whole.ids), mask

    def prompt_end(self, whole: Rendered, answer: int, way_out: str) -> int:
        """Return where message `answer` begins among the ids of the whole conversation.

        Raises:
            ValueError: If the ids of the prompt are not a prefix of the whole. The message ends with `way_out`.
        """
        if not answer:
            raise ValueError(
                f"{self.owner}: the conversation begins with an answer, so its prompt cannot be rendered. Put a message before it. Or "
                f"give {way_out}."
            )
        text = self.render(whole.chat.first(answer), prompt=True)
        begin = self._part_tokens(text, whole)
        if whole.ids[: len(begin)] != begin:
            raise self._differs(text, whole, f"the prompt of answer {answer}", way_out)
        return len(begin)

    def _answer_end(self, whole: Rendered, answer: int) -> int:
        """Return where message `answer` ends among the ids of the whole conversation."""
        chat = whole.chat
        if answer + 1 == len(chat):
            return len(whole.ids)
        text = self.render(chat.first(answer + 1))
        begin = self._part_tokens(text, whole)
        same = common_prefix(whole.ids, begin)
        if same < len(begin) and not self._is_whole(chat.messages[answer], begin[:same], begin[same:]):
            raise self._differs(
                text, whole, f"the text up to answer {answer}", f"{_BLOCKS} or train_on='last' or 'all'"
            )
        return same

    def _part_tokens(self, text: str, whole: Rendered) -> list[int]:
        """Return the ids of a text. If it is a prefix of the whole, it is tokenized only from its last border on."""
        if whole.text.startswith(text):
            for place, begin, end in reversed(whole.borders):
                if end <= len(text):
                    return whole.ids[:place] + self.tokens(text[begin:])
        return self.tokens(text)

    def _is_whole(self, message: Message, ids: list[int], rest: list[int]) -> bool:
        """Return whether `ids` have the whole answer and its end of turn, and `rest` just ends a text (<eos>)."""
        answer = text_of(message.get("content")).strip()
        return set(rest) <= set(self.tokenizer.all_special_ids) and not (
            answer and self.tokenizer.decode(ids).rstrip().endswith(answer)
        )

    def _differs(self, text: str, whole: Rendered, what: str, way_out: str) -> ValueError:
        """Return the error that says why a part's ids are not a prefix of the whole conversation's."""
        same = common_prefix(whole.text, text)
        if same < len(text):
            why = f"{what} is rendered otherwise alone: {_at(text, same)}, in the whole {_at(whole.text, same)}"
        else:
            why = f"tokens merge at the end of {what}, before {_at(whole.text, same)}"
            way_out = f"answers without white space at their start, {way_out}"
        return ValueError(f"{self.owner}: the tokens of an answer cannot be told from the rest: {why}. Give {way_out}.")

    def _apply(self, chat: Chat, **settings: object) -> Any:
        tools: Any = self.tools if chat.tools is None else chat.tools
        try:
            return self.tokenizer.apply_chat_template(
                chat.messages,
                tools=tools,
                chat_template=self._source(tools),
                **settings,
                **{**self.values, **chat.values},
            )
        except Exception as error:  # of jinja, or of a filter on a field that is missing
            raise ValueError(
                f"{self.owner}: the chat template raised {type(error).__name__}: {error} (roles: "
                f"{', '.join(message['role'] for message in chat.messages)})."
            ) from error

    def _source(self, tools: object) -> str:
        """Return the text of the template, which may depend on whether there are tools."""
        source: str = self.tokenizer.get_chat_template(self.template, self.tools if tools is None else tools)
        day = self.date
        fixed = source if day is None else _TODAY.sub(lambda found: repr(day.strftime(found[2])), source)
        if "strftime_now(" in fixed:
            raise ValueError(
                f"{self.owner}: the chat template writes today's date (strftime_now), which would change the tokens of a resumed run. "
                "Fix it: date=datetime.date(2024, 7, 26), or a template without it."
            )
        return fixed

    def fingerprint(self) -> str:
        """Return digests of the tokenizer, and of all settings that affect the rendered text."""
        shape = [self.tokenizer.chat_template, self.template, self.tools, dict(self.values), self.date]
        shape.append(self.tokenizer.special_tokens_map)
        return f"tokenizer {tokenizer_digest(self.tokenizer)}, template {_digest(shape)}"


def tokenizer_digest(tokenizer: Any) -> str:
    """Return a digest of what determines the ids of a `transformers` tokenizer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return _digest(sorted(tokenizer.get_vocab().items()))
    content = json.loads(backend.to_str())
    content.pop("truncation"), content.pop("padding")  # they depend on the last call
    return _digest(content)


def _digest(value: object) -> str:
    return digest(json.dumps(value, sort_keys=True, default=str))


def common_prefix(left: Sequence[object], right: Sequence[object]) -> int:
    """Return the length of the longest common prefix of two sequences."""
    shorter = min(len(left), len(right))
    if left[:shorter] == right[:shorter]:
        return shorter  # faster than comparing item by item
    return next((place for place in range(shorter) if left[place] != right[place]), shorter)


def _last_run(mask: Mask) -> Mask:
    """Return the mask (n,) with only its last run of true values."""
    gaps = np.flatnonzero(mask[:-1] < mask[1:])
    run = mask.copy()
    run[: gaps[-1] + 1 if len(gaps) else 0] = False
    return run


def _at(text: str, place: int) -> str:
    return repr(text[place : place + _SHOWN])


def _schema(tool: object) -> object:
    """Return a tool's JSON schema. The schema can be pickled; the function might not."""
    if not callable(tool):
        return tool
    from transformers.utils import get_json_schema

    return get_json_schema(tool)
