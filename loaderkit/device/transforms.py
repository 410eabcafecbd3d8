"""Transforms of whole batches on the device. Batches stay small until they have been copied there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from loaderkit.datasets.images.checks import MAX_PIXELS, check_max_pixels
from loaderkit.datasets.images.decode import decode_pictures_on
from loaderkit.datasets.ragged import Ragged
from loaderkit.system.nested import map_leaves

T = TypeVar("T")
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


@dataclass(frozen=True, slots=True)
class Normalize:
    """A device transform that scales uint8 images and normalises them.

    It computes (x / 255 - mean) / std. All uint8 tensors (*, C, H, W) in the batch with as many channels as there are
    means count as images. Other leaves stay as they are. Copying uint8 to the device takes a quarter of float32's
    bytes.

    Args:
        mean: One number for each channel.
        std: One number for each channel.
        dtype: The result's dtype; the computation is in float32.
        channels_last: Whether (B, C, H, W) is laid out in `torch.channels_last`, which convolutions prefer.

    Raises:
        ValueError: If the numbers of means and deviations differ, a deviation is 0, or a batch has no images.

    Examples:
        >>> images = lk.ArrayDataset({"image": torch.full((4, 3, 2, 2), 255, dtype=torch.uint8)})
        >>> normalize = lk.Normalize(mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25])
        >>> batch = next(iter(lk.DeviceLoader(lk.Loader(images, 2), "cpu", transform=normalize)))
        >>> batch["image"].shape, batch["image"].dtype, batch["image"].max()
        (torch.Size([2, 3, 2, 2]), torch.float32, tensor(2.))
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

    def __call__(self, batch: T) -> T:
        found = 0

        def normalise(leaf: object) -> object:
            nonlocal found
            if not isinstance(leaf, Tensor) or leaf.dtype != torch.uint8 or leaf.ndim < 3:
                return leaf
            if leaf.shape[-3] != len(self.mean):
                return leaf
            found += 1
            return self._normalise(leaf)

        result: T = map_leaves(batch, normalise)
        if not found:
            raise ValueError(
                f"Normalize: the batch has no uint8 tensor (*, {len(self.mean)}, H, W). Keep images as uint8 "
                "in the dataset, or leave the transform out."
            )
        return result

    def _normalise(self, images: Tensor) -> Tensor:
        scale = _constant([1 / (255 * std) for std in self.std], images)
        shift = _constant([-mean / std for mean, std in zip(self.mean, self.std, strict=True)], images)
        scaled = (images * scale).add_(shift).to(self.dtype)
        last = self.channels_last and scaled.ndim == 4
        return scaled.contiguous(memory_format=torch.channels_last) if last else scaled


@dataclass(frozen=True, kw_only=True, slots=True)
class PadRagged:
    """A device transform that pads sequences which arrive as `Ragged`.

    Padding on the device keeps it out of the copy.

    Args:
        value: Written after each sequence's end.
        dtype: The result's dtype, such as torch.int64 for tokens that arrive as uint16; None keeps the dtype.
        multiple_of: Round the padded length up to this many steps.
        lengths: Whether to add `<field>_lengths` (B,) int64.
        mask: Whether to add `<field>_mask` (B, T) bool, true where there is data.

    Returns (when called with a batch):
        For a dict: the dict with each `Ragged` padded to (B, T, *F), and its lengths and mask. For a `Ragged`: a tuple
        of padded tensor, lengths and mask, without those that are turned off; or the padded tensor if both are.

    Raises:
        ValueError: If `multiple_of` is below 1, or a batch has no `Ragged`.

    Examples:
        >>> texts = lk.RecordDataset([{"tokens": np.arange(n)} for n in (3, 1)])
        >>> loader = lk.Loader(texts, 2, collate_fn=lk.RaggedCollate(["tokens"], nested=False))
        >>> batch = next(iter(lk.DeviceLoader(loader, "cpu", transform=lk.PadRagged(value=-1))))
        >>> batch["tokens"].tolist(), batch["tokens_lengths"].tolist()
        ([[0, 1, 2], [0, -1, -1]], [3, 1])
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

    def on_host(self, batch: Any) -> object:
        """Note each Ragged's longest sequence, on the host: reading it from the device would make the host wait."""
        if isinstance(batch, Ragged):
            return self._measure(batch)
        names = [name for name, part in batch.items() if isinstance(part, Ragged)] if isinstance(batch, Mapping) else []
        if not names:
            found = list(batch) if isinstance(batch, Mapping) else type(batch).__name__
            raise ValueError(
                f"PadRagged: the batch has no Ragged (found {found}), wanted one, or a dict with one. Make it with "
                "lk.RaggedCollate(nested=False), or leave the transform out."
            )
        return {name: self._measure(part) if name in names else part for name, part in batch.items()}

    def __call__(self, batch: Any) -> Any:
        if isinstance(batch, _Measured):
            parts = tuple(self._pad(batch).values())
            return parts if len(parts) > 1 else parts[0]
        made: dict[str, object] = {}
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
        """Return the padded tensor (key ""), its lengths ("_lengths") and its mask ("_mask")."""
        values, offsets, steps = part
        if self.dtype is not None:
            values = values.to(self.dtype)
        places = offsets[:-1, None] + torch.arange(steps, device=offsets.device)
        is_valid = places < offsets[1:, None]
        value, dtype = torch.tensor(self.value).to(values.dtype), values.dtype
        if dtype in _SIGNED:  # devices have more operations for signed integers
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


@dataclass(frozen=True, slots=True)
class WidenTokens:
    """A device transform that gives token ids a dtype that `nn.Embedding` takes.

    All tensors of uint16, uint32 and uint64 are converted. Other leaves stay as they are, including uint8. Copying
    uint16 tokens to the device takes a quarter of int64's bytes.

    Args:
        dtype: The result's dtype, torch.int64 or torch.int32.

    Examples:
        >>> np.arange(12, dtype="uint16").tofile("a.bin")
        >>> windows = lk.TokenDataset("a.bin", length=4, dtype="uint16")
        >>> loader = lk.DeviceLoader(lk.Loader(windows, 2), "cpu", transform=lk.WidenTokens())
        >>> torch.nn.Embedding(100, 8)(next(iter(loader))).shape
        torch.Size([2, 4, 8])
    """

    draws_nothing: ClassVar[bool] = True

    dtype: torch.dtype = torch.int64

    def __call__(self, batch: T) -> T:
        widened: T = map_leaves(batch, self._widen)
        return widened

    def _widen(self, leaf: object) -> object:
        return leaf.to(self.dtype) if isinstance(leaf, Tensor) and leaf.dtype in _SIGNED else leaf


@dataclass(frozen=True, slots=True)
class DecodePictures:
    """A device transform that decodes a batch's encoded pictures.

    Encoded pictures are smaller, so less has to be copied to the device. On CUDA, nvJPEG decodes JPEG, and the CPU
    other formats. On other devices the CPU decodes. Pixels are RGB, after EXIF rotation. Those of nvJPEG may differ
    from the CPU's by rounding; the difference was not measured. A picture that cannot be decoded is an error:
    `BadSamples` sees what the dataset reads, not what a device transform makes.

    Args:
        field: The batch's field of encoded pictures: a list (B,) of bytes.
        device: Where the decoded pictures are: the device of the batch.
        pad: Whether to make one tensor, and to add `<field>_sizes` (B, 2) int64: heights and widths.
        max_pixels: The largest picture to decode, width times height; None for any.

    Returns (when called with a batch):
        The batch, with a list (B,) of uint8 tensors (3, H_i, W_i) in the field. With `pad`, the field has one uint8
        tensor (B, 3, H, W), zero outside the pictures.

    Raises:
        ValueError: If `max_pixels` is below 1, a batch has no such field, or a picture is too large or cannot be decoded.
        RuntimeError: If nvJPEG is missing, or refuses a picture.

    Examples:
        >>> import io
        >>> from PIL import Image
        >>> def jpeg(height):
        ...     file = io.BytesIO()
        ...     Image.new("RGB", (8, height)).save(file, "jpeg")
        ...     return file.getvalue()
        >>> files = lk.RecordDataset([{"jpg": jpeg(4)}, {"jpg": jpeg(6)}])
        >>> decode = lk.DecodePictures("jpg", device="cpu", pad=True)
        >>> batch = next(iter(lk.DeviceLoader(lk.Loader(files, 2), "cpu", transform=decode)))
        >>> batch["jpg"].shape, batch["jpg_sizes"].tolist()
        (torch.Size([2, 3, 6, 8]), [[4, 8], [6, 8]])
    """

    draws_nothing: ClassVar[bool] = True

    field: str
    device: torch.device | str = "cuda"
    pad: bool = False
    max_pixels: int | None = MAX_PIXELS

    def __post_init__(self) -> None:
        check_max_pixels("DecodePictures", self.max_pixels)

    def __call__(self, batch: Any) -> Any:
        contents = batch.get(self.field) if isinstance(batch, Mapping) else None
        if not isinstance(contents, list) or not all(isinstance(content, bytes) for content in contents):
            found = list(batch) if isinstance(batch, Mapping) else type(batch).__name__
            raise ValueError(
                f"DecodePictures: the batch has no list of bytes {self.field!r} (found {found}), wanted one. Leave pictures encoded in the "
                "dataset, as lk.TarDataset(decode=None) does."
            )
        device = torch.device(self.device)
        pictures = decode_pictures_on(contents, device, max_pixels=self.max_pixels)
        if not self.pad:
            return {**batch, self.field: pictures}
        sizes = torch.tensor([picture.shape[1:] for picture in pictures])
        height, width = sizes.amax(0).tolist()
        padded = torch.zeros((len(pictures), 3, height, width), dtype=torch.uint8, device=device)
        for row, picture in enumerate(pictures):
            padded[row, :, : picture.shape[1], : picture.shape[2]] = picture
        return {**batch, self.field: padded, f"{self.field}_sizes": sizes.to(device)}


class _Measured(NamedTuple):
    """A `Ragged` with its padded length, which the host has computed."""

    values: Tensor
    offsets: Tensor
    steps: int  # length of the padded result


def _constant(values: list[float], like: Tensor) -> Tensor:
    """Return numbers as (C, 1, 1) float32 on the device of `like`, without making the host wait."""
    numbers = torch.tensor(values)[:, None, None]
    if like.is_cuda:
        numbers = numbers.pin_memory()
    return numbers.to(like.device, non_blocking=like.is_cuda)
