"""Pad conversations and preference pairs into batches for a causal language model."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from loaderkit.collate.pad import PadCollate
from loaderkit.collate.rules import Pad, Side
from loaderkit.system.stack import CollateError


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatCollate:
    """Pad the samples of a ChatDataset or a PreferenceDataset, for the models of `transformers`.

    A batch is a dict: `input_ids`, `attention_mask` (1 at tokens) and `labels` (-100 at padding), all (B, T) int64. B pairs make 2B rows:
    first the chosen answers, then the rejected ones in the same order, as DPO takes them. Prompts have no labels.

    To pack conversations instead: `PackCollate(tokens="input_ids", labels=None, fields={"labels": -100})`. Conversations with pictures
    need a rule for these: `MultimodalCollate({"input_ids": Pad(mask=True), "labels": Pad(value=-100), "images": Patches(...)})`.

    Args:
        pad_token: Fills `input_ids`; `tokenizer.pad_token_id`.
        multiple_of: Round T up to this many steps.
        side: The side to pad: "left" for prompts, as `generate` of `transformers` takes them.

    Examples:
        >>> first = {"input_ids": torch.tensor([5, 6, 7]), "labels": torch.tensor([-100, 6, 7])}
        >>> second = {"input_ids": torch.tensor([8, 9]), "labels": torch.tensor([-100, 9])}
        >>> batch = lk.ChatCollate()([first, second])
        >>> batch["input_ids"].tolist(), batch["attention_mask"].tolist(), batch["labels"].tolist()
        ([[5, 6, 7], [8, 9, 0]], [[1, 1, 1], [1, 1, 0]], [[-100, 6, 7], [-100, 9, -100]])
        >>> lk.ChatCollate()([{"chosen": first, "rejected": second}])["input_ids"].tolist()
        [[5, 6, 7], [8, 9, 0]]
    """

    takes_rows: ClassVar[bool] = False  # rows of several samples each, as a PackPlan makes them
    draws_nothing: ClassVar[bool] = True

    pad_token: int = 0
    multiple_of: int = 1
    side: Side = "right"

    def __call__(self, samples: Sequence[Any]) -> dict[str, Tensor]:
        names: Collection[Any] = samples[0].keys() if samples and isinstance(samples[0], Mapping) else ()
        if "chosen" in names:
            try:
                return self([sample[side] for side in ("chosen", "rejected") for sample in samples])
            except CollateError as error:
                raise CollateError(str(error), [row % len(samples) for row in error.rows]) from error
        if "images" in names:
            raise CollateError(
                "ChatCollate: the samples have pictures, wanted a rule for them: MultimodalCollate({'input_ids': Pad(mask=True), "
                "'labels': Pad(value=-100), 'images': Patches(...)}), or PackCollate with fields={'images': Patches(...)}"
            )
        rules = {"input_ids": Pad(value=self.pad_token, multiple_of=self.multiple_of, side=self.side, mask=True)}
        if "labels" in names:
            rules["labels"] = Pad(value=-100, multiple_of=self.multiple_of, side=self.side)
        batch: dict[str, Tensor] = PadCollate(rules)(samples)
        made = {"input_ids": batch["input_ids"], "attention_mask": batch["input_ids_mask"].long()}
        return {**made, "labels": batch["labels"]} if "labels" in names else made
