"""Messages arrive whole, wherever the ring's pipes cut them."""

import os
import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from loaderkit.engine.ring.messages import Answer, Inbox, pack_key, unpack_key
from loaderkit.sampling.plan import BatchKey

PIPE = 1 << 16
HEAD = len(Answer(0, 0, 0, 0, b"", b"").head())
SIZES = (0, 1, PIPE - HEAD - 1, PIPE - HEAD, PIPE - HEAD + 1, 3 * PIPE)


def answers(draw: random.Random) -> list[Answer]:
    """Return answers whose sizes are below, at and above that of a pipe."""
    sizes = [(structure, image) for structure in SIZES for image in (0, 1, PIPE)]
    draw.shuffle(sizes)
    return [
        Answer(n, n % 7, int(image > 0), image or 5, draw.randbytes(structure), draw.randbytes(image))
        for n, (structure, image) in enumerate(sizes)
    ]


@pytest.mark.parametrize("seed", range(6))
def test_answers_arrive_however_they_are_cut(seed: int) -> None:
    draw = random.Random(seed)
    sent = answers(draw)
    content = b"".join(answer.head() + answer.image for answer in sent)
    cuts = sorted({0, len(content), *draw.sample(range(len(content)), 60), *range(0, len(content), PIPE)})
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    inbox = Inbox(reading)
    try:
        assert inbox.read() == []
        found = []
        for start, end in pairwise(cuts):
            os.write(writing, content[start:end])
            found += inbox.read()
            assert not inbox.ended
        assert found == sent
        assert inbox.read() == []
        os.close(writing)
        writing = -1
        assert inbox.read() == []
        assert inbox.ended
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)


@pytest.mark.parametrize("rows", [None, [0, 2, 3]])
def test_a_key_comes_back(rows: Any) -> None:
    bounds = None if rows is None else np.array(rows)
    key = BatchKey(epoch=3, positions=np.arange(10, 4, -2), indices=np.array([5, 0, 2]), rows=bounds)
    found = unpack_key(pack_key(key))
    assert found.epoch == 3
    assert np.array_equal(found.positions, [10, 8, 6])
    assert np.array_equal(found.indices, [5, 0, 2])
    assert found.rows is None if rows is None else np.array_equal(found.rows, rows)
