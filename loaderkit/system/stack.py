"""The default collate: stacks nested samples leaf by leaf and keeps their types."""

import datetime
import decimal
import enum
import fractions
import operator
import os
import sys
import textwrap
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from loaderkit.system.containers import (
    attributes_of,
    declared_fields,
    field_names,
    is_cached,
    is_sequence,
    leave_out,
    shows_items,
    with_parts,
)
from loaderkit.system.own_collates import own_collate
from loaderkit.system.stack_rows import stack_rows
from loaderkit.system.types import Array

# Tuples, since Python would build a union of types again for each field of each batch.
_NUMPY_NUMBERS = (np.number, np.bool_)
_NUMBERS = (bool, int, float, complex, *_NUMPY_NUMBERS)
_MIXABLE = (int, float, np.number)
_DTYPE = operator.attrgetter("dtype")


class CollateError(ValueError):
    """Samples do not fit together in one batch.

    Attributes:
        rows: The positions in the batch of the samples that the message is about.

    Examples:
        >>> try:
        ...     batch = next(iter(lk.Loader([torch.ones(2), torch.ones(3)], 2)))
        ... except lk.CollateError as error:
        ...     print(error.rows)
        (0, 1)
    """

    def __init__(self, message: str, rows: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.rows = tuple(rows)


def stack(samples: Sequence[object]) -> Any:
    """Stack B samples of one structure.

    Tensors, arrays and numbers become tensors (B, *) on the host. Subclasses of Tensor stay what they are, with their
    attributes, which must be equal in all samples. MONAI's MetaTensor and the graphs of torch_geometric become a batch by
    their own library's function. Strings, bytes and None become lists. Mappings, sequences and objects with fields
    (dataclasses, attrs classes, pydantic models, SimpleNamespace) keep their type, and no constructor runs: a batch of tuples
    is a tuple, where torch's `default_collate` makes a list, and strings inside it are a list, where torch makes a tuple. A
    type that cannot hold a batch becomes a dict, a tuple or a list. Of their attributes, those stay that are equal in all
    samples. A class may bring a static method `collate(samples)`, or stack itself with `torch.stack`, as TensorDict does.
    Other leaves go to torch's `default_collate`.

    Raises:
        CollateError: If structures, shapes or dtypes differ, or attributes of tensors, or values are masked. Names the field.
        TypeError: If a leaf has a type that cannot be stacked. Names the field and the way out.
    """
    return stack_field(samples, "")


def stack_columns(columns: Any, field: str = "") -> Any:
    """Stack B samples that are given as columns, in dicts and tuples as in a sample.

    A column is a sequence of B values, or a tensor or array (B, *) of numbers, which is stacked already.
    """
    if isinstance(columns, dict):
        return {name: stack_columns(column, join_path(field, name)) for name, column in columns.items()}
    if isinstance(columns, tuple):
        names = getattr(columns, "_fields", range(len(columns)))
        parts = [stack_columns(column, join_path(field, name)) for column, name in zip(columns, names, strict=True)]
        return with_parts(columns, parts)
    if isinstance(columns, np.ndarray) and columns.dtype.kind in "biufc":
        return from_array(columns)
    return columns if isinstance(columns, Tensor) else stack_field(columns, field)


def stack_field(values: Sequence[Any], field: str) -> Any:
    """Stack the values of one field. Messages name it by its path."""
    first = values[0]
    kind = type(first)
    kinds = set(map(type, values))
    if len(kinds) == 1 and kind in _PLAIN:  # common types take the shortest way
        return _PLAIN[kind](values, field)
    if not isinstance(first, Tensor) and callable(getattr(kind, "collate", None)):
        return kind.collate(values)
    if len(kinds) > 1 and not all(issubclass(other, _MIXABLE) for other in kinds):
        row = next(row for row, value in enumerate(values) if type(value) is not kind)
        names = sorted(other.__name__ for other in kinds)
        raise CollateError(f"collate: {named(field)} has types {names}, wanted one type in a batch", [0, row])
    if isinstance(first, Tensor):
        return _stack_tensors(values, field)
    if isinstance(first, np.ndarray) and first.dtype.kind in "biufc":
        return _stack_arrays(values, field)
    if isinstance(first, _NUMBERS):
        return _stack_numbers(values, field)
    if first is None or isinstance(first, (str, bytes)):
        return list(values)
    if hasattr(kind, "__torch_function__"):
        return _stack_by("torch.stack", torch.stack, values, field)
    if (own := own_collate(kind)) is not None:  # type: ignore[arg-type]  # mypy takes a type for unhashable
        return _stack_by(*own, values, field)
    if isinstance(first, Mapping):
        return _stack_mapping(values, field)
    if field_names(first) is not None:
        return _stack_fields(values, field)
    if is_sequence(first):
        return _stack_sequence(values, field)
    try:
        return default_collate(list(values))
    except TypeError as error:
        raise _no_leaf(first, field) from error


def from_array(array: Array) -> Tensor:
    """Return an array as a tensor that shares its memory if torch can read it. Do not write to it."""
    try:
        return torch.from_numpy(array)
    except ValueError:  # negative strides or another byte order
        # np.ascontiguousarray would keep the strides of axes of size 1.
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))


def _no_leaf(value: object, field: str) -> TypeError:
    """Return the error for a value that cannot be stacked."""
    kind, dtype = type(value), getattr(value, "dtype", None)
    found, advice = kind.__name__, _advice(kind)
    if isinstance(value, np.ndarray | np.generic) and isinstance(dtype, np.dtype):
        found, advice = str(dtype), _OF_DTYPES["S" if dtype.kind == "V" and dtype.names is None else dtype.kind]
    outside = kind.__module__.partition(".")[0] in sys.stdlib_module_names
    own = "" if advice or outside else ", or, if the class is yours, give it a static method collate(samples)"
    return TypeError(
        f"collate: {named(field)} has type {found}, wanted tensors, arrays, numbers, strings, None, or mappings, sequences and "
        f"objects with fields of them. {advice or 'Make it one of these in the dataset'}, or pass collate_fn{own}."
    )


def _advice(kind: type) -> str:
    """Return the advice for a type: what to write in the dataset instead. Empty for types without one."""
    known = [advice for base, advice in _OF_TYPES if issubclass(kind, base)]
    if callable(getattr(kind, "to_numpy", None)) or any(base.__module__ == "PIL.Image" for base in kind.__mro__):
        known.append("Make it an array in the dataset: numpy.array(value)")
    return known[0] if known else ""


def _stack_by(name: str, collate: Callable[[list[Any]], object], values: Sequence[object], field: str) -> Any:
    """Stack values by a function for their class: their library's, or `torch.stack`. Messages call the function `name`."""
    try:
        return collate(list(values))
    except Exception as error:
        raise CollateError(
            f"collate: {named(field)} has type {type(values[0]).__name__}, which {name} cannot stack: {error}. Make them "
            "of one structure and shape in the dataset, or pass collate_fn"
        ) from error


def _stack_fields(values: Sequence[object], field: str) -> object:
    names = field_names(values[0]) or []
    try:
        columns = {name: [getattr(value, name) for value in values] for name in names}
    except AttributeError:
        columns = None
    kind: Any = type(values[0])
    if columns is None or declared_fields(kind) != tuple(names):  # else all samples have the same fields
        for row, value in enumerate(values):
            if set(field_names(value) or ()) != set(names):
                raise CollateError(
                    f"collate: {named(field)} has fields {names} and {field_names(value)}, wanted the same in a batch",
                    [0, row],
                )
    stacked = {name: stack_field(column, join_path(field, name)) for name, column in (columns or {}).items()}
    return batch_like(values, stacked, field)


def batch_like(values: Sequence[object], parts: object, field: str) -> object:
    """Return a batch of the samples' type with these parts, and with the attributes that are equal in all samples.

    Warns if samples differ in other attributes. Of these, the batch has only private ones: the first sample's.
    """
    first = values[0]
    batch = with_parts(first, parts)
    names = _differing(batch, values) if type(batch) is type(first) else []
    if names:
        # A class may need the attributes that it has for itself.
        own = [name for name in names if name.startswith("_") and hasattr(batch, name)]
        left = [name for name in names if name not in own]
        for name in attributes_of(batch).keys() & left:
            leave_out(batch, name)
        said = [f"The batch is without {left}." if left else "", f"It keeps the first sample's {own}." if own else ""]
        warnings.warn(
            f"collate: {named(field)} has type {type(first).__name__}, and samples of a batch differ in its attributes {names}. "
            f"{' '.join(filter(None, said))} Make them fields of the samples, or pass a collate_fn that knows them.",
            stacklevel=2,
        )
    return batch


def _differing(batch: object, values: Sequence[object]) -> list[str]:
    """Return the attributes, other than those made of the parts, that are not the same in all samples."""
    first, kind = attributes_of(values[0]), type(values[0])
    has_more = kind.__dictoffset__ and not shows_items(values[0])
    names = set(first).union(*map(vars, values)) if has_more else set(first)
    names = names.difference(field_names(values[0]) or ())
    if not names:
        return []
    states, kept = list(map(attributes_of, values)), attributes_of(batch)
    return [
        name
        for name in sorted(names)
        if not name.startswith("__")
        and not is_cached(kind, name)
        and (name not in kept or kept[name] is first.get(name, kept))
        and not all(name in state and is_same(state[name], first.get(name)) for state in states)
    ]


def is_same(left: Any, right: Any) -> bool:
    """Return whether two values are equal, with equal types; NaN equals NaN. Tensors and arrays may be among them."""
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(is_same(value, right[name]) for name, value in left.items())
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(is_same, left, right))
    try:
        if isinstance(left, Tensor):
            kinds = left.dtype == right.dtype and left.device == right.device and left.shape == right.shape
            return kinds and bool(((left == right) | ((left != left) & (right != right))).all())
        if isinstance(left, np.ndarray):
            return left.dtype == right.dtype and np.array_equal(left, right, equal_nan=left.dtype.kind in "fc")
        is_nan = isinstance(left, float | complex | np.inexact) and left != left
        return bool(right != right if is_nan else left == right)
    except Exception:  # a class whose == fails
        return False


def check_unmasked(array: object, field: str, row: int = 0, collate: str = "collate") -> None:
    """Raise a CollateError if an array has masked values: a tensor has no mask."""
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise CollateError(
            f"{collate}: {named(field)} has masked values, and a tensor has no mask. In the dataset return array.filled(value), and "
            "np.ma.getmaskarray(array) as another field if you need it",
            [row],
        )


def _stack_arrays(values: Sequence[Array], field: str) -> Tensor:
    if isinstance(values[0], np.ma.MaskedArray):
        for row, value in enumerate(values):
            check_unmasked(value, field, row)
    try:
        return _stack_tensors(list(map(from_array, values)), field)
    except TypeError as error:  # a dtype that torch lacks
        raise _no_leaf(values[0], field) from error


def _stack_tensors(values: Sequence[Tensor], field: str) -> Tensor:
    first = values[0]
    if first.is_nested or first.layout is not torch.strided:
        return _stack_unusual(values, field)
    if len(set(map(_DTYPE, values))) > 1:
        raise difference("dtypes", list(map(_DTYPE, values)), field, "collate", ". Cast them to one in the dataset")
    own = None if type(first) is Tensor else own_collate(type(first))
    if own is not None and len({value.shape for value in values}) == 1:
        return _stack_by(*own, values, field)  # type: ignore[no-any-return]  # a Tensor, as torch's own functions give
    try:
        if type(first) is Tensor:
            return stack_rows(values)
        stacked = torch.stack([value.as_subclass(Tensor) for value in values]).as_subclass(type(first))
    except RuntimeError:
        shapes = [tuple(value.shape) for value in values]
        if len(set(shapes)) == 1:
            raise
        is_ragged = all(shapes) and len({shape[1:] for shape in shapes}) == 1
        pad = "For variable lengths use loaderkit.PadCollate"
        way_out = pad if is_ragged else "Resize, crop or pad them in the dataset, or pass collate_fn"
        raise difference("shapes", shapes, field, "collate", f". {way_out}") from None
    return like_samples(stacked, values, field)


def like_samples(batch: Tensor, values: Sequence[object], field: str) -> Tensor:
    """Give a batch the attributes of its samples, and return it. Batch and samples are of one subclass of Tensor.

    Raises:
        CollateError: If the samples differ in an attribute: the first sample's would be wrong for the others.
    """
    wanted = vars(values[0])
    for row, value in enumerate(values):
        found = vars(value)
        for name in {**wanted, **found}:
            if not (name in wanted and name in found and is_same(found[name], wanted[name])):
                raise _other_attribute(values, row, name, field)
    vars(batch).update(wanted)
    return batch


def _other_attribute(values: Sequence[object], row: int, name: str, field: str) -> CollateError:
    kind, (first, other) = type(values[0]).__name__, (vars(values[0]), vars(values[row]))
    shown = " and ".join(
        textwrap.shorten(repr(state[name]), 100) if name in state else "none" for state in (first, other)
    )
    boxes = "loaderkit.DetectionCollate, or " if hasattr(values[0], "canvas_size") else ""
    return CollateError(
        f"collate: {named(field)} has type {kind}, and its samples differ in the attribute {name!r}: {shown}, wanted one in a "
        f"batch. In the dataset make them equal, or return plain tensors, value.as_subclass(torch.Tensor), and the attribute "
        f"as a field of its own. Or pass {boxes}a collate_fn that knows {kind}",
        [0, row],
    )


def difference(what: str, found: Sequence[object], field: str, collate: str, way_out: str = "") -> CollateError:
    """Return the error for a batch whose samples differ in something that must be the same."""
    row = next(row for row, other in enumerate(found) if other != found[0])
    return CollateError(
        f"{collate}: {named(field)} has {what} {found[0]} and {found[row]}, wanted one in a batch{way_out}", [0, row]
    )


def _stack_unusual(values: Sequence[Tensor], field: str) -> Tensor:
    """Stack sparse or nested tensors if torch can: it stacks COO tensors of one shape, and few others."""
    try:
        return torch.stack(list(values))
    except (
        RuntimeError,
        ValueError,
        TypeError,
    ) as error:  # some versions check nested tensors by a schema of their own
        what = "nested tensors" if values[0].is_nested else f"tensors of layout {values[0].layout}"
        raise CollateError(
            f"collate: {named(field)} has {what} that torch cannot stack. From parts of different lengths "
            "loaderkit.RaggedCollate makes a batch. Of sparse tensors, those of one shape in COO stack "
            "(tensor.to_sparse_coo()). Or pass collate_fn",
            [0],
        ) from error


def _stack_numbers(values: Sequence[Any], field: str) -> Tensor:
    kinds = set(map(type, values))
    if isinstance(values[0], _NUMPY_NUMBERS) or any(issubclass(kind, np.floating) for kind in kinds):
        try:
            return torch.from_numpy(np.asarray(values))
        except TypeError as error:  # a dtype that torch lacks
            raise _no_leaf(values[0], field) from error
    # On the host, as all leaves: torch.set_default_device would put only these elsewhere.
    if any(issubclass(kind, float) for kind in kinds):
        return torch.tensor(values, dtype=torch.float64, device="cpu")
    if kinds == {bool, int}:
        return _stack_integers(values, field)
    return torch.tensor(values, device="cpu")


def _stack_mapping(values: Sequence[Mapping[object, object]], field: str) -> object:
    names = values[0].keys()
    for row, value in enumerate(values):
        if value.keys() != names:
            raise CollateError(
                f"collate: {named(field)} has keys {list(names)} and {list(value)}, wanted the same in a batch",
                [0, row],
            )
    stacked = {name: stack_field([value[name] for value in values], join_path(field, name)) for name in names}
    if type(values[0]) is dict:
        return stacked
    return batch_like(values, stacked, field)


def _stack_sequence(values: Sequence[Sequence[object]], field: str) -> object:
    lengths = list(map(len, values))
    length = lengths[0]
    if len(set(lengths)) > 1:
        row = next(row for row, other in enumerate(lengths) if other != length)
        raise CollateError(
            f"collate: {named(field)} has {length} and {lengths[row]} parts, wanted the same number in a batch. "
            "For variable lengths make them tensors and use loaderkit.PadCollate",
            [0, row],
        )
    kind: Any = type(values[0])
    names = getattr(kind, "_fields", range(length))
    columns = zip(*values, strict=True)
    parts = [stack_field(column, join_path(field, name)) for column, name in zip(columns, names, strict=True)]
    if kind is tuple:
        return tuple(parts)
    return parts if kind is list else batch_like(values, parts, field)


def join_path(path: str, name: object) -> str:
    """Return the path of a field inside another field."""
    return f"{path}.{name}" if path else str(name)


def named(path: str) -> str:
    """Return a field's name for a message."""
    return f"field '{path}'" if path else "the sample"


def _stack_integers(values: Sequence[int], field: str) -> Tensor:
    try:
        return torch.from_numpy(np.array(values, dtype=np.int64))  # a quarter of torch.tensor's time
    except OverflowError:
        row = next(row for row, value in enumerate(values) if not -(2**63) <= value < 2**63)
        raise CollateError(
            f"collate: {named(field)} is {values[row]}, wanted integers of 64 bits. Make them numpy.uint64 in the dataset, or text",
            [row],
        ) from None


_NUMBER_OR_TEXT = "Make it a number in the dataset, such as {}, or a text, such as str(value)"
_LIST = "Make it a list in the dataset: value.tolist()"
_DATE = _NUMBER_OR_TEXT.format("value.astype('int64')")
# What to write in the dataset, by the kind of an array's dtype, and by type.
_OF_DTYPES = {
    "M": _DATE,
    "m": _DATE,
    "O": "Make it an array of numbers in the dataset, such as value.astype('float32'), or a list: value.tolist()",
    "U": _LIST,
    "S": _LIST,
    "T": _LIST,
    "V": "Make its fields those of the sample: {name: value[name] for name in value.dtype.names}",
    "f": "Make it float64 in the dataset: value.astype('float64')",
    "c": "Make it complex128 in the dataset: value.astype('complex128')",
}
_OF_TYPES: tuple[tuple[type, str], ...] = (
    (datetime.datetime, _NUMBER_OR_TEXT.format("value.timestamp()")),
    (datetime.date, _NUMBER_OR_TEXT.format("value.toordinal()")),
    (datetime.timedelta, _NUMBER_OR_TEXT.format("value.total_seconds()")),
    (decimal.Decimal, _NUMBER_OR_TEXT.format("float(value)")),
    (fractions.Fraction, _NUMBER_OR_TEXT.format("float(value)")),
    (datetime.time, "Make it a text in the dataset: str(value)"),
    (uuid.UUID, "Make it a text in the dataset: str(value)"),
    (enum.Enum, "Make it value.value or value.name in the dataset"),
    (os.PathLike, "Make it a text in the dataset: str(value)"),
    (set, "Make it a list in the dataset, such as sorted(value)"),
    (frozenset, "Make it a list in the dataset, such as sorted(value)"),
)
_PLAIN: dict[type, Callable[[Sequence[Any], str], object]] = {
    Tensor: _stack_tensors,
    dict: _stack_mapping,
    int: _stack_integers,
    str: lambda values, _: list(values),
    bytes: lambda values, _: list(values),
    tuple: _stack_sequence,
    list: _stack_sequence,
}
