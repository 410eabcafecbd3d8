"""Patches of volumes are data with an index: each law holds, each volume is read once, and few patches wait."""

import collections
import itertools
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import loaderkit as lk

COUNT, PATCHES, SHAPE, SIZE = 12, 6, (7, 6, 5), (3, 2, 4)


def coded(number: int, shape: tuple[int, ...] = SHAPE) -> Tensor:
    """Return a volume (1, *S) whose values tell where they are from."""
    return (torch.arange(np.prod(shape)).reshape(1, *shape) + 1000 * number).double()


class Volumes:
    """Volumes that are moved and scaled at random, from each global generator."""

    def __init__(self, folder: Path | None = None, random: bool = True) -> None:
        self.folder, self.random = folder, random

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, number: int) -> Any:
        if self.folder is not None:
            with (self.folder / f"{number}").open("a") as file:
                file.write("read\n")
        shift = [torch.rand(()).item(), float(np.random.rand()), lk.sample_rng().random()] if self.random else [0.0]
        return {"image": coded(number), "shift": torch.tensor(shift), "id": number}


def jitter(patch: Any) -> Any:
    return {**patch, "noise": torch.rand(2)}


def make_data(folder: Path | None = None, **settings: Any) -> lk.PatchDataset:
    chosen: dict[str, Any] = {"patches": PATCHES, "locations": True, "transform": jitter, "block": 2, "lanes": 4}
    return lk.PatchDataset(Volumes(folder), SIZE, **chosen | settings)


def make_loader(data: Any = None, batch_size: int = 4, **settings: Any) -> Any:
    chosen: dict[str, Any] = {"shuffle": True, "seed": 5}
    return lk.Loader(make_data() if data is None else data, batch_size, **chosen | settings)


def rows(batches: Any) -> list[tuple[Any, ...]]:
    """Return what each patch of batches holds, bit for bit."""
    return [
        tuple((name, batch[name][row].numpy().tobytes()) for name in sorted(batch))
        for batch in batches
        for row in range(len(batch["id"]))
    ]


@pytest.fixture(scope="module")
def whole() -> list[tuple[Any, ...]]:
    """Two epochs without a break, and without workers."""
    loader = make_loader()
    found = rows(loader) + rows(loader)
    assert len(set(found)) == len(found) == 2 * COUNT * PATCHES
    return found


def test_a_patch_is_what_lies_at_its_location_of_its_volume() -> None:
    data = make_data()
    assert len(data) == COUNT * PATCHES
    for index in range(2 * len(data)):
        patch = data[index]
        start, stop = patch["location"][:3].tolist(), patch["location"][3:].tolist()
        assert tuple(np.subtract(stop, start)) == SIZE
        where = tuple(map(slice, start, stop))
        assert torch.equal(patch["image"], coded(patch["volume"])[(slice(None), *where)])
        assert patch["volume"] == patch["id"] == data.volume(index) == index % len(data) // PATCHES


def test_a_patch_depends_on_its_index_alone() -> None:
    data = make_data(transform=None)
    indices = np.random.default_rng(0).permutation(2 * len(data)).tolist()
    first = {index: data[index] for index in indices}
    again = pickle.loads(pickle.dumps(data))
    for index in [*range(2 * len(data)), *indices, 3, 3]:
        assert rows([{name: torch.as_tensor(value)[None] for name, value in again[index].items()}]) == rows(
            [{name: torch.as_tensor(value)[None] for name, value in first[index].items()}]
        )
    assert torch.equal(data[-1]["image"], first[len(data) - 1]["image"])
    assert len(list(data)) == len(data)
    with pytest.raises(IndexError, match="index -73 in a dataset of 72 samples"):
        data[-73]


@pytest.mark.parametrize("settings", [{}, {"lanes": 1}, {"block": 100}, {"patches": [0, 9] * (COUNT // 2)}])
def test_each_patch_comes_once_an_epoch(settings: dict[str, Any]) -> None:
    data = make_data(transform=None, **settings)
    loader = make_loader(data)
    for epoch in range(3):
        indices = np.concatenate([loader.indices(epoch, batch) for batch in range(len(loader))])
        assert sorted(indices) == list(range(epoch * len(data), (epoch + 1) * len(data)))
        volumes = [data.volume(index) for index in indices.tolist()]
        assert volumes != sorted(volumes)


def test_a_volume_has_one_transform_an_epoch_and_each_patch_its_own() -> None:
    loader = make_loader()
    shifts = collections.defaultdict(set)
    noises = set()
    for epoch in range(2):
        for batch in loader:
            for volume, shift, noise in zip(
                batch["volume"].tolist(), batch["shift"].tolist(), batch["noise"].tolist(), strict=True
            ):
                shifts[epoch, volume].add(tuple(shift))
                noises.add(tuple(noise))
    assert len(shifts) == 2 * COUNT
    assert all(len(found) == 1 for found in shifts.values())
    assert len(set().union(*shifts.values())) == 2 * COUNT
    assert len(noises) == 2 * COUNT * PATCHES


@pytest.mark.parametrize("workers", [{"num_workers": 2}, {"num_workers": 2, "engine": "torch"}])
def test_patches_do_not_depend_on_workers(workers: dict[str, Any], whole: list[Any]) -> None:
    loader = make_loader(**workers)
    assert rows(loader) + rows(loader) == whole


@pytest.mark.parametrize("stop", [1, 5, 17, 18, 19, 30])
def test_a_killed_run_goes_on_with_other_workers_and_batch_sizes(stop: int, whole: list[Any]) -> None:
    loader = make_loader()
    first: list[Any] = []
    while len(first) < stop:
        first += itertools.islice(loader, stop - len(first))
    state = loader.state_dict()
    done = rows(first)
    assert done == whole[: len(done)]
    for settings in ({"batch_size": 4}, {"batch_size": 3}, {"batch_size": 10, "num_workers": 2}):
        other = make_loader(**settings)
        other.load_state_dict(state)
        left = rows(other) + (rows(other) if len(done) < COUNT * PATCHES else [])
        assert left == whole[len(done) :]


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (1, 2), (2, 2), (4, 0)])
def test_each_volume_is_read_once_an_epoch_if_ranks_and_workers_divide_the_lanes(
    ranks: int, workers: int, tmp_path: Path
) -> None:
    data = make_data(tmp_path, patches=8)  # no volume lies in two lanes
    for rank in range(ranks):
        for _ in make_loader(data, num_workers=workers, world=lk.World(rank, ranks)):
            pass
    reads = {path.name: len(path.read_text().split()) for path in tmp_path.iterdir()}
    assert reads == {str(volume): 1 for volume in range(COUNT)}


def test_few_patches_wait_and_none_holds_its_volume() -> None:
    data = lk.PatchDataset([coded(number) for number in range(400)], SIZE, patches=8, block=2, lanes=4)
    most = 0
    for _ in lk.Loader(data, 4, shuffle=True):
        opened = data._open.own.values()
        most = max(most, sum(len(volume.left) for volume in opened))
    assert 30 < most <= 4 * (2 + 2) * 8
    assert not data._open.own
    assert data[0].untyped_storage().nbytes() == np.prod(SIZE) * 8
    for index in np.random.default_rng(0).integers(len(data), size=500).tolist():
        data[index]
        assert len(data._open.own) <= 4 * (2 + 2)


def test_random_patches_begin_anywhere_equally_often() -> None:
    data = lk.PatchDataset([torch.zeros(1, 5, 4)] * 200, (3, 2), patches=30, locations=True)
    starts = collections.Counter(tuple(location[:2].tolist()) for _, location, _ in data)
    assert set(starts) == {(row, column) for row in range(3) for column in range(3)}
    expected = len(data) / 9
    assert sum((count - expected) ** 2 / expected for count in starts.values()) < 26  # 99.9 % of chi-square with 8


@pytest.mark.parametrize("seed", [0, 1])
def test_the_seed_decides_the_patches(seed: int) -> None:
    def starts(seed: int) -> list[Any]:
        return [make_data(seed=seed, transform=None)[index]["location"].tolist() for index in range(20)]

    assert starts(seed) == starts(seed)
    assert starts(seed) != starts(seed + 1)


@pytest.mark.parametrize("overlap", [0, 1, (2, 1, 3)])
@pytest.mark.parametrize("given", [False, True])
def test_a_grid_covers_each_volume_and_says_where(overlap: Any, given: bool) -> None:
    shapes = [SHAPE, (3, 2, 4), (8, 9, 4)]
    volumes = [coded(number, shape) for number, shape in enumerate(shapes)]
    data = lk.PatchDataset(volumes, SIZE, overlap=overlap, shapes=shapes if given else None)
    made = [torch.full_like(volume, -1) for volume in volumes]
    starts = []
    for patches, locations, numbers in lk.Loader(data, 3, num_workers=2):
        assert locations.dtype == torch.int64
        for patch, location, number in zip(patches, locations.tolist(), numbers.tolist(), strict=True):
            made[number][(slice(None), *map(slice, location[:3], location[3:]))] = patch
            starts.append((number, *location[:3]))
    assert all(map(torch.equal, made, volumes))
    assert starts == sorted(set(starts))  # volume by volume, each place once
    assert len(starts) == len(data)
    if overlap == 0:
        assert starts[: -(-7 // 3) * 3 * 2] == [(0, a, b, c) for a in (0, 3, 4) for b in (0, 2, 4) for c in (0, 1)]


def test_a_grid_in_order_keeps_one_volume(tmp_path: Path) -> None:
    data = lk.PatchDataset(Volumes(tmp_path), SIZE, shapes=SHAPE)
    for index in range(len(data)):
        data[index]
        assert len(data._open.own) <= 1
    assert {len(path.read_text().split()) for path in tmp_path.iterdir()} == {1}


class Pair(NamedTuple):
    image: Any
    mask: Any


def test_the_type_of_a_volume_stays() -> None:
    image, mask = torch.rand(2, 8, 8), np.arange(64).reshape(1, 8, 8)
    cases: list[tuple[Any, dict[str, Any]]] = [
        (image, {}),
        (mask, {}),
        (mask[0], {}),
        ((image, mask), {}),
        (Pair(image, mask), {}),
        ({"image": image, "mask": mask, "affine": np.eye(2), "name": "a"}, {}),
        ({"image": image, "flat": mask[0]}, {"fields": ["image", "flat"]}),
        ((image, torch.rand(3, 9, 9)), {"fields": [0]}),
    ]
    for volume, settings in cases:
        patch = lk.PatchDataset([volume], (3, 4), patches=1, **settings)[0]
        assert type(patch) is type(volume)
    patch = lk.PatchDataset([cases[5][0]], (3, 4), patches=1, locations=True)[0]
    assert patch["mask"].shape == (1, 3, 4)
    assert patch["affine"].shape == (2, 2)
    assert patch["name"] == "a"
    row, column, *_ = patch["location"].tolist()
    assert np.array_equal(patch["mask"], mask[:, row : row + 3, column : column + 4])
    assert torch.equal(patch["image"], image[:, row : row + 3, column : column + 4])
    assert "location" not in cases[5][0]
    assert lk.PatchDataset([cases[6][0]], (3, 4), patches=1, fields=["image", "flat"])[0]["flat"].shape == (3, 4)
    assert lk.PatchDataset([torch.rand(1, 5, 6, 7)], 4, patches=1)[0].shape == (1, 4, 4, 4)


def test_a_sampler_chooses_patches_under_the_volumes_seed() -> None:
    def endless(volume: Any) -> Any:
        while True:
            start = int(torch.randint(4, ()))
            yield volume["image"][:, start : start + 3], volume["shift"], np.random.rand()

    data = lk.PatchDataset(Volumes(), sampler=endless, patches=5)
    first, second = (
        [tensor.tolist() for batch in loader for tensor in batch]
        for loader in (lk.Loader(data, 5, shuffle=True), lk.Loader(data, 5, shuffle=True, num_workers=2))
    )
    assert first == second
    assert len({data[index][2] for index in range(2 * len(data))}) == 2 * COUNT * 5
    with pytest.raises(ValueError, match=r"volume 0 has 2 patches from the sampler, wanted 5"):
        lk.PatchDataset(Volumes(), sampler=lambda volume: [volume, volume], patches=5)[0]


def test_draws_are_those_of_the_parts() -> None:
    volumes = [coded(0)]
    assert lk.PatchDataset(volumes, SIZE, patches=1).draws_nothing
    assert not lk.PatchDataset(volumes, SIZE, patches=1, transform=jitter).draws_only_sample_rng
    assert not lk.PatchDataset(Volumes(), SIZE, patches=1).draws_only_sample_rng
    assert not lk.PatchDataset(volumes, sampler=iter, patches=1).draws_only_sample_rng


def test_other_patches_are_other_data() -> None:
    volumes = torch.stack([coded(number) for number in range(3)])
    made = [
        lk.PatchDataset(volumes, SIZE, patches=2),
        lk.PatchDataset(volumes, SIZE, patches=2, seed=1),
        lk.PatchDataset(volumes, SIZE, patches=[1, 2, 3]),
        lk.PatchDataset(volumes, (3, 2, 3), patches=2),
        lk.PatchDataset(volumes, SIZE),
        lk.PatchDataset(volumes, SIZE, overlap=1),
        lk.PatchDataset(volumes + 1, SIZE, patches=2),
    ]
    assert len({data.fingerprint() for data in made}) == len(made)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "size is None and sampler is None, wanted one of them"),
        ({"size": 2, "sampler": iter, "patches": 1}, "wanted one of them"),
        ({"sampler": iter}, "a sampler is given without patches="),
        ({"size": 2, "patches": 2, "overlap": 1}, "overlap= is for a grid, and patches=2 asks for random patches"),
        ({"size": 2, "patches": 2, "shapes": SHAPE}, "shapes= is for a grid"),
        ({"sampler": iter, "patches": 2, "locations": True}, "locations=True with a sampler"),
        ({"size": 0, "patches": 2}, "size is 0, wanted an integer of at least 1"),
        ({"size": (2, 2.5, 1), "patches": 2}, "size is 2.5, wanted an integer of at least 1"),
        ({"size": 2, "patches": 0}, "patches is 0, wanted an integer of at least 1"),
        ({"size": 2, "patches": [1]}, r"patches are \[1\], wanted an integer, or 2 of at least 0"),
        ({"size": SIZE, "overlap": 2}, r"overlap is \(2, 2, 2\), wanted less than the size \(3, 2, 4\)"),
        ({"size": SIZE, "overlap": (1, 1)}, r"overlap is \(1, 1\), wanted an integer, or one for each axis"),
        ({"size": (3, 7, 4)}, r"volume 0 has shape \(7, 6, 5\), wanted at least the patches' \(3, 7, 4\). Pad it"),
        ({"size": 2, "shapes": [7, 6]}, r"shapes have shape \(2,\) and dtype int64, wanted integers \(2, 3\)"),
        ({"size": 2, "patches": 1, "block": 0}, "block is 0, wanted an integer of at least 1"),
        ({"size": 2, "patches": 1, "lanes": 0}, "lanes is 0, wanted an integer of at least 1"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"PatchDataset: .*{message}"):
        lk.PatchDataset([coded(0), coded(1)], **settings)


@pytest.mark.parametrize(
    ("volume", "settings", "error", "message"),
    [
        (coded(0), {"size": (3, 7, 4)}, ValueError, r"volume 0 has shape \(7, 6, 5\), wanted 3 axes of at least"),
        ("text", {"size": 2}, TypeError, "volume 0 has type str, wanted a tensor or array"),
        (torch.rand(3, 3), {"size": 2}, TypeError, r"volume 0 has shape \(3, 3\), wanted a tensor or array \(\*, S\)"),
        ({"a": np.eye(3)}, {"size": 2}, TypeError, r"no tensor or array of more than 3 axes in its fields \['a'\]"),
        ({"a": coded(0)}, {"size": 2, "fields": ["b"]}, KeyError, r"has the fields \['a'\], wanted \['b'\] too"),
        (
            (coded(0), coded(0, (7, 6, 4))),
            {"size": 2},
            ValueError,
            r"has shape \(7, 6, 5\) in field 0 and \(7, 6, 4\) in field 1, wanted one shape",
        ),
    ],
)
def test_volumes_that_cannot_be_cut_are_named(
    volume: Any, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        lk.PatchDataset([volume], patches=1, **settings)[0]


def test_a_volume_that_is_not_as_the_grid_expects_is_named() -> None:
    data = lk.PatchDataset([coded(0)], SIZE, shapes=(7, 6, 6))
    with pytest.raises(ValueError, match=r"volume 0 has shape \(7, 6, 5\), and had \(7, 6, 6\) when the grid was made"):
        data[0]


def test_no_volumes_are_no_patches() -> None:
    for data in (lk.PatchDataset([], SIZE, patches=3), lk.PatchDataset([], SIZE)):
        assert len(data) == 0
        with pytest.raises(IndexError):
            data[0]
        assert list(data) == []


class Kept(Volumes):
    """Volumes that are moved by a generator of their own, as those of MONAI are."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.RandomState(3)

    def __getitem__(self, number: int) -> Any:
        return {"image": coded(number), "shift": torch.tensor(self.rng.rand()), "id": number}


class Jitter:
    """A transform of patches with a generator of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def __call__(self, patch: Any) -> Any:
        return {**patch, "noise": torch.tensor(self.rng.random())}


def test_generators_that_volumes_and_transforms_keep_are_exact() -> None:
    def run(epochs: int = 2, **settings: Any) -> tuple[Any, list[tuple[Any, ...]]]:
        data = lk.PatchDataset(Kept(), SIZE, patches=PATCHES, transform=Jitter(), block=2, lanes=4)
        loader = make_loader(data, **settings)
        return loader, [row for _ in range(epochs) for row in rows(loader)]

    _, found = run()
    assert len({dict(row)["noise"] for row in found}) == 2 * COUNT * PATCHES
    assert len({dict(row)["shift"] for row in found}) == 2 * COUNT
    assert run(num_workers=2)[1] == found
    loader, _ = run(0)
    first = rows(itertools.islice(loader, 5))
    again, _ = run(0, num_workers=1, batch_size=3)
    again.load_state_dict(loader.state_dict())
    assert first + rows(again) + rows(again) == found
