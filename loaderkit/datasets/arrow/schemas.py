"""Check whether the columns of two files match, so that their rows can be in one dataset."""

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from loaderkit.datasets.arrow.columns import layout_of, wider_number
from loaderkit.datasets.errors import ShardError
from loaderkit.system.arrow_values import number_type

if TYPE_CHECKING:
    import pyarrow as pa

_WRITE = "Or write the files again with the same columns."


def check_schema(
    shard: str, found: "pa.Schema", first: str, wanted: "pa.Schema", columns: Collection[str] | None
) -> None:
    """Raise a ShardError unless a file has the first file's columns, in any order, with types that can be in one batch.

    Args:
        shard: The file.
        found: The file's schema.
        first: The first file, which it is compared with.
        wanted: The first file's schema.
        columns: The columns that are read; None for all.
    """
    if found.equals(wanted):
        return
    names = wanted.names if columns is None else columns
    missing = [name for name in names if name not in found.names]
    added = [name for name in found.names if name not in wanted.names] if columns is None else []
    if missing or added:
        both = [name for name in wanted.names if name in found.names]
        what = [f"lacks {_listed(missing, wanted)}, which {first} has"] * bool(missing)
        what += [f"has {_listed(added, found)}, which {first} lacks"] * bool(added)
        raise ShardError(f"{shard}: {', and '.join(what)}. Read the columns of all files: columns={both}. {_WRITE}")
    for name in names:
        if name not in wanted.names:
            continue
        kinds = found.field(name).type, wanted.field(name).type
        if kinds[0] != kinds[1] and not _fit(*kinds):
            others = [each for each in names if each != name]
            raise ShardError(
                f"{shard}: column {name!r} is {kinds[0]}, in {first} it is {kinds[1]}. Leave it out: columns={others}. {_WRITE}"
            )


def _listed(names: list[str], schema: "pa.Schema") -> str:
    known = [f"{name!r} ({schema.field(name).type})" if name in schema.names else repr(name) for name in names]
    return f"the column{'s' * (len(names) > 1)} {', '.join(known)}"


def _fit(kind: "pa.DataType", first: "pa.DataType") -> bool:
    """Return whether values of a type can be in one batch with those of the first file's type."""
    form = _form(kind)
    if not _is_same(form, _form(first)):
        return False
    # If the first file's type lets batches be gathered from columns, this type must allow it too.
    return form is None or layout_of(first) is None or layout_of(kind) is not None


def _is_same(one: object, other: object) -> bool:
    """Return whether values of two forms can be in one batch; None is the form of a column of nulls, and fits any."""
    if one is None or other is None:
        return True
    if isinstance(one, np.dtype) and isinstance(other, np.dtype):
        return wider_number(one, other) is not None
    if isinstance(one, np.dtype) or isinstance(other, np.dtype):
        return False
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(_is_same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)


def _form(kind: "pa.DataType") -> object:
    """Return the form of an Arrow type's values: a dtype, name or tuple that is equal for types with the same values.

    Return None for the null type.
    """
    import pyarrow.types as kinds

    if kinds.is_null(kind):
        return None
    if kinds.is_dictionary(kind):
        inner = _form(kind.value_type)
        return ("dictionary", inner) if isinstance(inner, np.dtype) else inner
    if (number := number_type(kind)) is not None:
        return number
    for name, checks in _SAME.items():
        if any(getattr(kinds, f"is_{check}", _never)(kind) for check in checks):
            return name
    if kinds.is_timestamp(kind):
        return "timestamp with a zone" if kind.tz else "timestamp"
    if kinds.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return ("struct", *((field.name, _form(field.type)) for field in sorted(fields, key=lambda field: field.name)))
    if kinds.is_map(kind):
        return "map", _form(kind.key_type), _form(kind.item_type)
    if kinds.is_fixed_size_list(kind):
        return f"list of {kind.list_size}", _item(kind)
    if any(
        getattr(kinds, f"is_{check}", _never)(kind) for check in ("list", "large_list", "list_view", "large_list_view")
    ):
        return "list", _item(kind)
    return str(kind)


_SAME = {
    "text": ("string", "large_string", "string_view"),
    "bytes": ("binary", "large_binary", "binary_view", "fixed_size_binary"),
    "decimal": ("decimal",),
    "date": ("date",),
    "time": ("time",),
    "duration": ("duration",),
}


def _item(kind: "pa.DataType") -> object:
    """Return the form of a list's items.

    Numbers count as the same only if their types are equal, as a list becomes an array.
    """
    return _form(kind.value_type) if number_type(kind.value_type) is None else str(kind.value_type)


def _never(_: object) -> bool:
    return False
