"""Batches of cuts, made by a dataset of lhotse."""

from collections.abc import Sequence
from typing import Any

from loaderkit.seeding.draws import draws_nothing


class CutCollate:
    """Makes a batch of cuts with a lhotse dataset.

    Args:
        dataset: Takes a CutSet and returns a batch, as a `K2SpeechRecognitionDataset` does. With None, the CutSet is
            the batch.

    Examples:
        >>> collate = lk.CutCollate()
        >>> collate.draws_nothing
        True
    """

    def __init__(self, dataset: Any = None) -> None:
        self.dataset = dataset

    @property
    def draws_nothing(self) -> bool:
        """Whether making a batch certainly draws no random numbers."""
        return self.dataset is None or draws_nothing(self.dataset)

    def __call__(self, cuts: Sequence[Any]) -> Any:
        from lhotse import CutSet

        chosen = CutSet.from_cuts(cuts)
        return chosen if self.dataset is None else self.dataset[chosen]
