"""`loaderkit preview`: show the first samples of a source, as a training reads them."""

import argparse
import contextlib
import dataclasses
import itertools
import warnings
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from loaderkit.cli.arguments import Commands, count
from loaderkit.cli.contact_sheet import Pixels, draw, pictures_of
from loaderkit.cli.report import check_plot, say, table
from loaderkit.cli.source import add_source, training_source
from loaderkit.loader.loader import Loader
from loaderkit.system.described import described
from loaderkit.system.types import Array

_SHOWN = 60  # characters of a value
_FEW = 4  # entries of a list that are shown one by one


class Field(NamedTuple):
    """One row of the table that shows a sample: a field's name, type and value, as strings."""

    name: str
    type: str
    dtype: str = ""
    shape: str = ""
    value: str = ""


def add_to(commands: Commands) -> None:
    """Add the command to a parser's subcommands."""
    parser = commands.add_parser(
        "preview",
        description="Show the first samples of a source: each field's type, shape, dtype and value. MODULE:FACTORY may "
        "also return a Loader or a DataModule; its first batches are shown.",
        examples=(
            ("loaderkit preview 'shards/*.tar' --plot sheet.png", "the first samples, and their pictures on one sheet"),
            ("loaderkit preview mine:make_loader --samples 1", "the first batch of your own Loader"),
        ),
    )
    add_source(parser)
    parser.add_argument("--samples", type=count, default=3, metavar="N", help="samples to show (%(default)s)")
    parser.add_argument("--plot", metavar="FILE.png", help="also draw a contact sheet; needs matplotlib")
    parser.add_argument("--pictures", type=count, default=24, metavar="N", help="pictures on the sheet (%(default)s)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the samples and return the exit code."""
    check_plot(arguments.plot)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _show(training_source(arguments), arguments)
    return 0


def _show(source: Any, arguments: argparse.Namespace) -> None:
    spread = _spread(source, arguments.pictures) if arguments.plot is not None else None
    unit = "batch" if isinstance(source, Loader | torch.utils.data.DataLoader) else "sample"
    pictures: list[tuple[str, Pixels]] = []
    shown = 0
    with contextlib.closing(_items(source)) as items:
        for number, item in enumerate(items):
            if number == 0:
                say(_overview(source, unit))
            if number < arguments.samples:
                head = [f"{unit} {number}", "type", "dtype", "shape", "value"]
                say("\n" + "\n".join(table([head, *map(list, fields_of(item))], left=range(5))))
                shown += 1
            if arguments.plot is not None and spread is None:
                named = getattr(getattr(source, "dataset", source), "classes", ())
                pictures += pictures_of(item, number, named, batched=unit == "batch")
            if number + 1 >= arguments.samples and (
                arguments.plot is None
                or spread is not None
                or len(pictures) >= arguments.pictures
                or number + 1 >= arguments.pictures
            ):
                break
    for number in spread or ():  # the first ones of a folder would be of one class
        pictures += pictures_of(source[number], number, getattr(source, "classes", ()))
    if not shown:
        raise ValueError(f"the source ({type(source).__name__}) has no {unit}{'es' if unit == 'batch' else 's'}.")
    if arguments.plot is not None:
        if not pictures:
            raise ValueError(
                "no pictures to draw: no field is a picture, such as a tensor (3, H, W). Leave out --plot."
            )
        draw(arguments.plot, pictures[: arguments.pictures])
        say(f"\n{arguments.plot}")


def _spread(source: Any, pictures: int) -> list[int] | None:
    """Return the indices of up to `pictures` samples, spread evenly over a dataset; None if the source has no index."""
    if not _has_index(source):
        return None
    size = len(source)
    spread = np.linspace(0, max(0, size - 1), min(pictures, size)).round()
    return [int(number) for number in np.unique(spread)]


def _has_index(source: object) -> bool:
    return callable(getattr(source, "__getitem__", None)) and callable(getattr(source, "__len__", None))


def _items(source: Any) -> Generator[object]:
    """Yield the source's samples, or its batches, from the first."""
    if _has_index(source):
        yield from (source[index] for index in range(len(source)))
        return
    if not callable(getattr(source, "__iter__", None)):
        raise ValueError(f"the source is of type {type(source).__name__}, wanted a dataset, a Loader or a DataModule.")
    yield from source


def _overview(source: Any, unit: str) -> str:
    try:
        return described(source) if unit == "sample" else f"{type(source).__name__}: {len(source):,} batches"
    except TypeError:
        return f"{type(source).__name__}: a stream, of unknown length"


def fields_of(sample: object, name: str = "") -> list[Field]:
    """Return a sample's fields, with those of nested dicts and tuples named like "a.b"."""
    inner = _inner(sample)
    if inner is None:
        return [_field(sample, name or "-")]
    return list(
        itertools.chain.from_iterable(fields_of(value, f"{name}.{key}" if name else str(key)) for key, value in inner)
    )


def _inner(value: object) -> list[tuple[object, object]] | None:
    """Return the names and values of a container; None if it counts as one field."""
    if isinstance(value, Mapping):
        return list(value.items()) or None
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, tuple) or (isinstance(value, list) and len(value) <= _FEW):
        return list(enumerate(value)) or None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(each.name, getattr(value, each.name)) for each in dataclasses.fields(value)]
    return None


def _field(value: object, name: str) -> Field:
    kind = type(value).__name__
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return Field(name, kind, dtype, str(tuple(value.shape)), _range(_as_array(value)))
    if isinstance(value, np.ndarray | np.generic):
        return Field(name, kind, str(value.dtype), str(value.shape), _range(np.asarray(value)))
    if isinstance(value, str):
        return Field(name, kind, "", f"{len(value):,} characters", _short(repr(value)))
    if isinstance(value, bytes | bytearray | memoryview):
        return Field(name, kind, "", f"{len(value):,} bytes", _short(repr(bytes(value[:_SHOWN]))))
    if isinstance(value, Sequence):
        return Field(name, kind, "", f"{len(value):,} entries", _short(repr(list(value[:_FEW]))))
    return Field(name, kind, "", "", _short(repr(value)))


def _as_array(value: Tensor) -> Array:
    try:
        return value.numpy(force=True)
    except TypeError:  # numpy has no such number: bfloat16, float8
        return value.float().numpy(force=True)


def _range(values: Array) -> str:
    if not values.size or values.dtype.kind not in "biuf":
        return _short(" ".join(str(values[:_FEW] if values.ndim else values).split())) if values.size else "empty"
    if values.size <= _FEW:
        return _short(" ".join(str(values).split()))
    return f"{values.min():.4g} to {values.max():.4g}" if values.dtype.kind != "b" else f"{values.mean():.0%} True"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
