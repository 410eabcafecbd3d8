"""Read the messages of a conversation from a record, in one of the usual layouts of chat data."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loaderkit.datasets.rows.parts import is_list, is_text, reference, text_of
from loaderkit.system.suggest import did_you_mean

Message = dict[str, Any]

ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "tool": "tool",
    "observation": "tool",
}


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation: its messages, its tools, and its values for variables of the chat template."""

    messages: list[Message]
    tools: Sequence[Mapping[str, object]] | None = None
    values: Mapping[str, object] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.messages)

    def first(self, count: int) -> "Chat":
        """Return the conversation with only its first `count` messages."""
        return replace(self, messages=self.messages[:count])

    def answers(self) -> list[int]:
        """Return the indices of the assistant's messages."""
        return [number for number, message in enumerate(self.messages) if message["role"] == "assistant"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Finds the fields of a record by their standard names.

    Args:
        known: The standard names.
        names: Names of fields in the data, by standard name; a missing one is the standard name.
        owner: The dataset's name, for messages.
    """

    known: Sequence[str]
    names: Mapping[str, str]
    owner: str

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in self.known:
                raise ValueError(
                    f"{self.owner}: columns has {name!r}, wanted one of {', '.join(self.known)}.{did_you_mean(name, self.known)}"
                )

    def checked(self, record: object) -> Mapping[str, object]:
        """Return the record; raise a ValueError if it is not a dict, or lacks a column in `names`."""
        if not isinstance(record, Mapping):
            raise ValueError(f"{self.owner}: a record is of type {type(record).__name__}, wanted a dict.")
        missing = [column for column in self.names.values() if column not in record]
        if missing:
            raise ValueError(f"{self.owner}: a record has no {missing} (columns=), its fields are {list(record)}.")
        return record

    def get(self, record: Mapping[str, object], name: str) -> Any:
        """Return the field with this standard name; None if the record does not have it."""
        return record.get(self.names.get(name, name))


CHAT_COLUMNS = (
    "messages",
    "conversations",
    "instruction",
    "input",
    "output",
    "system",
    "history",
    "tools",
    "chat_template_kwargs",
)


def read_chat(record: object, columns: Columns, roles: Mapping[str, str], *, pictures: bool = False) -> Chat:
    """Return the conversation of a record. With `pictures`, a message's content may be a list of parts.

    Raises:
        ValueError: If the record has none of the layouts, or a message is damaged.
    """
    record = columns.checked(record)
    turns = columns.get(record, "messages")
    if turns is None:
        turns = columns.get(record, "conversations")
    if turns is None and columns.get(record, "instruction") is not None:
        turns = _alpaca(record, columns)
    if turns is None:
        raise ValueError(
            f"{columns.owner}: a record has the fields {list(record)}, wanted 'messages', 'conversations', or 'instruction' and "
            "'output'. Name them: columns={'messages': ...}."
        )
    return with_tools(read_messages(turns, roles, columns.owner, pictures=pictures), record, columns)


def with_tools(messages: list[Message], record: Mapping[str, object], columns: Columns) -> Chat:
    """Return a conversation of the messages, with the record's own tools and template values."""
    tools = columns.get(record, "tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise ValueError(f"{columns.owner}: the tools are no JSON ({error}), wanted a list of schemas.") from None
    if not (tools is None or (is_list(tools) and all(isinstance(tool, Mapping) for tool in tools))):
        raise ValueError(f"{columns.owner}: the tools are {tools!r:.80}, wanted a list of JSON schemas.")
    values = columns.get(record, "chat_template_kwargs") or {}
    if not isinstance(values, Mapping):
        raise ValueError(
            f"{columns.owner}: chat_template_kwargs is {values!r:.80}, wanted a dict of the template's variables."
        )
    return Chat(messages, list(tools) if tools is not None else None, values)


def read_messages(turns: object, roles: Mapping[str, str], owner: str, *, pictures: bool = False) -> list[Message]:
    """Return checked messages with `role` and `content`. The input may have `from` and `value` instead (ShareGPT).

    With `pictures`, a content may be a list of parts: texts, and pictures for which the template writes a placeholder.

    Raises:
        ValueError: If there are no messages, or a message has no known role or no text.
    """
    if not is_list(turns):
        raise ValueError(f"{owner}: the messages are of type {type(turns).__name__}, wanted a list of dicts.")
    if not len(turns):
        raise ValueError(f"{owner}: the conversation is empty, wanted at least one message.")
    return [_message(number, turn, roles, owner, pictures) for number, turn in enumerate(turns)]


def _message(number: int, turn: object, roles: Mapping[str, str], owner: str, pictures: bool) -> Message:
    if not isinstance(turn, Mapping):
        raise ValueError(f"{owner}: message {number} is of type {type(turn).__name__}, wanted a dict.")
    message = {key: value for key, value in turn.items() if value is not None}  # Arrow adds missing fields as None
    for theirs, ours in (("from", "role"), ("value", "content")):
        if theirs in message and ours not in message:
            message[ours] = message.pop(theirs)
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in roles:
        raise ValueError(
            f"{owner}: message {number} has the role {role!r:.40}, wanted one of {', '.join(sorted(roles))}. Add it: "
            f"roles={{{role!r:.40}: 'user'}}."
        )
    if is_list(content):
        if not pictures:
            raise ValueError(
                f"{owner}: message {number} has a content of {len(content)} parts, wanted text. Join texts before; for pictures give "
                "pictures=lk.Pictures(...)."
            )
        message["content"] = content = [
            _part(part, f"{owner}: message {number}, part {place}") for place, part in enumerate(content)
        ]
    elif not isinstance(content, str) and not (content is None and message.get("tool_calls")):
        raise ValueError(
            f"{owner}: message {number} ({role}) has a content of type {type(content).__name__}, wanted text."
        )
    check_text(text_of(content), f"message {number} ({role})", owner)
    message["role"] = roles[role]
    return message


def check_text(text: str, what: str, owner: str) -> None:
    """Raise a ValueError for a text with half a surrogate pair: JSON can hold one, but tokenizers refuse it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{owner}: {what} has {text[error.start]!r} at character {error.start:,}, a surrogate: half of a character, wanted text. "
            "Its file was cut or decoded wrongly. Repair it: text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')."
        ) from None


def _part(part: Any, place: str) -> object:
    """Return a checked part without the None fields that Arrow adds: templates test for the key "image"."""
    if is_text(part, place):
        return {"type": "text", "text": part} if isinstance(part, str) else {"type": "text", "text": part["text"]}
    reference(part, place)
    return {key: value for key, value in part.items() if value is not None}


def _alpaca(record: Mapping[str, object], columns: Columns) -> list[Message]:
    """Return the messages of a record with `instruction`, `input` and `output`; the input follows on a new line."""
    asked, given = columns.get(record, "instruction"), columns.get(record, "input")
    system, history = columns.get(record, "system"), columns.get(record, "history")
    earlier = [] if history is None else list(history)
    if not all(is_list(pair) and len(pair) == 2 for pair in earlier):
        raise ValueError(f"{columns.owner}: history is {history!r:.80}, wanted a list of pairs: a question, an answer.")
    if not (isinstance(asked, str) and isinstance(given or "", str)):
        raise ValueError(f"{columns.owner}: instruction is {asked!r:.80} and input {given!r:.80}, wanted texts.")
    messages = [{"role": "system", "content": system}] if system else []
    for question, answer in [*earlier, (f"{asked}\n{given}" if given else asked, columns.get(record, "output"))]:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return messages
