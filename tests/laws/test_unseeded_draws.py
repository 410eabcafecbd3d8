"""Data gets the numbers of its samples whether or not it draws any, and whenever it begins; what draws nothing is read once."""

import os
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

import loaderkit as lk
from loaderkit.seeding.keys import GOLDEN, hash_positions
from loaderkit.seeding.sample_seeds import per_sample

COUNT = 90
SEED = 5


@contextmanager
def forked_numpy() -> Iterator[None]:
    state = np.random.get_state()
    yield
    np.random.set_state(state)


@contextmanager
def forked_random() -> Iterator[None]:
    state = random.getstate()
    yield
    random.setstate(state)


def forked(context: Callable[[], Any], draw: Callable[[], float]) -> float:
    with context():
        return draw()


def many_words_of_numpy() -> float:
    """All words of a Mersenne Twister: afterwards it stands at the place where it stood."""
    return float(np.frombuffer(np.random.bytes(4 * 624), dtype=np.uint8).sum())


def seeded_by_hand() -> float:
    np.random.seed(7)
    random.seed(7)
    return np.random.rand() + random.random()


def both() -> float:
    return np.random.rand() + random.random()


# What a sample does with global generators.
USES: dict[str, Callable[[], float]] = {
    "nothing": lambda: 0.0,
    "torch": lambda: float(torch.rand(())),
    "torch, its seed": lambda: torch.initial_seed() % 2**40,
    "torch, forked": lambda: forked(lambda: torch.random.fork_rng(devices=[]), lambda: float(torch.rand(()))),
    "sample_rng": lambda: lk.sample_rng().random(),
    "numpy": lambda: np.random.rand(),
    "numpy, normal": lambda: np.random.randn(),
    "numpy, read": lambda: int(np.random.get_state()[1][0]),
    "numpy, pickled": lambda: pickle.loads(pickle.dumps(np.random.mtrand._rand)).rand(),
    "numpy, forked": lambda: forked(forked_numpy, np.random.rand),
    "numpy, many words": many_words_of_numpy,
    "numpy, its bit generator": lambda: np.random.mtrand.get_bit_generator().random_raw(),
    "random": lambda: random.random(),
    "random, normal": lambda: random.gauss(0, 1),
    "random, read": lambda: random.getstate()[1][5],
    "random, forked": lambda: forked(forked_random, random.random),
    "random, many words": lambda: random.getrandbits(32 * 624) % 2**40,
    "random, shuffle": lambda: random.sample(range(1000), 3)[2],
    "numpy and random": both,
    "seeded by hand": seeded_by_hand,
}
# The samples that do it. The first 32 of a reader are seeded in any case.
WHEN: dict[str, Callable[[int], bool]] = {
    "always": lambda index: True,
    "sometimes": lambda index: index % 7 == 3,
    "late": lambda index: index > 50 and index % 3 == 1,
    "last": lambda index: index == COUNT - 1,
}


class Data:
    """Samples (index, what was drawn); their reads are counted in a file, also in workers."""

    def __init__(self, use: str, when: str, reads: Path | None = None) -> None:
        self.use, self.when, self.reads = USES[use], WHEN[when], reads

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[int, float]:
        if self.reads is not None:
            with self.reads.open("a") as file:
                file.write(f"{os.getpid()} {index}\n")
        return index, self.use() if self.when(index) else -1.0

    def counted(self) -> Counter[tuple[int, int]]:
        """How often each process read each sample."""
        assert self.reads is not None
        lines = [line.split() for line in self.reads.read_text().splitlines()]
        return Counter((int(process), int(index)) for process, index in lines)


def seed_all(word: int) -> None:
    torch.manual_seed(word)
    np.random.seed(word & 0xFFFFFFFF)
    random.seed(word)


def plain(data: Data, epoch: int = 0) -> list[tuple[int, float]]:
    """The definition, written out: seed all three generators, then read the sample."""
    found = []
    for index, word in enumerate(hash_positions(np.arange(COUNT), "sample", SEED, epoch).tolist()):
        seed_all(word)
        found.append(data[index])
    return found


def made(data: Any, batch_size: int = 16, **settings: Any) -> lk.Loader:
    return lk.Loader(data, batch_size, collate_fn=list, seed=SEED, **settings)


def samples(batches: Any) -> list[Any]:
    return [sample for batch in batches for sample in batch]


@pytest.fixture(autouse=True)
def own_generators() -> Iterator[None]:
    """Tests of this file seed the process's generators."""
    kept = torch.random.get_rng_state(), np.random.get_state(), random.getstate()
    yield
    torch.random.set_rng_state(kept[0])
    np.random.set_state(kept[1])
    random.setstate(kept[2])


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("use", USES)
def test_each_sample_gets_its_own_numbers_whatever_it_uses_and_when(use: str, when: str) -> None:
    data = Data(use, when)
    wanted = samples(made(data, global_generators="seed")) if use == "sample_rng" else plain(data)
    assert len(wanted) == COUNT
    for size in (16, 1, 50):
        assert samples(made(data, size)) == wanted, size


@pytest.mark.parametrize("when", ["always", "late"])
@pytest.mark.parametrize(
    "use", ["numpy", "numpy, read", "random", "random, read", "numpy and random", "torch", "nothing"]
)
@pytest.mark.parametrize("engine", ["ring", "torch"])
def test_workers_do_not_matter(engine: Literal["ring", "torch"], use: str, when: str) -> None:
    data = Data(use, when)
    found = [samples(loader) for loader in [made(data, 4, num_workers=2, engine=engine)] for _ in range(2)]
    assert found == [plain(data), plain(data, epoch=1)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("use", ["numpy", "random, forked", "numpy and random"])
def test_a_resume_continues_the_uninterrupted_run(use: str, workers: int) -> None:
    data = Data(use, "late")
    whole = plain(data)
    for stop in (1, 2, 3, 4, 5) if workers == 0 else (3,):
        loader, batches = made(data, num_workers=workers), []
        for batch in loader:
            batches.append(batch)
            if len(batches) == stop:
                break
        again = made(data, 7)
        again.load_state_dict(loader.state_dict())
        assert samples(batches) + samples(again) == whole, stop


class Collate:
    def __init__(self, use: str, when: str) -> None:
        self.use, self.when = USES[use], WHEN[when]

    def __call__(self, samples: list[Any]) -> list[Any]:
        return [samples, self.use() if any(self.when(index) for index, _ in samples) else -1.0]


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("use", ["numpy", "numpy, read", "random", "random, read", "numpy and random", "torch"])
def test_a_collate_gets_the_numbers_of_its_batch(use: str, when: str) -> None:
    words = hash_positions(np.arange(COUNT), "sample", SEED, 0).tolist()
    data, collate, wanted = Data("nothing", when), Collate(use, when), []
    for start in range(0, COUNT, 16):
        read = [data[index] for index in range(start, min(start + 16, COUNT))]
        seed_all(words[start] ^ GOLDEN)
        wanted.append(collate(read))
    assert len(wanted) == 6
    assert list(lk.Loader(data, 16, collate_fn=collate, seed=SEED)) == wanted
    said = lk.ArrayDataset(np.arange(COUNT))  # which draws nothing
    drawn = lk.Loader(said, 16, collate_fn=lambda some: collate([(int(each), 0.0) for each in some]), seed=SEED)
    assert [batch[1] for batch in drawn] == [batch[1] for batch in wanted]


class Many(Data):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return per_sample(self.__getitem__, indices)


@pytest.mark.parametrize("use", [use for use in USES if use != "sample_rng"])
def test_samples_that_are_read_together_get_their_own_numbers(use: str) -> None:
    data = Many(use, "late")
    assert samples(made(data)) == plain(data)


class Failing(Data):
    """Fails at what it draws, late."""

    def __getitem__(self, index: int) -> tuple[int, float]:
        sample = super().__getitem__(index)
        if sample[1] > 0.5:
            raise ValueError(f"drew {sample[1]}")
        return sample


@pytest.mark.parametrize("use", ["numpy", "random", "random, forked", "torch"])
@pytest.mark.parametrize("policy", ["raise", "skip", "replace"])
def test_samples_that_fail_by_what_they_draw_fail_as_they_would_with_seeds(policy: Any, use: str) -> None:
    def run(how: Literal["watch", "seed"]) -> list[Any]:
        loader = made(Failing(use, "late"), bad_samples=lk.BadSamples(policy, max_rate=1), global_generators=how)
        found: list[Any] = []
        try:
            for batch in loader:
                found.extend(batch)
        except ValueError as error:
            found.append(str(error))
        return found

    wanted = run("seed")
    assert run("watch") == wanted
    if policy == "raise":
        assert "drew" in wanted[-1]
    else:
        known = {index for index, _ in wanted}
        assert len(known) < COUNT
        assert len(wanted) == (COUNT if policy == "replace" else len(known))


READS = {  # batches that a process reads twice
    ("nothing", "always"): 0,
    ("torch", "late"): 0,
    ("sample_rng", "late"): 0,
    ("numpy", "always"): 0,
    ("random", "sometimes"): 0,
    ("numpy and random", "always"): 0,
    ("numpy", "late"): 1,
    ("random", "last"): 1,
    ("numpy and random", "late"): 1,
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("use", "when"), READS)
def test_a_process_reads_again_only_the_first_batch_that_uses_a_generator(
    use: str, when: str, workers: int, tmp_path: Path
) -> None:
    size, again = 5, READS[use, when]
    data = Data(use, when, tmp_path / "reads")
    assert len(samples(made(data, size, num_workers=workers))) == COUNT
    reads = data.counted()
    assert {index for _, index in reads} == set(range(COUNT))
    for process in {process for process, _ in reads}:
        twice = sorted(index for (by, index), count in reads.items() if by == process and count > 1)
        assert len({index // size for index in twice}) <= again
        assert len(twice) in (0, size)
    if workers == 0:
        assert sum(reads.values()) == COUNT + size * again


class InTurn(Data):
    """Uses numpy's generator late, and that of `random` still later."""

    def __getitem__(self, index: int) -> tuple[int, float]:
        return super().__getitem__(index)[
            0
        ], np.random.rand() if 50 <= index < 60 else random.random() if index > 70 else 0


def test_each_generator_costs_one_more_read_at_most(tmp_path: Path) -> None:
    data = InTurn("nothing", "late", tmp_path / "reads")
    found = samples(made(data, 10))
    assert sum(data.counted().values()) == COUNT + 2 * 10
    assert found == plain(data)


@pytest.mark.parametrize("settings", [{"global_generators": "seed"}, {"private_generators": "leave"}])
def test_settings_keep_each_read_single(settings: dict[str, Any], tmp_path: Path) -> None:
    data = Data("numpy and random", "late", tmp_path / "reads")
    found = samples(made(data, **settings))
    assert sum(data.counted().values()) == COUNT
    assert found == plain(data)


class Filled:
    """Makes a table of random numbers when it is first read, and keeps it."""

    def __init__(self) -> None:
        self.table: Any = None

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> float:
        if self.table is None:
            self.table = [np.random.rand() + random.random() for _ in range(COUNT)]
        return self.table[index]


def test_what_the_first_sample_makes_comes_from_its_own_numbers() -> None:
    found = samples(made(Filled()))
    assert found == samples(made(Filled(), global_generators="seed"))
    seed_all(int(hash_positions(np.arange(1), "sample", SEED, 0)[0]))
    assert found[0] == Filled()[0]


def states() -> list[Any]:
    numpy = np.random.get_state()
    return [
        torch.random.get_rng_state().tolist(),
        [part if isinstance(part, (int, float, str)) else part.tolist() for part in numpy],
        random.getstate(),
    ]


@pytest.mark.parametrize("use", USES)
def test_the_callers_generators_stay_as_they_are(use: str) -> None:
    np.random.randn()  # numpy keeps the second deviate of the pair
    random.gauss(0, 1)
    before, kinds = states(), (type(np.random.mtrand.get_bit_generator()), type(random.seed.__self__))  # type: ignore[attr-defined]
    for number, _ in enumerate(made(Data(use, "late"))):
        assert states() == before, number
        assert (type(np.random.mtrand.get_bit_generator()), type(random.seed.__self__)) == kinds  # type: ignore[attr-defined]
        if number == 2:
            np.random.randn()  # takes the one that is kept
            before = states()


class Inside(Data):
    """Reads another loader in a sample, and draws before and after."""

    def __init__(self, use: str, when: str) -> None:
        super().__init__(use, when)
        self.inner = Data(use, when)

    def __getitem__(self, index: int) -> Any:
        before = super().__getitem__(index)
        inner = next(iter(made(self.inner, 2))) if index in (0, 40, 80) else None
        return before, inner, super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("use", ["nothing", "numpy", "random", "numpy and random"])
def test_a_loader_inside_a_sample_changes_no_draw(use: str, workers: int) -> None:
    for when in ("always", "late"):
        data = Inside(use, when)
        found = samples(made(data, num_workers=workers))
        assert found == samples(made(data, num_workers=workers, global_generators="seed"))
        assert len(found) == COUNT


def test_another_policy_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="global_generators is 'look', wanted one of 'watch', 'seed'"):
        lk.Loader(range(3), global_generators="look")  # type: ignore[arg-type]
