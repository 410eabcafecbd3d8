"""Randomness belongs to the sample, and the caller's own generators are restored."""

import concurrent.futures
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scripts
import torch
import torch.utils.data as torch_data
from drawing import Drawing, drawing_collate, draws, equal, generator_states

import loaderkit as lk
from loaderkit.seeding.keys import hash_positions
from loaderkit.seeding.sample_seeds import SampleSeeds, part_of_batch, per_sample
from loaderkit.seeding.worker_seeds import seed_all


def words(*positions: int, seed: int = 0) -> Any:
    return hash_positions(np.array(positions, dtype=np.int64), "test", seed)


def test_seeds_tell_keys_apart() -> None:
    keys = [(0,), ("0",), (0, 0), (1, 0), (0, 1), ("01",), ("0", "1"), (-1,), ("a", 1), ("a1",), ()]
    seeds = [lk.derive_seed(*key) for key in keys]
    assert len(set(seeds)) == len(keys)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_numpy_integers_give_the_seeds_of_python_integers() -> None:
    """An order's key shows both alike, so both must give the same order."""
    assert lk.derive_seed("sample", np.uint32(7), np.int64(1)) == lk.derive_seed("sample", 7, 1)
    assert lk.Shuffled(50, seed=np.uint32(7)).key(0) == lk.Shuffled(50, seed=7).key(0)
    assert np.array_equal(
        lk.Shuffled(50, seed=np.uint32(7)).indices(0, 0, 50), lk.Shuffled(50, seed=7).indices(0, 0, 50)
    )


def test_golden_seeds() -> None:
    """Augmentations of old checkpoints depend on these numbers."""
    assert lk.derive_seed("sample", 0, 1) == GOLDEN_SEED
    assert words(0, 1, 10**12).tolist() == GOLDEN_WORDS


GOLDEN_SEED = 9055952992643859390
GOLDEN_WORDS = [4511172499846040211, 16054369157710745818, 9870787152696739821]


def test_position_words_are_distinct_and_uniform() -> None:
    """Also across the blocks in which they are hashed."""
    positions = np.arange(200_000, dtype=np.int64)
    found = hash_positions(positions, "x", 1)
    assert len(np.unique(found)) == len(positions)
    assert np.array_equal(found[70_000:70_003], hash_positions(positions[70_000:70_003], "x", 1))
    ones = ((found[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)).mean(axis=0)
    assert abs(ones - 0.5).max() * 2 * len(positions) ** 0.5 < 5


def test_a_samples_draws_depend_on_its_word_alone() -> None:
    with SampleSeeds(words(3, 4)) as seeds:
        seeds.enter(0)
        draws()
        seeds.enter(1)
        four = draws()
    with SampleSeeds(words(4)) as seeds:
        seeds.enter(0)
        assert equal(draws(), four)
    assert len(set(four.tolist())) == len(four)


def prepare_nothing() -> None:
    pass


def prepare_cached_deviates() -> None:
    """Leave a normal deviate that `random` and numpy keep for their next call."""
    np.random.seed(5)
    random.seed(5)
    np.random.randn()
    random.gauss(0, 1)
    torch.randn(3)


def prepare_another_bit_generator() -> None:
    np.random.mtrand.set_bit_generator(np.random.MT19937(77))


@pytest.mark.parametrize("prepare", [prepare_nothing, prepare_cached_deviates, prepare_another_bit_generator])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_the_callers_generators_are_restored(prepare: Callable[[], None], nested: bool, fails: bool) -> None:
    prepare()
    before = generator_states()
    seeds = SampleSeeds(words(1, 2))
    try:
        with seeds:
            seeds.enter(1)
            draws()
            np.random.randn()
            if nested:
                inside = generator_states()
                with SampleSeeds(words(9)) as inner:
                    inner.enter(0)
                    np.random.randn()
                    random.gauss(0, 1)
                assert generator_states() == inside
            if fails:
                raise KeyError
    except KeyError:
        pass
    assert generator_states() == before
    following = draws()[:-1]  # sample_rng() outside a loader draws from numpy's
    torch.set_rng_state(torch.tensor(before[0], dtype=torch.uint8))
    random.setstate(before[1])
    np.random.set_state(before[2])
    assert equal(draws()[:-1], following)


def test_the_callers_philox_comes_back() -> None:
    outer = np.random.mtrand.get_bit_generator()
    try:
        np.random.mtrand.set_bit_generator(np.random.Philox(3))
        before = np.random.get_state(legacy=False)
        with SampleSeeds(words(1)) as seeds:
            seeds.enter(0)
            np.random.randn(3)
        after = np.random.get_state(legacy=False)
        assert after["bit_generator"] == before["bit_generator"] == "Philox"
        assert np.random.rand() == np.random.Generator(np.random.Philox(3)).random()
    finally:
        np.random.mtrand.set_bit_generator(outer)


def test_sample_rng_is_one_generator_within_a_sample_and_another_in_the_next() -> None:
    with SampleSeeds(words(1, 2)) as seeds:
        seeds.enter(0)
        first = lk.sample_rng()
        assert lk.sample_rng() is first
        seeds.enter(1)
        assert lk.sample_rng() is not first
        assert lk.sample_rng().random() != first.random()


def test_outside_a_loader_sample_rng_follows_numpys_global_generator() -> None:
    np.random.seed(1)
    first = lk.sample_rng().random()
    assert lk.sample_rng().random() != first
    np.random.seed(1)
    assert lk.sample_rng().random() == first


def test_another_thread_does_not_see_this_ones_sample() -> None:
    found: list[float] = []
    with SampleSeeds(words(1)) as seeds:
        seeds.enter(0)
        mine = seeds.rng()
        thread = threading.Thread(target=lambda: found.append(float(lk.sample_rng() is mine)))
        thread.start()
        thread.join(timeout=10)
    assert found == [0.0]


def test_per_sample_seeds_each_sample_and_parts_of_it_apart() -> None:
    def draw(_: Any) -> list[float]:
        return draws().tolist()

    with SampleSeeds(words(1, 2, 3)) as seeds:
        whole = per_sample(draw, "abc")
        with part_of_batch(0):
            first = per_sample(draw, "abc")
            with part_of_batch(0, [2, 0]):
                nested = per_sample(draw, "ca")
        with part_of_batch(1, [1]):
            second = per_sample(draw, "b")
        assert per_sample(draw, "abc") == whole
    with SampleSeeds(words(3)) as seeds:
        seeds.enter(0)
        assert draw(None) == whole[2]
        with part_of_batch(0), part_of_batch(0):
            assert per_sample(draw, "c") == nested[:1]
    results = [tuple(numbers) for numbers in whole + first + nested + second]
    assert len(set(results)) == 3 + 3 + 2 + 1


def bare_loader(rank: str, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    monkeypatch.setenv("RANK", rank)
    loader = torch_data.DataLoader(
        Drawing(4),
        num_workers=2,
        worker_init_fn=lk.seed_worker,
        collate_fn=drawing_collate,
        generator=torch.Generator().manual_seed(3),
    )
    return [[batch[1] for batch in loader] for _ in range(2)]


def test_seed_worker_gives_other_seeds_to_each_worker_epoch_and_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = {rank: bare_loader(rank, monkeypatch) for rank in ("0", "1")}
    found = torch.cat([torch.cat(epoch) for run in runs.values() for epoch in run])
    assert found.shape == (16, 7)
    for generator in range(6):  # each of torch, numpy and random, in 2 ranks, 2 epochs and 4 samples
        assert len(set(found[:, generator].tolist())) == 16
    assert equal(bare_loader("1", monkeypatch), runs["1"])


def test_seed_worker_takes_a_rank() -> None:
    states = []
    for rank in (0, 1, 0):
        torch.manual_seed(5)
        lk.seed_worker(1, rank=rank)
        states.append(generator_states())
    assert states[0] == states[2] != states[1]


SEEDING_DATASET = """
import numpy as np, torch, loaderkit as lk
class Seeding:
    def __len__(self): return 6
    def __getitem__(self, index):
        state = np.random.get_state()
        np.random.seed(index)
        value = np.random.rand()
        np.random.set_state(state)
        return value, np.random.rand()
np.random.seed(11)
wanted = np.random.RandomState(11).rand(3).tolist()
runs = []
for workers in (0, 2):
    before = np.random.get_state()[1].tolist()
    runs.append([batch for batch in lk.Loader(Seeding(), 2, num_workers=workers)])
    assert np.random.get_state()[1].tolist() == before
assert str(runs[0]) == str(runs[1])
assert runs[0][0][0].tolist() == [np.random.RandomState(i).rand() for i in range(2)]
assert np.random.rand(3).tolist() == wanted
print("right")
"""


def test_a_dataset_that_seeds_numpy_itself_works(tmp_path: Path) -> None:
    assert scripts.run_code(tmp_path, SEEDING_DATASET) == "right\n"


def test_threads_that_read_at_once_have_their_own_draws() -> None:
    def draws(thread: int) -> list[tuple[float, float, float]]:
        found = []
        for batch in range(40):
            with SampleSeeds(hash_positions(np.arange(8), "sample", thread, batch)) as seeds:
                for row in range(8):
                    seeds.enter(row)
                    found.append((torch.rand(()).item(), np.random.random(), random.random()))
        return found

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            together = list(pool.map(draws, range(4), timeout=60))
    finally:
        sys.setswitchinterval(before)
    assert together == [draws(thread) for thread in range(4)]


@pytest.mark.parametrize("accelerator", [False, True])
def test_seed_all_does_what_torch_does(accelerator: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: accelerator)
    on_devices: list[int] = []
    whole = torch.manual_seed
    monkeypatch.setattr(torch, "manual_seed", lambda seed: on_devices.append(seed) or whole(seed))
    seed_all(2**40 + 3)
    found = torch.rand(2), np.random.rand(), random.random()
    assert on_devices == ([2**40 + 3] if accelerator else [])
    whole(2**40 + 3)
    np.random.seed(3)
    random.seed(2**40 + 3)
    assert torch.equal(found[0], torch.rand(2))
    assert found[1:] == (np.random.rand(), random.random())
