"""Tokenized texts in one array in memory. A sample is a span of tokens."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from loaderkit.datasets.ragged import Ragged
from loaderkit.system.arrays import Int64Array
from loaderkit.system.digests import digest
from loaderkit.system.types import Array

Tokens = Array


class TokenSpans:
    """A dataset over spans of one token array; a sample is a dict with `tokens` (T,), and `label` if there are labels.

    `flat` holds all tokens. `starts`, `sizes` and `labels` (N,) describe the spans.
    """

    draws_nothing = thread_safe = True

    def __init__(self, flat: Tokens, starts: Int64Array, sizes: Int64Array, labels: Int64Array | None = None) -> None:
        self.flat, self.starts, self.sizes, self.labels = flat, starts, sizes, labels

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        start = self.starts[index]
        sample: dict[str, object] = {"tokens": self.flat[start : start + self.sizes[index]]}
        return sample if self.labels is None else {**sample, "label": int(self.labels[index])}

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]

    def read_batch(self, indices: Int64Array) -> dict[str, Any]:
        """Return a batch: the tokens as a `Ragged`, and the labels (B,) if there are any."""
        starts, sizes = self.starts[indices], self.sizes[indices]
        parts = [self.flat[start:end] for start, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)]
        offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]))
        batch: dict[str, object] = {"tokens": Ragged(torch.from_numpy(np.concatenate(parts)), offsets)}
        return batch if self.labels is None else {**batch, "label": torch.from_numpy(self.labels[indices])}

    def lengths(self) -> Int64Array:
        """Return the number of tokens (N,) in each span."""
        return self.sizes

    def fingerprint(self) -> str:
        """Return a digest of all tokens and spans."""
        labels = "" if self.labels is None else f", {digest(self.labels)}"
        return f"tokens {digest(self.flat)}, {digest(self.starts)}, {digest(self.sizes)}{labels}"

    def digests(self) -> list[str]:
        """Return a digest of each span's tokens: N strings of 32 hexadecimal digits."""
        ends = self.starts + self.sizes
        return [
            hashlib.blake2b(self.flat[start:end].tobytes(), digest_size=16).hexdigest()
            for start, end in zip(self.starts.tolist(), ends.tolist(), strict=True)
        ]

    def take(self, indices: Int64Array) -> "TokenSpans":
        """Return the spans at `indices` (B,), copied one after another into a new array."""
        parts = [self[index]["tokens"] for index in indices.tolist()]
        flat = np.concatenate([self.flat[:0], *parts])
        return end_to_end(flat, self.sizes[indices], None if self.labels is None else self.labels[indices])

    def cut_short(self, length: int) -> "TokenSpans":
        """Return the spans truncated to at most `length` tokens."""
        return TokenSpans(self.flat, self.starts, np.minimum(self.sizes, length), self.labels)

    def cut_up(self, length: int) -> "TokenSpans":
        """Return the spans cut into pieces of at most `length` tokens. Consecutive pieces share one token.

        So each token, except for a span's first, is the next-token target in exactly one piece.
        """
        step = length - 1
        counts = np.maximum(1, -(-(self.sizes - 1) // step))
        first = np.repeat(np.cumsum(counts) - counts, counts)
        inside = (np.arange(int(counts.sum())) - first) * step
        sizes = np.minimum(np.repeat(self.sizes, counts) - inside, length)
        labels = None if self.labels is None else np.repeat(self.labels, counts)
        return TokenSpans(self.flat, np.repeat(self.starts, counts) + inside, sizes, labels)

    def joined(self) -> "TokenSpans":
        """Return all tokens as one span."""
        whole = self if (self.starts[1:] == (self.starts + self.sizes)[:-1]).all() else self.take(np.arange(len(self)))
        return end_to_end(whole.flat, np.array([whole.sizes.sum()], dtype=np.int64), None)


def end_to_end(flat: Tokens, sizes: Int64Array, labels: Int64Array | None) -> TokenSpans:
    """Return spans of these sizes (N,) that follow each other in `flat`."""
    return TokenSpans(flat, np.cumsum(sizes) - sizes, sizes, labels)


def tokenize(
    texts: Iterable[str],
    tokenizer: Callable[[str], Any],
    *,
    vocab_size: int,
    end_token: int | None = None,
) -> TokenSpans:
    """Return the tokens of texts, in the smallest integer dtype that holds the vocabulary.

    Args:
        texts: One text per sample.
        tokenizer: Returns the tokens of a text: a list or array, a mapping with "input_ids" (Hugging Face), or an
            object with `ids` (the tokenizers library).
        vocab_size: Tokens must be from 0 to vocab_size - 1.
        end_token: Appended to each text.

    Raises:
        ValueError: If a text is not a string, or its tokens are not integers from 0 to vocab_size - 1.
    """
    dtype = np.min_scalar_type(max(vocab_size - 1, 0))
    parts, sizes = [np.empty(0, dtype)], []
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"tokenize: text {row:,} is {type(text).__name__}, wanted a string.")
        try:
            found = tokenizer(text)
        except Exception as error:
            error.add_note(f"loaderkit: raised by the tokenizer for text {row:,}.")
            raise
        found = found["input_ids"] if hasattr(found, "keys") else getattr(found, "ids", found)
        tokens = np.asarray(found)
        if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
            raise ValueError(
                f"tokenize: the tokenizer gave {type(found).__name__} {tokens.shape} {tokens.dtype} for text {row:,}, wanted "
                "a list of integers."
            )
        if tokens.size and (tokens.min() < 0 or tokens.max() >= vocab_size):
            raise ValueError(
                f"tokenize: text {row:,} has tokens from {tokens.min()} to {tokens.max()}, wanted 0 to {vocab_size - 1} "
                f"(vocab_size={vocab_size})."
            )
        parts.append(tokens.astype(dtype))
        if end_token is not None:
            parts.append(np.array([end_token], dtype))
        sizes.append(len(tokens) + (end_token is not None))
    return end_to_end(np.concatenate(parts), np.array(sizes, dtype=np.int64), None)
