"""The base of datasets of clips. A clip is a part of an audio or video file, or the whole file."""

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeGuard

import numpy as np

from loaderkit.datasets.base import MapStyle, Transform, check_index, read_many, reads_many
from loaderkit.datasets.media.content import Content
from loaderkit.datasets.media.decoders import DecoderName, decoder_named
from loaderkit.datasets.media.files import FILE, MediaFiles
from loaderkit.datasets.media.times import Times, measure_times
from loaderkit.datasets.places import Place, place_of
from loaderkit.files.storage import Storage
from loaderkit.files.urls import Urls
from loaderkit.sampling.fingerprint import fingerprint_of
from loaderkit.seeding.draws import Declares, Draws
from loaderkit.seeding.sample_seeds import part_of_batch, per_sample, sample_rng
from loaderkit.system.arrays import Int64Array
from loaderkit.system.overrides import own_attribute
from loaderkit.system.types import Array

Labels = Literal["folder"] | Sequence[object] | None
CACHE_DIR = "~/.cache/loaderkit/media"


class ClipDataset(Declares):
    """A base class: clips of files, or of a field of a dataset's samples that has encoded bytes, a path or a URL."""

    suffixes: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        source: Urls | MapStyle,
        *,
        field: str | None,
        labels: Labels,
        clips: str,
        decoder: DecoderName,
        transform: Transform | None,
        storage: Storage | None,
        cache_dir: str | os.PathLike[str] | None,
        jobs: int,
    ) -> None:
        # Raises now if the decoder is missing; later, a policy for bad samples would skip every sample.
        decoder_named(decoder).version()
        self.source: Any = source
        if _is_urls(source):
            self.source, field = MediaFiles(source, self.suffixes, labels, storage), FILE
        elif labels is not None:
            raise ValueError(f"{self._name}: labels are for files; with a dataset, its samples have them.")
        self.classes: list[str] | None = getattr(self.source, "classes", None)
        self.field, self.clips, self.decoder, self.transform = field, clips, decoder, transform
        self._storage, self._cache_dir, self._jobs = storage, cache_dir, jobs
        self._times: Times | None = None
        # For each file, the index of the sample after its last clip (files,). None if each file is one sample.
        self._ends = np.cumsum(self._counts(*self.times().T)) if clips == "all" else None

    def __len__(self) -> int:
        return len(self.source) if self._ends is None else int(self._ends[-1])

    def __getitem__(self, index: int) -> Any:
        check_index(self, index)
        file, clip = self._locate(int(index) % len(self))
        return self._decode(self.source[file], file, clip)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        if not reads_many(self.source):
            return per_sample(self.__getitem__, indices)
        places = [self._locate(index) for index in indices]
        with part_of_batch(0):
            samples = read_many(self.source, [file for file, _ in places])
        return per_sample(lambda row: self._decode(samples[row], *places[row]), range(len(places)))

    def decode(self, content: Content) -> dict[str, Any]:
        """Return the fields of one clip of any file, decoded with this dataset's settings.

        `content` is the file's bytes, or its path or URL. With clips="all" it is the first clip.
        """
        return self._read(content, 0)

    def times(self) -> Times:
        """Return each file's duration in seconds and its sample or frame rate, (files, 2) float64; NaN if unreadable.

        PyAV reads them, whichever decoder is chosen. The first call reads the headers of all files, or the result of an
        earlier run in `cache_dir`.
        """
        if self._times is None:
            size = len(self.source)
            self._times = measure_times(self._read_times, size, self._version(), self._cache_dir, self._jobs)
        return self._times

    def place(self, index: int) -> Place | None:
        """Return where a sample's file is stored; None if the source cannot tell."""
        return place_of(self.source, self._locate(index)[0])

    def fingerprint(self) -> str:
        """Return a text of the source's fingerprint, the decoder unless it is PyAV, and how clips="all" cuts files."""
        found = fingerprint_of(self.source)
        if self.decoder != "pyav":
            found = f"{found} by {self._decoded_by()}"
        return found if self._ends is None else f"{self._cut()} of {found}"

    def __getattr__(self, name: str) -> Any:
        source: object = self.__dict__.get("source")
        if name == "shard_sizes" and (sizes := own_attribute(source, name)) is not None:
            return sizes if self._ends is None else np.diff(np.append(0, self._ends)[np.append(0, np.cumsum(sizes))])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _draws(self) -> Draws:
        own = Draws.SAMPLE_RNG if self.clips == "random" else Draws.NOTHING
        return max(own, super()._draws())

    def _parts(self) -> list[object]:
        return [self.source, *super()._parts()]

    @abstractmethod
    def _measure(self, content: Content) -> tuple[float, float]:
        """Return a file's duration in seconds, and its sample rate (audio) or frame rate (video).

        `content` is the encoded bytes, or a path or URL.
        """

    @abstractmethod
    def _counts(self, seconds: Array, rates: Array) -> Int64Array:
        """Return the number of clips of each file (files,) from `times()`; 1 for a file whose values are NaN."""

    @abstractmethod
    def _cut(self) -> str:
        """Return, as text, the settings that decide which clips a file is cut into."""

    @abstractmethod
    def _read(self, content: Content, clip: int) -> dict[str, Any]:
        """Return the fields of a clip of a file; `clip` is its number in the file."""

    def _decoded_by(self) -> str:
        """Return the decoder, as text, with all that may change the decoded values."""
        return self.decoder

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _locate(self, index: int) -> tuple[int, int]:
        """Return the file of a sample, and the number of its clip in the file."""
        if self._ends is None:
            return index, 0
        file = int(np.searchsorted(self._ends, index, side="right"))
        return file, index - (int(self._ends[file - 1]) if file else 0)

    def _decode(self, sample: Any, file: int, clip: int) -> Any:
        name = self._field_of(sample)
        try:
            found = self._read(sample[name], clip)
        except ValueError as error:
            raise ValueError(f"{place_of(self.source, file) or f'sample {file:,}'}: {error}") from error
        found = {**{key: value for key, value in sample.items() if key != name}, **found}
        return found if self.transform is None else self.transform(found)

    def _field_of(self, sample: object) -> str:
        if self.field is not None and isinstance(sample, Mapping) and self.field in sample:
            return self.field
        names = list(sample) if isinstance(sample, Mapping) else []
        found = [name for name in names if f".{str(name).rpartition('.')[2]}" in self.suffixes]
        if self.field is not None or len(found) != 1:
            wanted = "one of encoded bytes or a path (field=)" if self.field is None else repr(self.field)
            raise ValueError(
                f"{self._name}: a sample is a {type(sample).__name__} with the fields {names}, wanted {wanted}."
            )
        return str(found[0])

    def _read_times(self, file: int) -> tuple[float, float]:
        sample = self.source[file]
        return self._measure(sample[self._field_of(sample)])

    def _version(self) -> str | None:
        own = getattr(self.source, "fingerprint", None)
        if not callable(own):
            return None
        files = self.source.version() if isinstance(self.source, MediaFiles) else ""
        return f"{self._name} {self.field} of {len(self.source)}: {own()} {files}"


def start_of_clip(clips: str, clip: int, whole: float, length: float) -> float:
    """Return where a clip starts in its file.

    `whole` is the length of the file and `length` that of a clip, in one unit, which the result has too. `clip` is its
    number.

    Random starts are drawn from `sample_rng()`.
    """
    room = max(0.0, whole - length)
    if clips == "random":
        return float(sample_rng().random()) * room
    return room / 2 if clips == "middle" else clip * length


def _is_urls(source: object) -> TypeGuard[Urls]:
    """Return whether a source is a path or URL, or a list of them, rather than a dataset."""
    if isinstance(source, list | tuple) and source:
        return isinstance(source[0], str | os.PathLike)
    return isinstance(source, str | os.PathLike)
