"""Collates that pad, join or otherwise treat each field by a rule of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from loaderkit.collate.fields import Rule, Rules, Walk
from loaderkit.collate.rules import Jagged, Pad
from loaderkit.collate.sequences import pieces_of, split
from loaderkit.collate.stack import CollateError
from loaderkit.datasets.ragged import Ragged
from loaderkit.seeding.draws import draws_nothing


@dataclass(frozen=True, slots=True)
class PadCollate:
    """A collate function that pads some fields and stacks the others.

    Args:
        fields: What to pad: a `Pad` for each field, by its key (dict samples), place (tuples) or name (namedtuples), by a
            path such as "text.tokens", or by a mapping of rules for what is nested; or one, for samples that are
            sequences themselves.
        sort_by: A field by whose length samples are put in descending order, as `torch.nn.utils.rnn.pack_padded_sequence`
            wants them. Adds `unsorted_indices` (B,) int64: `result[unsorted_indices]` has the samples' own order.
            "" for samples that are sequences themselves.

    Returns (when called with B samples):
        Dict samples: a dict, with `<field>_lengths` and `<field>_mask` added beside a field where asked for. Tuples: a
        tuple, these appended in the fields' order. A sequence itself: the padded tensor, or a tuple of it and these.
        `unsorted_indices` comes last.

    Raises:
        CollateError: If samples don't fit together; names the field and the samples.
        KeyError: If the samples lack a named field.
    """

    takes_rows: ClassVar[bool] = False  # of several samples each, as a PackPlan deals them
    draws_nothing: ClassVar[bool] = True

    fields: Mapping[Any, Any] | Pad = field(default_factory=Pad)
    sort_by: str | int | None = None

    def __post_init__(self) -> None:
        _check_rules(self.fields, (Pad,), "PadCollate")

    def __call__(self, samples: Sequence[Any]) -> Any:
        return self._collate(samples, Walk("PadCollate"))

    def collate_batch(self, batch: Any) -> Any:
        """Return the same for what a dataset's `read_batch` returns, with sequences as a `Ragged`."""
        return self._collate(batch, Walk("PadCollate", whole=True))

    def _collate(self, samples: Any, walk: Walk) -> Any:
        if self.sort_by is None:
            return _by_rules(samples, self.fields, walk)
        lengths = torch.tensor(pieces_of(_column(samples, self.sort_by, walk), str(self.sort_by)).lengths)
        order = lengths.argsort(descending=True, stable=True)
        try:
            batch = _by_rules(_take(samples, order, walk.whole), self.fields, walk)
        except CollateError as error:
            raise CollateError(str(error), [int(order[row]) for row in error.rows]) from error
        inverse = order.argsort()
        if isinstance(batch, dict):
            if "unsorted_indices" in batch:
                raise KeyError(
                    "PadCollate: the samples have a field 'unsorted_indices', which sort_by adds. Rename it."
                )
            return {**batch, "unsorted_indices": inverse}
        return (*batch, inverse) if isinstance(batch, tuple) else (batch, inverse)


@dataclass(frozen=True, slots=True)
class RaggedCollate:
    """A collate function that joins sequences of several lengths without padding, and stacks the other fields.

    Args:
        fields: The fields to join, named as for `PadCollate`; None for samples that are sequences themselves.
        nested: Whether to nested tensors (layout `torch.jagged`), or to `Ragged`s: values and offsets.
    """

    takes_rows: ClassVar[bool] = False  # of several samples each, as a PackPlan deals them
    draws_nothing: ClassVar[bool] = True

    fields: Sequence[Any] | None = None
    nested: bool = True
    _rules: Rules | Jagged = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.fields, str):
            raise TypeError(f"RaggedCollate: fields is {self.fields!r}, wanted a list of fields: [{self.fields!r}].")
        rule = Jagged(nested=self.nested)
        object.__setattr__(self, "_rules", rule if self.fields is None else dict.fromkeys(self.fields, rule))

    def __call__(self, samples: Sequence[Any]) -> Any:
        return _by_rules(samples, self._rules, Walk("RaggedCollate"))

    def collate_batch(self, batch: Any) -> Any:
        """Return the same for what a dataset's `read_batch` returns, with sequences as a `Ragged`."""
        return _by_rules(batch, self._rules, Walk("RaggedCollate", whole=True))


@dataclass(frozen=True, slots=True)
class MultimodalCollate:
    """A collate function that makes each field by a rule of its own, and stacks those without one.

    Args:
        fields: For each field, named as for `PadCollate`, a `Pad`, a `Jagged`, a mapping of rules for what is nested, or
            any function from a list of values to what the batch shall hold: another collate, or `list` to keep them as they
            are.

    Returns (when called with B samples):
        As PadCollate does.
    """

    fields: Mapping[Any, Rule]

    def __post_init__(self) -> None:
        _check_rules(self.fields, None, "MultimodalCollate")

    @property
    def draws_nothing(self) -> bool:
        """Whether no rule draws random numbers: those that are functions say so themselves."""
        return _draw_nothing(self.fields)

    def __call__(self, samples: Sequence[Any]) -> Any:
        return _by_rules(samples, self.fields, Walk("MultimodalCollate"))


def _draw_nothing(rule: Rule) -> bool:
    if isinstance(rule, Mapping):
        return all(map(_draw_nothing, rule.values()))
    return isinstance(rule, Pad | Jagged) or rule is list or draws_nothing(rule)


def _check_rules(rules: Any, kinds: tuple[type, ...] | None, collate: str) -> None:
    if isinstance(rules, Mapping):
        for rule in rules.values():
            _check_rules(rule, kinds, collate)
    elif not (isinstance(rules, kinds) if kinds else isinstance(rules, Pad | Jagged) or callable(rules)):
        wanted = "Pad(...)" if kinds else "Pad(...), Jagged(...), a function of a list of values"
        hint = (
            " For other rules use MultimodalCollate."
            if kinds and (callable(rules) or isinstance(rules, Jagged))
            else ""
        )
        raise TypeError(f"{collate}: a rule is {rules!r}, wanted {wanted}, or a mapping of these.{hint}")


def _check_some(samples: Any, walk: Walk) -> None:
    if not walk.whole and not len(samples):
        raise ValueError(f"{walk.collate}: no samples given, wanted at least one.")


def _by_rules(samples: Any, rules: Any, walk: Walk) -> Any:
    _check_some(samples, walk)
    if not isinstance(rules, Pad | Jagged):
        return walk.fields(samples, rules)
    batch, extras = walk.field(samples, rules, "")
    return (batch, *extras.values()) if extras else batch


def _column(samples: Any, path: str | int, walk: Walk) -> Any:
    """Return the values of one field."""
    _check_some(samples, walk)
    if path == "":
        return samples
    found: list[Any] = []

    def keep(values: Any) -> Any:
        found.append(values)

    ignoring = Walk(walk.collate, others=lambda *_: None, whole=walk.whole)
    ignoring.fields(samples, {path: keep})
    return found[0]


def _take(values: Any, order: Tensor, whole: bool) -> Any:
    """Return samples, or the fields of a whole batch, in another order."""
    if not whole:
        return [values[row] for row in order.tolist()]
    if isinstance(values, Ragged):
        rows = split(values.values, values.offsets.diff().tolist())
        sizes = values.offsets.diff()[order]
        return Ragged(
            torch.cat([rows[row] for row in order.tolist()]), torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        )
    if isinstance(values, Tensor):
        return values[order]
    if isinstance(values, Mapping):
        return {name: _take(value, order, whole) for name, value in values.items()}
    if isinstance(values, tuple):
        parts = [_take(value, order, whole) for value in values]
        return type(values)(*parts) if hasattr(values, "_fields") else tuple(parts)
    return [values[row] for row in order.tolist()]
