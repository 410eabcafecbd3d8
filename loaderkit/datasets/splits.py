"""Splits into training, validation and test data that are the same in every process."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Generic

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeVar

from loaderkit.datasets.combine import SubsetDataset
from loaderkit.files.atomic import write_atomically
from loaderkit.files.regular_file import read_regular
from loaderkit.seeding.keys import derive_seed, hash_positions
from loaderkit.system.arrays import Int64Array, UInt64Array
from loaderkit.system.html import table
from loaderkit.system.tables import is_frame
from loaderkit.system.types import Array

VERSION = 1
Keys = Array
# A value for each sample, or a function from a sample to its value.
By = Callable[[Any], object] | Sequence[object] | Array
_KEY = (int, str, np.integer)
Part = TypeVar("Part", covariant=True, default=Any)


@dataclass(frozen=True, eq=False, repr=False)
class Split(Mapping[str, Part], Generic[Part]):
    """The result of `split`: a mapping from a side's name to its part.

    A side is "train", for example. Its part is a `SubsetDataset`, or indices (N,) int64 if keys were split. A type
    checker can't know which of the two; tell it by an annotation:
    `parts: lk.Split[lk.SubsetDataset[Row]] = lk.split(rows, ...)`.

    Args:
        sides: The sides' names, in order.
        side_of: For each sample, the position of its side in `sides`, (N,) int64.
        sample_keys: Each sample's key, (N,) integers or strings.
        groups: Each sample's group, (N,) integers or strings; the keys if there are no groups.
        settings: The arguments "seed", "fractions", "fold" and "folds" of `split`.
        dataset: The dataset, if one was split.

    Examples:
        >>> parts = lk.split(range(1000), {"train": 0.9, "val": 0.1})
        >>> list(parts), len(parts["train"]) + len(parts["val"])
        (['train', 'val'], 1000)
        >>> parts
        Split(train: 890 samples, val: 110 samples)
        >>> parts.save("split.json")
        >>> parts.moved("split.json")
        {}
    """

    sides: tuple[str, ...]
    side_of: npt.NDArray[np.int64]
    sample_keys: Keys
    groups: Keys
    settings: Mapping[str, object]
    dataset: Any = None

    def __getitem__(self, side: str) -> Part:
        part: Any = self.indices(side)
        if self.dataset is not None:
            part = SubsetDataset(self.dataset, part)
        found: Part = part
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.sides)

    def __len__(self) -> int:
        return len(self.sides)

    def __repr__(self) -> str:
        return f"Split({', '.join(f'{side}: {len(self.indices(side)):,} samples' for side in self)})"

    def _repr_html_(self) -> str:
        counts = [len(self.indices(side)) for side in self.sides]
        rows = [
            (side, f"{count:,} samples", f"{count / max(1, sum(counts)):.1%}")
            for side, count in zip(self, counts, strict=True)
        ]
        return table("Split", rows)

    def indices(self, side: str) -> Int64Array:
        """Return the indices (N,) of a side's samples, in ascending order.

        Raises:
            KeyError: If there is no such side.
        """
        if side not in self.sides:
            raise KeyError(f"split: no side {side!r}, wanted one of {', '.join(map(repr, self.sides))}.")
        return np.flatnonzero(self.side_of == self.sides.index(side))

    def save(self, path: str | Path) -> None:
        """Write a manifest atomically: JSON with the settings and each side's keys."""
        manifest = {
            "version": VERSION,
            "settings": dict(self.settings),
            "sides": {side: self.sample_keys[self.indices(side)].tolist() for side in self.sides},
        }
        write_atomically(Path(path), json.dumps(manifest).encode())

    def moved(self, manifest: str | Path) -> dict[object, tuple[str, str]]:
        """Return the keys that a manifest has on another side, each with its sides (in the manifest, in this split).

        Raises:
            ValueError: If the file is not a manifest of this version, or has none of these keys.
        """
        before = load_manifest(manifest)
        _check_common(before, self.sample_keys)
        now = zip(self.sample_keys.tolist(), (self.sides[side] for side in self.side_of.tolist()), strict=True)
        return {key: (before[key], side) for key, side in now if before.get(key, side) != side}

    def leaks(self, values: By) -> dict[object, list[str]]:
        """Return the values that occur on several sides, each with the names of these sides.

        Args:
            values: A value for each sample (N,) that must not be on two sides, such as a patient or a digest of the
                content; or a function from a sample to the value.
        """
        found: dict[object, set[int]] = {}
        each = _column(values, self.dataset, len(self.sample_keys), "values")
        for value, side in zip(each.tolist(), self.side_of.tolist(), strict=True):
            found.setdefault(value, set()).add(side)
        return {value: [self.sides[side] for side in sorted(on)] for value, on in found.items() if len(on) > 1}


def split(
    data: Any,
    fractions: Mapping[str, float] | None = None,
    *,
    seed: int = 0,
    keys: By | None = None,
    group_by: By | None = None,
    stratify_by: By | None = None,
    fold: int | None = None,
    folds: int | None = None,
    keep: str | Path | None = None,
) -> Split[Any]:
    """Split data by a hash of (seed, key).

    The split is the same on every rank and in every process. If data is added, samples stay on their sides. The hash
    puts a sample on a side with the given probability, so a side's size varies by about its square root. `stratify_by`
    makes the sizes exact to one sample in each stratum: each stratum's samples are sorted by hash, and cut by share.
    Added data may then move a few samples to another side; `keep` prevents that.

    Args:
        data: A dataset, or a sequence or array of keys: one integer or string for each sample.
        fractions: The share of each side, by name; the sum is 1. With `folds`: the shares of sides other than "train"
            and "val"; the sum is below 1.
        seed: Another seed gives another split.
        keys: A key for each sample of a dataset (N,), or a function from a sample to its key. The default is the index,
            which is right if data is only appended.
        group_by: A value for each sample, as `keys`. Samples with equal values, such as a patient, stay on one side.
        stratify_by: A value for each sample, as `keys`. Each side gets the same share of each value, such as a class. A
            group counts for the value that most of its samples have.
        fold: The part that is "val", from 0 to `folds` - 1; the others are "train".
        folds: The number of parts for cross-validation.
        keep: A manifest from `Split.save`; the keys in it stay on their sides.

    Returns:
        A mapping from each side's name to a `SubsetDataset`, or to indices (N,) if `data` are keys.

    Raises:
        TypeError: If the fractions have no names, or the data is a data frame.
        ValueError: If settings contradict each other, keys are not unique, or there are no samples.

    Examples:
        >>> data = lk.RecordDataset({"patient": i // 10} for i in range(1000))
        >>> parts = lk.split(data, {"train": 0.8, "val": 0.2}, group_by=lambda sample: sample["patient"])
        >>> len(parts["train"]) + len(parts["val"])
        1000
        >>> parts.leaks(lambda sample: sample["patient"])
        {}
    """
    seed = _whole(seed, "seed")
    if fold is not None and folds is not None:
        fold, folds = _whole(fold, "fold"), _whole(folds, "folds")
    sides, edges, number = _sides(fractions, fold, folds)
    if is_frame(data):
        raise TypeError("split: the data is a data frame, wanted a dataset or keys, such as one of its columns.")
    size = len(data)
    if not size:
        raise ValueError("split: there are no samples, wanted at least one.")
    dataset = None if _are_keys(data) else data
    if dataset is None and keys is not None:
        raise ValueError(
            "split: keys= was given, and the data are keys, too; wanted a dataset with keys=, or keys alone."
        )
    found = _column(data if dataset is None else np.arange(size) if keys is None else keys, dataset, size, "keys")
    _check_unique(found)
    groups = found if group_by is None else _column(group_by, dataset, size, "group_by")
    names, members = np.unique(groups, return_inverse=True)
    places = _hash(names, seed) / 2.0**64
    if stratify_by is not None:
        strata = np.unique(_column(stratify_by, dataset, size, "stratify_by"), return_inverse=True)[1]
        places = _spread_in_strata(places, members, strata)
    side_of = number[np.searchsorted(edges, places, side="right")][members]
    shares = {side: float(share) for side, share in (fractions or {}).items()}
    settings = {"seed": seed, "fractions": shares, "fold": fold, "folds": folds}
    if keep is not None:
        before, made_with = _read_manifest(keep)
        _check_same_fold(made_with, settings)
        side_of = _kept(side_of, found, members, sides, before)
    return Split(sides, side_of, found, groups, settings, dataset)


def load_manifest(path: str | Path) -> dict[object, str]:
    """Return the side of each key in a manifest from `Split.save`.

    Raises:
        ValueError: If the file is not a manifest of this version, or has a key on two sides.
    """
    return _read_manifest(path)[0]


def _read_manifest(path: str | Path) -> tuple[dict[object, str], Mapping[str, object]]:
    """Return the side of each key in a manifest, and the settings of its split."""
    content = read_regular(path)
    try:
        manifest = json.loads(content)
        version, sides = manifest["version"], manifest["sides"]
        if version != VERSION:
            raise ValueError(f"{path}: a manifest of version {version}, this loaderkit reads {VERSION}.")
        pairs = [(key, side) for side, keys in sides.items() for key in keys]
        found, settings = dict(pairs), dict(manifest.get("settings", {}))
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a manifest of a split, wanted a file from Split.save().") from error
    for key, side in pairs if len(found) < len(pairs) else ():
        if found[key] != side:
            raise ValueError(f"{path}: has key {key!r} on {side!r} and on {found[key]!r}, wanted it on one side.")
    return found, settings


def _sides(
    fractions: Mapping[str, float] | None, fold: int | None, folds: int | None
) -> tuple[tuple[str, ...], npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the sides, the points (P - 1,) that cut [0, 1) into pieces, and the number of each piece's side (P,)."""
    if fractions is not None and not isinstance(fractions, Mapping):
        raise TypeError(
            f"split: fractions are {fractions!r}, wanted a share by side, such as {{'train': 0.8, 'val': 0.2}}."
        )
    # A float32 of 0.8 means 0.8.
    shares = {
        side: float(str(share)) if isinstance(share, np.floating) else share
        for side, share in (fractions or {}).items()
    }
    bad = {side: share for side, share in shares.items() if not isinstance(share, Real) or not 0 < share <= 1}
    if bad:
        raise ValueError(f"split: fractions {bad} are out of range, wanted above 0 and at most 1.")
    total = sum(shares.values())
    if (fold is None) != (folds is None):
        raise ValueError(f"split: fold={fold} and folds={folds}, wanted both or none of them.")
    if folds is None or fold is None:
        if not shares or abs(total - 1) > 1e-9:
            raise ValueError(f"split: fractions {shares} have the sum {total:g}, wanted 1.")
        pieces, numbers = list(shares.values()), list(range(len(shares)))
        sides = tuple(shares)
    else:
        if folds < 2 or not 0 <= fold < folds:
            raise ValueError(f"split: fold {fold} of {folds}, wanted at least 2 folds and one of 0 to folds - 1.")
        if total >= 1 or {"train", "val"} & set(shares):
            raise ValueError(
                f"split: fractions are {shares}, wanted sides other than 'train' and 'val' with a sum below 1, because folds is given."
            )
        pieces = [*shares.values(), *[(1 - total) / folds] * folds]
        sides = (*shares, "train", "val")
        numbers = [*range(len(shares)), *[len(shares) + (part == fold) for part in range(folds)]]
    return sides, np.cumsum(pieces)[:-1], np.array(numbers, dtype=np.int64)


def _hash(names: Keys, seed: int) -> UInt64Array:
    """Return a 64-bit hash of the seed and each name: names (N,), hashes (N,) uint64."""
    if names.dtype.kind in "iub":
        return hash_positions(names.astype(np.int64), "split", seed)
    start = derive_seed("split", seed).to_bytes(8, "little")
    texts = [name if isinstance(name, bytes) else name.encode() for name in names.tolist()]
    digests = (hashlib.blake2b(text, digest_size=8, key=start).digest() for text in texts)
    return np.frombuffer(b"".join(digests), dtype="<u8")


def _spread_in_strata(
    places: npt.NDArray[np.float64], members: npt.NDArray[np.int64], strata: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return new places (G,) for groups, from 0 to 1, that spread the samples of each stratum evenly.

    Within a stratum the groups keep the order of `places` (G,). `members` (N,) is the group of each sample, `strata`
    (N,) its stratum. A group belongs to the stratum that most of its samples are in.
    """
    width, sizes = int(strata.max()) + 1, np.bincount(members, minlength=len(places))
    pairs, counts = np.unique(members * width + strata, return_counts=True)
    group, each = np.divmod(pairs, width)
    # Sort each group's largest stratum last; of equally large ones, the first one.
    largest = np.lexsort((-each, counts, group))
    stratum = each[largest][np.flatnonzero(np.diff(group[largest], append=-1))]
    order = np.lexsort((places, stratum))
    ends = np.cumsum(sizes[order])
    first = np.flatnonzero(np.diff(stratum[order], prepend=-1))
    number = np.repeat(np.arange(len(first)), np.diff(first, append=len(order)))
    starts = ends[first] - sizes[order][first]
    totals = np.diff(starts, append=ends[-1])
    spread = np.empty(len(places))
    # The place of a group is its middle.
    spread[order] = (ends - starts[number] - sizes[order] / 2) / totals[number]
    return spread


def _whole(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"split: {name} is {value!r}, wanted an integer.")
    return int(value)


def _check_common(before: Mapping[object, str], keys: Keys) -> None:
    """Raise a ValueError if a manifest has keys, but none of these: it belongs to other data."""
    if before and not any(key in before for key in keys.tolist()):
        raise ValueError(
            f"split: the manifest has none of these keys: its first is {next(iter(before))!r}, here it is {keys[0].item()!r}. "
            "Use the keys that it was made with (keys=)."
        )


def _check_same_fold(saved: Mapping[str, object], settings: Mapping[str, object]) -> None:
    """Raise a ValueError if a manifest is of another `fold` or number of `folds`."""
    if any(saved.get(name) != settings[name] for name in ("fold", "folds")):
        raise ValueError(
            f"split: the manifest is of fold {saved.get('fold')} of {saved.get('folds')}, this is {settings['fold']} of "
            f"{settings['folds']}. Use one manifest per fold."
        )


def _kept(
    side_of: npt.NDArray[np.int64],
    keys: Keys,
    members: npt.NDArray[np.int64],
    sides: tuple[str, ...],
    before: Mapping[object, str],
) -> npt.NDArray[np.int64]:
    """Return the side of each sample (N,), where each group with a key in the manifest is on the manifest's side.

    Raises:
        ValueError: If the manifest has none of the keys, has a side that this split lacks, or has a group on two sides.
    """
    _check_common(before, keys)
    unknown = sorted(set(before.values()) - set(sides))
    if unknown:
        raise ValueError(f"split: the manifest has sides {unknown}, this split has {list(sides)}. Use the same sides.")
    side_of_group: dict[int, int] = {}
    for group, key in zip(members.tolist(), keys.tolist(), strict=True):
        if key in before:
            side = sides.index(before[key])
            if side_of_group.setdefault(group, side) != side:
                raise ValueError(
                    f"split: the manifest has a group on two sides: that of key {key!r} is on {before[key]!r} and on "
                    f"{sides[side_of_group[group]]!r}. Split again without keep=."
                )
    kept = np.array([side_of_group.get(group, -1) for group in members.tolist()], dtype=np.int64)
    return np.where(kept >= 0, kept, side_of)


def _are_keys(data: object) -> bool:
    """Return whether the data are keys: a list, or an array or Series of one axis, of integers or strings."""
    if isinstance(data, list | tuple | range):
        return all(isinstance(key, _KEY) for key in data)
    if getattr(data, "ndim", None) != 1 or not hasattr(data, "__array__"):
        return False
    found = np.asarray(data)
    return found.dtype.kind in "iuUS" or (found.dtype == object and all(isinstance(key, _KEY) for key in found))


def _column(values: By, dataset: Any, size: int, name: str) -> Keys:
    """Return a value for each sample, (N,) integers, bools or strings; `dataset` is None if the data are keys."""
    if callable(values):
        if dataset is None:
            raise ValueError(
                f"split: {name} is a function of a sample, and the data are keys; wanted a dataset, or a value for each key."
            )
        values = [values(dataset[index]) for index in range(size)]
    try:
        found = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"split: {name} is not a column of values: {error}. Wanted {_wanted(size)}.") from None
    if found.dtype == object and found.shape == (size,):  # as in data frames
        for number, value in enumerate(found):
            if not isinstance(value, _KEY):
                raise ValueError(f"split: {name} of sample {number:,} is {value!r}, wanted {_wanted(size)}.")
        found = np.array(found.tolist())
    if found.shape != (size,) or found.dtype.kind not in "iubUS":
        raise ValueError(f"split: {name} has shape {found.shape} and dtype {found.dtype}, wanted {_wanted(size)}.")
    return np.char.decode(found, "utf-8") if found.dtype.kind == "S" else found


def _check_unique(keys: Keys) -> None:
    names, counts = np.unique(keys, return_counts=True)
    if len(names) < len(keys):
        raise ValueError(
            f"split: key {names[counts.argmax()].item()!r} occurs {counts.max()} times, wanted unique keys. "
            "For samples that belong together use group_by=."
        )


def _wanted(size: int) -> str:
    return f"an integer or a string for each of {size:,} samples"
