"""The collates that treat each field by a rule: pad it, join it, or call a function."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic

import torch
from torch import Tensor
from typing_extensions import TypeVar

from loaderkit.collate.field_collator import FieldCollator, Rule, Rules
from loaderkit.collate.rules import Jagged, Pad
from loaderkit.collate.sequences import sequences_of, split
from loaderkit.datasets.ragged import Ragged
from loaderkit.seeding.draws import draws_nothing, thread_safe
from loaderkit.system.checks import listed
from loaderkit.system.containers import with_parts
from loaderkit.system.stack import CollateError

Batch = TypeVar("Batch", covariant=True, default=Any)


@dataclass(frozen=True)
class PadCollate(Generic[Batch]):
    """Pad some fields and stack the others.

    A call takes B samples. Dict samples make a dict, with `<field>_lengths` and `<field>_mask` after a field if its
    rule asks for them. Tuples make a tuple, with the lengths and masks appended in the order of the fields. Samples
    that are sequences make the padded tensor (B, T, *F), or a tuple of it with lengths and mask. `unsorted_indices`
    comes last. `PadCollate[dict[str, Tensor]](...)` tells a type checker the type of the batches, also of a Loader that
    uses it.

    Args:
        fields: A `Pad` for each field to pad, by its key (dicts), position (tuples), name (namedtuples), or path such as
            "text.tokens". A nested mapping of rules works too. Give one `Pad` if samples are sequences.
        sort_by: Sort samples by the length of this field, longest first, as `torch.nn.utils.rnn.pack_padded_sequence`
            wants them. Adds `unsorted_indices` (B,) int64: `result[unsorted_indices]` restores the samples' order.
            Give "" if samples are sequences.

    Raises:
        CollateError: If samples do not fit together. The message names the field and the samples.
        KeyError: If the samples lack a named field.

    Examples:
        >>> collate = lk.PadCollate({"tokens": lk.Pad(mask=True)})
        >>> batch = collate([{"tokens": [1, 2], "label": 0}, {"tokens": [3], "label": 1}])
        >>> batch["tokens"].tolist()
        [[1, 2], [3, 0]]
        >>> {name: (tuple(value.shape), value.dtype) for name, value in batch.items()}
        {'tokens': ((2, 2), torch.int64), 'tokens_mask': ((2, 2), torch.bool), 'label': ((2,), torch.int64)}
    """

    takes_rows: ClassVar[bool] = False  # it does not take rows of several samples each, as a PackPlan makes them
    draws_nothing: ClassVar[bool] = True
    thread_safe: ClassVar[bool] = True

    fields: Rules | Pad = field(default_factory=Pad)
    sort_by: str | int | None = None

    def __post_init__(self) -> None:
        _check_rules(self.fields, (Pad,), "PadCollate")

    def __call__(self, samples: Sequence[object]) -> Batch:
        batch: Batch = self._collate(samples, FieldCollator("PadCollate"))
        return batch

    def collate_batch(self, batch: object) -> Any:
        """Collate what a dataset's `read_batch` returns, with sequences as a `Ragged`."""
        return self._collate(batch, FieldCollator("PadCollate", whole=True))

    def _collate(self, samples: object, collator: FieldCollator) -> Any:
        if self.sort_by is None:
            return _by_rules(samples, self.fields, collator)
        lengths = torch.tensor(
            sequences_of(_column(samples, self.sort_by, collator), str(self.sort_by)).lengths, device="cpu"
        )
        order = lengths.argsort(descending=True, stable=True)
        try:
            batch = _by_rules(_reorder(samples, order, collator.whole), self.fields, collator)
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


@dataclass(frozen=True)
class RaggedCollate(Generic[Batch]):
    """Join sequences without padding, and stack the other fields.

    A joined field is a nested tensor (B, j, *F), or a `Ragged` with `values` (T_1 + ... + T_B, *F) and `offsets` (B + 1,)
    int64.

    Args:
        fields: The fields to join, named as for `PadCollate`. None means that samples are sequences.
        nested: True makes nested tensors (layout `torch.jagged`), False a `Ragged`.

    Examples:
        >>> values, offsets = lk.RaggedCollate(nested=False)([[1, 2], [3]])
        >>> values.tolist(), offsets.tolist()
        ([1, 2, 3], [0, 2, 3])
    """

    takes_rows: ClassVar[bool] = False  # it does not take rows of several samples each, as a PackPlan makes them
    draws_nothing: ClassVar[bool] = True
    thread_safe: ClassVar[bool] = True

    fields: Sequence[str | int] | None = None
    nested: bool = True
    _rules: Rules | Jagged = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        listed("RaggedCollate", "fields", self.fields)
        rule = Jagged(nested=self.nested)
        object.__setattr__(self, "_rules", rule if self.fields is None else dict.fromkeys(self.fields, rule))

    def __call__(self, samples: Sequence[object]) -> Batch:
        batch: Batch = _by_rules(samples, self._rules, FieldCollator("RaggedCollate"))
        return batch

    def collate_batch(self, batch: object) -> Any:
        """Collate what a dataset's `read_batch` returns, with sequences as a `Ragged`."""
        return _by_rules(batch, self._rules, FieldCollator("RaggedCollate", whole=True))


@dataclass(frozen=True)
class MultimodalCollate(Generic[Batch]):
    """Collate each field by a rule of its own, and stack fields without a rule.

    The batch has the layout that `PadCollate` describes.

    Args:
        fields: A rule for each field, named as for `PadCollate`: a `Pad`, a `Jagged`, a mapping of rules for nested
            fields, or a function that takes the list of B values and returns the batch's value. The function may be
            another collate, or `list` to keep the values.

    Examples:
        >>> collate = lk.MultimodalCollate({"text": lk.Pad(lengths=True), "meta": list})
        >>> batch = collate([{"text": [1, 2], "meta": "a"}, {"text": [3], "meta": "b"}])
        >>> batch["text"].tolist(), batch["text_lengths"].tolist(), batch["meta"]
        ([[1, 2], [3, 0]], [2, 1], ['a', 'b'])
    """

    fields: Rules

    def __post_init__(self) -> None:
        _check_rules(self.fields, None, "MultimodalCollate")

    @property
    def draws_nothing(self) -> bool:
        """Whether no rule draws random numbers. Rules that are functions declare it by their own `draws_nothing`."""
        return all(map(draws_nothing, _functions(self.fields)))

    @property
    def thread_safe(self) -> bool:
        """Whether threads may make batches at the same time. Rules that are functions declare it by their own `thread_safe`."""
        return all(map(thread_safe, _functions(self.fields)))

    def __call__(self, samples: Sequence[object]) -> Batch:
        batch: Batch = _by_rules(samples, self.fields, FieldCollator("MultimodalCollate"))
        return batch


def _functions(rule: Rule) -> Iterator[object]:
    """Yield the functions of the user among the rules."""
    if isinstance(rule, Mapping):
        for each in rule.values():
            yield from _functions(each)
    elif not (isinstance(rule, Pad | Jagged) or rule is list):
        yield rule


def _check_rules(rules: object, kinds: tuple[type, ...] | None, collate: str) -> None:
    if isinstance(rules, Mapping):
        for rule in rules.values():
            _check_rules(rule, kinds, collate)
    elif not (isinstance(rules, kinds) if kinds else isinstance(rules, Pad | Jagged) or callable(rules)):
        wanted = "Pad(...)" if kinds else "Pad(...), Jagged(...), a function of a list of values"
        elsewhere = kinds and (callable(rules) or isinstance(rules, Jagged))
        hint = " For other rules use MultimodalCollate." if elsewhere else ""
        raise TypeError(f"{collate}: a rule is {rules!r}, wanted {wanted}, or a mapping of these.{hint}")


def _check_some(samples: Any, collator: FieldCollator) -> None:
    if not collator.whole and not len(samples):
        raise ValueError(f"{collator.collate}: no samples given, wanted at least one.")


def _by_rules(samples: object, rules: Rules | Pad | Jagged, collator: FieldCollator) -> Any:
    _check_some(samples, collator)
    if not isinstance(rules, Pad | Jagged):
        return collator.collate_fields(samples, rules)
    batch, extras = collator.collate_field(samples, rules, "")
    return (batch, *extras.values()) if extras else batch


def _column(samples: Any, path: str | int, collator: FieldCollator) -> Any:
    """Return the values of one field, which a path names; the samples themselves for the path ""."""
    _check_some(samples, collator)
    if path == "":
        return samples
    found: list[object] = []
    ignoring = FieldCollator(collator.collate, default=lambda *_: None, whole=collator.whole)
    ignoring.collate_fields(samples, {path: found.append})
    return found[0]


def _reorder(values: Any, order: Tensor, whole: bool) -> object:
    """Return the samples of a list, or of a whole batch, in another order (B,)."""
    if whole and isinstance(values, Ragged):
        rows = split(values.values, values.offsets.diff().tolist())
        return sequences_of([rows[row] for row in order.tolist()], "").to_ragged()
    if whole and isinstance(values, Tensor):
        return values[order]
    if whole and isinstance(values, Mapping):
        return {name: _reorder(value, order, whole) for name, value in values.items()}
    if whole and isinstance(values, tuple):
        return with_parts(values, [_reorder(value, order, whole) for value in values])
    return [values[row] for row in order.tolist()]
