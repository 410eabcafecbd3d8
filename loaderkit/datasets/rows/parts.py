"""The parts of documents and messages: texts, and references to files."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

Part = tuple[str, Any]  # where the part is in its row, for error messages; reference of a file


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Return whether a value is a list, a tuple or an array."""
    return isinstance(value, list | tuple | np.ndarray)


def is_text(part: object, place: str) -> bool:
    """Return whether a part is text: a string, or {"type": "text", "text": "..."}.

    Raises:
        ValueError: If the part is neither a string nor a dict, or its text is not a string.
    """
    if isinstance(part, str):
        return True
    if not isinstance(part, Mapping):
        raise ValueError(f"{place} is of type {type(part).__name__}, wanted a text, or a dict with a type.")
    if part.get("type") != "text":
        return False
    if not isinstance(part.get("text"), str):
        raise ValueError(f"{place} is {dict(part)!r:.80}, wanted a text.")
    return True


def reference(part: Mapping[str, object], place: str, kinds: Sequence[str] = ("image",)) -> tuple[str, Any]:
    """Return the kind of a part that is not text, and its file's reference, which is None if the part has none.

    Raises:
        ValueError: If the part's type is none of `kinds`.
    """
    for kind in kinds:
        if part.get("type") in (kind, f"{kind}_url"):
            found = part.get(kind)
            found = part.get(f"{kind}_url") if found is None else found
            return kind, found["url"] if isinstance(found, Mapping) and "url" in found else found
    raise ValueError(
        f"{place} has the type {part.get('type')!r:.80}, wanted 'text' or one of {', '.join(map(repr, kinds))}."
    )


def text_of(content: Any) -> str:
    """Return the text of a part, or of a message's content, without its pictures."""
    if is_list(content):
        return "".join(map(text_of, content))
    return content if isinstance(content, str) else (content or {}).get("text") or ""


def pictures_of(messages: Sequence[Mapping[str, object]], listed: object) -> list[Part]:
    """Return the references of a conversation's pictures, in order.

    Args:
        messages: A picture's part holds the reference of a file, or stands for the next picture in `listed`.
        listed: The record's own pictures: one, a list, or None. Those that no part stands for come last.
    """
    given = [] if listed is None else list(listed) if is_list(listed) else [listed]
    rest = iter([(f"picture {number} of the record", file) for number, file in enumerate(given)])
    return [*_pictures_in(messages, rest), *rest]


def _pictures_in(messages: Sequence[Mapping[str, object]], rest: Iterator[Part]) -> Iterator[Part]:
    for number, message in enumerate(messages):
        content = message.get("content")
        for place, part in enumerate(content if is_list(content) else []):
            where = f"message {number}, part {place}"
            if not is_text(part, where):
                _, file = reference(part, where)
                found = (where, file) if file is not None else next(rest, None)
                if found is None:
                    raise ValueError(f"{where} names no picture, and the record has no further one.")
                yield found
