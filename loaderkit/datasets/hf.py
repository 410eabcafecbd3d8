"""Map-style datasets of the Hugging Face datasets library."""

from collections.abc import Callable, Sequence
from typing import Any

from loaderkit.datasets.base import check_index
from loaderkit.seeding.draws import DeclaresDraws, Draws
from loaderkit.seeding.samples import per_sample


class HFDataset(DeclaresDraws):
    """The rows of a `datasets.Dataset`, read many at once, as its own format gives them.

    A function of its `set_transform` or `with_transform` is called row by row, under that
    row's seed; with the rows of a batch as one call random numbers would depend on the batch.

    Args:
        dataset: A `datasets.Dataset`, one split.
        transform: From a row to a sample; its random numbers are the sample's own.

    Raises:
        TypeError: If it is a dict of splits, or iterable-style.
    """

    def __init__(self, dataset: Any, *, transform: Callable[[Any], Any] | None = None) -> None:
        if isinstance(dataset, str):
            raise TypeError(
                f"HFDataset: found the string {dataset!r}, wanted a datasets.Dataset: datasets.load_dataset(..., split=...)."
            )
        if isinstance(dataset, dict):
            raise TypeError(
                f"HFDataset: found a {type(dataset).__name__} with the splits {list(dataset)}, wanted one: dataset[...]."
            )
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise TypeError(
                f"HFDataset: found a {type(dataset).__name__}, wanted a datasets.Dataset, with a length. "
                "Load it without streaming=True, or give it to lk.Loader as it is."
            )
        self.dataset = dataset
        self.transform = transform

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        check_index(self, index)
        row = self.dataset[index]
        return row if self.transform is None else self.transform(row)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        outside = [index for index in indices if not 0 <= index < len(self)]
        if outside:
            raise IndexError(f"HFDataset: index {outside[0]} in a dataset of {len(self):,} samples.")
        if self._calls_a_function():
            return per_sample(self.__getitem__, indices)
        if not len(indices):
            return []
        many = getattr(self.dataset, "__getitems__", None)
        rows = many(list(indices)) if callable(many) else [self.dataset[index] for index in indices]
        return list(rows) if self.transform is None else per_sample(self.transform, rows)

    def _draws(self) -> Draws:
        kind = type(self.dataset)
        theirs = (kind.__module__, kind.__qualname__) == (
            "datasets.arrow_dataset",
            "Dataset",
        )  # and no class made of it
        return super()._draws() if theirs and not self._calls_a_function() else Draws.ANYTHING

    def fingerprint(self) -> str:
        """Return the library's own, which knows the data and all that was done to it."""
        return str(getattr(self.dataset, "_fingerprint", ""))

    def _calls_a_function(self) -> bool:
        """Say whether rows go through one of its `set_transform`."""
        return (getattr(self.dataset, "format", None) or {}).get("type") == "custom"


def state_of_start(dataset: Any) -> Any:
    """Return the state that sends a stateful dataset back to its start, if it has not been read by anyone else.

    A `datasets.IterableDataset` tells where it was last read, by whom ever, and begins anew all the same; one look at a sample
    would be where a training begins. It passes over states of another epoch than its own, and none of its epochs is -1.
    """
    state = dataset.state_dict()
    return {**state, "epoch": -1} if _is_theirs(dataset) and isinstance(state, dict) and "epoch" in state else state


def restores_its_place(dataset: Any) -> bool:
    """Say whether a stateful dataset goes on from its state with the sample that comes next.

    The state of a `datasets.IterableDataset` that was shuffled does not hold what is in the buffer: those samples
    would be lost, and workers can't load it at all. Where the library no longer shows its parts, none is taken at its word.
    """
    if not _is_theirs(dataset):
        return True
    parts = [getattr(dataset, "_ex_iterable", None)]
    for part in parts:
        if part is None or type(part).__name__ == "BufferShuffledExamplesIterable":
            return False
        parts += getattr(part, "ex_iterables", [])
        parts += [part.ex_iterable] if hasattr(part, "ex_iterable") else []
    return True


def _is_theirs(dataset: Any) -> bool:
    return type(dataset).__module__.partition(".")[0] == "datasets"
