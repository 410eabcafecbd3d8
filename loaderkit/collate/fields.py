"""Samples field by field: each field of a batch is made by the rule that its path names."""

import dataclasses
from collections.abc import Callable, KeysView, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from loaderkit.collate.joining import join
from loaderkit.collate.padding import pad_field
from loaderkit.collate.rules import Jagged, Pad, named
from loaderkit.collate.sequences import pieces_of
from loaderkit.collate.stack import CollateError, stack_field
from loaderkit.datasets.ragged import Ragged

Rule = Pad | Jagged | Mapping[Any, Any] | Callable[[list[Any]], Any]
Rules = Mapping[Any, Any]  # from a key, a place, or a path such as "a.b", to a Rule


@dataclasses.dataclass(slots=True)
class Walk:
    """Makes a batch of samples, or of a batch that a dataset has read as a whole.

    Args:
        collate: Who asks, for messages.
        others: Makes a field without a rule of its values and its path.
        whole: Whether fields come as `read_batch` returns them: sequences as a `Ragged`, all else already collated.
    """

    collate: str
    others: Callable[[Sequence[Any], str], Any] = stack_field
    whole: bool = False

    def field(self, values: Any, rule: Any, path: str) -> tuple[Any, dict[str, Tensor]]:
        """Return one field of the batch, and what its rule adds beside it."""
        if isinstance(rule, Pad):
            return pad_field(values, path, rule)
        if isinstance(rule, Jagged):
            return jagged_field(values, path, rule), {}
        if isinstance(rule, Mapping):
            return self.fields(values, rule, path), {}
        try:
            return rule(values), {}
        except CollateError as error:
            raise CollateError(f"{error} (in {named(path)})", error.rows) from error

    def fields(self, values: Any, rules: Rules, path: str = "") -> Any:
        """Return a batch of dicts or tuples.

        Raises:
            CollateError: If samples don't fit together, or a rule can't take them.
            KeyError: If they lack a field that has a rule.
        """
        first = values if self.whole else values[0]
        if isinstance(first, Mapping):
            return self._mapping(values, rules, path)
        if isinstance(first, tuple | list) and not isinstance(first, Ragged):
            return self._tuple(values, rules, path)
        raise TypeError(
            f"{self.collate}: rules for fields {list(rules)} of {named(path)}, which is a {type(first).__name__}; wanted "
            "dicts or tuples. For samples that are sequences give one rule, such as Pad()."
        )

    def _mapping(self, values: Any, rules: Rules, path: str) -> dict[Any, Any]:
        names = list(values if self.whole else values[0])
        if not self.whole:
            self._check_parts(values, "keys", path, lambda sample: isinstance(sample, Mapping) and sample.keys())
        rules = self._rules_of(rules, names, path)
        batch: dict[Any, Any] = {}
        for name in names:
            batch[name], extras = self._part(values, name, name, rules, path)
            for what, extra in extras.items():
                if f"{name}_{what}" in names:
                    raise KeyError(
                        f"{self.collate}: {named(_join(path, name))} adds {name}_{what}, which the samples have "
                        f"already. Rename theirs, or don't ask for {what}."
                    )
                batch[f"{name}_{what}"] = extra
        return batch

    def _tuple(self, values: Any, rules: Rules, path: str) -> Any:
        first = values if self.whole else values[0]
        if not self.whole:
            self._check_parts(values, "parts", path, lambda sample: not isinstance(sample, Mapping) and len(sample))
        names = list(getattr(first, "_fields", range(len(first))))
        rules = self._rules_of(rules, names, path)
        parts: list[Any] = []
        appended: list[Tensor] = []
        for place, name in enumerate(names):
            part, extras = self._part(values, place, name, rules, path)
            parts.append(part)
            appended.extend(extras.values())
        if hasattr(first, "_fields") and not appended:
            return type(first)(*parts)
        return (*parts, *appended)

    def _part(self, values: Any, key: Any, name: Any, rules: Rules, path: str) -> tuple[Any, dict[str, Tensor]]:
        column = values[key] if self.whole else [sample[key] for sample in values]
        if name in rules:
            return self.field(column, rules[name], _join(path, name))
        return (column if self.whole else self.others(column, _join(path, name))), {}

    def _check_parts(self, samples: Sequence[Any], what: str, path: str, parts: Callable[[Any], Any]) -> None:
        """Refuse samples with other keys, or another number of parts, than the first."""
        wanted = parts(samples[0])
        for row, sample in enumerate(samples):
            found = parts(sample) if isinstance(sample, Mapping | tuple | list) else type(sample).__name__
            if found != wanted:
                wanted, found = (list(names) if isinstance(names, KeysView) else names for names in (wanted, found))
                raise CollateError(
                    f"{self.collate}: {named(path)} has {what} {wanted} and {found}, wanted the same in a batch",
                    [0, row],
                )

    def _rules_of(self, rules: Rules, names: list[Any], path: str) -> dict[Any, Any]:
        """Return the rule of each field that has one; paths become nested rules."""
        found: dict[Any, Any] = {}
        missing = []
        for name, rule in rules.items():
            key, rest = _split(name, names)
            if key is None:
                missing.append(name)
            elif not rest:
                found[key] = {**rule, **found.get(key, {})} if isinstance(rule, Mapping) else rule
            elif isinstance(found.setdefault(key, {}), Mapping):
                found[key] = {**found[key], rest: rule}
            else:
                raise ValueError(
                    f"{self.collate}: field '{key}' has a rule, and so has '{name}' in it. Give one of them."
                )
        if missing:
            where = f"{named(path)} has" if path else "the samples have"
            raise KeyError(f"{self.collate}: {where} fields {names}, wanted {missing} too.")
        return found


def jagged_field(values: Any, path: str, rule: Jagged) -> Any:
    """Join the sequences of one field."""
    ragged = values if isinstance(values, Ragged) else join(pieces_of(values, path, "RaggedCollate"))
    return torch.nested.nested_tensor_from_jagged(ragged.values, ragged.offsets) if rule.nested else ragged


def _split(name: Any, names: list[Any]) -> tuple[Any, str]:
    """Return the first part of a path, as it is named in the samples (None: it is not), and the rest."""
    if name in names:
        return name, ""
    head, _, rest = str(name).partition(".")
    place = int(head) if head.isdecimal() else None
    return next((known for known in names if known in (head, place)), None), rest


def _join(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)
