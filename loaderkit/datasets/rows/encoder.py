"""From a record to its row of tokens: what the encoders of conversations, pairs and documents have in common."""

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
    """Records with an encoder that has a fingerprint of its own."""

    def fingerprint(self) -> str:
        """Return a digest of the source, the tokenizer, the template and all settings."""
        return f"{fingerprint(self.dataset, len(self.dataset))}, {self._encoder}"

    @functools.cached_property
    def _encoder(self) -> str:
        return str(self.transform.fingerprint())  # type: ignore[attr-defined]  # each encoder has one


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSettings:
    """What each dataset of rows is told: where the fields of a record are, how long a row may be, and how pictures are read.

    Args:
        owner: The dataset's name, for messages.
        columns: The fields of a record.
        max_length: The most tokens of a row; None for any.
        too_long: What happens to a longer one.
        placeholders: Puts pictures into rows; None if there are none.
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
        """Return what a user's arguments say; `known` are the columns, and `cuts` the values of `too_long`.

        Raises:
            ValueError: If one of them is out of range.
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
    """A function from a record to its row of tokens, or to several, with labels and pictures."""

    settings: RowSettings

    @property
    def owner(self) -> str:
        """The dataset's name, for messages."""
        return self.settings.owner

    @property
    def columns(self) -> Columns:
        """The fields of a record."""
        return self.settings.columns

    @property
    def placeholders(self) -> Placeholders | None:
        """What puts pictures into rows; None if there are none."""
        return self.settings.placeholders

    @abstractmethod
    def read(self, record: object) -> tuple[Any, list[Part]]:
        """Return the content of a record, and its pictures."""

    @abstractmethod
    def row(self, content: Any, sizes: list[tuple[int, int]]) -> tuple[Any, slice]:
        """Return the row of a content whose pictures have these heights and widths, and which of them are left in it.

        A subclass may return several rows, for its own `sample`.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Return digests of all settings that decide the rows."""

    def sample(self, row: Any) -> dict[str, Any]:
        """Return the sample of a row, without its pictures."""
        return labelled(row.ids, row.mask, self.owner)

    def length(self, sample: dict[str, Any]) -> int:
        """Return the tokens that a sample takes in a batch."""
        return len(sample["input_ids"])

    def cut(self, row: Row) -> tuple[Row, slice]:
        """Return a row that is not too long, and which of its pictures are left; raise a ValueError if it may not be cut."""
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
        """Return the row of ids with one placeholder for each picture, and which of them to train on."""
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
        """Return the tokens of a record's sample. Of its pictures only the headers are read."""
        content, parts = self.read(record)
        row, _ = self.row(content, self.placeholders.measure(parts) if self.placeholders else [])
        return self.length(self.sample(row))

    def _pictures(self) -> str:
        """Return the settings of pictures, to go into a fingerprint."""
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
    """Records with a `RowEncoder`."""

    def counted(self) -> EncodedDataset[int]:
        """Return a dataset of the numbers of tokens: what `measure_lengths` reads instead of the samples."""
        return EncodedDataset(self.dataset, _Count(self.transform))  # type: ignore[arg-type]  # it is called as a transform is


def records_of(source: object, owner: str) -> Any:
    """Return a dataset of records, with a fingerprint if it is a `datasets.Dataset`."""
    if is_theirs(source):
        return HFDataset(source)
    if isinstance(source, str | Mapping) or not is_map_style(source):
        raise TypeError(
            f"{owner}: the source is of type {type(source).__name__}, wanted records by index. For files: "
            "lk.JsonlDataset(path) or lk.ParquetDataset(path)."
        )
    return source


def labelled(ids: Int64Array, mask: Mask, owner: str) -> dict[str, Tensor]:
    """Return a sample of the ids, with labels where the mask is true."""
    labels = np.where(mask, ids, IGNORED)
    labels[:1] = IGNORED
    if not (labels != IGNORED).any():
        raise ValueError(
            f"{owner}: none of the {len(ids):,} tokens is left to train on. Raise max_length=, or skip it."
        )
    return {"input_ids": torch.from_numpy(ids.copy()), "labels": torch.from_numpy(labels)}


def check_choice(owner: str, name: str, found: str, known: Sequence[str]) -> None:
    """Raise a ValueError for an unknown setting."""
    if found not in known:
        hint = " To drop samples, measure lengths and give too_long='drop' to a plan." if found == "drop" else ""
        raise ValueError(f"{owner}: {name} is {found!r}, wanted one of {', '.join(map(repr, known))}.{hint}")


def check_cut(owner: str, max_length: int | None, too_long: str, known: Sequence[str]) -> None:
    """Raise a ValueError for settings of the length that are out of range."""
    check_choice(owner, "too_long", too_long, known)
    if max_length is not None and (not isinstance(max_length, int | np.integer) or max_length < 2):
        raise ValueError(f"{owner}: max_length is {max_length!r}, wanted an integer of at least 2.")
    if max_length is None and too_long != "error":
        raise ValueError(f"{owner}: too_long is {too_long!r} without max_length=, wanted the most tokens of a sample.")
