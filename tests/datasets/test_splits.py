"""Splits are functions of (seed, key) that keep groups together and strata in proportion."""

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tier import examples

import loaderkit as lk
from loaderkit.datasets.combine import SubsetDataset

SHARES = {"train": 0.8, "val": 0.1, "test": 0.1}


def sides(split: lk.Split) -> list[str]:
    """The side of each sample."""
    return [split.sides[side] for side in split.side_of.tolist()]


def test_each_sample_is_on_one_side_and_sizes_are_about_right() -> None:
    for keys in (range(10_000), [f"file-{number}" for number in range(10_000)]):
        split = lk.split(keys, SHARES, seed=1)
        assert sorted(np.concatenate([split[side] for side in split]).tolist()) == list(range(10_000))
        for side, share in SHARES.items():
            assert abs(len(split[side]) - 10_000 * share) < 5 * (10_000 * share * (1 - share)) ** 0.5


def test_a_sample_keeps_its_side_when_data_is_added_or_moved() -> None:
    names = [f"file-{number}" for number in range(1000)]
    before = dict(zip(names, sides(lk.split(names, SHARES, seed=3)), strict=True))
    more = [*[f"new-{number}" for number in range(500)], *reversed(names)]
    after = dict(zip(more, sides(lk.split(more, SHARES, seed=3)), strict=True))
    assert {name: after[name] for name in names} == before
    other = dict(zip(names, sides(lk.split(names, SHARES, seed=4)), strict=True))
    assert 150 < sum(other[name] != before[name] for name in names) < 500


def test_another_process_splits_alike() -> None:
    code = f"import loaderkit as lk; print(lk.split(['a%d' % n for n in range(40)], {SHARES}, seed=2).side_of.tolist())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == lk.split([f"a{n}" for n in range(40)], SHARES, seed=2).side_of.tolist()


def test_the_golden_split() -> None:
    """Golden: a test set must not change with the version of this library."""
    assert lk.split(range(12), {"train": 0.5, "test": 0.5}, seed=0).side_of.tolist() == GOLDEN_NUMBERS
    assert lk.split(list("abcdefghijkl"), {"train": 0.5, "test": 0.5}, seed=0).side_of.tolist() == GOLDEN_NAMES


GOLDEN_NUMBERS = [1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 0, 0]
GOLDEN_NAMES = [1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0]


@settings(max_examples=examples(100))
@given(st.lists(st.integers(0, 12), min_size=1, max_size=80), st.integers(0, 5), st.booleans())
def test_a_group_is_on_one_side(groups: list[int], seed: int, stratified: bool) -> None:
    strata = [group % 3 for group in groups] if stratified else None
    split = lk.split(range(len(groups)), SHARES, seed=seed, group_by=groups, stratify_by=strata)
    assert not split.leaks(groups)
    assert len({(group, side) for group, side in zip(groups, sides(split), strict=True)}) == len(set(groups))


@settings(max_examples=examples(100))
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=120), st.integers(0, 5))
def test_strata_are_split_to_a_sample(strata: list[str], seed: int) -> None:
    split = lk.split(range(len(strata)), SHARES, seed=seed, stratify_by=strata)
    for stratum in set(strata):
        members = np.flatnonzero(np.array(strata) == stratum)
        for number, share in enumerate(SHARES.values()):
            assert abs(np.count_nonzero(split.side_of[members] == number) - share * len(members)) <= 1


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("more", [{}, {"test": 0.2}])
def test_folds_hold_each_sample_once(more: dict[str, float], stratified: bool) -> None:
    strata = np.arange(500) % 7 if stratified else None
    found = [lk.split(range(500), more, seed=5, stratify_by=strata, fold=fold, folds=4) for fold in range(4)]
    held = np.concatenate([split["val"] for split in found])
    outside = found[0]["test"].tolist() if more else []
    assert sorted([*held.tolist(), *outside]) == list(range(500))
    for split in found:
        assert sorted(np.concatenate(list(split.values())).tolist()) == list(range(500))
        assert not more or split["test"].tolist() == outside
        assert 60 < len(split["val"]) < 170


def test_datasets_are_split_to_subsets() -> None:
    data = [(number, number % 3) for number in range(60)]
    dataset = lk.ArrayDataset((np.arange(60), np.arange(60) % 3))
    parts = lk.split(dataset, SHARES, stratify_by=lambda sample: sample[1])
    assert isinstance(parts["train"], SubsetDataset)
    assert sum(len(part) for part in parts.values()) == 60
    by_hand = lk.split(data, SHARES, stratify_by=[label for _, label in data])  # a list of samples is a dataset
    assert sides(by_hand) == sides(parts)
    loader = lk.Loader(parts["train"], 8, shuffle=True)
    assert sum(len(batch[0]) for batch in loader) == len(parts["train"])
    named = lk.split(dataset, SHARES, keys=lambda sample: f"row {sample[0]}")
    assert named.sample_keys[3] == "row 3"


def test_columns_of_a_frame_and_tensors_are_keys_groups_and_strata() -> None:
    """Keys taken for samples would be split by their index, and move when rows are added."""
    frame = pd.DataFrame({"file": list("abcdefgh"), "patient": list("xxyyzzxx"), "kind": [0, 1] * 4})
    by_hand = lk.split(list("abcdefgh"), SHARES, seed=1, group_by=list("xxyyzzxx"))
    for kind in (str, object, "category"):
        columns = frame.astype(kind)  # type: ignore[call-overload]
        assert sides(lk.split(columns["file"], SHARES, seed=1, group_by=columns["patient"])) == sides(by_hand)
    for keys in (np.array(list("abcdefgh"), object), np.array(list("abcdefgh"), "S1"), frame["file"][::-1][::-1]):
        split = lk.split(keys, SHARES, seed=1, group_by=list("xxyyzzxx"))
        assert sides(split) == sides(by_hand)
        assert split.dataset is None
    numbers = range(7, 600, 7)
    assert sides(lk.split(torch.tensor(numbers), SHARES)) == sides(lk.split(numbers, SHARES))
    with pytest.raises(TypeError, match="the data is a data frame"):
        lk.split(frame, SHARES)
    frame.loc[3, "patient"] = None
    with pytest.raises(ValueError, match=r"group_by of sample 3 is (None|nan), wanted an integer or a string"):
        lk.split(frame["file"], SHARES, group_by=frame["patient"].astype(object))


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=80), st.integers(0, 5))
def test_a_group_belongs_to_the_stratum_of_most_of_its_samples(pairs: list[tuple[int, int]], seed: int) -> None:
    groups, strata = map(list, zip(*pairs, strict=True))
    found = lk.split(range(len(pairs)), SHARES, seed=seed, group_by=groups, stratify_by=strata)
    most = [max(range(6), key=[kind for group, kind in pairs if group == own].count) for own in groups]
    assert sides(found) == sides(lk.split(range(len(pairs)), SHARES, seed=seed, group_by=groups, stratify_by=most))


def test_memory_does_not_grow_with_samples_times_strata() -> None:
    lk.split(range(100), SHARES, stratify_by=[0] * 100)
    tracemalloc.start()
    try:
        lk.split(range(20_000), SHARES, stratify_by=np.arange(20_000) % 1000)
        assert tracemalloc.get_traced_memory()[1] < 20e6  # a table of both would take 160 MB
    finally:
        tracemalloc.stop()


def test_numpys_settings_are_those_of_python(tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    fractions = {"train": np.float32(0.8), "val": np.float32(0.1), "test": np.float32(0.1)}
    found = lk.split(np.array([b"a", b"b"]), fractions, seed=np.int64(3))  # type: ignore[arg-type]
    found.save(path)
    assert found.moved(path) == {}
    assert sides(found) == sides(lk.split(["a", "b"], SHARES, seed=3))
    lk.split(range(9), fold=np.int64(1), folds=np.int64(3)).save(path)  # type: ignore[arg-type]
    assert lk.split(range(9), fold=1, folds=3).moved(path) == {}


def test_a_manifest_keeps_compares_and_finds_leaks(tmp_path: Path) -> None:
    labels = np.arange(200) % 5
    first = lk.split(range(200), SHARES, seed=1, stratify_by=labels)
    first.save(tmp_path / "split.json")
    assert first.moved(tmp_path / "split.json") == {}
    more = np.arange(330) % 5
    moved = lk.split(range(330), SHARES, seed=1, stratify_by=more).moved(tmp_path / "split.json")
    assert moved  # strata are cut again
    assert all(before != after for before, after in moved.values())
    kept = lk.split(range(330), SHARES, seed=1, stratify_by=more, keep=tmp_path / "split.json")
    assert kept.moved(tmp_path / "split.json") == {}
    first = lk.split(range(20), SHARES, seed=1)
    first.save(tmp_path / "some.json")
    pairs = np.arange(40) % 20  # each sample gets a second one of its group
    joined = lk.split(range(40), SHARES, seed=2, group_by=pairs, keep=tmp_path / "some.json")
    assert sides(joined) == sides(first) * 2
    first = lk.split(range(200), SHARES, seed=1, stratify_by=labels)
    content = np.arange(200) // 2  # each picture is there twice
    leaks = first.leaks(content)
    assert leaks
    value, on = next(iter(leaks.items()))
    assert {sides(first)[2 * value], sides(first)[2 * value + 1]} == set(on)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lk.split(range(5), {"a": 0.5}), "sum 0.5, wanted 1"),
        (lambda: lk.split(range(5), {"a": 1.5, "b": -0.5}), "out of range"),
        (lambda: lk.split(range(5)), "have the sum 0, wanted 1"),
        (lambda: lk.split(range(5), fold=1), "fold=1 and folds=None"),
        (lambda: lk.split(range(5), fold=3, folds=3), "fold 3 of 3"),
        (lambda: lk.split(range(5), fold=1.0, folds=3), "fold is 1.0, wanted an integer"),  # type: ignore[arg-type]
        (lambda: lk.split(range(5), SHARES, seed=None), "seed is None, wanted an integer"),  # type: ignore[arg-type]
        (lambda: lk.split(range(5), {"a": "all"}), "fractions .'a': 'all'. are out of range"),  # type: ignore[dict-item]
        (lambda: lk.split(range(2), SHARES, stratify_by=[[1], [1, 2]]), "stratify_by is not a column of values"),
        (lambda: lk.split(range(5), {"train": 0.5}, fold=0, folds=3), "sides other than 'train' and 'val'"),
        (lambda: lk.split([], SHARES), "no samples"),
        (lambda: lk.split(["a", "b", "a"], SHARES), "key 'a' occurs 2 times"),
        (lambda: lk.split(range(3), SHARES, keys=[1, 2, 3]), "keys= was given, and the data are keys"),
        (lambda: lk.split(range(3), SHARES, group_by=[1, 2]), r"group_by has shape \(2,\)"),
        (lambda: lk.split(range(3), SHARES, stratify_by=[0.5, 1.5, 2.5]), "wanted an integer or a string"),
        (lambda: lk.split(range(3), SHARES, group_by=str), "group_by is a function of a sample, and the data are keys"),
    ],
)
def test_bad_settings_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_fractions_without_names_are_refused() -> None:
    with pytest.raises(TypeError, match=r"fractions are \[0.8, 0.2\], wanted a share by side"):
        lk.split(range(5), [0.8, 0.2])  # type: ignore[arg-type]


def test_bad_manifests_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    lk.split(range(9), {"a": 0.5, "b": 0.5}).save(path)
    with pytest.raises(ValueError, match=r"manifest has sides \['a', 'b'\], this split has"):
        lk.split(range(9), SHARES, keep=path)
    path.write_text(json.dumps({"version": 9, "sides": {}}))
    with pytest.raises(ValueError, match="manifest of version 9"):
        lk.split(range(9), SHARES, keep=path)
    path.write_text("{")
    with pytest.raises(ValueError, match="not a manifest"):
        lk.split(range(9), SHARES, keep=path)
    with pytest.raises(KeyError, match="no side 'training'"):
        lk.split(range(9), SHARES)["training"]
    path.write_text(json.dumps({"version": 1, "settings": {}, "sides": {"a": [0], "b": [1]}}))
    with pytest.raises(ValueError, match="a group on two sides"):
        lk.split(range(2), {"a": 0.5, "b": 0.5}, group_by=[7, 7], keep=path)
    for content in ('{"version": 1, "sides": [1]}', '{"version": 1, "sides": {"a": [[1]]}}', "[1]"):
        path.write_text(content)
        with pytest.raises(ValueError, match="not a manifest"):
            lk.split(range(9), SHARES, keep=path)
    path.write_text(json.dumps({"version": 1, "settings": {}, "sides": {"a": [0, 1], "b": [1]}}))
    with pytest.raises(ValueError, match="has key 1 on 'a' and on 'b', wanted it on one side"):
        lk.split(range(2), {"a": 0.5, "b": 0.5}).moved(path)
    found = lk.split(range(9), SHARES)
    found.save(path)
    for compare in (lambda split: split.moved(path), lambda _: lk.split(list("012"), SHARES, keep=path)):
        with pytest.raises(ValueError, match=r"none of these keys: its first is \d, here it is '0'"):
            compare(lk.split(list("012"), SHARES))
    lk.split(range(9), fold=0, folds=3).save(path)
    with pytest.raises(ValueError, match="manifest is of fold 0 of 3, this is 1 of 3"):
        lk.split(range(9), fold=1, folds=3, keep=path)
