"""Find the random generators that data keeps for itself, and seed them for each sample."""

import pickle
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch

from loaderkit.seeding.sample_seeds import SeededGenerator, using_private
from loaderkit.seeding.seeded import AlbumentationsPair, NativeGenerator, seeded
from loaderkit.system.object_graph import reachable

T = TypeVar("T")
PrivatePolicy = Literal["seed", "leave"]

KINDS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, torch.Generator, random.Random)
_END: Any = object()
_LOOKS = 4  # first calls, with a look for new generators after each; then a look after calls 8, 16, 32, ...
_SHUFFLERS = {"datasets.iterable_dataset"}  # modules whose generators decide an order
_LIBRARIES = {  # how each library can be told to draw from numbers that a Loader seeds
    "albumentations": "call set_random_seed(seed) before each sample; albumentationsx also takes invocation_seed=",
    "braindecode": "random_state=None",
    "lhotse": "randgen=random for the transform",
    "monai": "set_random_state(seed) before each sample",
    "transformers": "seed=None",
}


class Found(NamedTuple):
    """A random generator that data keeps for itself.

    Attributes:
        path: Where the generator is, such as "dataset.transform.rng".
        generator: The generator. For albumentations it is the transform, whose two generators are seeded together.
        seeded: Seeds the generator; None if nothing can.
        library: The package of the object that keeps the generator.
    """

    path: str
    generator: object
    seeded: SeededGenerator | None
    library: str

    def __str__(self) -> str:
        return f"{self.path} ({self.library})" if self.library in _LIBRARIES else self.path

    @property
    def instead(self) -> str:
        """How the library can be told to draw from numbers that a Loader seeds; empty if that is not known."""
        return _LIBRARIES.get(self.library, "")


def private_generators(**data: object) -> list[Found]:
    """Return the random generators that data keeps for itself, nearest first. Global generators are not included.

    Args:
        data: The objects to search, by the names that paths begin with.
    """
    found: list[Found] = []
    seen: set[int] = set()  # generators that two names lead to
    pair = AlbumentationsPair()
    for name, root in data.items():
        for path, value, owner in reachable(root, name, KINDS):
            if AlbumentationsPair.is_for(value):
                found.append(Found(f"{path}.random_generator", value, pair, "albumentations"))
            elif (
                isinstance(value, KINDS)
                and id(value) not in seen
                and not (_is_global(value) or AlbumentationsPair.is_for(owner))
            ):
                module = type(owner).__module__
                if module not in _SHUFFLERS:
                    seen.add(id(value))
                    found.append(Found(path, value, seeded(value, path), module.partition(".")[0]))
    pair.owners = [each.generator for each in found if each.seeded is pair]
    return found


@dataclass
class PrivateGenerators:
    """For each sample, seeds the generators that data keeps in this process.

    Libraries make or replace generators when they are first called. So if one of the first calls makes a generator, the
    call is repeated, and the new generator is seeded too.

    Args:
        data: The objects that keep generators, by the names that paths begin with.
        policy: "leave" seeds none of these generators.
        seeders: Functions that seed generators nobody can find, such as those of C++ libraries. Each gets 32 bits.
    """

    data: Mapping[str, object]
    policy: PrivatePolicy = "seed"
    seeders: Sequence[Callable[[int], object]] = ()
    _found: list[Found] | None = field(default=None, init=False)
    _seeders: Sequence[SeededGenerator] | None = field(default=None, init=False)  # of what was found
    _opencv: Callable[[int], object] | None = field(default=None, init=False)  # OpenCV's seeder, once it is imported
    _calls: int = field(default=0, init=False)
    _look_at: int = field(default=1, init=False)  # the call after which to look for new generators
    _replaced: set[str] = field(default_factory=set, init=False)  # paths whose generator is another one after each call

    def find(self) -> list[Found]:
        """Return the data's generators, as found at the last look."""
        if self._found is None:
            self._found = private_generators(**self.data)
        return self._found

    def use(self, make: Callable[[], T]) -> T:
        """Return what `make` returns. Inside it, each sample's seed also seeds these generators.

        In early calls, `make` may be called more than once.
        """
        made = self._seeding(make)
        return self._look_again(make, made) if self._is_time_to_look() else made

    def use_once(self, make: Callable[[], T]) -> T:
        """Do as `use` does for a `make` that cannot be called again: if it has made a generator, warn."""
        made = self._seeding(make)
        if self._is_time_to_look() and (new := self._look()):
            self._replaced |= new
            _warn(new, "was made when data was read. Make it with the function or object that keeps it.")
        return made

    def each(self, items: Iterator[T]) -> Iterator[T]:
        """Yield the items of an iterator. While it makes an item, each sample's seed also seeds these generators."""
        while (item := self.use_once(lambda: next(items, _END))) is not _END:
            yield item

    def _seeding(self, make: Callable[[], T]) -> T:
        if self._seeders is None:
            self._seeders = self._all_seeders()
        if not self._seeders:
            return make()
        with using_private(self._seeders):
            return make()

    def _all_seeders(self) -> list[SeededGenerator]:
        if not self.data:
            return []
        native: list[SeededGenerator] = [NativeGenerator(function) for function in self.seeders]
        self._opencv = _opencv_seeder()
        if self._opencv is not None:
            native.append(NativeGenerator(self._opencv, bits=31))
        if self.policy == "leave":
            return native
        return [*dict.fromkeys(each.seeded for each in self.find() if each.seeded is not None), *native]

    def _is_time_to_look(self) -> bool:
        """Count a call, and say whether to look for new generators after it."""
        self._calls += 1
        if self._calls < self._look_at:
            return False
        self._look_at = self._calls + 1 if self._calls < _LOOKS else 2 * self._calls
        return bool(self.data)

    def _look(self) -> set[str]:
        """Look for generators again. Return the paths with a generator that was not there before."""
        new = set()
        if self._opencv is None and _opencv_seeder() is not None:
            new.add("OpenCV")  # it was imported meanwhile
        if self.policy == "seed":
            before = {each.path: each.generator for each in self.find()}
            self._found = private_generators(**self.data)
            new |= {each.path for each in self._found if before.get(each.path) is not each.generator}
        self._seeders = None
        return new - self._replaced

    def _look_again(self, make: Callable[[], T], made: T) -> T:
        """Look for generators that the last call of `make` has made. If there are any, call `make` again."""
        new = self._look()
        if not new:
            return made
        if self._calls > _LOOKS:
            _warn(new, f"appeared after {self._calls // 2:,} batches or more. Make it before the first sample is read.")
        made = self._seeding(make)
        if replaced := self._look():
            # Each call makes a new generator. That is exact if the generator is seeded with numbers that are exact.
            ends = _states(self.find())
            made = self._seeding(make)
            self._look()
            self._replaced |= replaced
            if differ := {path for path, state in _states(self.find()).items() if ends.get(path) != state} & replaced:
                _warn(
                    differ,
                    "is another one for each sample, seeded by the operating system. Keep one, or seed it by lk.sample_rng().",
                )
        return made

    def __getstate__(self) -> dict[str, object]:
        # Another process has other objects.
        return self.__dict__ | {
            "_found": None,
            "_seeders": None,
            "_opencv": None,
            "_calls": 0,
            "_look_at": 1,
            "_replaced": set(),
        }


def _opencv_seeder() -> Callable[[int], object] | None:
    return getattr(sys.modules.get("cv2"), "setRNGSeed", None)


def _states(found: Sequence[Found]) -> dict[str, bytes]:
    return {each.path: b"" if each.seeded is None else pickle.dumps(each.seeded.state()) for each in found}


def _warn(paths: set[str], what: str) -> None:
    warnings.warn(
        f"Loader: the random generator {', '.join(sorted(paths))} {what} A resumed run draws other numbers.",
        UserWarning,
        stacklevel=2,
    )


def _is_global(value: object) -> bool:
    # numpy's and random's global functions are methods of their global generators.
    known = (
        torch.default_generator,
        *(getattr(each, "__self__", None) for each in (np.random.random_sample, random.seed)),
    )
    return isinstance(value, random.SystemRandom) or any(value is generator for generator in known)
