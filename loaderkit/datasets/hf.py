"""Map-style datasets of the Hugging Face `datasets` library."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from loaderkit.datasets.base import Transform, as_dataset, check_index, check_indices, read_many
from loaderkit.datasets.hf_features import rule_of
from loaderkit.seeding.draws import Declares
from loaderkit.seeding.sample_seeds import per_sample
from loaderkit.system.overrides import own_attribute

if TYPE_CHECKING:
    import datasets


class HFDataset(Declares):
    """The rows of a `datasets.Dataset`, read many at a time.

    Rows have the format that was set by `set_format` or `with_format`. If none was set, values are Python objects that
    keep their feature's dtype: a number is a numpy scalar if Python has no such number (float32, int8), and lists of
    numbers stack to an array of that dtype. `lk.Loader` wraps a `datasets.Dataset` in an HFDataset by itself.

    A function given to the `set_transform` or `with_transform` of `dataset` is called with one row at a time, and draws
    random numbers from that row's seed. With several rows in a call, random numbers would depend on the batch.

    Args:
        dataset: A `datasets.Dataset`, which is one split.
        transform: Called with each row; its result replaces the row.

    Raises:
        TypeError: If `dataset` is a dict of splits, or iterable-style.

    Examples:
        >>> import datasets
        >>> rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
        >>> dataset = lk.HFDataset(rows)
        >>> dataset[1]
        {'text': 'b', 'label': 1}
        >>> next(iter(lk.Loader(dataset, batch_size=2)))
        {'text': ['a', 'b'], 'label': tensor([0, 1])}
    """

    def __init__(self, dataset: Any, *, transform: Transform | None = None) -> None:
        if isinstance(dataset, str):
            raise TypeError(
                f"HFDataset: found the string {dataset!r}, wanted a datasets.Dataset: datasets.load_dataset(..., split=...)."
            )
        if isinstance(dataset, dict):
            raise TypeError(
                f"HFDataset: found a {type(dataset).__name__} with the splits {list(dataset)}, wanted one split: dataset[...]."
            )
        way_out = "Load it without streaming=True, or pass it to lk.Loader directly."
        self.dataset = dataset if is_rows(dataset) else as_dataset(dataset, "HFDataset: the dataset", way_out)
        self.transform = transform
        self._rule = rule_of(dataset.features) if is_rows(dataset) else None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        check_index(self, index)
        row = self._typed([self.dataset[index]])[0]
        return row if self.transform is None else self.transform(row)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        check_indices(self, indices)
        if self._calls_a_function():
            return per_sample(self.__getitem__, indices)
        if not len(indices):
            return []
        rows = self._typed(read_many(self.dataset, indices))
        return rows if self.transform is None else per_sample(self.transform, rows)

    def _parts(self) -> list[object]:
        rows = is_rows(self.dataset) and not self._calls_a_function()
        return super()._parts() if rows else [self.dataset, *super()._parts()]

    def fingerprint(self) -> str:
        """Return the fingerprint by the `datasets` library, which covers the data and all operations on it.

        Return "" if there is none.
        """
        return str(getattr(self.dataset, "_fingerprint", ""))

    def _typed(self, rows: list[object]) -> list[object]:
        """Return rows with the features' dtypes if no format was set; otherwise return them unchanged."""
        if self._rule is None or self._format() is not None:
            return rows
        return list(map(self._rule.convert, rows))

    def _calls_a_function(self) -> bool:
        """Return whether the dataset applies a function from `set_transform` or `with_transform` to its rows."""
        return self._format() == "custom"

    def _format(self) -> str | None:
        found = own_attribute(self.dataset, "format")
        return found.get("type") if isinstance(found, dict) else None


def as_declared(dataset: "datasets.IterableDataset") -> Transform:
    """Return a function that gives an iterable dataset's samples the dtypes that its features declare.

    It returns samples unchanged if no feature needs it, the features are not known, or the dataset is of a subclass.
    """
    kind = type(dataset)
    is_stream = (kind.__module__, kind.__qualname__) == ("datasets.iterable_dataset", "IterableDataset")
    rule = rule_of(dataset.features) if is_stream and dataset.features is not None else None
    return _as_it_is if rule is None else rule.convert


def _as_it_is(sample: object) -> object:
    return sample


def is_rows(dataset: object) -> bool:
    """Return whether a dataset is a `datasets.Dataset`, and not of a subclass."""
    kind = type(dataset)
    return (kind.__module__, kind.__qualname__) == ("datasets.arrow_dataset", "Dataset")


def state_of_start(dataset: "datasets.IterableDataset") -> object:
    """Return the state from which a stateful dataset that this run has not read yet starts at the beginning.

    The state of a `datasets.IterableDataset` is where its latest iterator stands, while a new iterator starts at the
    beginning. So if you looked at one sample before the training, its state would skip that sample. The dataset ignores
    states of another epoch, so the state returned has epoch -1.
    """
    state = dataset.state_dict()
    return {**state, "epoch": -1} if is_theirs(dataset) and isinstance(state, dict) and "epoch" in state else state


def restores_its_place(dataset: object) -> bool:
    """Return whether a stateful dataset that loads a state continues with exactly the next sample.

    A shuffled `datasets.IterableDataset` does not: its state lacks the samples in the shuffle buffer, and workers
    cannot load it. Return False also if the library's private attributes, which show a shuffle buffer, are not there.
    """
    if not is_theirs(dataset):
        return True
    parts = [getattr(dataset, "_ex_iterable", None)]
    for part in parts:
        if part is None or type(part).__name__ == "BufferShuffledExamplesIterable":
            return False
        parts += getattr(part, "ex_iterables", [])
        parts += [part.ex_iterable] if hasattr(part, "ex_iterable") else []
    return True


def epoch_of(dataset: object) -> int | None:
    """Return the current epoch of a stream of the Hugging Face `datasets` library; None for other datasets."""
    return int(dataset.epoch) if is_theirs(dataset) and hasattr(dataset, "epoch") else None


def is_theirs(dataset: object) -> bool:
    """Return whether a dataset's class is defined in the Hugging Face `datasets` library."""
    return type(dataset).__module__.partition(".")[0] == "datasets"
