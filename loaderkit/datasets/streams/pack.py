"""Packed streams: documents of unknown lengths are packed into rows of a fixed length.

A lane holds documents that wait for a row. Each row takes the document that has waited longest, then repeatedly the
longest one that still fits. A place holds no documents. It says where the first waiting document is in the lane below,
and which documents from there on wait (one bit each). A resume reads the waiting ones again.
"""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from torch import Tensor

from loaderkit.datasets.pieces import check_can_be_cut
from loaderkit.datasets.streams.lane import Lane, LaneSpec, Place
from loaderkit.datasets.streams.pulled import PulledLane
from loaderkit.datasets.streams.samples import Failed, PendingSample, Step, apply_steps, seeds_of
from loaderkit.datasets.streams.verb import Below, flaw_below
from loaderkit.seeding.keys import hash_positions
from loaderkit.system.checks import plain_integer
from loaderkit.system.state import COUNT

TooLong = Literal["split", "error", "drop"]

_BITS = 48  # bits used of an integer in a place: every JSON reader keeps 53
_TOGETHER = 16  # documents that are read together
_ROWS = 2  # the waiting documents have at least the tokens of this many rows


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The settings of packed rows. A row is a list of documents, or pieces of documents, for `PackCollate`.

    Args:
        row_length: Tokens of a row.
        tokens: The field with a document's tokens.
        fields: Other fields with one value for each token, and the value that pads them.
        too_long: What happens to a document longer than a row.
        waiting: Number of documents of a lane that wait for a row.
    """

    row_length: int
    tokens: str
    fields: Mapping[str, float] = field(default_factory=dict)
    too_long: TooLong = "split"
    waiting: int = 128

    def __post_init__(self) -> None:
        for name in ("row_length", "waiting"):
            object.__setattr__(self, name, value := plain_integer(getattr(self, name)))
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"pack: {name} is {value!r}, wanted an integer of at least 1.")
        if self.too_long not in get_args(TooLong):
            raise ValueError(
                f"pack: too_long is {self.too_long!r}, wanted one of {', '.join(map(repr, get_args(TooLong)))}."
            )
        if not isinstance(self.fields, Mapping):
            raise TypeError(
                f"pack: fields is {self.fields!r}, wanted a value that pads each field, such as {{'weights': 0}}."
            )

    def __str__(self) -> str:
        return f"pack({self.row_length})"

    def order(self) -> str:
        return f"pack-1({self.row_length} tokens, {self.too_long}, {self.waiting} waiting)"

    def lane(self, below: Below, spec: LaneSpec) -> Lane:
        return _PackedLane(below, self, spec)

    def flaw(self, below: Below, lane: int, place: Place) -> str | None:
        if place.shard or place.sample:
            return "a cycle, two zeros, and the pieces and rows that were made"
        if not place.inner:
            return "a place in the stream below" if place.used or place.position else None
        length = place.inner[0]
        if not COUNT.holds(length) or len(place.inner) < length + 2:
            return "a place in the stream below, and the documents that wait"
        read, words = place.inner[length + 1], place.inner[length + 2 :]
        if flaw := flaw_below(below, lane, place.cycle, place.inner[1 : length + 1]):
            return flaw
        if not COUNT.holds(read) or len(words) != -(-read // _BITS):
            return "a number of documents, and a bit for each"
        if any(not COUNT.holds(word) or word >> _BITS for word in words) or (read and not words[0] & 1):
            return f"integers of {_BITS} bits, the first document's set"
        return None

    def cannot_stack(self) -> ValueError:
        """Return the error for an attempt to stack packed rows."""
        return ValueError(
            "batch: the samples are packed rows, which do not stack. Give "
            f"collate_fn=loaderkit.PackCollate(row_length={self.row_length}), or leave batches to the Loader: batch_size=..."
        )

    def document(self, sample: Any) -> Any:
        """Return a sample as a document: its tokens and `fields` become arrays.

        A sample that is not a mapping is the tokens themselves.

        Raises:
            KeyError: If a field is missing.
            ValueError: If the fields have other lengths than the tokens, or the document is longer than a row and must
                not be.
        """
        if not isinstance(sample, Mapping):
            document = _as_array(getattr(sample, "ids", sample), self.tokens)
        else:
            if missing := [name for name in (self.tokens, *self.fields) if name not in sample]:
                raise KeyError(
                    f"pack: a document has the fields {list(sample)}, wanted {missing} too. Name the tokens' field: tokens=."
                )
            document = {**sample, **{name: _as_array(sample[name], name) for name in (self.tokens, *self.fields)}}
            length = len(document[self.tokens])
            for name in self.fields:
                if len(document[name]) != length:
                    raise ValueError(
                        f"pack: field {name!r} has length {len(document[name])}, wanted {length} as the tokens have."
                    )
        if self.too_long == "split" and self.length(document) > self.row_length:
            check_can_be_cut(document, "pack: a document")
        if self.too_long == "error" and self.length(document) > self.row_length:
            raise ValueError(
                f"pack: a document has {self.length(document):,} tokens, wanted at most row_length={self.row_length:,}. Give "
                "too_long='split' or 'drop'."
            )
        return document

    def length(self, document: Any) -> int:
        """Return the number of tokens of a document."""
        return len(document[self.tokens] if isinstance(document, dict) else document)

    def piece(self, document: object, start: int, stop: int) -> object:
        """Return a document with a copy of the tokens from `start` to `stop`. A view would keep the whole in memory."""

        def cut(values: Any) -> object:
            part = values[start:stop]
            return part.clone() if isinstance(part, Tensor) else part.copy()

        if not isinstance(document, dict):
            return cut(document)
        return {**document, **{name: cut(document[name]) for name in (self.tokens, *self.fields)}}


def batches_cannot_be_packed() -> ValueError:
    """Return the error for an attempt to pack batches."""
    return ValueError(
        "pack: the samples are batches, wanted documents. Pack before: pack(...).batch(...), or make a document of each batch: "
        "batch(..., collate_fn=list).map(join).pack(...)."
    )


class _Document(NamedTuple):
    place: Place  # of the lane below, before this document
    pending: PendingSample
    sample: Any  # the document, what is left of it, or Failed
    length: int


class _PackedLane(PulledLane):
    def __init__(self, below: Below, rows: Rows, spec: LaneSpec) -> None:
        super().__init__()
        place = spec.place
        self._rows, self._spec, self._step = rows, spec, Step(rows.document)
        self._keys = ("row", below.seed, place.cycle, spec.lane, *spec.path)
        self._made = place.position  # rows
        self._cut = place.used  # rows made of the document being cut, or to skip of the next long one after a resume
        self._cutting: _Document | None = None  # the document being cut; counts as unread until only its end is left
        self._next = 0  # number of the next document, counted from where this lane was opened
        self._waiting: dict[int, _Document] = {}  # by number
        self._fitting: list[tuple[int, int]] = []  # their lengths and negative numbers, sorted
        self._tokens = 0  # in the waiting documents
        self._failed: deque[int] = deque()  # documents that wait to be reported
        self._read: deque[_Document] = deque()  # documents read ahead
        inner, read, words = Place(place.cycle), 0, list[int]()
        if place.inner:
            start = place.inner[0] + 1
            inner, read, words = Place(*place.inner[1:start]), place.inner[start], place.inner[start + 1 :]
        self._below = below.open(spec.lane, inner, spec.path, spec.policy)
        self._restore(read, words)

    def _source_place(self) -> Place:
        first = next(iter(self._waiting), self._next)
        following = self._waiting.get(first) or self._cutting or (self._read[0] if self._read else None)
        inner, read = following.place if following else self._below.place, self._next - first
        words = [0] * -(-read // _BITS)
        for number in self._waiting:
            word, bit = divmod(number - first, _BITS)
            words[word] |= 1 << bit
        return Place(self._spec.place.cycle, 0, 0, self._cut, self._made, len(inner), *inner, read, *words)

    def _pull(self, count: int) -> list[PendingSample]:
        rows = self._rows
        while True:
            if self._failed:
                failed = self._waiting.pop(self._failed.popleft())
                return [failed.pending._replace(sample=failed.sample, steps=())]
            if self._cutting is not None:
                return [self._cut_row(self._cutting)]
            enough = len(self._waiting) >= rows.waiting and self._tokens >= _ROWS * rows.row_length
            if enough or not self._look_at_next():
                return [self._best_row()] if self._waiting else []

    def _look_at_next(self) -> bool:
        """Let the next document wait for a row, or begin to cut it. Return False at the end."""
        if not self._read:
            self._read += self._documents(self._read_below(_TOGETHER))
        if not self._read:
            return False
        document, long = self._read.popleft(), self._rows.row_length
        if document.length > long and self._rows.too_long == "split":
            self._cutting = document
        self._check_cut(document)
        if self._cutting is None:
            self._wait(document)
        return True

    def _wait(self, document: _Document) -> None:
        """Let a document wait for a row, unless it is empty or too long."""
        number, self._next = self._next, self._next + 1
        if type(document.sample) is Failed:
            self._failed.append(number)
        elif 0 < document.length <= self._rows.row_length:
            insort(self._fitting, (document.length, -number))
            self._tokens += document.length
        else:
            return
        self._waiting[number] = document

    def _cut_row(self, document: _Document) -> PendingSample:
        """Make a row of a long document's next piece. After its last full row, the rest waits for another row."""
        length = self._rows.row_length
        row = self._rows.piece(document.sample, self._cut * length, (self._cut + 1) * length)
        self._cut += 1
        if self._cut == document.length // length:
            self._cutting, self._cut = None, 0
            self._wait(self._end_of(document))
        return self._row([document._replace(sample=row)])

    def _end_of(self, document: _Document) -> _Document:
        """Return the rest of a document after its full rows, shorter than a row."""
        whole, length = document.length, document.length % self._rows.row_length
        return document._replace(sample=self._rows.piece(document.sample, whole - length, whole), length=length)

    def _best_row(self) -> PendingSample:
        """Make a row of the document that has waited longest, and then of the longest ones that still fit."""
        number: int | None = next(iter(self._waiting))
        row, free = [], self._rows.row_length
        while number is not None:
            document = self._waiting.pop(number)
            del self._fitting[bisect_right(self._fitting, (document.length, -number)) - 1]
            row.append(document)
            free -= document.length
            best = bisect_right(self._fitting, (free, 1)) - 1
            number = -self._fitting[best][1] if best >= 0 else None
        self._tokens -= self._rows.row_length - free
        return self._row(row)

    def _row(self, documents: Sequence[_Document]) -> PendingSample:
        seed = int(hash_positions(np.array([self._made], dtype=np.int64), *self._keys)[0])
        self._made += 1
        first = documents[0].pending
        return PendingSample(
            [document.sample for document in documents], seed, first.shard, first.number, self._spec.steps
        )

    def _read_below(self, count: int) -> list[tuple[Place, PendingSample]]:
        """Read up to `count` samples of the lane below, each with its place."""
        found: list[tuple[Place, PendingSample]] = []
        self._below.fill(count)
        while len(found) < count:
            place, pending = self._below.place, self._below.take(1)
            if not pending:
                break
            found.append((place, pending[0]))
        return found

    def _documents(self, read: Sequence[tuple[Place, PendingSample]]) -> Iterable[_Document]:
        """Apply the samples' steps, and make documents of them."""
        steps = [pending._replace(steps=(*pending.steps, self._step)) for _, pending in read]
        with seeds_of(steps) as seeds:
            samples = [apply_steps(each, seeds, row, self._spec.policy) for row, each in enumerate(steps)]
        for (place, pending), sample in zip(read, samples, strict=True):
            yield _Document(place, pending, sample, 0 if type(sample) is Failed else self._rows.length(sample))

    def _restore(self, read: int, words: Sequence[int]) -> None:
        """Read the waiting documents again after a resume. `words` has a bit for each of the next `read` documents."""
        while self._next < read:
            found = self._read_below(min(_TOGETHER, read - self._next))
            if not found:
                raise self._changed(f"{read:,} documents were read, and now there are {self._next:,}")
            numbers = range(self._next, self._next + len(found))
            waits = [bool(words[number // _BITS] >> number % _BITS & 1) for number in numbers]
            documents = iter(self._documents([each for each, wanted in zip(found, waits, strict=True) if wanted]))
            for wanted in waits:
                if not wanted:
                    self._next += 1
                    continue
                document = next(documents)
                self._wait(self._end_of(document) if document.length > self._rows.row_length else document)

    def _check_cut(self, document: _Document) -> None:
        """Raise a ValueError for a document that has become shorter than the rows already made of it."""
        if type(document.sample) is Failed:
            self._cut = 0
        elif self._cut and self._cut >= document.length // self._rows.row_length:
            pending = document.pending
            raise self._changed(
                f"{self._cut:,} row{'s' * (self._cut > 1)} of sample {pending.number} of shard {pending.shard!r} "
                f"{'were' if self._cut > 1 else 'was'} used, and now the sample has {document.length:,} tokens"
            )

    @staticmethod
    def _changed(what: str) -> ValueError:
        return ValueError(
            f"cannot resume: {what}. The data or the tokenizer has changed: restore it, or start a new epoch with "
            "loader.seek(epoch=...)."
        )


def _as_array(value: object, name: str) -> object:
    """Return a field of a document as an array or tensor (T, *); raise a ValueError if it is not numbers."""
    try:
        found = value if isinstance(value, np.ndarray | Tensor) else np.asarray(value)
    except ValueError:  # lists of different lengths
        found = None
    if found is None or not found.ndim or (isinstance(found, np.ndarray) and found.dtype.kind not in "iufb"):
        raise ValueError(
            f"pack: the {name!r} of a document are a {type(value).__name__} ({value!r:.60}), wanted a list or array of numbers. "
            "Tokenize before: stream.map(tokenize).pack(...)."
        )
    return found
