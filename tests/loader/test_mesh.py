"""Meshes: the ranks of one data-parallel group read the same batches, groups together read each sample once."""

import pickle
import warnings
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import on_gloo
from torch.distributed.device_mesh import init_device_mesh

import loaderkit as lk

SIZE = 43
LENGTHS = [1 + number * 7 % 13 for number in range(SIZE)]
# The shape and names of a mesh. Its ranks along any other dimension than "dp" read the same data.
MESHES = {
    "tp": ((2, 2), ("dp", "tp")),
    "cp": ((2, 2), ("dp", "cp")),
    "pp": ((2, 2), ("pp", "dp")),
    "more dp": ((4, 1), ("dp", "tp")),
    "less dp": ((1, 4), ("dp", "tp")),
}
BEFORE, AFTER = ["tp", "cp", "pp"], ["tp", "more dp", "less dp"]


def read(shard: str, start: int) -> range:
    first, end = map(int, shard.split("-"))
    return range(first + start, end)


def joined(rows: list[list[int]]) -> torch.Tensor:
    return torch.tensor([number for row in rows for number in row])


def make_loader(kind: str, world: Any) -> Any:
    if kind == "stream":
        shards = [f"{first}-{min(first + 4, SIZE)}" for first in range(0, SIZE, 4)]
        return lk.Loader(lk.StreamDataset(shards, read, lanes=4), 2, world=world, steps=3)
    if kind == "packed":
        return lk.Loader(list(range(SIZE)), plan=lk.PackPlan(LENGTHS, 16), collate_fn=joined, world=world)
    return lk.Loader(list(range(SIZE)), 3, shuffle=True, collate_fn=torch.tensor, world=world)


KINDS = ["indexed", "packed", "stream"]


def run_meshes(rank: int) -> Any:
    """Take three batches on each mesh; resume their states on the others, and read what is left of the epoch."""
    meshes = {
        name: init_device_mesh("cpu", shape, mesh_dim_names=dimensions) for name, (shape, dimensions) in MESHES.items()
    }
    places = {name: lk.World.from_mesh(mesh["dp"]).rank for name, mesh in meshes.items()}
    found: dict[Any, Any] = {}
    for kind in KINDS:
        for before in BEFORE:
            loader = make_loader(kind, meshes[before]["dp"])
            batches = iter(loader)
            found[kind, before] = [next(batches).tolist() for _ in range(3)], loader.state_dict()
            for after in AFTER:
                resumed = make_loader(kind, meshes[after]["dp"].get_group() if after == "tp" else meshes[after]["dp"])
                resumed.load_state_dict(found[kind, before][1])
                steps = 3 if kind == "stream" else 10**9
                found[kind, before, after] = [batch.tolist() for _, batch in zip(range(steps), resumed, strict=False)]
    return places, found


@pytest.fixture(scope="module")
def runs() -> list[Any]:
    return on_gloo(4, run_meshes)


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_of_one_data_parallel_group_read_the_same_also_after_a_resume_on_another_mesh(
    runs: list[Any], kind: str, before: str
) -> None:
    states = [found[kind, before][1] for _, found in runs]
    assert all(state == states[0] for state in states)
    assert states[0].get("missing", []) == []
    heads = by_place(runs, before, lambda found: found[kind, before][0])
    head = samples(heads)
    assert len(heads) == 2
    assert len(head) >= 12
    assert max(Counter(head).values()) == 1
    for after in AFTER:
        rests = by_place(runs, after, lambda found, after=after: found[kind, before, after])
        rest = samples(rests)
        assert len(rests) == {"more dp": 4, "less dp": 1}.get(after, 2)
        assert len(rest) >= 6
        if kind == "stream":
            assert max(Counter(head + rest).values()) == 1  # an epoch of steps leaves out the rest
        else:
            assert Counter(head + rest) == Counter(range(SIZE))


def by_place(runs: list[Any], mesh: str, batches: Any) -> dict[int, Any]:
    """The batches of each data-parallel rank: all ranks at this place have the same."""
    found: dict[int, Any] = {}
    for places, results in runs:
        assert found.setdefault(places[mesh], batches(results)) == batches(results)
    return found


def samples(places: dict[int, Any]) -> list[int]:
    return [number for batches in places.values() for batch in batches for number in batch]


def look_at_meshes(rank: int) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    config = pickle.loads(pickle.dumps(lk.LoaderConfig(world=mesh["dp"])))  # type: ignore[arg-type]
    data = lk.DataModule(train=list(range(8)), loader=config)
    found = {
        "config": config.world,
        "on_host": lk.World.from_mesh(mesh["dp"]).on_host,
        "module": data.train_dataloader().world,
        "group": lk.World.from_group(mesh["dp"].get_group()),
    }
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loader = lk.Loader(list(range(8)), 2)
        list(loader)
        list(loader)
        list(lk.Loader(list(range(8)), 2, world=lk.World.detect()))
        list(lk.Loader(list(range(8)), 2, world=mesh["dp"]))
    found["said"] = [str(each.message) for each in said]
    model = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data_parallel", "tensor_parallel"))
    sampler = {"rank": model["data_parallel"].get_local_rank(), "num_replicas": 2}
    strategy = SimpleNamespace(distributed_sampler_kwargs=sampler, device_mesh=model)
    trained = lk.World.from_trainer(SimpleNamespace(strategy=strategy, num_devices=4))
    found["trainer"] = trained, trained.on_host, trained.group == lk.World.from_mesh(mesh["dp"]).group
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    found["rows"] = lk.World.from_mesh(both), lk.World.from_mesh(both["dp_shard"])
    one = dist.new_group([2])
    for name, make in (
        ("shared", lambda: lk.Loader([1], world=mesh)),
        ("outside", lambda: lk.World.from_group(one)),  # type: ignore[arg-type]
        ("number", lambda: lk.LoaderConfig(world=3)),  # type: ignore[arg-type]
    ):
        try:
            found[name] = make()
        except ValueError as error:
            found[name] = str(error)
    return found


def test_a_world_comes_from_a_mesh_or_a_group_and_a_mesh_without_one_is_warned_of() -> None:
    assert lk.DataModule  # imports lightning once, before the forks
    for rank, found in enumerate(on_gloo(4, look_at_meshes)):
        wanted = lk.World(rank // 2, 2)
        assert found["config"] == found["module"] == found["group"] == wanted
        assert found["on_host"] == 2
        assert found["trainer"] == (wanted, 4, True)
        assert found["rows"] == (lk.World(rank, 4), lk.World(rank % 2, 2))
        (said,) = found["said"]
        assert "a DeviceMesh with the dimension 'tp' (2 ranks), and each of the 4 ranks reads data of its own" in said
        assert "world=mesh['dp']" in said
        assert "ranks along ['tp'] read the same data. Give the data-parallel dimensions alone" in found["shared"]
        if rank != 2:
            assert f"rank {rank} of torch.distributed is not in the group of the ranks []" in found["outside"]
        assert "world is 3, wanted a World such as loaderkit.World(0, 2)" in found["number"]


def read_in_stages(rank: int) -> Any:
    """Stage 0 reads whole epochs before stage 1 goes on; the ranks of a stage end each epoch together."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    stage, store, found = mesh.get_local_rank("pp"), dist.distributed_c10d._get_default_store(), []
    for number in range(6):
        stream = lk.StreamDataset([f"{number}-{number + 9}", f"0-{number + 5}"], read, lanes=2)
        loader = lk.Loader(stream, 2, world=mesh["dp"], stop="shortest")
        batches = iter(loader)
        next(batches)
        if stage == 1:
            store.wait([f"stage-0-has-read-{number}-{rank % 2}"])
        found.append(1 + len(list(batches)))
        store.set(f"stage-{stage}-has-read-{number}-{rank % 2}", "")
    return found


def test_a_pipeline_stage_waits_for_no_other() -> None:
    """A stage fetches ahead of the next one, so ranks of one stage must meet each other, and not those of another."""
    assert on_gloo(4, read_in_stages) == 4 * [[3, 3, 4, 4, 5, 5]]
