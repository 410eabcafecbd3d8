"""Packing: several sequences in one row without padding between them, with the positions that keep them apart."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from numbers import Number
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from loaderkit.collate.padding import scatter
from loaderkit.collate.rules import check_dtype
from loaderkit.collate.sequences import FieldSequences, check_value, sequences_of
from loaderkit.seeding.draws import draws_nothing, thread_safe
from loaderkit.system.arrays import Int64Array
from loaderkit.system.checks import check_integer
from loaderkit.system.stack import CollateError, named, stack_field


@dataclass(frozen=True, kw_only=True, slots=True)
class PackCollate:
    """Put sequences one after another into rows.

    A call takes a list of samples, which make one row. Or it takes a list of R rows, each a list of samples, as a
    `PackPlan` makes them. Samples are dicts, tuples or sequences. Samples that are lists must hold numbers. In a plain
    tuple, the first part is the tokens, and the other parts are named by their position: (tokens, label) gives
    `batch["tokens"]` and `batch[1]`.

    The batch is a dict:

    - `tokens` (R, T), in their dtype or in `dtype`.
    - `position_ids` (R, T) int64: counts from 0 in each sequence.
    - `document_ids` (R, T) int32: the number of the sequence in its row, -1 at padding.
    - `cu_seqlens` (S + 1,) int32: where each of S sequences begins in the R * T steps of all rows, and R * T, for
      variable-length attention. The padding of a row counts as a sequence here.
    - `max_seqlen`: the length of the longest sequence, an int.
    - `labels` (R, T) int64.

    Args:
        tokens: The field with the sequences.
        row_length: Steps in each row, padding included. None means as many as the longest row has.
        multiple_of: Round the longest row up to this many steps. Not with `row_length`.
        pad_value: Fills a row after its last sequence.
        dtype: The dtype of the result's tokens, such as torch.int64 for tokens of uint16. None keeps the dtype.
        labels: "next": the next token of the sequence, for a model that compares position by position. "same": the token
            itself, for a model that shifts labels (Hugging Face). None: no labels. Padding and the last token of a sequence
            ("same": its first) get `ignore_index`.
        ignore_index: The label that a loss ignores.
        fields: Other fields with one value for each token, and the value that pads them: {"weights": 0}. Or a function from the
            list of all samples' values, such as `Patches`. Fields not named here are stacked over all samples.

    Raises:
        CollateError: If sequences do not fit together, or a row is longer than `row_length`. The message names the
            samples.

    Examples:
        >>> batch = lk.PackCollate(row_length=4)([[[5, 6], [7]]])
        >>> batch["tokens"].tolist(), batch["labels"].tolist()
        ([[5, 6, 7, 0]], [[6, -100, -100, -100]])
        >>> batch["document_ids"].tolist(), batch["cu_seqlens"].tolist()
        ([[0, 0, 1, -1]], [0, 2, 3, 4])
    """

    tokens: str = "tokens"
    row_length: int | None = None
    multiple_of: int = 1
    pad_value: float = 0
    labels: Literal["next", "same"] | None = "next"
    ignore_index: int = -100
    fields: Mapping[Any, float | Callable[[list[Any]], object]] = field(default_factory=dict)
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        for name, number in (("row_length", self.row_length), ("multiple_of", self.multiple_of)):
            if number is not None:
                check_integer("PackCollate", name, number, 1)
        rules = self.fields.values() if isinstance(self.fields, Mapping) else [None]
        if not isinstance(self.pad_value, Number) or not all(
            isinstance(rule, Number) or callable(rule) for rule in rules
        ):
            raise TypeError(
                f"PackCollate: pad_value is {self.pad_value!r} and fields {self.fields!r}, wanted a number, and one for each "
                "field, such as {'weights': 0}, or a function."
            )
        check_dtype(self.dtype, "PackCollate")
        if self.row_length is not None and self.multiple_of != 1:
            raise ValueError("PackCollate: both row_length and multiple_of are given, wanted one of them.")
        if self.labels not in ("next", "same", None):
            raise ValueError(f"PackCollate: labels is {self.labels!r}, wanted 'next', 'same' or None.")
        if self.labels and "labels" in self.fields:
            raise ValueError(f"PackCollate: labels is {self.labels!r} and fields has 'labels' too. Wanted labels=None.")

    @property
    def draws_nothing(self) -> bool:
        """Whether all functions in `fields` declare that they draw no random numbers, by their own `draws_nothing`."""
        return all(isinstance(rule, Number) or draws_nothing(rule) for rule in self.fields.values())

    @property
    def thread_safe(self) -> bool:
        """Whether all functions in `fields` declare that threads may use them at the same time, by their own `thread_safe`."""
        return all(isinstance(rule, Number) or thread_safe(rule) for rule in self.fields.values())

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        rows = list(samples) if _are_rows(samples) else [samples]
        if not all(map(len, rows)):
            raise ValueError(f"PackCollate: row {list(map(len, rows)).index(0)} has no samples, wanted at least one.")
        flat = [sample for row in rows for sample in row]
        bounds = np.array([0, *accumulate(map(len, rows))])
        return self._pack(self._columns(flat), bounds)

    def _columns(self, samples: list[Any]) -> dict[str, list[object]]:
        """Return for each field the list of its values, one for each sample."""
        first = samples[0]
        if isinstance(first, Mapping):
            names = first.keys()
            for place, sample in enumerate(samples):
                if not isinstance(sample, Mapping) or sample.keys() != names:
                    raise CollateError(f"PackCollate: samples have keys {list(names)} and {_keys(sample)}", [0, place])
            return {name: [sample[name] for sample in samples] for name in names}
        if not isinstance(first, tuple):
            return {self.tokens: samples}
        for place, sample in enumerate(samples):
            if not isinstance(sample, tuple) or len(sample) != len(first):
                found = len(sample) if isinstance(sample, tuple) else type(sample).__name__
                raise CollateError(f"PackCollate: samples have {len(first)} parts and {found}", [0, place])
        parts = getattr(first, "_fields", (self.tokens, *range(1, len(first))))
        return dict(zip(parts, map(list, zip(*samples, strict=True)), strict=True))

    def collate_batch(self, batch: Any, rows: Int64Array | None = None) -> dict[str, Any]:
        """Collate what a dataset's `read_batch` returns.

        Args:
            batch: A `Ragged`, or a dict with a `Ragged` for each sequence field.
            rows: The number of each row's first sample, then the number of samples (R + 1,). None means one row of all
                samples.
        """
        columns = batch if isinstance(batch, Mapping) else {self.tokens: batch}
        bounds = np.array([0, len(columns[self.tokens].offsets) - 1]) if rows is None else rows
        return self._pack(columns, bounds)

    def _pack(self, columns: Mapping[str, Any], bounds: Int64Array) -> dict[str, object]:
        missing = [name for name in (self.tokens, *self.fields) if name not in columns]
        if missing:
            raise KeyError(
                f"PackCollate: the samples have fields {list(columns)}, wanted {missing} too. Name the field of the tokens by "
                "tokens=, and other fields with a value for each token by fields=."
            )
        sequences = sequences_of(columns[self.tokens], self.tokens, "PackCollate")
        layout = _Layout(sequences.lengths, bounds, self._steps(sequences.lengths, bounds))
        tokens = self._row_by_row(sequences, layout, self.pad_value, self.dtype)
        made: dict[str, object] = {self.tokens: tokens, **layout.describe()}
        if self.labels:
            made["labels"] = self._label(tokens, layout)
        for name, values in columns.items():
            if name != self.tokens and name in made:
                raise KeyError(f"PackCollate: the samples have a field '{name}', which packing adds. Rename theirs.")
            rule = self.fields.get(name)
            if callable(rule):
                try:
                    made[name] = rule(values)
                except CollateError as error:
                    raise CollateError(f"{error} (in {named(str(name))})", error.rows) from error
            elif rule is not None:
                other = sequences_of(values, str(name), "PackCollate")
                self._check_lengths(name, other.lengths, sequences.lengths)
                made[name] = self._row_by_row(other, layout, rule)
            elif name != self.tokens:
                made[name] = stack_field(values, str(name)) if isinstance(values, list) else values
        return made

    def _steps(self, lengths: list[int], bounds: Int64Array) -> int:
        totals = np.diff(np.array([0, *accumulate(lengths)])[bounds])
        if self.row_length is None:
            return -(-int(totals.max()) // self.multiple_of) * self.multiple_of
        for row in np.flatnonzero(totals > self.row_length).tolist():
            raise CollateError(
                f"PackCollate: row {row} has {totals[row]} steps, wanted at most row_length={self.row_length}",
                range(int(bounds[row]), int(bounds[row + 1])),
            )
        return self.row_length

    @staticmethod
    def _row_by_row(
        sequences: FieldSequences, layout: "_Layout", value: float, dtype: torch.dtype | None = None
    ) -> Tensor:
        check_value(value, dtype or sequences.like.dtype, sequences.field, "PackCollate")
        if sum(sequences.lengths) < layout.there.size:
            return scatter(sequences.join(copy=False).to(dtype), layout.there, value)
        return sequences.join(copy=dtype is None).to(dtype).view(layout.rows, layout.steps, *sequences.like.shape[1:])

    def _label(self, tokens: Tensor, layout: "_Layout") -> Tensor:
        if tokens.ndim != 2 or tokens.is_floating_point():
            raise CollateError(
                f"PackCollate: labels={self.labels!r} of tokens {tuple(tokens.shape)} {tokens.dtype}, wanted whole numbers (R, T). "
                "For other sequences use labels=None"
            )
        flat = tokens.reshape(-1).cpu().numpy()
        labels = flat.astype(np.int64)
        if self.labels == "next":
            labels[:-1] = flat[1:]
        labels[layout.borders(last=self.labels == "next")] = self.ignore_index
        labels[layout.documents < 0] = self.ignore_index
        return torch.from_numpy(labels).view(tokens.shape)

    @staticmethod
    def _check_lengths(name: str, found: list[int], wanted: list[int]) -> None:
        wrong = [row for row, (here, there) in enumerate(zip(found, wanted, strict=True)) if here != there]
        if wrong:
            row = wrong[0]
            raise CollateError(
                f"PackCollate: field '{name}' has length {found[row]}, wanted {wanted[row]} as the tokens have", wrong
            )


class _Layout:
    """Where N sequences lie in R rows of T steps."""

    def __init__(self, lengths: list[int], bounds: Int64Array, steps: int) -> None:
        self.rows, self.steps = len(bounds) - 1, steps
        sizes, last = np.array(lengths, dtype=np.int64), bounds[1:] - 1
        gaps = np.zeros(len(lengths), dtype=np.int64)
        gaps[last] = steps - np.diff(np.concatenate([[0], np.cumsum(sizes)])[bounds])
        padded = last[gaps[last] > 0]
        numbers = np.arange(len(lengths)) - np.repeat(bounds[:-1], np.diff(bounds))
        # The padding of a row is a sequence too, with the number -1.
        self.sizes = np.insert(sizes, padded + 1, gaps[padded])
        self.ends = np.cumsum(self.sizes)
        self.documents = np.repeat(np.insert(numbers, padded + 1, -1), self.sizes).astype(np.int32)
        self.there = (self.documents >= 0).reshape(self.rows, self.steps)

    def borders(self, *, last: bool) -> Int64Array:
        """Return where in the R * T steps each sequence that is not empty has its first or last token."""
        some = self.sizes > 0
        places: Int64Array = (self.ends - 1 if last else self.ends - self.sizes)[some]
        return places

    def describe(self) -> dict[str, object]:
        positions = np.arange(self.rows * self.steps) - np.repeat(self.ends - self.sizes, self.sizes)
        return {
            "position_ids": torch.from_numpy(positions).view(self.rows, self.steps),
            "document_ids": torch.from_numpy(self.documents).view(self.rows, self.steps),
            "cu_seqlens": torch.from_numpy(np.concatenate([[0], self.ends]).astype(np.int32)),
            "max_seqlen": int(self.sizes.max(initial=0)),
        }


def unpack(batch: Mapping[str, Any], name: str = "tokens") -> list[Tensor]:
    """Return the sequences of a packed batch as views, in their order.

    Args:
        batch: A batch of `PackCollate`.
        name: The field to unpack, (R, T, *). Add a model's output to the batch to unpack that.

    Examples:
        >>> batch = lk.PackCollate(row_length=4)([[[5, 6], [7]]])
        >>> [tokens.tolist() for tokens in lk.unpack(batch)]
        [[5, 6], [7]]
    """
    documents, ends = batch["document_ids"].reshape(-1), batch["cu_seqlens"].tolist()
    flat = batch[name].flatten(0, 1)
    return [flat[low:high] for low, high in pairwise(ends) if low == high or int(documents[low]) >= 0]


def document_mask(document_ids: Tensor, *, causal: bool = True) -> Tensor:
    """Return the mask that keeps attention within each sequence.

    The mask is (R, 1, T, T) bool, true where attention is allowed. Pass it to
    `torch.nn.functional.scaled_dot_product_attention` as `attn_mask`.

    Args:
        document_ids: (R, T), from `PackCollate`.
        causal: Whether to hide later steps too.

    Examples:
        >>> lk.document_mask(torch.tensor([[0, 0, 1]]))[0, 0].int().tolist()
        [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    mask = document_ids[:, None, :, None] == document_ids[:, None, None, :]
    return mask.tril() if causal else mask


def _are_rows(samples: Sequence[Any]) -> bool:
    """Decide whether these are rows of samples: lists of anything but numbers."""
    if not all(isinstance(sample, list) for sample in samples):
        return False
    first = next((sample[0] for sample in samples if sample), 0)
    return not isinstance(first, Number | np.generic) and not (isinstance(first, Tensor) and first.ndim == 0)


def _keys(sample: object) -> list[object] | str:
    return list(sample) if isinstance(sample, Mapping) else type(sample).__name__
