"""Transforms of whole batches on the device: what is small on its way there, and large where it is used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from loaderkit.datasets.ragged import Ragged
from loaderkit.system.nested import map_leaves

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


@dataclass(frozen=True, slots=True)
class Normalize:
    """A device transform that scales pictures from uint8 to [0, 1] and normalises them: (x / 255 - mean) / std.

    Pictures are the batch's uint8 tensors (*, C, H, W) with as many channels as there are means. A quarter of float32's
    bytes goes to the device.

    Args:
        mean: Of each channel.
        std: Of each channel.
        dtype: Of the result; it is computed in float32.
        channels_last: Whether (B, C, H, W) is laid out with the channels last, as convolutions want it.

    Raises:
        ValueError: If the numbers of means and deviations differ, a deviation is 0, or a batch has no pictures.
    """

    draws_nothing: ClassVar[bool] = True

    mean: Sequence[float]
    std: Sequence[float]
    dtype: torch.dtype = torch.float32
    channels_last: bool = False

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(self.std):
            raise ValueError(
                f"Normalize: mean={list(self.mean)} and std={list(self.std)}, wanted as many of each, and no std of 0."
            )

    def __call__(self, batch: Any) -> Any:
        found = 0

        def normalise(leaf: Any) -> Any:
            nonlocal found
            if not isinstance(leaf, Tensor) or leaf.dtype != torch.uint8 or leaf.ndim < 3:
                return leaf
            if leaf.shape[-3] != len(self.mean):
                return leaf
            found += 1
            return self._normalise(leaf)

        result = map_leaves(batch, normalise)
        if not found:
            raise ValueError(
                f"Normalize: the batch has no uint8 tensor (*, {len(self.mean)}, H, W). Give it pictures as uint8, or leave "
                "the transform out."
            )
        return result

    def _normalise(self, pictures: Tensor) -> Tensor:
        scale = _constant([1 / (255 * std) for std in self.std], pictures)
        shift = _constant([-mean / std for mean, std in zip(self.mean, self.std, strict=True)], pictures)
        scaled = (pictures * scale).add_(shift).to(self.dtype)
        last = self.channels_last and scaled.ndim == 4
        return scaled.contiguous(memory_format=torch.channels_last) if last else scaled


@dataclass(frozen=True, kw_only=True, slots=True)
class PadRagged:
    """A device transform that pads sequences which came end to end, as `Ragged`s: no padding goes to the device.

    Args:
        value: Written behind each sequence's end.
        dtype: Of the result, such as torch.int64 for tokens that come as uint16; None keeps theirs.
        multiple_of: Round the padded length up to this many steps.
        lengths: Whether to add `<field>_lengths` (B,) int64.
        mask: Whether to add `<field>_mask` (B, T) bool, true at the data.

    Returns (when called with a batch):
        Of a dict, the same with each `Ragged` as (B, T, *F), and lengths and mask beside it. Of a `Ragged`, a tuple of the
        three, of those that were asked for, or the padded tensor alone.

    Raises:
        ValueError: If a length is below 1, or a batch has no `Ragged`.
    """

    draws_nothing: ClassVar[bool] = True

    value: float = 0
    dtype: torch.dtype | None = None
    multiple_of: int = 1
    lengths: bool = True
    mask: bool = False

    def __post_init__(self) -> None:
        if self.multiple_of < 1:
            raise ValueError(f"PadRagged: multiple_of is {self.multiple_of}, wanted at least 1.")

    def on_host(self, batch: Any) -> Any:
        """Note how long the longest sequences are: the device would have to be asked, and waited for."""
        if isinstance(batch, Ragged):
            return self._measure(batch)
        names = [name for name, part in batch.items() if isinstance(part, Ragged)] if isinstance(batch, Mapping) else []
        if not names:
            found = list(batch) if isinstance(batch, Mapping) else type(batch).__name__
            raise ValueError(
                f"PadRagged: the batch has no Ragged (found {found}), wanted one, or a dict with one. Make them by "
                "lk.RaggedCollate(nested=False), or leave the transform out."
            )
        return {name: self._measure(part) if name in names else part for name, part in batch.items()}

    def __call__(self, batch: Any) -> Any:
        if isinstance(batch, _Measured):
            parts = tuple(self._pad(batch).values())
            return parts if len(parts) > 1 else parts[0]
        made: dict[Any, Any] = {}
        for name, part in batch.items():
            if isinstance(part, _Measured):
                made |= {f"{name}{ending}": tensor for ending, tensor in self._pad(part).items()}
            else:
                made[name] = part
        return made

    def _measure(self, ragged: Ragged) -> "_Measured":
        longest = int(ragged.offsets.diff().max()) if len(ragged.offsets) > 1 else 0
        return _Measured(*ragged, -(-longest // self.multiple_of) * self.multiple_of)

    def _pad(self, part: "_Measured") -> dict[str, Tensor]:
        """Return the tensors by the ends of their names."""
        values, offsets, steps = part
        if self.dtype is not None:
            values = values.to(self.dtype)
        places = offsets[:-1, None] + torch.arange(steps, device=offsets.device)
        is_valid = places < offsets[1:, None]
        value, dtype = torch.tensor(self.value).to(values.dtype), values.dtype
        if dtype in _SIGNED:  # of which devices know more operations
            values, value = values.view(_SIGNED[dtype]), value.view(_SIGNED[dtype])
        if len(values):
            padded = values[places.clamp_(max=len(values) - 1)]
        else:
            padded = values.new_empty((*places.shape, *values.shape[1:]))
        outside = (~is_valid).view(*is_valid.shape, *[1] * (values.ndim - 1))
        made = {"": padded.masked_fill_(outside, value.item()).view(dtype)}
        if self.lengths:
            made["_lengths"] = offsets.diff()
        if self.mask:
            made["_mask"] = is_valid
        return made


class _Measured(NamedTuple):
    """A Ragged on its way to the device."""

    values: Tensor
    offsets: Tensor
    steps: int  # of the padded result


def _constant(values: list[float], like: Tensor) -> Tensor:
    """Return numbers (C, 1, 1) beside a tensor, without a wait of the host."""
    numbers = torch.tensor(values)[:, None, None]
    if like.is_cuda:
        numbers = numbers.pin_memory()
    return numbers.to(like.device, non_blocking=like.is_cuda)
