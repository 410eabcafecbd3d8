"""Records come back as they were given, from memory that workers share."""

import os
import pickle
import subprocess
import sys
from collections import namedtuple
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from record_made import RECORD
from shards import check_laws, check_reads, with_draws

import loaderkit as lk

Pair = namedtuple("Pair", ["a", "b"])  # noqa: PYI024


@given(st.lists(RECORD, min_size=1, max_size=9))
def test_records_come_back(records: list[Any]) -> None:
    data = lk.RecordDataset(records)
    check_reads(data, records)
    copy = pickle.loads(pickle.dumps(data))
    check_reads(copy, records)
    assert copy.fingerprint() == data.fingerprint()


def test_types_are_kept_and_each_read_is_new() -> None:
    records = [{"id": 0, "x": np.float32(1)}, Pair(1, "b"), (1, [2]), "text", b"bytes", np.arange(3)]
    data = lk.RecordDataset(iter(records))
    check_reads(data, records)
    assert type(data[1]) is Pair
    data[0]["id"] = 9
    check_reads(data, records)


def test_dicts_that_are_part_of_themselves_come_back_so() -> None:
    itself: dict[str, Any] = {"name": "a"}
    itself["itself"] = itself
    tree: dict[str, Any] = {"name": "root"}
    tree["children"] = [{"name": "leaf", "parent": tree}]
    data = lk.RecordDataset([itself, tree, {"name": "b", "itself": None}])
    for one, other in (data.__getitems__([0, 1]), (data[0], data[1])):
        assert one["itself"] is one
        assert other["children"][0]["parent"] is other


@pytest.mark.parametrize("size", [1, 2, 10, 25])
def test_the_laws(size: int) -> None:
    check_laws(
        lambda: lk.RecordDataset(({"id": number} for number in range(size)), transform=with_draws),
        lambda record: int(record["id"]),
    )


def test_no_records_are_an_empty_dataset() -> None:
    data = lk.RecordDataset([])
    assert len(data) == 0
    assert data.__getitems__([]) == []
    assert data.fingerprint() == lk.RecordDataset(()).fingerprint()
    with pytest.raises(IndexError, match="index 0 in a dataset of 0 samples"):
        data[0]


def test_what_cannot_be_pickled_is_named() -> None:
    with pytest.raises(TypeError, match="record 1 can't be pickled"):
        lk.RecordDataset(["a", lambda: None])


PRINT = "import loaderkit as lk; a = 'x' * 9; print(lk.RecordDataset([{'a': a, 'b': a}, (1.5, None)]).fingerprint())"


DTYPES = sorted({each for each in vars(torch).values() if isinstance(each, torch.dtype)}, key=str)


@pytest.mark.filterwarnings("ignore:B?Complex.* support is experimental")
@pytest.mark.parametrize("dtype", [each for each in DTYPES if "q" not in str(each)], ids=str)
def test_a_tensor_of_each_dtype_comes_back_without_the_rest_of_its_storage(dtype: torch.dtype) -> None:
    content = torch.arange(16 * 4096, dtype=torch.uint8) % 2
    try:
        whole = content.view(dtype).view(16, -1)
        whole[:, 3].contiguous()
    except (RuntimeError, TypeError):
        pytest.skip("torch has the name, but can't copy tensors of it")
    data = lk.RecordDataset([{"x": whole[3], "y": whole[:, 3]}] * 3)
    found = data[2]
    for name, wanted in (("x", whole[3]), ("y", whole[:, 3])):
        assert found[name].dtype == dtype
        assert torch.equal(found[name].contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8))
        found[name].view(torch.uint8).zero_()  # it can be written
    assert torch.equal(data[2]["x"].view(torch.uint8), whole[3].view(torch.uint8))
    assert data._records.size_bytes < 3 * 8192


def test_the_fingerprint_is_that_of_the_values_in_any_process() -> None:
    """A pickle differs between one string used twice and two equal strings."""
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", PRINT], capture_output=True, text=True, check=True, env=environment)
    text = "x" * 9
    found, other = (
        lk.RecordDataset([{"a": text, "b": second}, (1.5, None)]).fingerprint() for second in ("xxx" + text[:6], "y")
    )
    assert done.stdout.strip() == found != other
    prints = {
        lk.RecordDataset(records).fingerprint() for records in ([1, 2], [2, 1], ["1", 2], [1], [[1], 2], [(1,), 2])
    }
    assert len(prints) == 6


def test_records_are_read_correctly_after_pickling_moved_them() -> None:
    data = lk.RecordDataset([{"id": 1}, {"id": 2}])
    assert data[0] == {"id": 1}
    ForkingPickler.dumps(data)  # as for a spawned worker
    assert [data[0], data[np.int64(-1)]] == [{"id": 1}, {"id": 2}]
    assert pickle.loads(pickle.dumps(data))[0] == {"id": 1}
