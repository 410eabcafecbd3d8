"""A dataset of packed rows of a fixed length. The documents of each row are chosen once, from their lengths."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from loaderkit.collate.pack import PackCollate
from loaderkit.datasets.base import Collate, MapStyle, check_index, read_many, reads_pieces
from loaderkit.datasets.combine import MapDataset
from loaderkit.datasets.pieces import PieceDataset
from loaderkit.datasets.streams.dataset import StreamDataset
from loaderkit.datasets.streams.pack import Rows
from loaderkit.sampling.by_length.checks import check_longest
from loaderkit.sampling.by_length.packing import pack
from loaderkit.sampling.by_length.pieces import piece_ends
from loaderkit.seeding.draws import Declares, Draws, NoSeeds, draws
from loaderkit.seeding.sample_seeds import seeds_apart
from loaderkit.system.arrays import Int64Array
from loaderkit.system.digests import digest
from loaderkit.system.overrides import own_attribute
from loaderkit.system.stack import CollateError


class PackedRows(Declares):
    """Packed rows as a dataset. A sample is one row: a list of documents, or of pieces of documents longer than a row.

    Each window of consecutive documents is packed by best fit decreasing. Rows come in the order of their first
    documents. All documents of a row are read under the row's seed.

    Args:
        dataset: The documents.
        lengths: Tokens of each document (N,).
        rows: The settings of rows, such as their length.
        window: Number of consecutive pieces that are packed together.

    Raises:
        ValueError: If a document is longer than a row, and `rows.too_long` is "error".
    """

    def __init__(self, dataset: MapStyle, lengths: Int64Array, rows: Rows, *, window: int) -> None:
        size = rows.row_length
        if rows.too_long == "error" and len(lengths):
            check_longest(lengths, size, "pack", "row_length", "or give too_long='split' or 'drop'")
        documents = dataset if reads_pieces(dataset) else MapDataset(dataset, _AsDocument(rows))
        self._pieces = PieceDataset(documents, size, lengths=lengths, fields=(rows.tokens, *rows.fields))
        sizes = self._pieces.lengths()
        kept = sizes > 0
        if rows.too_long == "drop":
            kept &= np.repeat(lengths <= size, np.diff(piece_ends(lengths, size), prepend=0))
        numbers = np.flatnonzero(kept)
        parts = [_pack(sizes[some], some, size) for some in np.split(numbers, range(window, len(numbers), window))]
        self._members = np.concatenate([members for members, _ in parts])  # the pieces, row after row (P,)
        counts = np.concatenate([counts for _, counts in parts])
        self._bounds = np.concatenate([[0], np.cumsum(counts)])  # where rows begin in `_members` (R + 1,)
        self._rows, self._digest = rows, digest(self._members, self._bounds)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, index: int) -> list[Any]:
        check_index(self, index)
        row = index % len(self)
        members = self._members[self._bounds[row] : self._bounds[row + 1]].tolist()
        try:
            if draws(self._pieces) is Draws.NOTHING:
                with seeds_apart(NoSeeds(len(members))):
                    return read_many(self._pieces, members)
            return [self._pieces[number] for number in members]
        except Exception as error:
            documents = ", ".join(str(self._pieces.document(number)) for number in members[:8])
            error.add_note(f"loaderkit: raised while reading row {row:,}, of the documents {documents}.")
            raise

    def fingerprint(self) -> str:
        # Other lengths, as of another tokenizer, make other rows.
        return f"rows of {self._rows.row_length}, {self._digest}, of {self._pieces.fingerprint()}"

    def _parts(self) -> list[object]:
        return [self._pieces]


@dataclass(frozen=True)
class TokenCounts:
    """A collate function that returns the number of tokens in each document, (B,) int64."""

    what: ClassVar[str] = "lengths"
    setting: ClassVar[str] = "length"

    rows: Rows

    def __call__(self, samples: list[object]) -> Int64Array:
        lengths = []
        for row, sample in enumerate(samples):
            try:
                lengths.append(self.rows.length(self.rows.document(sample)))
            except Exception as error:
                said = str(error.args[0] if error.args else type(error).__name__)
                raise CollateError(said.removesuffix("."), [row]) from error
        return np.array(lengths, dtype=np.int64)

    @property
    def name(self) -> str:
        return f"tokens in {self.rows.tokens!r}"


def collate_of(rows: Rows) -> PackCollate:
    """Return the collate function that makes batches of packed rows."""
    return PackCollate(tokens=rows.tokens, row_length=rows.row_length, fields=rows.fields)


def default_collate(dataset: object) -> Callable[[list[Any]], Any] | None:
    """Return the collate function of a Loader without `collate_fn` for this data; None stacks the samples."""
    if isinstance(dataset, StreamDataset):
        return None if dataset.rows is None else collate_of(dataset.rows)
    found: Collate | None = own_attribute(dataset, "default_collate")  # of a Pipeline
    return found


@dataclass(frozen=True)
class _AsDocument:
    """Turns a sample into a document, as a packed stream does."""

    draws_nothing: ClassVar[bool] = True

    rows: Rows

    def __call__(self, sample: object) -> object:
        return self.rows.document(sample)


def _pack(lengths: Int64Array, numbers: Int64Array, row_length: int) -> tuple[Int64Array, Int64Array]:
    """Pack pieces of these lengths (P,) into rows.

    Return the pieces' `numbers` (P,) in the order of the rows, and how many pieces each row has (R,).
    """
    rows, count = pack(lengths, row_length)
    _, firsts = np.unique(rows, return_index=True)  # the first piece of each row
    order = np.argsort(firsts[rows], kind="stable")
    return numbers[order], np.bincount(rows, minlength=count)[np.argsort(firsts)]
