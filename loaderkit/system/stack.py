"""The default collate: stacks nested samples leaf by leaf and keeps their types."""

import copy
import dataclasses
import operator
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import default_collate

from loaderkit.system.stack_rows import stack_rows

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


def stack(samples: Sequence[Any]) -> Any:
    """Stack B samples of one structure.

    Tensors, arrays and numbers become tensors (B, *). Subclasses of Tensor stay what they are. Strings, bytes and None
    become lists. Dicts, tuples, namedtuples and dataclasses keep their type: a batch of tuples is a tuple, where
    torch's `default_collate` makes a list, and strings inside it are a list, where torch makes a tuple. A class may bring a static method
    `collate(samples)`. Other leaves go to torch's `default_collate`.

    Raises:
        CollateError: If structures, shapes or dtypes differ. Names the field.
        TypeError: If a leaf has a type that cannot be stacked.
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
        return type(columns)(*parts) if hasattr(columns, "_fields") else tuple(parts)
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
        return _stack_tensors(list(map(from_array, values)), field)
    if isinstance(first, _NUMBERS):
        return _stack_numbers(values)
    if first is None or isinstance(first, (str, bytes)):
        return list(values)
    if isinstance(first, Mapping):
        return _stack_mapping(values, field)
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        return _stack_dataclass(values, field)
    if isinstance(first, (tuple, list)):
        return _stack_sequence(values, field)
    try:
        return default_collate(list(values))
    except TypeError as error:
        raise TypeError(
            f"collate: {named(field)} has type {getattr(first, 'dtype', kind.__name__)}, wanted tensors, arrays, numbers, strings, None, or "
            f"dicts, tuples and dataclasses of them. Give {kind.__name__} a static method collate(samples), or pass collate_fn."
        ) from error


def from_array(array: npt.NDArray[Any]) -> Tensor:
    """Return an array as a tensor that shares its memory if torch can read it. Do not write to it."""
    try:
        return torch.from_numpy(array)
    except ValueError:  # negative strides or another byte order
        # np.ascontiguousarray would keep the strides of axes of size 1.
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))


def _stack_dataclass(values: Sequence[Any], field: str) -> Any:
    names = {each.name: each.init for each in dataclasses.fields(values[0])}
    stacked = {name: stack_field([getattr(value, name) for value in values], join_path(field, name)) for name in names}
    made = type(values[0])(**{name: value for name, value in stacked.items() if names[name]})
    for name, value in stacked.items():
        if not names[name]:
            object.__setattr__(made, name, value)  # works for frozen dataclasses too
    return made


def _stack_tensors(values: Sequence[Tensor], field: str) -> Tensor:
    first = values[0]
    if first.is_nested or first.layout is not torch.strided:
        return _stack_unusual(values, field)
    if len(set(map(_DTYPE, values))) > 1:
        raise difference("dtypes", list(map(_DTYPE, values)), field, "collate", ". Cast them to one in the dataset")
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
    stacked.__dict__.update(first.__dict__)
    return stacked


def difference(what: str, found: Sequence[Any], field: str, collate: str, way_out: str = "") -> CollateError:
    """Return the error for a batch whose samples differ in something that must be the same."""
    row = next(row for row, other in enumerate(found) if other != found[0])
    return CollateError(
        f"{collate}: {named(field)} has {what} {found[0]} and {found[row]}, wanted one in a batch{way_out}", [0, row]
    )


def _stack_unusual(values: Sequence[Tensor], field: str) -> Tensor:
    """Stack sparse or nested tensors if torch can: it stacks COO tensors of one shape, and few others."""
    try:
        return torch.stack(list(values))
    except RuntimeError as error:
        what = "nested tensors" if values[0].is_nested else f"tensors of layout {values[0].layout}"
        raise CollateError(
            f"collate: {named(field)} has {what} that torch cannot stack. From parts of different lengths "
            "loaderkit.RaggedCollate makes a batch. Of sparse tensors, those of one shape in COO stack "
            "(tensor.to_sparse_coo()). Or pass collate_fn",
            [0],
        ) from error


def _stack_numbers(values: Sequence[Any]) -> Tensor:
    kinds = set(map(type, values))
    if isinstance(values[0], _NUMPY_NUMBERS) or any(issubclass(kind, np.floating) for kind in kinds):
        return torch.from_numpy(np.asarray(values))
    if any(issubclass(kind, float) for kind in kinds):
        return torch.tensor(values, dtype=torch.float64)
    return torch.tensor(values)


def _stack_mapping(values: Sequence[Mapping[Any, Any]], field: str) -> Any:
    names = values[0].keys()
    for row, value in enumerate(values):
        if value.keys() != names:
            raise CollateError(
                f"collate: {named(field)} has keys {list(names)} and {list(value)}, wanted the same in a batch",
                [0, row],
            )
    stacked = {name: stack_field([value[name] for value in values], join_path(field, name)) for name in names}
    kind: Any = type(values[0])
    if kind is dict or not isinstance(values[0], MutableMapping):
        return stacked if kind is dict else kind(stacked)
    same = copy.copy(values[0])  # its constructor may take other arguments, as defaultdict's does
    for name, value in stacked.items():
        same[name] = value
    return same


def _stack_sequence(values: Sequence[Sequence[Any]], field: str) -> Any:
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
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


def join_path(path: str, name: Any) -> str:
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


_PLAIN: dict[type, Callable[[Sequence[Any], str], Any]] = {
    Tensor: _stack_tensors,
    int: _stack_integers,
    str: lambda values, _: list(values),
    bytes: lambda values, _: list(values),
    tuple: _stack_sequence,
    list: _stack_sequence,
}
