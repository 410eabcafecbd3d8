"""A dataset with a transform whose errors name the row at fault."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from loaderkit.datasets.base import Sample, check_index, read_many, reads_many
from loaderkit.datasets.combine import MapDataset
from loaderkit.datasets.places import place_of
from loaderkit.seeding.sample_seeds import part_of_batch, per_sample


class NamedRows(MapDataset[Sample]):
    """A MapDataset. A ValueError or OSError that its transform raises names the source's file and row."""

    def __getitem__(self, index: int) -> Sample:
        check_index(self, index)
        index = int(index) % len(self)
        return self._make(self.dataset[index], index)

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        if not reads_many(self.dataset):
            return per_sample(self.__getitem__, indices)
        with part_of_batch(0):
            raw = read_many(self.dataset, indices)
        return per_sample(lambda row: self._make(raw[row], int(indices[row])), range(len(raw)))

    def _make(self, raw: object, index: int) -> Sample:
        with naming(lambda: place_of(self.dataset, index) or f"sample {index:,}"):
            return self.transform(raw)


@contextmanager
def naming(place: str | Callable[[], object]) -> Iterator[None]:
    """Prefix errors that are raised inside with a place. An OSError stays an OSError, so that it can be retried.

    Args:
        place: The text to prefix, or a function that returns it. A text is left out if the message has it already.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        said = str(error)
        if callable(place) or place not in said:
            said = f"{place() if callable(place) else place}: {said}"
        for kind in (FileNotFoundError, PermissionError, OSError):
            if isinstance(error, kind):
                raise kind(said) from error
        raise ValueError(said) from error
