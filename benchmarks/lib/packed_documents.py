"""The documents that every peer packs into rows.

Workers that are started anew import this module; it needs only numpy.
"""

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 50_000  # as many tokens of a corpus, from its start, are numbers of their own


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """Documents of lognormal lengths, and the rows that they become.

    Args:
        size: Number of documents.
        mean: Of the logarithm of a length.
        sigma: Of the logarithm of a length.
        row: Tokens of a row.
        batch: Rows of a batch.
        shard: Tokens of a shard, for peers that are told its size.
    """

    size: int
    mean: float
    sigma: float
    row: int
    batch: int
    shard: int

    @classmethod
    def of(cls, folder: str | Path) -> "Corpus":
        """Return the corpus that a folder is for."""
        return cls(**json.loads((Path(folder) / "corpus.json").read_text()))

    def save(self, folder: str | Path) -> None:
        """Say in a folder that it is for this corpus."""
        (Path(folder) / "corpus.json").write_text(json.dumps(asdict(self)))

    def lengths(self) -> list[int]:
        draw = random.Random(0)
        return [max(1, int(draw.lognormvariate(self.mean, self.sigma))) for _ in range(self.size)]

    def documents(self) -> list[Any]:
        """Return the documents: 1, 2, 3, ... from one to the next, and after the last token of the vocabulary 1 again."""
        lengths = self.lengths()
        starts = np.cumsum([0, *lengths[:-1]])
        return [numbers(int(start), length) for start, length in zip(starts, lengths, strict=True)]

    def pieces(self) -> list[Any]:
        """Return the documents, those longer than a row cut at each row's length."""
        cuts = ((document, start) for document in self.documents() for start in range(0, len(document), self.row))
        return [document[start : start + self.row] for document, start in cuts]


def numbers(start: int, length: int) -> Any:
    return np.arange(start, start + length) % VOCABULARY + 1


def text_of(document: Any) -> str:
    return f"{document[0]} {len(document)}"


def tokenize(text: str) -> Any:
    """Return the document of a text."""
    first, length = map(int, text.split())
    return numbers(first - 1, length)


class Source:
    """Documents, or their texts, by index."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return self._rows[index]
