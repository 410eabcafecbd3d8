"""Pictures of different sizes as the patches that a vision transformer takes, joined without padding."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from loaderkit.system.stack import CollateError


@dataclass(frozen=True, kw_only=True, slots=True)
class Patches:
    """Cut a field's pictures into patches, as a rule of `MultimodalCollate`.

    A sample's value is a picture (C, H, W), or a list of pictures, which may be empty. Each picture is resized: its
    sides become multiples of `size * merge`, it has at most `max_tokens` tokens, and its proportions stay nearly the
    same (`smart_resize` of Qwen2-VL). The field becomes a dict:

    - `"patches"` (P, C * size * size): the patches of all pictures, with the dtype of the pictures. The patches that a model merges
      to one token are neighbours, as Qwen2-VL orders them.
    - `"grids"` (pictures, 2) int64: the number of rows and of columns of patches in each picture.
    - `"pictures"` (B,) int64: the number of pictures in each sample.

    Args:
        size: Height and width of a patch in pixels.
        merge: The model merges `merge * merge` patches to one token.
        max_tokens: The most tokens of a picture; None means no limit.

    Raises:
        ValueError: If a setting is below 1.
        CollateError: When collating, if a value is not a picture, or pictures differ in channels or dtype.

    Examples:
        >>> patches = lk.Patches(size=14, merge=2)
        >>> wide, small = torch.zeros(3, 56, 84), torch.zeros(3, 30, 25)
        >>> patches.tokens(wide), patches.tokens([wide, small])
        (6, 7)
        >>> batch = lk.MultimodalCollate({"image": patches})([{"image": wide}, {"image": [small, small]}])
        >>> batch["image"]["patches"].shape, batch["image"]["grids"].tolist(), batch["image"]["pictures"]
        (torch.Size([32, 588]), [[4, 6], [2, 2], [2, 2]], tensor([1, 2]))
    """

    draws_nothing: ClassVar[bool] = True
    thread_safe: ClassVar[bool] = True

    size: int
    merge: int = 1
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if min(self.size, self.merge, self.max_tokens or 1) < 1 or self.max_tokens == 0:
            raise ValueError(
                f"Patches: size is {self.size}, merge {self.merge} and max_tokens {self.max_tokens}; wanted at least 1 each."
            )

    def __call__(self, values: Sequence[object]) -> dict[str, Tensor]:
        """Collate the values of one field."""
        rows = [(row, picture) for row, value in enumerate(values) for picture in _pictures(value, row)]
        for row, picture in rows:
            first = rows[0][1]
            if (len(picture), picture.dtype) != (len(first), first.dtype):
                found = f"{len(first)} channels of {first.dtype} and {len(picture)} of {picture.dtype}"
                raise CollateError(f"Patches: pictures have {found}, wanted the same in a batch", [rows[0][0], row])
        cut = [self._cut(picture) for _, picture in rows]
        grids = [grid for _, grid in cut]
        counts = [sum(row == number for row, _ in rows) for number in range(len(values))]
        none = torch.empty(0, 3 * self.size**2, dtype=torch.uint8, device="cpu")
        return {
            "patches": torch.cat([patches for patches, _ in cut]) if cut else none,
            "grids": torch.tensor(grids, dtype=torch.int64, device="cpu").reshape(-1, 2),
            "pictures": torch.tensor(counts, dtype=torch.int64, device="cpu"),
        }

    def tokens(self, value: object) -> int:
        """Return how many tokens a picture (C, H, W), or a list of pictures, takes in a sample.

        A plan by length counts them in the sample's length.
        """
        return sum(self.tokens_of(*picture.shape[1:]) for picture in _pictures(value, 0))

    def tokens_of(self, height: int, width: int) -> int:
        """Return how many tokens a picture of this height and width takes."""
        fitting = self.fitting(height, width)
        return fitting[0] * fitting[1] // (self.size * self.merge) ** 2

    def fitting(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width to which a picture of this size is resized."""
        unit = self.size * self.merge
        rows, columns = max(1, round(height / unit)), max(1, round(width / unit))
        if self.max_tokens is not None and rows * columns > self.max_tokens:
            scale = math.sqrt(height * width / self.max_tokens)
            rows = min(max(1, math.floor(height / scale)), self.max_tokens)
            columns = min(max(1, math.floor(width / scale)), self.max_tokens // rows)
        return rows * unit, columns * unit

    def _cut(self, picture: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return the patches of a picture (P, C * size * size), and the numbers of rows and columns of patches."""
        height, width = self.fitting(*picture.shape[1:])
        if (height, width) != tuple(picture.shape[1:]):
            resized = nn.functional.interpolate(picture[None], (height, width), mode="bilinear", antialias=True)
            picture = resized[0]
        rows, columns, merge = height // self.size, width // self.size, self.merge
        blocks = picture.reshape(len(picture), rows // merge, merge, self.size, columns // merge, merge, self.size)
        patches = blocks.permute(1, 4, 2, 5, 0, 3, 6)  # blocks, patches in a block, pixels
        return patches.reshape(rows * columns, -1), (rows, columns)


def _pictures(value: Any, row: int) -> list[Tensor]:
    found = list(value) if isinstance(value, list | tuple) else [value]
    for picture in found:
        if not isinstance(picture, Tensor) or picture.ndim != 3 or not picture.numel():
            shape = tuple(getattr(picture, "shape", ()))
            raise CollateError(
                f"Patches: found a {type(picture).__name__} of shape {shape}, wanted a picture (C, H, W), or a list of them",
                [row],
            )
    return found
