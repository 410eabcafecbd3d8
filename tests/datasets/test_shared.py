"""Shared lists and dicts read like the originals, and do not grow workers."""

import pickle
from typing import Any

import psutil
import pytest
import torch.multiprocessing as multiprocessing
from drawing import equal
from hypothesis import given
from hypothesis import strategies as st
from record_made import RECORD

import loaderkit as lk

KEY = st.recursive(st.text() | st.integers() | st.binary(max_size=9), lambda inner: st.tuples(inner, inner))


@given(st.lists(RECORD, max_size=9), st.integers(-12, 12), st.integers(-12, 12))
def test_a_list_reads_as_it_was(records: list[Any], start: int, stop: int) -> None:
    shared = lk.share(records)
    for copy in (shared, pickle.loads(pickle.dumps(shared))):
        assert len(copy) == len(records)
        assert equal(list(copy), records)
        assert equal(copy[start:stop], records[start:stop])
        for index in range(-len(records), len(records)):
            assert equal(copy[index], records[index])
        with pytest.raises(IndexError, match=f"index {len(records)} in a list of {len(records)}"):
            copy[len(records)]


@given(st.dictionaries(KEY, RECORD, max_size=9), KEY)
def test_a_dict_reads_as_it_was(records: dict[Any, Any], other: Any) -> None:
    shared = lk.share(records)
    for copy in (shared, pickle.loads(pickle.dumps(shared))):
        assert list(copy) == list(records)
        assert all(equal(copy[key], value) for key, value in records.items())
        assert (other in copy) == (other in records)
        assert 1.5 not in copy


def test_keys_with_the_same_hash_are_told_apart() -> None:
    records = {number: -number for number in range(50)}
    shared = type(lk.share({0: 0}))(records, hash_key=lambda key: len(str(key)) % 2)
    assert dict(shared) == records
    assert 50 not in shared


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ("text", "share: got str, wanted a list or dict"),
        (iter([]), "share: got list_iterator, wanted a list or dict"),
        ({1.5: 0}, r"share: key 1.5 is of float, wanted str"),
        ({("a", None): 0}, r"share: key None is of NoneType, wanted str"),
        ([1, lambda: 0], "share: record 1 can't be pickled"),
        ({"a": 1, "b": lambda: 0}, "share: entry 1 can't be pickled"),
    ],
)
def test_what_cannot_be_shared_is_said(records: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        lk.share(records)


def grow(records: Any, found: Any) -> None:
    process = psutil.Process()
    before = process.memory_full_info().uss
    total = sum(len(record["text"]) for record in records)
    found.put((total, process.memory_full_info().uss - before))


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_worker_that_reads_all_of_it_hardly_grows(method: str) -> None:
    records = [{"id": number, "text": f"record {number} " * 4} for number in range(100_000)]
    size = sum(len(pickle.dumps(record)) for record in records)
    assert size > 8 << 20
    context = multiprocessing.get_context(method)
    growth = {}
    kinds = {"shared": lk.share(records), "dataset": lk.RecordDataset(records), "list": records}
    for name, data in kinds.items():
        found = context.SimpleQueue()
        process = context.Process(target=grow, args=(data, found))
        process.start()
        try:
            total, growth[name] = found.get()
        finally:
            process.join(60)
            process.kill()
        assert total == sum(len(record["text"]) for record in records)
    assert max(growth["shared"], growth["dataset"]) < 0.1 * size + (1 << 20)
    if method == "fork":
        assert growth["list"] > size  # else the measure shows nothing
