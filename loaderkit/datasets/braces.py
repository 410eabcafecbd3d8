"""Expand braces in names, such as `a_{000..002}.tar` and `{a,b}.tar`, as shells and WebDataset do."""

import itertools
import re
from collections.abc import Iterator, Sequence

_MOST = 1_000_000  # names in one pattern
_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.-?(\d+))?")


def expand_braces(pattern: str) -> list[str]:
    """Return the names that a pattern such as `a_{000..002}.tar` or `{a,b}.tar` stands for, in its order.

    Ranges may have a step (`{0..8..2}`) or letters (`{a..c}`). Braces with neither a range nor a comma stay as they
    are, and so do unmatched braces.

    Raises:
        ValueError: If there are more than a million names.
    """
    found = list(itertools.islice(_names(pattern), _MOST + 1))
    if len(found) > _MOST:
        raise ValueError(f"{pattern!r} stands for more than {_MOST:,} names")
    return found


def _names(pattern: str) -> Iterator[str]:
    span = _first_pair(pattern)
    if span is None:
        yield pattern
        return
    start, end = span
    inside = pattern[start + 1 : end]
    options = _options(inside)
    heads = (
        (f"{{{each}}}" for each in _names(inside))
        if options is None
        else itertools.chain.from_iterable(map(_names, options))
    )
    for head in heads:
        for tail in _names(pattern[end + 1 :]):
            yield pattern[:start] + head + tail


def _first_pair(pattern: str) -> tuple[int, int] | None:
    """Return the positions of the first opening brace that is closed, and of its closing brace.

    Return None if there is no such brace.
    """
    opened: list[int] = []
    pairs: list[tuple[int, int]] = []
    for place, sign in enumerate(pattern):
        if sign == "{":
            opened.append(place)
        elif sign == "}" and opened:
            pairs.append((opened.pop(), place))
    return min(pairs, default=None)


def _options(inside: str) -> Sequence[str] | None:
    """Return the texts that can replace braces with this text inside; None if it has neither a range nor a comma."""
    if (match := _NUMBERS.fullmatch(inside)) is not None:
        first, last, step = int(match[1]), int(match[2]), int(match[3] or 1) or 1
        numbers = range(first, last + 1, step) if last >= first else range(first, last - 1, -step)
        if len(numbers) > _MOST:
            raise ValueError(f"{{{inside}}} stands for more than {_MOST:,} names")
        padded = any(re.match(r"-?0\d", text) for text in match.groups()[:2])
        width = max(len(match[1]), len(match[2])) if padded else 0
        return [f"{number:0{width}}" for number in numbers]
    if (match := _LETTERS.fullmatch(inside)) is not None and match[1].islower() == match[2].islower():
        first, last, step = ord(match[1]), ord(match[2]), int(match[3] or 1) or 1
        return [
            chr(each) for each in (range(first, last + 1, step) if last >= first else range(first, last - 1, -step))
        ]
    return _pieces(inside) if "," in inside else None


def _pieces(inside: str) -> Sequence[str] | None:
    """Split a text at its commas outside inner braces; return None if there are no such commas."""
    depth, start, found = 0, 0, list[str]()
    for place, sign in enumerate(inside):
        depth += (sign == "{") - (sign == "}" and depth > 0)
        if sign == "," and not depth:
            found.append(inside[start:place])
            start = place + 1
    return [*found, inside[start:]] if found else None
