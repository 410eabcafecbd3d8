"""The documents that every peer packs into rows: each token of the corpus is a number of its own, so that none is taken for another.

Workers that are started anew import this module; it needs only numpy.
"""

import random
from typing import Any

import numpy as np

DOCUMENTS, ROW = 600, 64


def document_lengths() -> list[int]:
    """Return lognormal lengths, median 20: one document in eight is longer than a row."""
    draw = random.Random(0)
    return [max(1, int(draw.lognormvariate(3, 1))) for _ in range(DOCUMENTS)]


def documents() -> list[Any]:
    """Return the documents: 1, 2, 3, ... from one to the next."""
    ends = np.cumsum(document_lengths())
    return [np.arange(end - length, end) + 1 for length, end in zip(document_lengths(), ends, strict=True)]


def pieces() -> list[Any]:
    """Return the documents, those longer than a row cut at each row's length."""
    return [document[start : start + ROW] for document in documents() for start in range(0, len(document), ROW)]


def text_of(document: Any) -> str:
    return f"{document[0]} {len(document)}"


def tokenize(text: str) -> Any:
    """Return the document of a text."""
    first, length = map(int, text.split())
    return np.arange(first, first + length)


class Source:
    """Documents, or their texts, by index."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return self._rows[index]
