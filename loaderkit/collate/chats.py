"""Pad conversations and preference pairs into batches for a causal language model."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from loaderkit.collate.collates import MultimodalCollate
from loaderkit.collate.field_collator import Rule
from loaderkit.collate.rules import Pad, Side
from loaderkit.seeding.draws import draws_nothing, thread_safe
from loaderkit.system.stack import CollateError


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatCollate:
    """Pad the samples of a ChatDataset or a PreferenceDataset.

    The batch is a dict for the models of `transformers`: `input_ids`, `attention_mask` (1 at tokens) and `labels` (-100
    at padding), all (B, T) int64. B pairs make 2B rows: first the chosen answers, then the rejected ones in the same
    order, as DPO takes them. Batches of prompts have no labels.

    If samples have pictures, the batch also has `images`, made by the rule `images=`. For pairs, it has the pictures of
    the B prompts only once. For a model that wants them for all 2B rows, use `patches.repeat(2, 1)` and
    `grids.repeat(2, 1)`.

    To pack conversations instead: `PackCollate(tokens="input_ids", labels=None, fields={"labels": -100})`.

    Args:
        pad_token: Fills `input_ids`; `tokenizer.pad_token_id`.
        multiple_of: Round T up to this many steps.
        side: The side to pad: "left" for prompts, as `generate` of `transformers` takes them.
        images: Collates pictures: a `Patches`, or a function that takes the list of the samples' lists of pictures.

    Raises:
        CollateError: If samples do not fit together, or have pictures and there is no `images=`.

    Examples:
        >>> first = {"input_ids": torch.tensor([5, 6, 7]), "labels": torch.tensor([-100, 6, 7])}
        >>> second = {"input_ids": torch.tensor([8, 9]), "labels": torch.tensor([-100, 9])}
        >>> batch = lk.ChatCollate()([first, second])
        >>> batch["input_ids"].tolist(), batch["attention_mask"].tolist(), batch["labels"].tolist()
        ([[5, 6, 7], [8, 9, 0]], [[1, 1, 1], [1, 1, 0]], [[-100, 6, 7], [-100, 9, -100]])
        >>> lk.ChatCollate()([{"chosen": first, "rejected": second}])["input_ids"].tolist()
        [[5, 6, 7], [8, 9, 0]]
        >>> seen = [{**row, "images": [torch.zeros(3, 4, 8)]} for row in (first, second)]
        >>> lk.ChatCollate(images=lk.Patches(size=4))(seen)["images"]["grids"].tolist()
        [[1, 2], [1, 2]]
    """

    takes_rows: ClassVar[bool] = False  # it does not take rows of several samples each, as a PackPlan makes them

    pad_token: int = 0
    multiple_of: int = 1
    side: Side = "right"
    images: Callable[[list[Any]], object] | None = None

    @property
    def draws_nothing(self) -> bool:
        """Whether the function for pictures declares that it draws no random numbers, by its own `draws_nothing`."""
        return self.images is None or draws_nothing(self.images)

    @property
    def thread_safe(self) -> bool:
        """Whether the function for pictures declares that threads may use it at the same time, by its own `thread_safe`."""
        return self.images is None or thread_safe(self.images)

    def __call__(self, samples: Sequence[Any]) -> dict[str, Any]:
        names: Collection[object] = samples[0].keys() if samples and isinstance(samples[0], Mapping) else ()
        if "chosen" in names:
            return self._pairs(samples)
        rules: dict[str, Rule] = {
            "input_ids": Pad(value=self.pad_token, multiple_of=self.multiple_of, side=self.side, mask=True)
        }
        if "labels" in names:
            rules["labels"] = Pad(value=-100, multiple_of=self.multiple_of, side=self.side)
        if "images" in names:
            rules["images"] = self._images()
        batch: dict[str, Any] = MultimodalCollate(rules)(samples)
        made = {"input_ids": batch["input_ids"], "attention_mask": batch["input_ids_mask"].long()}
        return {**made, **{name: batch[name] for name in ("labels", "images") if name in names}}

    def _pairs(self, samples: Sequence[Mapping[str, object]]) -> dict[str, object]:
        try:
            batch = self([sample[side] for side in ("chosen", "rejected") for sample in samples])
        except CollateError as error:
            raise CollateError(str(error), [row % len(samples) for row in error.rows]) from error
        if any("images" in sample for sample in samples):
            shared = [{name: value for name, value in sample.items() if name == "images"} for sample in samples]
            batch |= MultimodalCollate({"images": self._images()})(shared)
        return batch

    def _images(self) -> Callable[[list[Any]], object]:
        if self.images is None:
            raise CollateError(
                "ChatCollate: the samples have pictures, wanted what collates them: ChatCollate(images=Patches(...)), or "
                "PackCollate with fields={'labels': -100, 'images': Patches(...)}"
            )
        return self.images
