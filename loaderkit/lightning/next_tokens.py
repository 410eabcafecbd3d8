"""Pad texts and add the next tokens as labels."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from loaderkit.collate.pad import PadCollate

_IGNORED = -100  # the default ignore_index of torch's cross_entropy


@dataclasses.dataclass(frozen=True, slots=True)
class NextTokens:
    """A collate function that pads texts and adds `labels`: for each token the next one.

    Args:
        pad: Pads `tokens` on the right and adds their lengths.
        overlapping: Whether to use a text's last token only as a label.
    """

    draws_nothing: ClassVar[bool] = True

    pad: PadCollate
    overlapping: bool = False

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        return self._label(self.pad(samples))

    def collate_batch(self, batch: Any) -> dict[str, Any]:
        """Return the same for the result of a dataset's `read_batch`."""
        return self._label(self.pad.collate_batch(batch))

    def _label(self, batch: dict[str, Any]) -> dict[str, Any]:
        tokens, lengths = batch["tokens"], batch["tokens_lengths"]
        labels = torch.full(tokens.shape, _IGNORED)
        labels[:, :-1] = tokens[:, 1:]
        labels[torch.arange(tokens.shape[1]) >= lengths[:, None] - 1] = _IGNORED
        if self.overlapping:
            steps = max(1, tokens.shape[1] - 1)
            return {**batch, "tokens": tokens[:, :steps], "labels": labels[:, :steps], "tokens_lengths": lengths - 1}
        return {**batch, "labels": labels}
