"""The normal deviate that numpy keeps is found, and the generator stays as it is."""

import numpy as np
import pytest

from loaderkit.seeding.normals import kept_normal, memory_is_known
from loaderkit.seeding.sample_seeds import SampleSeeds


def test_the_memory_is_known() -> None:
    """Without it, each batch that is read without workers takes 40 us more."""
    assert memory_is_known()


@pytest.mark.parametrize("kind", ["MT19937", "Philox"])
@pytest.mark.parametrize("drawn", [0, 1, 2, 311, 312, 313])
def test_the_callers_normals_go_on(kind: str, drawn: int) -> None:
    outer = np.random.mtrand.get_bit_generator()
    try:
        for kept in (False, True):
            np.random.mtrand.set_bit_generator(getattr(np.random, kind)(3))
            np.random.random_sample(drawn)
            if kept:
                np.random.randn()
            before = np.random.get_state(legacy=False)
            with SampleSeeds(np.arange(2, dtype=np.uint64)) as seeds:
                seeds.enter(1)
                np.random.randn()
            assert str(np.random.get_state(legacy=False)) == str(before)
            assert before["has_gauss"] == kept
            bits = np.random.mtrand.get_bit_generator()
            assert kept_normal(bits) == (before["gauss"] if kept else None)
            assert str(bits.state["state"]) == str(before["state"])
    finally:
        np.random.mtrand.set_bit_generator(outer)
