"""Padding collate: sequences of different lengths become one tensor, with lengths and mask on request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from loaderkit.collate.stack import CollateError, stack_field


@dataclass(frozen=True, kw_only=True, slots=True)
class Pad:
    """How one field is padded along its first axis.

    Args:
        value: Written where a sequence has nothing.
        side: Where the padding goes.
        multiple_of: Round the padded length up to this many steps.
        lengths: Whether to add `<field>_lengths` (B,) int64.
        mask: Whether to add `<field>_mask` (B, T) bool, True where the data is.
    """

    value: float = 0
    side: Literal["right", "left"] = "right"
    multiple_of: int = 1
    lengths: bool = False
    mask: bool = False

    def __post_init__(self) -> None:
        if self.multiple_of < 1:
            raise ValueError(f"Pad: multiple_of is {self.multiple_of}, wanted at least 1.")
        if self.side not in ("right", "left"):
            raise ValueError(f"Pad: side is {self.side!r}, wanted 'right' or 'left'.")


@dataclass(frozen=True, slots=True)
class PadCollate:
    """A collate function that pads some fields and stacks the others.

    Args:
        fields: What to pad: a rule for each field, by the key (dict samples),
            place (tuples) or attribute name (namedtuples); or one rule, for samples that are
            sequences themselves.

    Returns (when called with B samples):
        Dict samples: a dict, with `<field>_lengths` and `<field>_mask` added
        where asked for. Tuples: a tuple, these two appended in the fields'
        order. A sequence itself: the padded tensor, or a tuple of it and these.

    Raises:
        CollateError: If a field is not a sequence, or its other axes or dtypes differ.
        KeyError: If the samples lack a named field.
    """

    fields: Mapping[str | int, Pad] | Pad = field(default_factory=Pad)

    def __call__(self, samples: Sequence[Any]) -> Any:
        if isinstance(self.fields, Pad):
            padded, extras = _pad_field(samples, "", self.fields)
            return (padded, *extras.values()) if extras else padded
        first = samples[0]
        if isinstance(first, Mapping):
            return self._pad_mapping(samples, self.fields)
        if isinstance(first, tuple | list):
            return self._pad_tuple(samples, self.fields)
        raise TypeError(
            f"PadCollate: rules for fields {list(self.fields)}, but the samples are {type(first).__name__}; "
            "wanted dicts or tuples. For samples that are sequences give one rule: PadCollate(Pad(...))."
        )

    def _pad_mapping(self, samples: Sequence[Any], rules: Mapping[str | int, Pad]) -> dict[Any, Any]:
        self._check_fields(rules, list(samples[0]))
        batch: dict[Any, Any] = {}
        for name in samples[0]:
            values = _column(samples, name)
            if name in rules:
                batch[name], extras = _pad_field(values, str(name), rules[name])
                batch.update({f"{name}_{what}": extra for what, extra in extras.items()})
            else:
                batch[name] = stack_field(values, str(name))
        return batch

    def _pad_tuple(self, samples: Sequence[Any], rules: Mapping[str | int, Pad]) -> tuple[Any, ...]:
        names: list[Any] = list(getattr(samples[0], "_fields", range(len(samples[0]))))
        self._check_fields(rules, names)
        parts: list[Any] = []
        appended: list[Tensor] = []
        for place, name in enumerate(names):
            values = _column(samples, place)
            if name in rules:
                padded, extras = _pad_field(values, str(name), rules[name])
                parts.append(padded)
                appended.extend(extras.values())
            else:
                parts.append(stack_field(values, str(name)))
        return (*parts, *appended)

    @staticmethod
    def _check_fields(rules: Mapping[str | int, Pad], found: list[Any]) -> None:
        missing = [name for name in rules if name not in found]
        if missing:
            raise KeyError(f"PadCollate: the samples have fields {found}, wanted {missing} too.")


def _column(samples: Sequence[Any], name: Any) -> list[Any]:
    try:
        return [sample[name] for sample in samples]
    except (KeyError, IndexError):
        row = next(row for row, sample in enumerate(samples) if len(sample) != len(samples[0]) or name not in sample)
        raise CollateError(f"PadCollate: field '{name}' is missing in a sample", [row]) from None


def _pad_field(values: Sequence[Any], name: str, rule: Pad) -> tuple[Tensor, dict[str, Tensor]]:
    sequences = [_as_sequence(value, name, row) for row, value in enumerate(values)]
    for row, sequence in enumerate(sequences):
        for what, found, wanted in (
            ("shape after the first axis", tuple(sequence.shape[1:]), tuple(sequences[0].shape[1:])),
            ("dtype", sequence.dtype, sequences[0].dtype),
        ):
            if found != wanted:
                raise CollateError(
                    f"PadCollate: field '{name}' has {what} {wanted} and {found}, wanted one in a batch", [0, row]
                )
    padded, lengths = pad_sequences(sequences, value=rule.value, side=rule.side, multiple_of=rule.multiple_of)
    extras = {}
    if rule.lengths:
        extras["lengths"] = lengths
    if rule.mask:
        steps = torch.arange(padded.shape[1])
        if rule.side == "left":
            steps = padded.shape[1] - 1 - steps
        extras["mask"] = steps < lengths[:, None]
    return padded, extras


def _as_sequence(value: Any, name: str, row: int) -> Tensor:
    if isinstance(value, list | tuple | np.ndarray):
        value = torch.as_tensor(value)
    if not isinstance(value, Tensor) or value.ndim == 0:
        found = "a tensor without axes" if isinstance(value, Tensor) else type(value).__name__
        raise CollateError(f"PadCollate: field '{name}' is {found}, wanted a sequence (T, *)", [row])
    return value


def pad_sequences(
    sequences: Sequence[Tensor],
    *,
    value: float = 0,
    side: Literal["right", "left"] = "right",
    multiple_of: int = 1,
) -> tuple[Tensor, Tensor]:
    """Stack sequences of different lengths into one padded batch.

    Args:
        sequences: B tensors (T_i, *F) with one dtype and one F.
        value: Written where a sequence has nothing.
        side: Where the padding goes.
        multiple_of: Round the padded length up to this many steps.

    Returns:
        padded (B, T, *F), where T is max(T_i) rounded up; lengths (B,) int64.

    Raises:
        ValueError: If there are no sequences.
    """
    if not sequences:
        raise ValueError("pad_sequences: no sequences given, wanted at least one.")
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    steps = -(-int(lengths.max()) // multiple_of) * multiple_of
    padded = sequences[0].new_full((len(sequences), steps, *sequences[0].shape[1:]), value)
    for row, sequence in zip(padded, sequences, strict=True):
        if side == "right":
            row[: len(sequence)] = sequence
        else:
            row[steps - len(sequence) :] = sequence
    return padded, lengths
