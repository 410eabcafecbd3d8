"""A sample's own generator is numpy's Philox with its word for a key, whoever had the object before."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loaderkit as lk
from loaderkit.seeding import generators as rng
from loaderkit.seeding.generators import Generators, Key, generator
from loaderkit.seeding.keys import hash_positions
from loaderkit.seeding.samples import SampleSeeds


@pytest.mark.parametrize("word", [0, 1, 2**32, 2**63 + 5, 2**64 - 1])
def test_a_samples_generator_is_philox_with_the_word_as_its_key(word: int) -> None:
    expected, found = np.random.Generator(np.random.Philox(key=word)), generator(word)
    assert np.array_equal(found.integers(2**63, size=1000), expected.integers(2**63, size=1000))
    copy = pickle.loads(pickle.dumps(found))
    assert np.array_equal(copy.normal(size=9), expected.normal(size=9))


def test_children_of_a_samples_generator_are_the_samples_own() -> None:
    """And so is whatever else numpy makes of its seed; numpy can't spawn from a key."""

    def draws(word: int) -> list[float]:
        rng = generator(word)
        children = [*rng.spawn(2), *rng.spawn(1), *pickle.loads(pickle.dumps(rng)).spawn(1)]
        others = [np.random.PCG64(rng.bit_generator.seed_seq), np.random.MT19937(rng.bit_generator.seed_seq)]
        return [child.random() for child in (*children, *map(np.random.Generator, others))]

    found = [draws(word) for word in (3, 4)]
    assert found == [draws(word) for word in (3, 4)]
    assert len({number for some in found for number in some}) == 12


# What a sample may do with its generator, and what of it is kept from then on.
USES: dict[str, Callable[[np.random.Generator], Any]] = {
    "nothing": lambda _: None,
    "doubles": lambda rng: rng.random(3).tolist(),
    "half a word": lambda rng: int(rng.integers(9, dtype=np.int32)),
    "normals": lambda rng: rng.standard_normal(2).tolist(),
    "shuffle": lambda rng: rng.permutation(7).tolist(),
    "child": lambda rng: rng.spawn(1)[0].random(),
    "far on": lambda rng: rng.bit_generator.advance(12345).random_raw(),  # type: ignore[attr-defined]
    "set elsewhere": lambda rng: setattr(rng.bit_generator, "state", np.random.Philox(3).state),
    "made of another": lambda rng: rng.__init__(np.random.Philox(4)),  # type: ignore[misc]
}
KEPT: dict[str, Callable[[np.random.Generator], Any]] = {
    "nothing": lambda _: None,
    "generator": lambda rng: rng,
    "bit generator": lambda rng: rng.bit_generator,
    "seed sequence": lambda rng: rng.bit_generator.seed_seq,
    "method": lambda rng: rng.random,
    "copy": lambda rng: pickle.loads(pickle.dumps(rng)),
}


def goes_on(kept: Any) -> Any:
    """Return what is drawn next from what was kept."""
    if kept is None:
        return None
    if isinstance(kept, np.random.Generator):
        children = kept.spawn(1) if isinstance(kept.bit_generator.seed_seq, Key) else []  # numpy 1.26 pickles no seed
        return [*kept.random(2), int(kept.integers(9, dtype=np.int32)), *(child.random() for child in children)]
    if isinstance(kept, np.random.BitGenerator):
        return kept.random_raw(2).tolist()
    return kept() if callable(kept) else kept.generate_state(4).tolist()


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**64 - 1),
            st.lists(st.sampled_from(sorted(USES)), max_size=3),
            st.sampled_from(sorted(KEPT)),
        ),
        min_size=2,
        max_size=8,
    )
)
def test_a_generator_given_again_is_as_a_new_one(samples: list[tuple[int, list[str], str]]) -> None:
    """Also for those who keep an earlier one, or a part of it: theirs goes on as if it had not been given again."""
    generators, kept = Generators(), []
    for word, uses, keeps in samples:
        found, expected = generators.of(word), generator(word)
        assert repr(found.bit_generator.state) == repr(expected.bit_generator.state)
        for use in uses:
            assert USES[use](found) == USES[use](expected)
        kept.append((KEPT[keeps](found), KEPT[keeps](expected)))
        del found, expected
    assert all(goes_on(found) == goes_on(expected) for found, expected in kept)


@pytest.mark.parametrize("keeps", sorted(KEPT))
def test_what_nobody_keeps_is_given_again(keeps: str) -> None:
    generators = Generators()
    kept = KEPT[keeps](generators.of(1))
    first = id(generators.of(2))
    assert id(generators.of(3)) == first
    del kept


def test_samples_share_one_generator_where_none_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(rng, "generator", lambda word: made.append(word) or generator(word))
    words = hash_positions(np.arange(4), "test")
    with SampleSeeds(words) as seeds:
        for row in range(3):
            seeds.enter(row)
            assert lk.sample_rng() is lk.sample_rng()
        held = lk.sample_rng()
        seeds.enter(3)
        assert lk.sample_rng() is not held
    assert made == words[[0, 3]].tolist()


def test_the_packages_names_are_looked_for_once() -> None:
    vars(lk).pop("sample_rng", None)
    assert lk.sample_rng is vars(lk)["sample_rng"]
