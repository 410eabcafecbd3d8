"""Cut a patch out of a sample that holds a volume: torchio's Subject, a dict, a tuple, or one array."""

import importlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loaderkit.system.containers import with_parts
from loaderkit.system.names import has_class

Shape = tuple[int, ...]
_SUBJECT = "torchio.data.subject.Subject"
_META_TENSOR = "monai.data.meta_tensor.MetaTensor"


def spatial_shape(volume: Any, axes: int, fields: Sequence[object] | None, name: str) -> Shape:
    """Return the shape (D,) of a volume's last axes, which all its fields share.

    Args:
        volume: The sample.
        axes: D, the number of spatial axes. Axes before them, such as channels, do not count.
        fields: The names or positions of the fields that are cut; None for all with more than D axes.
        name: Begins the message of an error.

    Raises:
        TypeError: If there is nothing to cut.
        ValueError: If the fields have different shapes.
    """
    if has_class(volume, _SUBJECT):
        found: Shape = tuple(map(int, volume.spatial_shape))
        return found
    parts = volume if isinstance(volume, Mapping) else dict(enumerate(volume)) if isinstance(volume, tuple) else None
    if parts is None:
        shapes = {"": _shape(volume, axes, name)}
    else:
        shapes = {
            field: _shape(parts[field], axes, f"{name}, field {field!r},")
            for field in cut_fields(volume, axes, fields, name)
        }
    first, *others = shapes
    for other in others:
        if shapes[other] != shapes[first]:
            raise ValueError(
                f"{name} has shape {shapes[first]} in field {first!r} and {shapes[other]} in field {other!r}, wanted one shape. "
                "Resample them in the volumes' dataset, or name the fields to cut: fields=[...]."
            )
    return shapes[first]


def cut_fields(volume: Any, axes: int, fields: Sequence[object] | None, name: str) -> list[Any]:
    """Return the names (dict) or positions (tuple) of the fields that are cut. Arguments as in `spatial_shape`."""
    parts = volume if isinstance(volume, Mapping) else dict(enumerate(volume))
    if fields is not None:
        if missing := [field for field in fields if field not in parts]:
            raise KeyError(f"{name} has the fields {list(parts)}, wanted {missing} too.")
        return list(fields)
    found = [field for field, value in parts.items() if isinstance(value, Tensor | np.ndarray) and value.ndim > axes]
    if not found:
        raise TypeError(
            f"{name} has no tensor or array of more than {axes} axes in its fields {list(parts)}, wanted channels first: (C, *S). "
            "Name the fields to cut: fields=[...]."
        )
    return found


def cut(volume: object, start: Shape, size: Shape, fields: Sequence[object] | None, name: str) -> object:
    """Return a patch of a volume. The patch is a copy; fields that are not cut stay as they are.

    Args:
        volume: The sample.
        start: Where the patch begins (D,).
        size: The patch's shape (D,).
        fields: See `spatial_shape`.
        name: Begins the message of an error.
    """
    if has_class(volume, _SUBJECT):
        return _torchio().PatchSampler(size).crop(volume, start, size)
    if isinstance(volume, Mapping):
        chosen = cut_fields(volume, len(size), fields, name)
        return with_parts(
            volume, {key: _cut(value, start, size) if key in chosen else value for key, value in volume.items()}
        )
    if isinstance(volume, tuple):
        chosen = cut_fields(volume, len(size), fields, name)
        return with_parts(
            volume, [_cut(value, start, size) if key in chosen else value for key, value in enumerate(volume)]
        )
    return _cut(volume, start, size)


def with_location(patch: object, start: Shape, size: Shape, number: int) -> object:
    """Return a patch with its location and the number of its volume.

    The location is (2 D,) int64: the patch's start, then its end. A dict gets the fields "location" and "volume". A
    tuple gets them as its last parts; an array becomes a tuple with them.
    """
    location = torch.tensor([*start, *(first + length for first, length in zip(start, size, strict=True))])
    if isinstance(patch, Mapping):
        if not isinstance(patch, dict):
            patch = dict(patch)
        patch["location"], patch["volume"] = location, number
        return patch
    return (*patch, location, number) if isinstance(patch, tuple) else (patch, location, number)


def _cut(value: Any, start: Shape, size: Shape) -> object:
    if has_class(value, _META_TENSOR) and value.ndim == len(size) + 1:  # MONAI shifts the affine to the patch's corner
        crop = importlib.import_module("monai.transforms").SpatialCrop
        return crop(roi_start=start, roi_end=[first + length for first, length in zip(start, size, strict=True)])(
            value
        ).clone()
    part = value[(..., *(slice(first, first + length) for first, length in zip(start, size, strict=True)))]
    return part.clone() if isinstance(part, Tensor) else part.copy()


def _shape(value: object, axes: int, name: str) -> Shape:
    if not isinstance(value, Tensor | np.ndarray) or value.ndim < axes:
        found = (
            f"shape {tuple(value.shape)}" if isinstance(value, Tensor | np.ndarray) else f"type {type(value).__name__}"
        )
        raise TypeError(f"{name} has {found}, wanted a tensor or array (*, S) whose last {axes} axes are cut.")
    return tuple(map(int, value.shape[value.ndim - axes :]))


def _torchio() -> ModuleType:
    return importlib.import_module("torchio.data.sampler")  # already imported, since there is a Subject
