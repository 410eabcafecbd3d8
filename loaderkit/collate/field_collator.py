"""Collate nested samples field by field. The path of a field names its rule."""

from collections.abc import Callable, KeysView, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loaderkit.collate.padding import pad_field
from loaderkit.collate.rules import Jagged, Pad
from loaderkit.collate.sequences import sequences_of
from loaderkit.datasets.ragged import Ragged
from loaderkit.system.containers import with_parts
from loaderkit.system.stack import CollateError, batch_like, join_path, named, stack_field

Rule = Pad | Jagged | Mapping[Any, Any] | Callable[[list[Any]], object]
Rules = Mapping[Any, Any]  # the keys are a field's key, position, or path such as "a.b"; the values are a Rule each


@dataclass(slots=True)
class FieldCollator:
    """Collates each field of samples, or of a whole batch that a dataset reads at once.

    Args:
        collate: The collate's name, for messages.
        default: Collates a field that has no rule, given its values and its path.
        whole: Whether fields come as `read_batch` returns them: sequences as a `Ragged`, all else already collated.
    """

    collate: str
    default: Callable[[Sequence[Any], str], object] = stack_field
    whole: bool = False

    def collate_field(self, values: Any, rule: Rule, path: str) -> tuple[object, dict[str, Tensor]]:
        """Return one field of the batch, and the lengths and mask that its rule adds."""
        if isinstance(rule, Pad):
            return pad_field(values, path, rule)
        if isinstance(rule, Jagged):
            return _join_field(values, path, rule), {}
        if isinstance(rule, Mapping):
            return self.collate_fields(values, rule, path), {}
        try:
            return rule(values), {}
        except CollateError as error:
            raise CollateError(f"{error} (in {named(path)})", error.rows) from error

    def collate_fields(self, values: Any, rules: Rules, path: str = "") -> Any:
        """Return the batch of samples that are dicts or tuples."""
        first = values if self.whole else values[0]
        if isinstance(first, Mapping):
            return self._collate_mapping(values, rules, path)
        if isinstance(first, tuple | list) and not isinstance(first, Ragged):
            return self._collate_tuple(values, rules, path)
        raise TypeError(
            f"{self.collate}: rules for fields {list(rules)} of {named(path)}, which is a {type(first).__name__}; wanted "
            "dicts or tuples. For samples that are sequences give one rule, such as Pad()."
        )

    def _collate_mapping(self, values: Any, rules: Rules, path: str) -> dict[object, object]:
        names = list(values if self.whole else values[0])
        if not self.whole:
            self._check_parts(values, "keys", path, lambda sample: isinstance(sample, Mapping) and sample.keys())
        rules = self._rules_of(rules, names, path)
        batch: dict[object, object] = {}
        for name in names:
            batch[name], extras = self._collate_part(values, name, name, rules, path)
            for what, extra in extras.items():
                if f"{name}_{what}" in names:
                    raise KeyError(
                        f"{self.collate}: {named(join_path(path, name))} adds {name}_{what}, which the samples have "
                        f"already. Rename theirs, or don't ask for {what}."
                    )
                batch[f"{name}_{what}"] = extra
        return batch

    def _collate_tuple(self, values: Any, rules: Rules, path: str) -> object:
        first = values if self.whole else values[0]
        if not self.whole:
            self._check_parts(values, "parts", path, lambda sample: not isinstance(sample, Mapping) and len(sample))
        names = list(getattr(first, "_fields", range(len(first))))
        rules = self._rules_of(rules, names, path)
        parts: list[object] = []
        appended: list[Tensor] = []
        for place, name in enumerate(names):
            part, extras = self._collate_part(values, place, name, rules, path)
            parts.append(part)
            appended.extend(extras.values())
        if not isinstance(first, tuple) or appended:
            return (*parts, *appended)
        return with_parts(first, parts) if self.whole else batch_like(values, parts, path)

    def _collate_part(
        self, values: Any, key: object, name: object, rules: Rules, path: str
    ) -> tuple[object, dict[str, Tensor]]:
        column = values[key] if self.whole else [sample[key] for sample in values]
        if name in rules:
            return self.collate_field(column, rules[name], join_path(path, name))
        return (column if self.whole else self.default(column, join_path(path, name))), {}

    def _check_parts(self, samples: Sequence[object], what: str, path: str, parts: Callable[[Any], object]) -> None:
        """Refuse samples whose keys, or number of parts, differ from the first sample's."""
        wanted = parts(samples[0])
        for row, sample in enumerate(samples):
            found = parts(sample) if isinstance(sample, Mapping | tuple | list) else type(sample).__name__
            if found != wanted:
                wanted, found = (list(names) if isinstance(names, KeysView) else names for names in (wanted, found))
                raise CollateError(
                    f"{self.collate}: {named(path)} has {what} {wanted} and {found}, wanted the same in a batch",
                    [0, row],
                )

    def _rules_of(self, rules: Rules, names: list[object], path: str) -> Rules:
        """Return each field's rule. Paths become nested rules."""
        found: dict[Any, Any] = {}
        missing = []
        for name, rule in rules.items():
            key, rest = _split_path(name, names)
            if key is None:
                missing.append(name)
            elif not rest:
                found[key] = {**rule, **found.get(key, {})} if isinstance(rule, Mapping) else rule
            elif isinstance(found.setdefault(key, {}), Mapping):
                found[key] = {**found[key], rest: rule}
            else:
                raise ValueError(
                    f"{self.collate}: field '{key}' has a rule, and so has '{name}' inside it. Give one of them."
                )
        if missing:
            where = f"{named(path)} has" if path else "the samples have"
            raise KeyError(f"{self.collate}: {where} fields {names}, wanted {missing} too.")
        return found


def _join_field(values: Any, path: str, rule: Jagged) -> object:
    ragged = values if isinstance(values, Ragged) else sequences_of(values, path, "RaggedCollate").to_ragged()
    return torch.nested.nested_tensor_from_jagged(ragged.values, ragged.offsets) if rule.nested else ragged


def _split_path(name: object, names: list[object]) -> tuple[object, str]:
    """Return the first part of a path as one of `names`, and the rest. The first part is None if no name fits."""
    if name in names:
        return name, ""
    head, _, rest = str(name).partition(".")
    place = int(head) if head.isdecimal() else None
    return next((known for known in names if known in (head, place)), None), rest
