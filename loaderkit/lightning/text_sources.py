"""Read texts and their labels from columns, a dataset of dicts, or files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loaderkit.datasets.find_shards import expand
from loaderkit.files.urls import Urls
from loaderkit.lightning.shards import open_shards
from loaderkit.system.tables import by_position, columns_of, is_arrow, is_frame

TextData = Any  # columns by name, a dataset of dicts, or Urls


def is_urls(data: TextData) -> bool:
    """Return whether the data is paths or URLs."""
    first = data[0] if isinstance(data, list | tuple) and data else data
    return isinstance(first, str | Path)


def is_text_files(urls: Urls) -> bool:
    """Return whether all files are plain text."""
    every = urls if isinstance(urls, list | tuple) else [urls]
    return all(str(url).endswith(".txt") for url in every)


def read_texts(
    data: TextData,
    name: str,
    text: str,
    label: str | None,
    labelled: bool,
    format: str | None,  # noqa: A002
) -> tuple[list[str], list[object] | None]:
    """Return the texts in the field `text`, and the labels in the field `label`.

    The labels are None without `label`, and if the data is not `labelled`. Messages call the data `name`.
    """
    if is_urls(data) and is_text_files(data):
        if label is not None:
            raise ValueError(
                f"TextDataModule: {name} is text files, which have no field {label!r}. Give columns instead."
            )
        return [Path(path).read_text(encoding="utf-8") for path in expand(data, (".txt",))], None
    if is_urls(data):
        try:
            data = open_shards(data, format=format)
        except FileNotFoundError as error:
            error.add_note(f"loaderkit: strings are paths. To pass the texts themselves: {name}={{{text!r}: texts}}.")
            raise
    columns, fields = _columns(data, name, [text, label])
    wanted = [text] + ([label] if label is not None and labelled else [])
    missing = [field for field in wanted if field not in (wanted if fields is None else fields)]
    if missing:
        raise ValueError(f"TextDataModule: {name} has no {missing}, its fields are {fields}. Give text= and label=.")
    sizes = {field: len(columns.get(field, [])) for field in wanted}
    if len({*sizes.values(), sizes[text] or -1}) > 1:
        raise ValueError(f"TextDataModule: {name} has fields of lengths {sizes}, wanted equal lengths of at least 1.")
    labels = columns.get(label) if label is not None and labelled else None
    if labels is not None:
        labels = [value.item() if hasattr(value, "item") else value for value in labels]
    return columns[text], labels


def _columns(
    data: Any, name: str, fields: Sequence[str | None]
) -> tuple[dict[str | None, list[Any]], list[str] | None]:
    """Return the values of `fields` by name, and the names of all fields in the data: None if there are no samples.

    Fields that a table lacks are left out.
    """
    if (found := columns_of(data)) is not None:
        return {field: _values(found[field]) for field in fields if field in found}, list(found)
    if is_frame(data):
        raise TypeError(
            f"TextDataModule: {name} is a {type(data).__name__}, which is not in memory; wanted a table that is: frame.collect() "
            "of polars, dataset.to_table() of Arrow, frame.compute() of dask, or the files themselves."
        )
    columns: dict[str | None, list[Any]] = {field: [] for field in fields}
    for index in range(len(data)):
        sample = data[index]
        for field in fields:
            if field in sample:
                columns[field].append(sample[field])
    return columns, list(data[0]) if len(data) else None


def _values(column: Any) -> list[Any]:
    values: list[Any] = column.to_pylist() if is_arrow(column) else list(by_position(column))
    return values


def classes_of(labels: list[object], name: str) -> list[Any]:
    """Return the distinct labels, sorted. Raise a ValueError if one is missing, or they can't be sorted."""
    for row, label in enumerate(labels):
        if label is None or label != label:  # NaN
            raise ValueError(
                f"TextDataModule: text {row:,} of {name} has the label {label!r}. Leave out texts without a label, or list the "
                "labels: classes=[...]."
            )
    try:
        return sorted(set(labels))
    except TypeError as error:
        raise ValueError(
            f"TextDataModule: the labels of {name} can't be sorted ({error}), wanted numbers or strings. Or list them: classes=[...]."
        ) from error
