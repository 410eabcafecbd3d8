"""A cache of samples: the first process that needs a sample makes it, for all processes of the host and all epochs."""

import hashlib
import io
import os
import pickle
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from loaderkit.datasets.base import MapStyle, Transform, check_index, knows_lengths, read_many, reads_many
from loaderkit.datasets.typed import as_typed_dataset
from loaderkit.files.sample_file import ALIGNMENT, SampleFile
from loaderkit.sampling.fingerprint import fingerprint, fingerprint_of
from loaderkit.seeding.draws import Declares, Draws, NoSeeds, SampleRngSeeds, draws
from loaderkit.seeding.keys import hash_positions
from loaderkit.seeding.sample_seeds import SampleSeeds, part_of_batch, per_sample, seeds_apart
from loaderkit.system.arrays import UInt64Array
from loaderkit.system.checks import plain_integer
from loaderkit.system.overrides import own_attribute
from loaderkit.system.tensor_pickling import TensorsByValue

FORMAT = 1  # version of an entry's bytes; raise it when `_pack` or `TensorsByValue` writes other bytes
_MAKE_SAMPLES = ("loaderkit", "numpy", "torch", "torchvision", "pillow")  # other versions may make other samples
_LOOKS = 2  # samples that each process makes again, to find random draws and entries of other data


class CachedDataset(Declares):
    """A dataset that makes each sample once and keeps it for later epochs.

    Use it if samples take time to make, such as decoded pictures, and are the same in each epoch. Put what is
    random into `transform`, which runs after the cache. It draws the same numbers whether a sample was made or read.

    The first process that needs a sample makes and stores it, and all other processes that share the cache read it. If
    two processes need a sample at the same moment, both make it. Processes that are killed leave no damaged entry.
    Nothing is evicted, because an epoch needs each sample once: when `max_bytes` is reached, the other samples are made
    each time.

    If making a sample raises an error, nothing is stored. Samples must pickle; a read gives a new copy each time. The
    dataset itself should not draw random numbers. If it does, each sample draws from a seed of its index, the same in
    each epoch, and a warning is logged.

    Where the cache can be:

    - "memory": shared by this process and its workers, however they are started. The memory is freed when the last of
      them ends, also if they are killed. Each rank has a cache of its own.
    - A folder on a local disk, for all processes and ranks of the host and for later runs. It has one file for each
      dataset and version. The file's name is a hash of the dataset's fingerprint, `version`, and the versions of
      loaderkit, numpy, torch, torchvision, Pillow and Python. Each process makes the first two samples that it reads
      from the folder again, and raises an error if they differ. Files of other versions stay until you delete them. For
      ranks that share memory, give a folder in /dev/shm, and delete it after the training.

    Samples in a folder are pickles, which can run code: use a folder that others cannot write to.

    Args:
        dataset: The dataset that makes samples, with a length and samples by index.
        where: "memory", or the path of a folder.
        max_bytes: Size limit of this dataset's file or memory. An index takes 24 bytes for each sample from the start.
        transform: Called with each sample, after the cache.
        version: Any text. Change it when the dataset makes other samples than before but has the same fingerprint, for
            example after a change of its decoder.

    Raises:
        TypeError: If the dataset has no length or no samples by index. On reading: if a sample does not pickle.
        ValueError: If max_bytes is too small. On reading: if the folder has samples that differ from what the dataset makes.

    Examples:
        >>> def decode(text):
        ...     print("decoding", text)
        ...     return int(text)
        >>> texts = lk.RecordDataset(["1", "2"], transform=decode)
        >>> data = lk.CachedDataset(texts, "memory", max_bytes=1 << 20, transform=lambda number: number * 10)
        >>> list(lk.Loader(data, batch_size=2))
        decoding 1
        decoding 2
        [tensor([10, 20])]
        >>> list(lk.Loader(data, batch_size=2))
        [tensor([10, 20])]
    """

    def __init__(
        self,
        dataset: MapStyle,
        where: str | os.PathLike[str] = "memory",
        *,
        max_bytes: int,
        transform: Transform | None = None,
        version: str = "",
    ) -> None:
        max_bytes = plain_integer(max_bytes)
        if not isinstance(max_bytes, int) or isinstance(max_bytes, bool):
            raise ValueError(f"CachedDataset: max_bytes is {max_bytes!r}, wanted an integer.")
        self.dataset = dataset = as_typed_dataset(dataset, "CachedDataset: the dataset")
        self.transform = transform
        key = _key(dataset, version)
        path = None if where == "memory" else Path(where) / f"{key.hex()}.lkcache"
        self._file = SampleFile(path, records=len(dataset), max_bytes=max_bytes, token=key)
        self._to_compare = 0 if path is None else _LOOKS
        self._to_watch = _LOOKS
        self._refused = ""

    @property
    def cached_samples(self) -> int:
        """How many samples are in the cache."""
        return self._file.count()

    @property
    def cached_bytes(self) -> int:
        """How many bytes of `max_bytes` are in use."""
        return self._file.size_bytes

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        check_index(self, index)
        index = int(index) % len(self)
        words = self._stored(index)
        sample = self._keep(index, self._make(index)) if words is None else _unpack(words)
        return sample if self.transform is None else self.transform(sample)

    def __getattr__(self, name: str) -> Any:
        # A method exists here only if the dataset has it.
        dataset: Any = self.__dict__.get("dataset")
        if name == "__getitems__" and reads_many(dataset):
            return self._read_many
        if name == "shard_sizes" and (found := own_attribute(dataset, name)) is not None:
            return found
        if name == "fingerprint" and (text := fingerprint_of(dataset)):
            return lambda: text
        if name == "lengths" and knows_lengths(dataset):
            return dataset.lengths
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _parts(self) -> list[object]:
        return [self.dataset, *super()._parts()]

    def _read_many(self, indices: Sequence[int]) -> list[object]:
        stored = [self._stored(index) for index in indices]
        missing = [row for row, words in enumerate(stored) if words is None]
        if len(missing) > 1 and not self._to_watch:
            made = self._make_many([indices[row] for row in missing], missing)
        else:
            with part_of_batch(0, missing):
                made = per_sample(self._make, [indices[row] for row in missing])
        samples = [None if words is None else _unpack(words) for words in stored]
        for row, sample in zip(missing, made, strict=True):
            samples[row] = self._keep(indices[row], sample)
        return samples if self.transform is None else per_sample(self.transform, samples)

    def _make(self, index: int) -> object:
        """Make a sample, with random numbers from a seed of its index; log a warning if the first ones draw any."""
        seeds = self._seeds([index])
        with seeds_apart(seeds):
            seeds.enter(0)
            sample = self.dataset[index]
            if self._to_watch:
                self._to_watch -= 1
                if seeds.has_drawn():
                    self._file.say_once(
                        1,
                        f"{type(self.dataset).__name__} draws random numbers to make sample {index}, and the cache keeps what they "
                        "make: it is the same in each epoch. Move what is random to CachedDataset(transform=...).",
                    )
        return sample

    def _make_many(self, indices: list[int], rows: list[int]) -> list[object]:
        """Make samples in one call. `rows` are the samples' positions in the batch."""
        seeds = self._seeds(indices)
        with seeds_apart(seeds, rows):
            seeds.enter_batch()
            return read_many(self.dataset, indices)

    def _seeds(self, indices: list[int]) -> SampleSeeds:
        drawn = draws(self.dataset)
        if drawn is Draws.NOTHING:
            return NoSeeds(len(indices))
        words = hash_positions(np.array(indices, dtype=np.int64), "cached sample")
        return SampleRngSeeds(words) if drawn is Draws.SAMPLE_RNG else SampleSeeds(words)

    def _keep(self, index: int, sample: object) -> object:
        """Store a sample, and return it as a later read will give it: strides may differ from the sample's."""
        words = self._packed(index, sample)
        self._file.write(index, words)
        return _unpack(words)

    def _packed(self, index: int, sample: object) -> UInt64Array:
        try:
            return _pack(sample)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise TypeError(
                f"CachedDataset: sample {index} (a {type(sample).__name__}) cannot be stored: {error}. Let the dataset return what "
                "pickles, and make the rest in CachedDataset(transform=...)."
            ) from error

    def _stored(self, index: int) -> UInt64Array | None:
        if self._refused:
            raise ValueError(self._refused)
        words = self._file.read(index)
        if words is not None and self._to_compare:
            self._compare(index, words)
        return words

    def _compare(self, index: int, words: UInt64Array) -> None:
        """Make a stored sample again, and raise a ValueError if the two differ."""
        try:
            now = self._make(index)
        except Exception:  # the sample's source may be gone
            return
        self._to_compare -= 1
        if not _same(words, self._packed(index, now)):
            # Refuse all later reads: a policy for bad samples may skip this one.
            self._refused = (
                f"CachedDataset: sample {index} in {self._file} differs from what the dataset makes now, although its fingerprint and "
                "version are the same. Give another version= if the data or the decoding has changed, or delete the file."
            )
            raise ValueError(self._refused)


def _key(dataset: MapStyle, version: str) -> bytes:
    """Return a hash (16 bytes) of a dataset's fingerprint and the versions of the libraries that make its samples."""
    parts = [f"format {FORMAT}", f"python {sys.version_info[0]}.{sys.version_info[1]}", *map(_version, _MAKE_SAMPLES)]
    parts += [type(dataset).__qualname__, fingerprint(dataset, len(dataset)), version]
    return hashlib.blake2b("\x1f".join(parts).encode(errors="surrogatepass"), digest_size=16).digest()


def _version(library: str) -> str:
    try:
        return f"{library} {metadata.version(library)}"
    except metadata.PackageNotFoundError:
        return library


class _Pickler(TensorsByValue, pickle.Pickler):
    """Pickle a sample, with the memory of its tensors and arrays as separate buffers."""


def _pack(sample: object) -> UInt64Array:
    """Return a sample as an entry (W,) uint64.

    Its parts are a header, the pickle and the buffers; each starts at a multiple of `ALIGNMENT` bytes. The header has
    the number of buffers, and the sizes in bytes of the pickle and of each buffer.
    """
    file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(file, 5, buffer_callback=buffers.append).dump(sample)
    parts = [file.getbuffer(), *(buffer.raw() for buffer in buffers)]
    head = np.array([len(buffers), *(part.nbytes for part in parts)], dtype="<u8")
    starts = np.cumsum([0, _aligned(head.nbytes), *(_aligned(part.nbytes) for part in parts)]).tolist()
    words = np.zeros(starts[-1] // 8, dtype=np.uint64)
    memory = words.data.cast("B")
    for start, part in zip(starts, [head.data.cast("B"), *parts], strict=False):
        memory[start : start + part.nbytes] = part
    return words


def _unpack(words: UInt64Array) -> object:
    """Return the sample of an entry; its tensors and arrays are views of the entry."""
    count = int(words[0])
    sizes = words[1 : count + 2].tolist()
    memory, start = words.data.cast("B"), _aligned(8 * (count + 2))
    parts = []
    for size in sizes:
        parts.append(memory[start : start + size])
        start += _aligned(size)
    return pickle.loads(parts[0], buffers=parts[1:])


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _same(left: UInt64Array, right: UInt64Array) -> bool:
    """Return whether two entries hold the same sample; equal samples may pickle to different bytes."""
    if np.array_equal(left, right):
        return True
    try:
        return bool(_unpack(left) == _unpack(right))
    except (ValueError, RuntimeError):  # comparing arrays gives no single truth value
        return False
