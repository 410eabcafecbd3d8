"""The pictures of a row of tokens: how many tokens each takes, which stand for it, and where a row may be cut."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from torch import Tensor

from loaderkit.datasets.images.checks import MAX_PIXELS
from loaderkit.datasets.images.decoders import PictureDecoder, decoder_fingerprint
from loaderkit.datasets.rows.files import FileReader
from loaderkit.datasets.rows.named_rows import naming
from loaderkit.datasets.rows.parts import Part
from loaderkit.files.storage import Storage
from loaderkit.system.arrays import Int64Array

T = TypeVar("T")


class CountsTokens(Protocol):
    """Says how many tokens a picture takes, as `Patches` does."""

    def tokens_of(self, height: int, width: int) -> int:
        """Return the number of tokens of a picture of this size in pixels."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """How datasets read pictures, and which tokens stand for them.

    For `MultimodalDataset`, `ChatDataset` and `PreferenceDataset`. The row has one placeholder for each token that the
    model makes of a picture. Labels are -100 there. A row is never cut inside a picture, nor between a picture and its
    `before` or `after`.

    Args:
        patches: Says how many tokens a picture takes: the `Patches` that collate the pictures, or any object with
            `tokens_of(height, width)`.
        placeholder: The token that stands for a picture: its text or its id. A chat template writes it once for each
            picture.
        before: A token before each picture. `MultimodalDataset` writes it; a chat template does so itself.
        after: A token after each picture.
        root: The folder or URL that relative paths are relative to, as for `MediaDataset`.
        storage: How to reach URLs, and where to keep copies.
        outside: Whether rows may name local files outside the root.
        max_pixels: The largest picture to decode, width times height; None for any.
        decoder: What decodes JPEG, as for `ImageFolder`.

    Raises:
        ValueError: If `max_pixels` or `decoder` is out of range.

    Examples:
        >>> pictures = lk.Pictures(lk.Patches(size=14, merge=2), placeholder=256, root="pictures")
        >>> rows = [{"content": ["red: ", {"type": "image", "image": torch.zeros(3, 30, 60, dtype=torch.uint8)}]}]
        >>> lk.MultimodalDataset(rows, str.encode, pictures)[0]["input_ids"]
        tensor([114, 101, 100,  58,  32, 256, 256])
    """

    patches: CountsTokens
    _: dataclasses.KW_ONLY
    placeholder: str | int
    before: str | int | None = None
    after: str | int | None = None
    root: str | os.PathLike[str] = "."
    storage: Storage | None = None
    outside: bool = False
    max_pixels: int | None = MAX_PIXELS
    decoder: PictureDecoder | None = None

    def __post_init__(self) -> None:
        self.reader("Pictures")

    def reader(self, owner: str) -> FileReader:
        """Return the reader of the pictures' files. `owner` is the dataset's name, for messages."""
        return FileReader(
            owner=owner,
            root=self.root,
            storage=self.storage,
            outside=self.outside,
            max_pixels=self.max_pixels,
            decoder=self.decoder,
        )

    def fingerprint(self) -> str:
        """Return the settings that affect tokens, and the decoder if its pixels may differ from the default's."""
        cost = repr(self.patches) if dataclasses.is_dataclass(self.patches) else type(self.patches).__qualname__
        return (
            f"pictures of {cost} as {self.before}, {self.placeholder}, {self.after}{decoder_fingerprint(self.decoder)}"
        )


class Row(NamedTuple):
    """A row of token ids (n,), a mask of those to train on (n,) bool, and start and end of its P pictures (P, 2)."""

    ids: Int64Array
    mask: Any
    spans: Int64Array

    def kept(self, length: int, too_long: str) -> tuple["Row", slice]:
        """Return the row cut to at most `length` tokens, never inside a picture, and which pictures are left."""
        start, stop = (len(self.ids) - length, len(self.ids)) if too_long == "truncate_left" else (0, length)
        for low, high in self.spans.tolist():
            if low < start < high:
                start = high
            if low < stop < high:
                stop = low
        first, last = np.searchsorted(self.spans[:, 0], (start, stop)).tolist()
        return Row(self.ids[start:stop], self.mask[start:stop], self.spans[first:last] - start), slice(first, last)


@dataclass(frozen=True, kw_only=True, slots=True)
class Placeholders:
    """Reads pictures, and puts their tokens into rows.

    Args:
        owner: The dataset's name, for messages.
        files: Reads the pictures.
        patches: Says how many tokens a picture takes.
        placeholder: The id that stands for each token of a picture.
        around: The ids before and after a picture; None for no such token.
        name: The settings as a string, for a fingerprint.
    """

    owner: str
    files: FileReader
    patches: CountsTokens
    placeholder: int
    around: tuple[int | None, int | None]
    name: str

    @classmethod
    def of(cls, pictures: Pictures, tokenizer: Any, owner: str) -> "Placeholders":
        """Return the placeholders for a user's settings; raise a ValueError if the tokenizer lacks a token."""
        before, placeholder, after = (
            id_of(token, tokenizer, owner) for token in (pictures.before, pictures.placeholder, pictures.after)
        )
        if placeholder is None:
            raise ValueError(f"{owner}: the placeholder of pictures is None, wanted a token: its text, or its id.")
        return cls(
            owner=owner,
            files=pictures.reader(owner),
            patches=pictures.patches,
            placeholder=placeholder,
            around=(before, after),
            name=pictures.fingerprint(),
        )

    def decode(self, parts: Sequence[Part]) -> list[Tensor]:
        """Read the pictures, and return each as (3, H, W) uint8."""
        return [self._named(self.files.picture, part) for part in parts]

    def measure(self, parts: Sequence[Part]) -> list[tuple[int, int]]:
        """Return the heights and widths of pictures, from their headers."""
        return [self._named(self.files.size, part) for part in parts]

    def spread(self, ids: Int64Array, mask: object, sizes: Sequence[tuple[int, int]]) -> Row:
        """Return a row in which each picture's placeholder is repeated for each of its tokens.

        Args:
            ids: Token ids (n,) with one placeholder for each picture.
            mask: Which of the ids to train on (n,).
            sizes: Heights and widths of the pictures.

        Raises:
            ValueError: If there are more or fewer pictures than placeholders.
        """
        places = np.flatnonzero(ids == self.placeholder)
        if len(places) != len(sizes):
            raise ValueError(
                f"{self.owner}: a row has {len(places)} placeholders (id {self.placeholder}) and {len(sizes)} pictures, wanted one "
                "for each. The text may hold the placeholder itself, or the chat template may not write it."
            )
        costs = np.array([self._cost(*size) for size in sizes], dtype=np.int64)
        times = np.ones(len(ids), dtype=np.int64)
        times[places] = costs
        ends = np.cumsum(times)[places]
        starts, spread = ends - costs, np.repeat(ids, times)
        before, after = (np.zeros(0) if token is None else np.flatnonzero(spread == token) for token in self.around)
        spans = np.stack([starts - np.isin(starts - 1, before), ends + np.isin(ends, after)], axis=1)
        spans[1:, 0] = np.maximum(spans[1:, 0], spans[:-1, 1])  # two pictures may share the token between them
        return Row(spread, np.repeat(mask & (ids != self.placeholder), times), spans)

    def _cost(self, height: int, width: int) -> int:
        found = self.patches.tokens_of(height, width)
        if found < 1:
            raise ValueError(f"{self.owner}: a picture of {height} x {width} costs {found} tokens, wanted at least 1.")
        return found

    @staticmethod
    def _named(read: Callable[[Any], T], part: Part) -> T:
        place, file = part
        with naming(place):
            return read(file)


def id_of(token: str | int | None, tokenizer: object, owner: str) -> int | None:
    """Return the id of a token given as text or id; raise a ValueError if the tokenizer lacks the text."""
    if not isinstance(token, str):
        return token
    known = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}
    if token not in known:
        raise ValueError(f"{owner}: the tokenizer has no token {token!r}, wanted one that it has, or an id.")
    return int(known[token])
