"""Data that keeps a random generator, of each kind and at each place where one hides."""

import functools
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

COUNT = 12

KINDS: dict[str, Callable[[], Any]] = {
    "numpy Generator": lambda: np.random.default_rng(5),
    "PCG64DXSM": lambda: np.random.Generator(np.random.PCG64DXSM(5)),
    "Philox": lambda: np.random.Generator(np.random.Philox(5)),
    "SFC64": lambda: np.random.Generator(np.random.SFC64(5)),
    "MT19937": lambda: np.random.Generator(np.random.MT19937(5)),
    "RandomState": lambda: np.random.RandomState(5),
    "random.Random": lambda: random.Random(5),
    "torch.Generator": lambda: torch.Generator().manual_seed(5),
}


def draw(generator: Any) -> float:
    """Draw from any kind of generator: two normal deviates, since some kinds keep the second of a pair."""
    if isinstance(generator, torch.Generator):
        return float(torch.randn(1, generator=generator, dtype=torch.float64))
    if isinstance(generator, random.Random):
        return generator.gauss(0, 1)
    return float(generator.standard_normal())


class Data:
    """Samples of an index and a draw of `rng()`."""

    def __init__(self, kind: str = "numpy Generator") -> None:
        self.kind = kind

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, draw(self.rng())

    def rng(self) -> Any:
        raise NotImplementedError


class Attribute(Data):
    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.own = KINDS[kind]()

    def rng(self) -> Any:
        return self.own


class Slot(Data):
    __slots__ = ("own",)

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.own = KINDS[kind]()

    def rng(self) -> Any:
        return self.own


class Nested(Attribute):
    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.own = {"steps": [functools.partial(draw), SimpleNamespace(inner=(SimpleNamespace(rng=KINDS[kind]()),))]}

    def rng(self) -> Any:
        return self.own["steps"][1].inner[0].rng


class Method(Data):
    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.get = Attribute(kind).rng

    def rng(self) -> Any:
        return self.get()


def _holder(kind: str) -> Any:
    own = KINDS[kind]()
    return lambda: own


class Closure(Data):
    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.get = _holder(kind)

    def rng(self) -> Any:
        return self.get()


class Default(Data):
    def __init__(self, kind: str) -> None:
        super().__init__(kind)

        def get(own: Any = KINDS[kind]()) -> Any:  # noqa: B008 - it is what the test is about
            return own

        self.get = get

    def rng(self) -> Any:
        return self.get()


class OfTheClass(Data):
    generators = {kind: make() for kind, make in KINDS.items()}  # noqa: RUF012 - likewise

    def rng(self) -> Any:
        return self.generators[self.kind]


class Static(Data):
    @staticmethod
    def get(kind: str) -> Any:
        return GLOBALS[kind]

    def rng(self) -> Any:
        return self.get(self.kind)


GLOBALS = {kind: make() for kind, make in KINDS.items()}
SHARED = SimpleNamespace(transforms=[GLOBALS])


def pick(kind: str) -> Any:
    return next(each[kind] for each in SHARED.transforms if (lambda: GLOBALS)())


class Global(Data):
    def rng(self) -> Any:
        return pick(self.kind)


class FirstCall(Data):
    own: Any = None

    def rng(self) -> Any:
        if self.own is None:
            self.own = KINDS[self.kind]()
        return self.own


class Replaced(Data):
    """Its generator is another one after the first sample."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.own, self.calls = KINDS[kind](), 0

    def rng(self) -> Any:
        self.calls += 1
        if self.calls == 2:
            self.own = KINDS[self.kind]()
        return self.own


class Owner:
    """As Randomizable of MONAI: all objects draw from the generator of the class until they have their own."""

    rng = np.random.RandomState(5)


class Library(Data):
    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.transform = Owner()
        if kind != "RandomState":
            self.transform.rng = KINDS[kind]()

    def rng(self) -> Any:
        return self.transform.rng


PLACES = {
    kind.__name__: kind
    for kind in (
        Attribute, Slot, Nested, Method, Closure, Default, OfTheClass, Static, Global, FirstCall, Replaced, Library
    )
}  # fmt: skip
PICKLED = sorted(PLACES.keys() - {"Closure", "Default"})  # those that a worker of any start method can get


class Collate:
    """Adds a draw to each sample of the batch, from a generator of its own."""

    def __init__(self, kind: str) -> None:
        self.own = KINDS[kind]()

    def __call__(self, samples: list[Any]) -> list[tuple[int, float]]:
        return [(index, draw(self.own)) for index in samples]
