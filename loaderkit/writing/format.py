"""The protocol of shard formats, and the conversion of samples to named fields."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Protocol

import numpy as np
import torch

from loaderkit.datasets.shards.index import ShardIndex
from loaderkit.system.arrays import Int64Array
from loaderkit.system.types import Json

Settings = Mapping[str, Json]  # settings of a format, as in the manifest
Sample = tuple[int, Any]  # index in the source, and the sample


class WriteError(ValueError):
    """Shards cannot be written, or differ from their manifest.

    The message names the sample or the file.

    Examples:
        >>> try:
        ...     lk.write_shards([[1, 2], [70_000]], "shards", format="tokens")
        ... except lk.WriteError as error:
        ...     print(error)
        sample 1: the token 70,000 does not fit uint16, which holds 0 to 65,535. dtype='uint32' holds more.
    """


@dataclass(kw_only=True, slots=True)
class Written:
    """What a format reports about a shard that it wrote.

    Args:
        counts: The number of "samples", and of "tokens" if the format counts them.
        sides: Contents of further files that belong to the shard, by the suffix that is added to the shard's name.
        offsets: The offsets for the shard's index, as the format's dataset reads them; None if it needs none.
    """

    counts: dict[str, int]
    sides: dict[str, bytes] = field(default_factory=dict)
    offsets: Int64Array | None = None


class Format(Protocol):
    """Writes samples to a shard. An implementation is immutable and can be pickled."""

    name: ClassVar[str]
    suffix: ClassVar[str]

    def settings(self) -> Settings:
        """Return the settings that affect the written bytes, as plain JSON. All shards of a folder share them."""

    def learn(self, samples: Sequence[Sample]) -> Json:
        """Return what all shards share, such as a schema, as plain JSON, from a few samples. May raise a WriteError."""

    def write(self, file: BinaryIO, samples: Iterable[Sample], learned: Any) -> Written:
        """Write a shard. `learned` is the result of `learn`. The same samples give the same bytes."""

    def index(self, shard: Path, written: Written) -> ShardIndex | None:
        """Return the index of a written shard, or None if the format's dataset has none."""


def to_fields(sample: object, names: Sequence[str] | None, index: int) -> dict[str, object]:
    """Return a sample's fields by name.

    Mappings keep their names. Tuples use `names`, their own names, or numbers. Anything else is one field "value".

    Raises:
        WriteError: If a name is not a string, or the numbers of names and values differ.
    """
    if isinstance(sample, Mapping):
        for name in sample:
            if not isinstance(name, str):
                raise WriteError(f"sample {index}: a field is named {name!r}, wanted a string.")
        return dict(sample)
    values = list(sample) if isinstance(sample, tuple) else [sample]
    if names is None:
        numbers = [str(place) for place in range(len(values))]
        names = getattr(sample, "_fields", numbers) if isinstance(sample, tuple) else ["value"]
    if len(names) != len(values):
        raise WriteError(f"sample {index}: has {len(values)} fields, wanted {len(names)}: {', '.join(names)}.")
    return dict(zip(names, values, strict=True))


def check_fields(found: Iterable[str], wanted: Sequence[str], index: int, way_out: str) -> None:
    """Raise a WriteError if a sample's fields (`found`) differ from those of the others (`wanted`)."""
    names = set(found)
    if names == set(wanted):
        return
    missing, extra = sorted(set(wanted) - names), sorted(names - set(wanted))
    differences = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"also has {', '.join(extra)}"] * bool(extra)
    raise WriteError(
        f"sample {index}: {' and '.join(differences)}; the others have {', '.join(sorted(wanted))}. {way_out}"
    )


def to_array(value: object) -> object:
    """Return a tensor as a numpy array, and anything else as it is.

    Raises:
        TypeError: If it is a masked array.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            "a masked array, whose mask would be lost; wanted array.filled(...), or the mask as another field."
        )
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
