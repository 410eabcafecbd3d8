"""Splits into training, validation and test data that are the same everywhere and can't leak."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderkit.datasets.base import is_frame
from loaderkit.datasets.combine import SubsetDataset
from loaderkit.datasets.remote.urls import write_atomically
from loaderkit.datasets.split_columns import By, Keys, are_keys, check_unique, column
from loaderkit.seeding.keys import derive_seed, hash_positions
from loaderkit.system.arrays import Int64Array, UInt64Array

VERSION = 1
_WHOLE = 2.0**64


@dataclass(frozen=True, eq=False)
class Split(Mapping[str, Any]):
    """Which sample is on which side: a mapping from a side's name to its part of the data.

    A part is a SubsetDataset where a dataset was split, and the indices (N,) int64 where only keys were.

    Args:
        sides: The names, in their order.
        side_of: Of each sample, the number of its side (N,).
        sample_keys: Of each sample (N,), integers or strings.
        groups: Of each sample (N,), where it was split by groups; else the keys.
        settings: What the split was made with.
        dataset: What was split, if it was a dataset.
    """

    sides: tuple[str, ...]
    side_of: npt.NDArray[np.int64]
    sample_keys: Keys
    groups: Keys
    settings: Mapping[str, Any]
    dataset: Any = None

    def __getitem__(self, side: str) -> Any:
        return self.indices(side) if self.dataset is None else SubsetDataset(self.dataset, self.indices(side))

    def __iter__(self) -> Iterator[str]:
        return iter(self.sides)

    def __len__(self) -> int:
        return len(self.sides)

    def indices(self, side: str) -> Int64Array:
        """Return a side's samples (N,), in the data's order.

        Raises:
            KeyError: If there is no such side.
        """
        if side not in self.sides:
            raise KeyError(f"split: no side {side!r}, wanted one of {', '.join(map(repr, self.sides))}.")
        return np.flatnonzero(self.side_of == self.sides.index(side))

    def save(self, path: str | Path) -> None:
        """Write a manifest, whole or not at all: JSON with the settings and each side's keys."""
        manifest = {
            "version": VERSION,
            "settings": dict(self.settings),
            "sides": {side: self.sample_keys[self.indices(side)].tolist() for side in self.sides},
        }
        write_atomically(Path(path), json.dumps(manifest).encode())

    def moved(self, manifest: str | Path) -> dict[Any, tuple[str, str]]:
        """Return the keys that a manifest has on another side, each with the side there and the side here.

        Raises:
            ValueError: If the file is no manifest of this version, or has none of these keys.
        """
        before = load_manifest(manifest)
        _check_common(before, self.sample_keys)
        now = zip(self.sample_keys.tolist(), (self.sides[side] for side in self.side_of.tolist()), strict=True)
        return {key: (before[key], side) for key, side in now if before.get(key, side) != side}

    def leaks(self, values: By) -> dict[Any, list[str]]:
        """Return the values that samples on several sides have, each with these sides.

        Args:
            values: Of each sample (N,): what must not be on two sides, e.g. patients, or digests of the content; or a
                function from a sample of the dataset to it.
        """
        found: dict[Any, set[int]] = {}
        each = column(values, self.dataset, len(self.sample_keys), "values")
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
) -> Split:
    """Split data by a hash of (seed, key): the same on every rank, in every process, and after data was added.

    By the hash alone each sample falls on a side with the given probability, so that a side's size varies by a few square
    roots. `stratify_by` makes the sizes right to a sample in each stratum, by the hashes' order; then data that is added may
    move samples at the borders, and `keep` prevents that.

    Args:
        data: A dataset, or keys: a sequence or array of integers or strings, one for each sample.
        fractions: Of each side, with a sum of 1; with folds those of sides beside "train" and "val", with a sum below 1.
        seed: Another one gives another split.
        keys: Of each sample of a dataset: a sequence (N,), or a function from a sample. By default its index, which is
            right where data is only appended.
        group_by: Of each sample: what must stay on one side (a patient, a document), as `keys`.
        stratify_by: Of each sample: what each side shall have the same share of (a class), as `keys`. A group counts for
            the stratum that most of it is in.
        fold: Which of `folds` parts is "val"; the others are "train".
        folds: The number of parts for cross-validation.
        keep: A manifest that an earlier split saved: keys that it has stay on its sides.

    Raises:
        TypeError: If the fractions have no names, or the data is a frame.
        ValueError: If settings contradict each other, keys are not unique, or there are no samples.
    """
    seed = _whole(seed, "seed")
    if fold is not None and folds is not None:
        fold, folds = _whole(fold, "fold"), _whole(folds, "folds")
    sides, edges, number = _sides(fractions, fold, folds)
    if is_frame(data):
        raise TypeError(
            "split: the data is a frame, which has columns by name; wanted a dataset or keys, such as one of its columns."
        )
    size = len(data)
    if not size:
        raise ValueError("split: there are no samples, wanted at least one.")
    dataset = None if are_keys(data) else data
    if dataset is None and keys is not None:
        raise ValueError("split: keys= is for a dataset, and keys were given in its place. Leave it out.")
    found = column(data if dataset is None else np.arange(size) if keys is None else keys, dataset, size, "keys")
    check_unique(found)
    groups = found if group_by is None else column(group_by, dataset, size, "group_by")
    names, members = np.unique(groups, return_inverse=True)
    places = _hash(names, seed) / _WHOLE
    if stratify_by is not None:
        strata = np.unique(column(stratify_by, dataset, size, "stratify_by"), return_inverse=True)[1]
        places = _spread_in_strata(places, members, strata)
    side_of = number[np.searchsorted(edges, places, side="right")][members]
    if keep is not None:
        before, made_with = _read_manifest(keep)
        if (made_with.get("fold"), made_with.get("folds")) != (fold, folds):
            raise ValueError(
                f"split: the manifest is of fold {made_with.get('fold')} of {made_with.get('folds')}, this is {fold} of {folds}, "
                "whose keys would all stay on that one's sides. Give each fold a manifest of its own."
            )
        side_of = _kept(side_of, found, members, sides, before)
    shares = {side: float(share) for side, share in (fractions or {}).items()}
    settings = {"seed": seed, "fractions": shares, "fold": fold, "folds": folds}
    return Split(sides, side_of, found, groups, settings, dataset)


def load_manifest(path: str | Path) -> dict[Any, str]:
    """Return the side of each key in a manifest that `Split.save` wrote.

    Raises:
        ValueError: If the file is no manifest, of another version, or has a key on two sides.
    """
    return _read_manifest(path)[0]


def _read_manifest(path: str | Path) -> tuple[dict[Any, str], Mapping[str, Any]]:
    """Return the side of each key, and the split's settings."""
    try:
        manifest = json.loads(Path(path).read_bytes())
        version, sides = manifest["version"], manifest["sides"]
        if version != VERSION:
            raise ValueError(f"{path}: a manifest of version {version}, this loaderkit reads {VERSION}.")
        pairs = [(key, side) for side, keys in sides.items() for key in keys]
        found, settings = dict(pairs), dict(manifest.get("settings", {}))
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a manifest of a split. Give a file that Split.save() wrote.") from error
    for key, side in pairs if len(found) < len(pairs) else ():
        if found[key] != side:
            raise ValueError(f"{path}: has key {key!r} on {side!r} and on {found[key]!r}, wanted it on one side.")
    return found, settings


def _sides(
    fractions: Mapping[str, float] | None, fold: int | None, folds: int | None
) -> tuple[tuple[str, ...], npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the sides, where [0, 1) is cut between them, and which side each piece belongs to."""
    if fractions is not None and not isinstance(fractions, Mapping):
        raise TypeError(
            f"split: fractions are {fractions!r}, wanted them by side, such as {{'train': 0.8, 'val': 0.2}}."
        )
    shares = dict(fractions or {})
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
                f"split: with folds, fractions are for sides beside 'train' and 'val' and have a sum below 1; found {shares}."
            )
        pieces = [*shares.values(), *[(1 - total) / folds] * folds]
        sides = (*shares, "train", "val")
        numbers = [*range(len(shares)), *[len(shares) + (part == fold) for part in range(folds)]]
    return sides, np.cumsum(pieces)[:-1], np.array(numbers, dtype=np.int64)


def _hash(names: Keys, seed: int) -> UInt64Array:
    """Return a random 64-bit word for each name (N,), a function of the seed and the name alone."""
    if names.dtype.kind in "iub":
        return hash_positions(names.astype(np.int64), "split", seed)
    start = derive_seed("split", seed).to_bytes(8, "little")
    texts = [name if isinstance(name, bytes) else name.encode() for name in names.tolist()]
    digests = (hashlib.blake2b(text, digest_size=8, key=start).digest() for text in texts)
    return np.frombuffer(b"".join(digests), dtype="<u8")


def _spread_in_strata(
    places: npt.NDArray[np.float64], members: npt.NDArray[np.int64], strata: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Move the groups' places (G,) so that each stratum's samples lie evenly in [0, 1), in the order of the places."""
    width, sizes = int(strata.max()) + 1, np.bincount(members, minlength=len(places))
    pairs, counts = np.unique(members * width + strata, return_counts=True)
    group, each = np.divmod(pairs, width)
    # A group's largest stratum comes last; of equal ones the first.
    largest = np.lexsort((-each, counts, group))
    stratum = each[largest][np.flatnonzero(np.diff(group[largest], append=-1))]
    order = np.lexsort((places, stratum))
    ends = np.cumsum(sizes[order])
    first = np.flatnonzero(np.diff(stratum[order], prepend=-1))
    number = np.repeat(np.arange(len(first)), np.diff(first, append=len(order)))
    starts = ends[first] - sizes[order][first]
    totals = np.diff(starts, append=ends[-1])
    spread = np.empty(len(places))
    # A group lies where its middle is.
    spread[order] = (ends - starts[number] - sizes[order] / 2) / totals[number]
    return spread


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"split: {name} is {value!r}, wanted an integer.")
    return int(value)


def _check_common(before: Mapping[Any, str], keys: Keys) -> None:
    """Refuse a manifest of other keys, with which nothing would be kept or moved."""
    if before and not any(key in before for key in keys.tolist()):
        raise ValueError(
            f"split: the manifest has none of these keys: its first is {next(iter(before))!r}, here it is {keys[0].item()!r}. "
            "Give the samples the keys that it was made with (keys=)."
        )


def _kept(
    side_of: npt.NDArray[np.int64],
    keys: Keys,
    members: npt.NDArray[np.int64],
    sides: tuple[str, ...],
    before: Mapping[Any, str],
) -> npt.NDArray[np.int64]:
    """Leave the groups of keys that a manifest knows where they were."""
    _check_common(before, keys)
    unknown = sorted(set(before.values()) - set(sides))
    if unknown:
        raise ValueError(
            f"split: the manifest has sides {unknown}, this split has {list(sides)}. Give it the same sides."
        )
    side_of_group: dict[int, int] = {}
    for group, key in zip(members.tolist(), keys.tolist(), strict=True):
        if key in before:
            side = sides.index(before[key])
            if side_of_group.setdefault(group, side) != side:
                raise ValueError(
                    f"split: the manifest has a group on two sides: that of key {key!r} is on {before[key]!r} and on "
                    f"{sides[side_of_group[group]]!r}. Split anew, without keep=."
                )
    kept = np.array([side_of_group.get(group, -1) for group in members.tolist()], dtype=np.int64)
    return np.where(kept >= 0, kept, side_of)
