"""A dataset whose samples are the pieces of another dataset's documents."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderkit.datasets.base import MapStyle, check_index, check_indices, knows_lengths, read_many, reads_pieces
from loaderkit.sampling.by_length.checks import as_lengths
from loaderkit.sampling.by_length.pieces import piece_ends, piece_lengths
from loaderkit.sampling.fingerprint import fingerprint
from loaderkit.seeding.draws import Declares
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import check_integer, listed
from loaderkit.system.containers import with_parts


class PieceDataset(Declares):
    """Documents cut into pieces of at most `length` tokens.

    Each token is in exactly one piece. A document that fits is one piece. The pieces of a longer one follow each other,
    and all but the last are full. `PackPlan(too_long="split")` makes such a dataset itself. Make one yourself to use
    pieces with another plan or order.

    To read a piece of a `DocumentDataset` without a transform, only that part of the file is read. For other datasets
    the whole document is read.

    Args:
        dataset: Its samples are sequences (T, *), or dicts or tuples with sequences.
        length: The most tokens of a piece.
        lengths: Tokens of each document (N,). Default: what the dataset's `lengths()` returns.
        fields: Of dicts and namedtuples, the fields with one value for each token. These are cut; the others stay
            whole. In a plain tuple, the first of `fields` names its first part, and further parts are given by
            position.

    Raises:
        TypeError: If there are no lengths.
        ValueError: If a number is out of range, there are no fields, or there are not as many lengths as documents. On reading: if a
            document has another length than given, or has pictures (`"images"`) and would be cut, as the cut could go
            through a picture.

    Examples:
        >>> documents = [[1, 2, 3, 4, 5], [6]]
        >>> pieces = lk.PieceDataset(documents, 2, lengths=[5, 1])
        >>> list(pieces)
        [[1, 2], [3, 4], [5], [6]]
        >>> pieces.lengths(), pieces.document(2)
        (array([2, 2, 1, 1]), 0)
    """

    def __init__(
        self,
        dataset: MapStyle,
        length: int,
        *,
        lengths: "npt.ArrayLike | None" = None,
        fields: Sequence[object] = ("tokens",),
    ) -> None:
        check_integer("PieceDataset", "length", length, 1)
        self.fields = tuple(listed("PieceDataset", "fields", fields))
        if not self.fields:
            raise ValueError(
                "PieceDataset: fields is empty, wanted the fields with one value for each token: ['tokens']."
            )
        if lengths is None:
            if not knows_lengths(dataset):
                raise TypeError(
                    f"PieceDataset: {type(dataset).__name__} does not know its lengths, wanted lengths=, the tokens of each "
                    "document. loaderkit.measure_lengths(dataset) finds them."
                )
            lengths = dataset.lengths()  # type: ignore[attr-defined]  # `knows_lengths` has asked
        self.dataset, self.length = dataset, int(length)
        self._lengths = as_lengths(lengths, "PieceDataset")
        if len(self._lengths) != len(dataset):
            raise ValueError(
                f"PieceDataset: there are lengths of {len(self._lengths):,} documents, the dataset has {len(dataset):,}. "
                "Give the length of each."
            )
        self._ends = piece_ends(self._lengths, self.length)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Any:
        check_index(self, index)
        index %= len(self)
        if reads_pieces(self.dataset):
            return self.__getitems__([index])[0]
        # Not as a batch of one: if another sample reads this piece, it would draw the batch's first sample's numbers.
        documents, starts = self._find(np.array([index]))
        return self._cut(self.dataset[int(documents[0])], int(documents[0]), int(starts[0]))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        documents, starts = self._find(check_indices(self, indices))
        if reads_pieces(self.dataset):
            read = self.dataset.read_pieces(documents, starts, starts + self.length)  # type: ignore[attr-defined]  # `reads_pieces` has asked
            return np.split(read.values.numpy(), read.offsets[1:-1].numpy()) if len(indices) else []
        whole = read_many(self.dataset, documents.tolist())
        return list(map(self._cut, whole, documents.tolist(), starts.tolist()))

    def __getattr__(self, name: str) -> Any:
        if name == "read_batch" and reads_pieces(self.__dict__.get("dataset")):
            return self._read_batch
        raise AttributeError(name)

    def lengths(self) -> Int64Array:
        """Return the number of tokens of each piece, (P,) int64."""
        return piece_lengths(self._lengths, self.length)

    def document(self, index: int) -> int:
        """Return the index of the document that a piece is from."""
        check_index(self, index)
        return int(np.searchsorted(self._ends, index % len(self), side="right"))

    def fingerprint(self) -> str:
        return f"pieces of {self.length} of {fingerprint(self.dataset, len(self.dataset))}"

    def _parts(self) -> list[object]:
        return [self.dataset]

    def _read_batch(self, indices: Int64Array) -> object:
        documents, starts = self._find(check_indices(self, indices))
        return self.dataset.read_pieces(documents, starts, starts + self.length)  # type: ignore[attr-defined]  # `reads_pieces` has asked

    def _find(self, pieces: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return for each piece the index of its document, and the position of its first token there, (B,) each."""
        documents = np.searchsorted(self._ends, pieces, side="right")
        before = np.where(documents > 0, self._ends[documents - 1], 0)
        return documents, (pieces - before) * self.length

    def _cut(self, sample: object, document: int, start: int) -> object:
        if self._lengths[document] > self.length:
            check_can_be_cut(sample, f"PieceDataset: document {document:,}")
        if not isinstance(sample, Mapping | tuple):
            return self._slice(sample, document, start)
        tokens = self.fields[:1]
        if isinstance(sample, Mapping):
            names = list(sample)
        else:
            names = list(getattr(sample, "_fields", (*tokens, *range(1, len(sample)))))
        if missing := [name for name in self.fields if name not in names]:
            raise KeyError(f"PieceDataset: document {document:,} has the fields {names}, wanted {missing} too.")
        values = sample.values() if isinstance(sample, Mapping) else sample
        parts = [
            self._slice(value, document, start) if name in self.fields else value
            for name, value in zip(names, values, strict=True)
        ]
        return with_parts(sample, dict(zip(names, parts, strict=True)) if isinstance(sample, Mapping) else parts)

    def _slice(self, sequence: Any, document: int, start: int) -> object:
        if len(sequence) != self._lengths[document]:
            raise ValueError(
                f"PieceDataset: document {document:,} has {len(sequence):,} tokens, its length was given as "
                f"{self._lengths[document]:,}. Measure the lengths again."
            )
        return sequence[start : start + self.length]


def check_can_be_cut(sample: object, name: str) -> None:
    """Raise a ValueError for a document with pictures.

    A cut could go through a picture, and each piece would get all pictures.
    """
    pictures = sample.get("images") if isinstance(sample, Mapping) else None
    if isinstance(pictures, list) and pictures:
        raise ValueError(
            f"{name} has {len(pictures)} pictures and more tokens than fit, wanted a document that fits as a whole. Give its dataset "
            "max_length= and too_long='truncate_right', or pack with too_long='drop'."
        )
