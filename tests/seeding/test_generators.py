"""A sample's own Generator is numpy's Philox with the sample's seed as its key."""

import pickle

import numpy as np
import pytest

from loaderkit.seeding.generators import generator


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63 + 5, 2**64 - 1])
def test_a_generator_draws_what_philox_draws_with_the_seed_as_its_key(seed: int) -> None:
    expected, found = np.random.Generator(np.random.Philox(key=seed)), generator(seed)
    assert np.array_equal(found.integers(2**63, size=1000), expected.integers(2**63, size=1000))
    copy = pickle.loads(pickle.dumps(found))
    assert np.array_equal(copy.normal(size=9), expected.normal(size=9))


def test_what_is_spawned_from_a_generator_depends_on_its_seed_alone() -> None:
    def draws(seed: int) -> list[float]:
        rng = generator(seed)
        children = [*rng.spawn(2), *rng.spawn(1)]
        if int(np.__version__.split(".")[0]) >= 2:  # numpy 1.26 leaves the seed sequence out of a pickle
            children += pickle.loads(pickle.dumps(rng)).spawn(1)
        others = [np.random.PCG64(rng.bit_generator.seed_seq), np.random.MT19937(rng.bit_generator.seed_seq)]
        return [child.random() for child in (*children, *map(np.random.Generator, others))]

    found = [draws(seed) for seed in (3, 4)]
    assert found == [draws(seed) for seed in (3, 4)]
    assert len({number for some in found for number in some}) == sum(map(len, found))
