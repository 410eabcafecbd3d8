"""A contact sheet: many pictures in one."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from loaderkit.system.types import Array

_SMALLEST = 8  # pixels of a side
_CHANNELS = (1, 3, 4)
Pixels = Array


def pictures_of(
    item: object, number: int | str, classes: Sequence[str] = (), *, batched: bool = False
) -> list[tuple[str, Pixels]]:
    """Return the pictures of a sample or a batch, each with its title.

    Args:
        item: The sample or batch.
        number: Its number, for the titles.
        classes: Names of classes; an integer in a sample is the number of one.
        batched: Whether it is a batch: each of its tensors has a row for each sample.
    """
    values = list(_values(item))
    if batched:
        rows = min((len(value) for value in values if isinstance(value, Tensor | np.ndarray) and value.ndim), default=0)
        samples = [[_row(value, row) for value in values] for row in range(rows)]
        return [each for row, sample in enumerate(samples) for each in pictures_of(sample, f"{number}.{row}", classes)]
    labels = [value for value in values if type(value) is int]
    label = str(labels[0]) if len(labels) == 1 else ""
    if label and 0 <= labels[0] < len(classes):
        label = str(classes[labels[0]])
    found: list[tuple[str, Pixels]] = []
    for value in values:
        pixels = _pixels(value)
        if pixels is not None:
            found.append((f"{number}: {label}" if label else str(number), pixels))
    return found


def draw(path: str, pictures: Sequence[tuple[str, Pixels]]) -> None:
    """Write a PNG with all pictures, about twice as wide as high."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(len(pictures), math.ceil(math.sqrt(2 * len(pictures))))
    rows = math.ceil(len(pictures) / columns)
    figure = Figure(figsize=(1.5 * columns, 1.7 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for axes in (every := figure.subplots(rows, columns, squeeze=False).ravel()):
        axes.axis("off")
    for axes, (title, pixels) in zip(every, pictures, strict=False):
        grey = pixels.ndim == 2
        axes.imshow(pixels, cmap="gray" if grey else None, interpolation="nearest" if len(pixels) < 100 else None)
        axes.set_title(title, fontsize=8)
    figure.savefig(path, dpi=130, format="png")


def _values(item: object) -> Iterator[object]:
    if isinstance(item, Mapping):
        item = list(item.values())
    if isinstance(item, list | tuple):
        for value in item:
            yield from _values(value)
    else:
        yield item


def _row(value: object, row: int) -> object:
    """Return one row of a batch's field, an integer as int; None if the field is not a tensor or array of rows."""
    if not isinstance(value, Tensor | np.ndarray) or not value.ndim:
        return None
    entry = np.asarray(value[row])
    return int(entry) if entry.ndim == 0 and entry.dtype.kind in "iu" else entry


def _pixels(value: Any) -> Pixels | None:
    """Return a picture as floats from 0 to 1, (H, W) or (H, W, 3 or 4).

    Return None if the value is not a picture, or is smaller than `_SMALLEST` on a side.
    """
    if isinstance(value, Tensor):
        value = value.detach().numpy(force=True)
    elif hasattr(value, "getbands"):  # a picture of PIL
        value = np.asarray(value.convert("RGB"))
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "uif":
        return None
    if value.ndim == 3 and value.shape[0] in _CHANNELS and value.shape[2] not in _CHANNELS:
        value = value.transpose(1, 2, 0)
    if value.ndim == 3 and value.shape[2] == 1:
        value = value[..., 0]
    if value.ndim not in (2, 3) or (value.ndim == 3 and value.shape[2] not in _CHANNELS):
        return None
    if min(value.shape[:2]) < _SMALLEST:
        return None
    if value.dtype == np.uint8:
        return np.asarray(value / 255)
    low, high = (0.0, 1.0) if value.min() >= 0 and value.max() <= 1 else (float(value.min()), float(value.max()))
    return np.asarray((value - low) / max(high - low, 1e-9), dtype=np.float64)
