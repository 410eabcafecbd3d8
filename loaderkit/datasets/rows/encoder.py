"""Turn a record into a row of tokens: what the encoders of conversations, pairs and documents share."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from loaderkit.datasets.base import Sample
from loaderkit.datasets.hf import HFDataset, is_theirs
from loaderkit.datasets.rows.messages import Columns
from loaderkit.datasets.rows.named_rows import NamedRows
from loaderkit.datasets.rows.parts import Part
from loaderkit.datasets.rows.pictures import Placeholders, Row
from loaderkit.datasets.rows.template import Mask
from loaderkit.sampling.fingerprint import fingerprint
from loaderkit.seeding.draws import draws_nothing
from loaderkit.system.arrays import Int64Array
from loaderkit.system.overrides import is_map_style

IGNORED = -100  # the default ignore_index of torch's cross_entropy
Cut = Literal["error", "truncate_right", "truncate_left"]


class EncodedDataset(NamedRows[Sample]):
    """Records with an encoder as the transform. The encoder's settings are part of the dataset's fingerprint."""

    def fingerprint(self) -> str:
        """Return a digest of the source, the tokenizer, the template and all settings."""
        return f"{fingerprint(self.dataset, len(self.dataset))}, {self._encoder}"

    @functools.cached_property
    def _encoder(self) -> str:
        return str(self.transform.fingerprint())  # type: ignore[attr-defined]  # each encoder has one


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSettings:
    """The settings that all datasets of rows share: names of columns, length of a row, and pictures.

    Args:
        owner: The dataset's name, for messages.
        columns: Finds the fields of a record.
        max_length: Largest number of tokens in a row; None for any.
        too_long: What happens to a longer row.
        placeholders: Puts pictures into rows; None for data without pictures.
    """

    owner: str
    columns: Columns
    max_length: int | None
    too_long: str
    placeholders: Placeholders | None

    @classmethod
    def of(
        cls,
        owner: str,
        *,
        known: Sequence[str],
        columns: Mapping[str, str] | None,
        max_length: int | None,
        too_long: str,
        cuts: Sequence[str],
        placeholders: Placeholders | None,
    ) -> "RowSettings":
        """Check a user's arguments, and return them as settings.

        `known` are the standard names of columns, and `cuts` the allowed values of `too_long`.

        Raises:
            ValueError: If an argument is out of range.
        """
        check_cut(owner, max_length, too_long, cuts)
        return cls(
            owner=owner,
            columns=Columns(known=tuple(known), names=dict(columns or {}), owner=owner),
            max_length=max_length,
            too_long=too_long,
            placeholders=placeholders,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RowEncoder(ABC):
    """A function from a record to a sample: one row of tokens, or several, with labels and pictures."""

    settings: RowSettings

    @property
    def owner(self) -> str:
        """The dataset's name, for messages."""
        return self.settings.owner

    @property
    def columns(self) -> Columns:
        """Finds the fields of a record by their standard names."""
        return self.settings.columns

    @property
    def placeholders(self) -> Placeholders | None:
        """Puts pictures into rows; None for data without pictures."""
        return self.settings.placeholders

    @abstractmethod
    def read(self, record: object) -> tuple[Any, list[Part]]:
        """Return the content of a record in the encoder's own form, and the references of its pictures."""

    @abstractmethod
    def row(self, content: Any, sizes: list[tuple[int, int]]) -> tuple[Any, slice]:
        """Return the row of a content, and which of its pictures are left in the row.

        `sizes` are the pictures' heights and widths. A subclass may return several rows, which its own `sample` takes.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a string with digests of all settings that affect the rows."""

    def sample(self, row: Any) -> dict[str, Any]:
        """Encode a row as a sample without the row's pictures."""
        return labelled(row.ids, row.mask, self.owner)

    def length(self, sample: dict[str, Any]) -> int:
        """Return the number of tokens that a sample takes in a batch."""
        return len(sample["input_ids"])

    def cut(self, row: Row) -> tuple[Row, slice]:
        """Return the row, cut if it is too long, and which pictures are left; raise a ValueError for "error"."""
        most = self.settings.max_length
        if most is None or len(row.ids) <= most:
            return row, slice(None)
        if self.settings.too_long == "error":
            raise self.too_many(len(row.ids), most)
        return row.kept(most, self.settings.too_long)

    def too_many(self, length: int, most: int, where: str = "") -> ValueError:
        """Return the error for a sample that is too long."""
        found = f"a sample has {length:,} tokens {where}".rstrip()
        return ValueError(
            f"{self.owner}: {found}, over max_length={most:,}. Cut it: too_long='truncate_right'. Or leave it out: "
            "lk.BadSamples('skip'), or too_long='drop' of a plan, without max_length here."
        )

    def spread(self, ids: Int64Array, mask: Mask, sizes: list[tuple[int, int]]) -> Row:
        """Return the row of token ids (n,) with one placeholder for each picture; `mask` (n,) is what to train on."""
        if self.placeholders is None:
            return Row(ids, mask, np.empty((0, 2), dtype=np.int64))
        return self.placeholders.spread(ids, mask, sizes)

    def __call__(self, record: object) -> dict[str, Any]:
        content, parts = self.read(record)
        images = self.placeholders.decode(parts) if self.placeholders else []
        row, left = self.row(content, [(image.shape[1], image.shape[2]) for image in images])
        sample = self.sample(row)
        return {**sample, "images": images[left]} if self.placeholders else sample

    def count(self, record: object) -> int:
        """Return the number of tokens of a record's sample. Only the headers of pictures are read."""
        content, parts = self.read(record)
        row, _ = self.row(content, self.placeholders.measure(parts) if self.placeholders else [])
        return self.length(self.sample(row))

    def _pictures(self) -> str:
        """Return the settings of pictures for a fingerprint; empty without pictures."""
        return "" if self.placeholders is None else f", {self.placeholders.name}"


@dataclass(frozen=True, slots=True)
class _Count:
    """A function from a record to its number of tokens."""

    encoder: RowEncoder

    @property
    def draws_nothing(self) -> bool:
        return draws_nothing(self.encoder)

    def __call__(self, record: object) -> int:
        return self.encoder.count(record)

    def fingerprint(self) -> str:
        return f"tokens of {self.encoder.fingerprint()}"


class RowDataset(EncodedDataset[dict[str, Any]]):
    """Records whose transform is a `RowEncoder`."""

    def counted(self) -> EncodedDataset[int]:
        """Return a dataset whose samples are numbers of tokens; `measure_lengths` reads it instead of this one."""
        return EncodedDataset(self.dataset, _Count(self.transform))  # type: ignore[arg-type]  # it is called as a transform is


def records_of(source: object, owner: str) -> Any:
    """Return a source of records as a dataset. A `datasets.Dataset` is wrapped, which gives it a fingerprint."""
    if is_theirs(source):
        return HFDataset(source)
    if isinstance(source, str | Mapping) or not is_map_style(source):
        raise TypeError(
            f"{owner}: the source is of type {type(source).__name__}, wanted records by index. For files: "
            "lk.JsonlDataset(path) or lk.ParquetDataset(path)."
        )
    return source


def labelled(ids: Int64Array, mask: Mask, owner: str) -> dict[str, Tensor]:
    """Return a sample of token ids (T,), with labels where the mask is true and -100 elsewhere.

    Raises:
        ValueError: If no token is left to train on. The first one never is.
    """
    labels = np.where(mask, ids, IGNORED)
    labels[:1] = IGNORED
    if not (labels != IGNORED).any():
        raise ValueError(
            f"{owner}: none of the {len(ids):,} tokens is left to train on. Raise max_length=, or skip it."
        )
    return {"input_ids": torch.from_numpy(ids.copy()), "labels": torch.from_numpy(labels)}


def check_choice(owner: str, name: str, found: str, known: Sequence[str]) -> None:
    """Raise a ValueError if setting `name` is not one of the `known` values."""
    if found not in known:
        hint = " To drop samples, measure lengths and give too_long='drop' to a plan." if found == "drop" else ""
        raise ValueError(f"{owner}: {name} is {found!r}, wanted one of {', '.join(map(repr, known))}.{hint}")


def check_cut(owner: str, max_length: int | None, too_long: str, known: Sequence[str]) -> None:
    """Raise a ValueError if `max_length` or `too_long` is out of range, or the two do not fit together."""
    check_choice(owner, "too_long", too_long, known)
    if max_length is not None and (not isinstance(max_length, int | np.integer) or max_length < 2):
        raise ValueError(f"{owner}: max_length is {max_length!r}, wanted an integer of at least 2.")
    if max_length is None and too_long != "error":
        raise ValueError(f"{owner}: too_long is {too_long!r} without max_length=, wanted the most tokens of a sample.")
