"""Threads that read one dataset at the same time get the samples that one thread gets, and leave nothing open."""

import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets_made import KINDS, public_datasets
from drawing import equal
from leftovers import nothing_left

from loaderkit.datasets.base import reads_batches, reads_columns, reads_many
from loaderkit.datasets.shards.sharded import ShardedDataset
from loaderkit.seeding.draws import thread_safe

THREADS, READS = 8, 40
SHORT, LONG = 3, 20  # indices in a read


def test_every_public_dataset_is_read() -> None:
    assert public_datasets() <= set(KINDS)


# Encoders of rows call the user's tokenizer; the others wrap a class of the test that promises nothing.
NOT_SHARED = {"ChatDataset", "Handle", "MapDataset", "MultimodalDataset", "PreferenceDataset", "share"}


@pytest.mark.parametrize("kind", KINDS)
def test_datasets_say_that_threads_may_read_them(kind: str, tmp_path: Path) -> None:
    assert thread_safe(KINDS[kind](tmp_path)) == (kind not in NOT_SHARED)


def ways(dataset: Any) -> list[Callable[[Sequence[int]], Any]]:
    """The methods by which a loader may read, each from indices to its result."""
    found: list[Callable[[Sequence[int]], Any]] = [lambda indices: [dataset[index] for index in indices]]
    if reads_many(dataset):
        found.append(dataset.__getitems__)
    if reads_batches(dataset):
        found.append(lambda indices: dataset.read_batch(np.array(indices)))
    if reads_columns(dataset):
        found.append(dataset.read_columns)
    return found


@pytest.fixture
def _often() -> Iterator[None]:
    """Let threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
@pytest.mark.usefixtures("_often")
@pytest.mark.parametrize("kind", KINDS)
def test_threads_read_what_one_thread_reads(kind: str, tmp_path: Path) -> None:
    dataset = KINDS[kind](tmp_path)
    asked = ways(dataset)
    draw = np.random.default_rng(0)

    count = (
        READS if not kind.startswith(("AudioDataset", "VideoDataset")) else READS // 8
    )  # each opens and decodes a file

    def drawn(read: int) -> tuple[int, list[int]]:
        return read % len(asked), draw.integers(len(dataset), size=LONG if read % 10 == 0 else SHORT).tolist()

    reads = [[drawn(read) for read in range(count)] for _ in range(THREADS)]
    wanted = [[asked[way](indices) for way, indices in mine] for mine in reads]
    assert not equal(wanted[0], wanted[1])
    barrier = threading.Barrier(THREADS)

    def read_all(thread: int) -> list[str]:
        barrier.wait(60)
        wrong = []
        for (way, indices), whole in zip(reads[thread], wanted[thread], strict=True):
            try:
                found = asked[way](indices)
            except Exception:
                wrong.append(f"{indices}: {traceback.format_exc()}")
            else:
                wrong += [] if equal(found, whole) else [f"{indices}: read {found!r}, wanted {whole!r}"]
        return wrong

    if isinstance(dataset, ShardedDataset):
        dataset.close()  # otherwise a cached copy that this thread has open is another file when it is evicted
    with nothing_left():
        for _ in range(2):  # as for two epochs
            with ThreadPoolExecutor(THREADS) as pool:
                wrong = [each for mine in pool.map(read_all, range(THREADS)) for each in mine]
            assert not wrong, f"{len(wrong)} of {THREADS * READS} reads, the first of {wrong[0]}"
