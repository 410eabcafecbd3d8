"""Compare what a loader delivered with what was wanted, and describe the difference."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from loaderkit.system.types import Array

Ids = Callable[[Any], Sequence[Hashable]]

_ID_FIELDS = ("id", "ids", "index", "indices", "idx", "key", "__key__")
_SHOWN = 8


class LawError(AssertionError):
    """Raised if a loader breaks a guarantee; the message names the sample or batch that shows it.

    Examples:
        >>> lk.testing.assert_exactly_once(lambda: [[0, 1], [1]], samples=2)
        Traceback (most recent call last):
        loaderkit.testing.compare.LawError: epoch 0: sample 1 comes twice. For instance sample 1 in batch 0 and batch 1.
    """


def sample_ids(batch: Any) -> list[Hashable]:
    """Return the ids of a batch's samples, if the batch contains them.

    Ids are an integer or a string, a list of these, a tensor (B,) of integers, or an array (B,) of integers or strings.
    They may also be a field of a dict, namedtuple or dataclass: "id", "ids", "index", "indices", "idx", "key" or "__key__".

    Raises:
        TypeError: If the batch has no ids. Pass your own function as `ids=`.

    Examples:
        >>> lk.testing.sample_ids({"x": torch.zeros(2, 3), "index": torch.tensor([4, 7])})
        [4, 7]
    """
    fields = _fields(batch)
    if fields is not None:
        for name in _ID_FIELDS:
            if name in fields:
                return sample_ids(fields[name])
    elif isinstance(batch, (int, str, np.integer)):
        return [batch]
    elif isinstance(batch, (torch.Tensor, np.ndarray)):
        whole = not batch.is_floating_point() if isinstance(batch, torch.Tensor) else batch.dtype.kind in "iuSU"
        if batch.ndim <= 1 and whole:
            return list(batch.reshape(-1).tolist())
    elif isinstance(batch, (list, tuple)) and all(isinstance(entry, (int, str)) for entry in batch):
        return list(batch)
    raise TypeError(
        f"cannot tell which samples are in a batch of type {type(batch).__name__}: "
        "give ids=, a function from a batch to the list of its samples' ids."
    )


def find_difference(wanted: Any, got: Any, path: str = "batch") -> str | None:
    """Return the first place where two nested values differ bit for bit; None if they are equal.

    NaNs with the same bits are equal. Objects without their own `==` are compared by attribute.

    Args:
        wanted: Any nested value: tensors, arrays, dicts, lists, tuples, objects.
        got: The value to compare with it.
        path: The values' name in the message.

    Examples:
        >>> lk.testing.find_difference({"x": torch.zeros(2)}, {"x": torch.tensor([0.0, 1.0])})
        "batch['x'][1] is 1.0, wanted 0.0"
    """
    if type(wanted) is not type(got):
        return f"{path} is a {type(got).__name__}, wanted a {type(wanted).__name__}"
    if isinstance(wanted, torch.Tensor):
        return _tensor_difference(wanted, got, path)
    if isinstance(wanted, np.ndarray):
        return _array_difference(wanted, got, path)
    if isinstance(wanted, (Mapping, list, tuple)):
        return _nested_difference(wanted, got, path)
    if isinstance(wanted, float):
        return None if wanted.hex() == got.hex() else f"{path} is {got!r}, wanted {wanted!r}"
    attributes = _attributes(wanted)
    if attributes is not None:
        for name, value in attributes.items():
            if difference := find_difference(value, getattr(got, name, None), f"{path}.{name}"):
                return difference
        return None
    return None if wanted == got else f"{path} is {_short(got)}, wanted {_short(wanted)}"


def describe_batch(wanted: object, got: object, ids: Ids) -> str:
    """Describe how a batch differs from the wanted one: in its samples, or in their content."""
    wanted_ids, got_ids = ids_or_none(wanted, ids), ids_or_none(got, ids)
    if wanted_ids is not None and got_ids is not None and wanted_ids != got_ids:
        return f"wanted samples {listed(wanted_ids)}, got {listed(got_ids)}"
    difference = find_difference(wanted, got)
    if wanted_ids is None:
        return f"{difference}"
    return f"the samples are right, but their content differs: {difference}"


def tally(wanted: Iterable[Hashable], got: Iterable[Hashable]) -> str | None:
    """Return a text that names the samples that came too often, too rarely or never, or are unknown; None if all are right."""
    counts, due = Counter(got), Counter(wanted)
    parts = []
    for times in sorted({count for sample, count in counts.items() if count > due[sample] > 0}):
        often = _sorted([sample for sample, count in counts.items() if count == times > due[sample] > 0])
        parts.append(f"{_samples(often)} {_come(often)} {'twice' if times == 2 else f'{times} times'}")
    if missing := _sorted([sample for sample in due if sample not in counts]):
        parts.append(f"{_samples(missing)} never {_come(missing)}")
    if rare := _sorted([sample for sample in due if 0 < counts[sample] < due[sample]]):
        parts.append(f"{_samples(rare)} {_come(rare)} too rarely")
    if unknown := _sorted([sample for sample in counts if sample not in due]):
        parts.append(f"{_samples(unknown)} {'is' if len(unknown) == 1 else 'are'} not in the data")
    return ", ".join(parts) or None


def ids_or_none(batch: object, ids: Ids) -> list[Hashable] | None:
    """Return a batch's sample ids; None if the default `sample_ids` finds none."""
    if ids is not sample_ids:
        return list(ids(batch))
    try:
        return sample_ids(batch)
    except TypeError:
        return None


def listed(values: Sequence[object]) -> str:
    """List the first few values, and how many there are."""
    shown = ", ".join(map(str, values[:_SHOWN])) or "none"
    return f"{shown}, ... ({len(values):,} in all)" if len(values) > _SHOWN else shown


def numbered(count: int, noun: str) -> str:
    """Return a number with its noun, such as "1 batch" or "2 ranks"."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def raised(error: BaseException) -> str:
    """Describe an error by its type and message."""
    message = str(error).strip()
    return f"raised {type(error).__name__}" + (f": {message}" if message else " with no message")


def _fields(value: object) -> dict[Any, object] | None:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _attributes(value: object) -> dict[Any, object] | None:
    """Return the attributes of an object without a usable `==`; None if `==` compares it correctly."""
    if dataclasses.is_dataclass(value):
        return _fields(value)
    by_identity = getattr(type(value), "__eq__", None) is getattr(object, "__eq__", None)
    return dict(vars(value)) if by_identity and hasattr(value, "__dict__") else None


def _nested_difference(wanted: Any, got: Any, path: str) -> str | None:
    if isinstance(wanted, Mapping):
        if list(wanted) != list(got):
            return f"{path} has the keys {listed(list(got))}, wanted {listed(list(wanted))}"
        places = [(f"{path}[{key!r}]", wanted[key], got[key]) for key in wanted]
    else:
        if len(wanted) != len(got):
            return f"{path} has {len(got)} entries, wanted {len(wanted)}"
        places = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(wanted, got, strict=True))]
    return next((found for place, a, b in places if (found := find_difference(a, b, place))), None)


def _tensor_difference(wanted: torch.Tensor, got: torch.Tensor, path: str) -> str | None:
    if wanted.is_nested or got.is_nested:
        return find_difference(list(wanted.unbind()), list(got.unbind()), path)
    if wanted.layout != torch.strided or got.layout != torch.strided:
        return find_difference(wanted.to_dense(), got.to_dense(), path)
    # As plain tensors: a subclass may define its own indexing.
    a, b = (x.detach().as_subclass(torch.Tensor).cpu().resolve_conj().resolve_neg() for x in (wanted, got))
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{path} is {_form(b)}, wanted {_form(a)}"
    bits = [x.contiguous().reshape(-1).view(torch.uint8).numpy() for x in (a, b)]
    place = _first(bits[0], bits[1], tuple(a.shape))
    return None if place is None else _at(path, place, a[place].tolist(), b[place].tolist())


def _array_difference(wanted: Array, got: Array, path: str) -> str | None:
    if (wanted.dtype, wanted.shape) != (got.dtype, got.shape):
        return f"{path} is {_form(got)}, wanted {_form(wanted)}"
    if wanted.dtype.hasobject:
        return find_difference(wanted.tolist(), got.tolist(), path)
    bits = [np.frombuffer(x.tobytes(), np.uint8) for x in (wanted, got)]
    place = _first(bits[0], bits[1], wanted.shape)
    return None if place is None else _at(path, place, wanted[place], got[place])


def _first(a: Array, b: Array, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the index of the first element of two arrays of this shape whose bytes differ; None if none do.

    `a` and `b` are the arrays' bytes, uint8.
    """
    differs = a != b
    if not differs.any():
        return None
    element = int(differs.argmax()) // (len(a) // int(np.prod(shape)))
    return tuple(int(i) for i in np.unravel_index(element, shape))


def _at(path: str, place: tuple[int, ...], wanted: object, got: object) -> str:
    where = f"{path}[{', '.join(map(str, place))}]" if place else path
    return f"{where} is {got}, wanted {wanted}"


def _form(values: torch.Tensor | Array) -> str:
    return f"{str(values.dtype).removeprefix('torch.')} {tuple(values.shape)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _sorted(ids: list[object]) -> list[Any]:
    try:
        return sorted(ids)
    except TypeError:  # mixed types
        return ids


def _samples(ids: Sequence[Hashable]) -> str:
    return f"sample{'' if len(ids) == 1 else 's'} {listed(ids)}"


def _come(ids: Sequence[Hashable]) -> str:
    return "comes" if len(ids) == 1 else "come"
