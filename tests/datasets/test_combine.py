"""Datasets made of datasets hold their parts' samples, and read whole batches if the parts can."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from drawing import equal
from torchvision import tv_tensors
from torchvision.transforms import v2

import loaderkit as lk
from loaderkit.datasets.base import reads_batches, reads_many
from loaderkit.datasets.combine import ConcatDataset, MapDataset, SubsetDataset, ZipDataset

ARRAY = lk.ArrayDataset(torch.arange(5) * 10)
LIST = ["a", "b", "c", "d", "e"]


def double(sample: Any) -> Any:
    return sample * 2


def batches(dataset: Any, **settings: Any) -> list[Any]:
    return list(lk.Loader(dataset, 3, **settings))


def test_concat_is_one_after_another() -> None:
    data = ConcatDataset([LIST, list("xyz"), [], LIST])
    whole = [*LIST, *"xyz", *LIST]
    assert [data[index] for index in range(len(data))] == whole
    assert data[-1] == "e"
    assert data.__getitems__([7, 0, 5, 12]) == [whole[index] for index in (7, 0, 5, 12)]
    mixed = ConcatDataset([ARRAY, LIST])
    assert [str(sample) for sample in mixed.__getitems__([6, 0, 9, 4])] == ["b", "tensor(0)", "e", "tensor(40)"]
    for index in (13, -14):
        with pytest.raises(IndexError, match=f"index {index} in a dataset of 13 samples"):
            data[index]
    with pytest.raises(ValueError, match="no datasets given"):
        ConcatDataset([])
    with pytest.raises(TypeError, match="part 0 is of type int, wanted a dataset"):
        ConcatDataset([1, 2])  # type: ignore[list-item]


def test_zip_is_side_by_side() -> None:
    data = ZipDataset([ARRAY, LIST])
    assert len(data) == 5
    assert data[2] == (torch.tensor(20), "c")
    assert data.__getitems__([4, 1]) == [(torch.tensor(40), "e"), (torch.tensor(10), "b")]
    named = ZipDataset({"n": ARRAY, "s": LIST})
    assert named[2] == {"n": torch.tensor(20), "s": "c"}
    assert not reads_batches(data)
    both = ZipDataset({"n": ARRAY, "m": ARRAY})
    assert reads_batches(both)
    assert equal(batches(both)[0], {"n": torch.tensor([0, 10, 20]), "m": torch.tensor([0, 10, 20])})
    with pytest.raises(ValueError, match=r"lengths \[5, 3\], wanted at least one, all of one length"):
        ZipDataset([ARRAY, [1, 2, 3]])
    with pytest.raises(ValueError, match=r"lengths \[\]"):
        ZipDataset([])


def test_subset_is_some_of_the_samples() -> None:
    for dataset in (ARRAY, [0, 10, 20, 30, 40]):
        data = SubsetDataset(dataset, [3, 3, 0])
        assert [int(data[index]) for index in range(len(data))] == [30, 30, 0]
        assert [int(sample) for sample in data.__getitems__([2, 0])] == [0, 30]
        assert equal(batches(data), [torch.tensor([30, 30, 0])])
        assert reads_batches(data) == (dataset is ARRAY)
    with pytest.raises(IndexError, match="found index 5, wanted 0 to 4"):
        SubsetDataset(LIST, [1, 5])
    with pytest.raises(IndexError, match="found index -1"):
        SubsetDataset(LIST, [-1])


def test_map_transforms_each_sample() -> None:
    for dataset in (ARRAY, LIST):
        data = MapDataset(dataset, double)
        assert len(data) == 5
        assert data[1] == dataset[1] * 2
        assert data.__getitems__([4, 0]) == [dataset[4] * 2, dataset[0] * 2]
        assert not reads_batches(data)


COMBINED = {
    "concat": ConcatDataset([ARRAY, ARRAY]),
    "zip": ZipDataset([ARRAY, LIST]),
    "zip of arrays": ZipDataset({"a": ARRAY, "b": ARRAY}),
    "subset": SubsetDataset(ARRAY, [1, 2, 4]),
    "empty subset": SubsetDataset(ARRAY, []),
    "map": MapDataset(ARRAY, double),
    "all": MapDataset(ConcatDataset([SubsetDataset(LIST, [0]), SubsetDataset(LIST, [2, 1])]), double),
}


@pytest.mark.parametrize("name", COMBINED)
def test_combined_datasets_pickle_and_keep_their_fingerprint(name: str) -> None:
    data = COMBINED[name]
    copy = pickle.loads(pickle.dumps(data))
    assert copy.fingerprint() == data.fingerprint()
    assert equal([copy[index] for index in range(len(copy))], [data[index] for index in range(len(data))])
    assert not hasattr(data, "no_such_attribute")


def test_fingerprints_tell_data_apart_but_not_transforms() -> None:
    others = [SubsetDataset(ARRAY, [2, 1, 4]), SubsetDataset(ARRAY, [1, 2, 3]), ConcatDataset([ARRAY]), ARRAY]
    found = [data.fingerprint() for data in (*COMBINED.values(), *others)]
    assert len(set(found)) == len(found)
    assert MapDataset(ARRAY, double).fingerprint() == MapDataset(ARRAY, str).fingerprint()


def test_the_state_of_many_datasets_together_stays_small() -> None:
    many = ConcatDataset([ARRAY] * 500)
    assert len(str(lk.Loader(many, 4).state_dict())) < 1024
    other = ConcatDataset([ARRAY] * 499 + [lk.ArrayDataset(torch.arange(5))])
    with pytest.raises(ValueError, match="cannot resume"):
        lk.Loader(other, 4).load_state_dict(lk.Loader(many, 4).state_dict())


def test_reads_many_looks_through_the_wrappers_of_torch() -> None:
    subset, stacked = torch.utils.data.Subset, torch.utils.data.StackDataset
    assert reads_many(subset(ARRAY, [1]))  # type: ignore[arg-type]
    assert not reads_many(subset(LIST, [1]))  # type: ignore[arg-type]
    assert reads_many(stacked(a=ARRAY, b=ARRAY))
    assert not reads_many(stacked(ARRAY, LIST))
    assert not reads_many(subset(stacked(LIST), [1]))


def test_boxes_go_through_transforms_and_collate_as_boxes() -> None:
    def sample(index: int) -> dict[str, Any]:
        image = tv_tensors.Image(torch.full((3, 8, 8), index, dtype=torch.uint8))
        boxes = tv_tensors.BoundingBoxes(torch.tensor([[1, 1, 4, 5]]), format="XYXY", canvas_size=(8, 8))
        return {"image": image, "boxes": boxes}

    data = MapDataset([sample(index) for index in range(6)], v2.RandomHorizontalFlip())
    found = next(iter(lk.Loader(data, 6)))
    assert type(found["image"]) is tv_tensors.Image
    assert type(found["boxes"]) is tv_tensors.BoundingBoxes
    assert found["boxes"].shape == (6, 1, 4)
    assert {tuple(box) for box in found["boxes"][:, 0].tolist()} <= {(1, 1, 4, 5), (4, 1, 7, 5)}


def test_indices_may_be_numpys() -> None:
    rows = np.array([4, 0])
    for data in (ConcatDataset([LIST]), ZipDataset([LIST]), SubsetDataset(LIST, range(5)), MapDataset(LIST, double)):
        assert len(data.__getitems__(rows.tolist())) == 2
        assert data[rows[0]] is not None


@pytest.mark.parametrize("data", [ConcatDataset([LIST]), ARRAY, lk.RecordDataset(LIST)])
def test_a_slice_is_refused_with_the_way_to_some_of_the_samples(data: Any) -> None:
    with pytest.raises(TypeError, match=r"index is slice\(0, 2, None\), wanted an integer\..*SubsetDataset"):
        data[0:2]


class Sharded(list[int]):
    shard_sizes = np.array([2, 3])


def test_shards_stay_known_under_a_transform_and_side_by_side() -> None:
    """A shuffling Loader then reads shard by shard."""
    one = Sharded(range(5))
    assert lk.MapDataset(one, str).shard_sizes.tolist() == [2, 3]
    assert lk.ConcatDataset([one, one]).shard_sizes.tolist() == [2, 3, 2, 3]
    assert not hasattr(lk.ConcatDataset([one, [1]]), "shard_sizes")
    assert not hasattr(lk.MapDataset([1], str), "shard_sizes")
    copy = pickle.loads(pickle.dumps(lk.MapDataset(one, str)))
    assert copy.shard_sizes.tolist() == [2, 3]
