"""What a format of shards has to do, and what a sample is to it: named fields."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Protocol

import torch

from loaderkit.datasets.shards.index import ShardIndex

Sample = tuple[int, Any]  # its index in the source, and the sample


class WriteError(ValueError):
    """Shards that can't be written, or are not what their manifest says; names the sample or the file."""


@dataclass(kw_only=True, slots=True)
class Written:
    """What a format has to say of a shard that it wrote.

    Args:
        counts: Such as samples, tokens.
        sides: Contents of files that belong to it, by the suffix that they add to its name.
        offsets: As its adapter's index has them.
    """

    counts: dict[str, int]
    sides: dict[str, bytes] = field(default_factory=dict)
    offsets: Any = None


class Format(Protocol):
    """How samples become a shard: a frozen value that pickles."""

    name: ClassVar[str]
    suffix: ClassVar[str]

    def settings(self) -> dict[str, Any]:
        """Return what shapes the shards, as plain JSON: shards of other settings are not mixed."""

    def learn(self, samples: Sequence[Sample]) -> Any:
        """Return what all shards share, found in a few samples (plain JSON), or raise WriteError."""

    def write(self, file: BinaryIO, samples: Iterable[Sample], learned: Any) -> Written:
        """Write a shard. The same samples give the same bytes."""

    def index(self, shard: Path, written: Written) -> ShardIndex | None:
        """Return the index of a shard that was written, where its adapter keeps one."""


def to_fields(sample: Any, names: Sequence[str] | None, index: int) -> dict[str, Any]:
    """Return a sample's fields by name: a mapping's own, a tuple's numbered or named, "value" for all else.

    Raises:
        WriteError: If names are missing, or are no strings.
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
    """Refuse a sample with other fields than the samples before it.

    Raises:
        WriteError: If they differ.
    """
    names = set(found)
    if names == set(wanted):
        return
    missing, extra = sorted(set(wanted) - names), sorted(names - set(wanted))
    said = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"also has {', '.join(extra)}"] * bool(extra)
    raise WriteError(f"sample {index}: {' and '.join(said)}; the others have {', '.join(sorted(wanted))}. {way_out}")


def to_array(value: Any) -> Any:
    """Return a tensor as a numpy array, everything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().cpu().numpy()
