"""What data, orders and plans are is said by their repr, which reads nothing."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data as torch_data
from datasets_made import KINDS, public_datasets

import loaderkit as lk
from loaderkit.sampling.samplers import as_order

READS = {"open", "os.listdir", "os.scandir", "socket.connect", "socket.getaddrinfo", "mmap.__new__"}
seen: list[str] | None = None


def watch(event: str, arguments: Any) -> None:
    if seen is not None and event in READS:
        seen.append(event)


sys.addaudithook(watch)


@contextmanager
def nothing_is_read() -> Iterator[None]:
    global seen
    seen = []
    yield
    found, seen = seen, None
    assert found == []


def test_the_watch_sees_a_read(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="open"), nothing_is_read():
        (tmp_path / "file").write_text("text")


@pytest.mark.parametrize("name", [name for name in KINDS if name in public_datasets()])
def test_a_dataset_names_its_type_and_its_size(name: str, tmp_path: Path) -> None:
    dataset = KINDS[name](tmp_path)
    assert type(dataset).__name__ == name
    size, sizes = len(dataset), getattr(dataset, "shard_sizes", None)
    with nothing_is_read():
        found = repr(dataset)
    wanted = f"{type(dataset).__name__}: {size:,} sample{'s' * (size != 1)}"
    assert found == (wanted if sizes is None else f"{wanted} in {len(sizes):,} shard{'s' * (len(sizes) != 1)}")


def test_preview_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from loaderkit.cli.command import main

    path = tmp_path / "numbers.jsonl"
    path.write_text("1\n2\n3\n")
    assert main(["preview", str(path)]) == 0
    assert (
        capsys.readouterr().out.splitlines()[0] == repr(lk.JsonlDataset(path)) == "JsonlDataset: 3 samples in 1 shard"
    )


LENGTHS = [3, 1, 2] * 500
SAID = {
    "Sequential(length=1500)": lambda: lk.Sequential(1500),
    "Shuffled(length=1500, seed=3)": lambda: lk.Shuffled(1500, seed=3),
    "Subset: 1 sample an epoch": lambda: lk.Subset([7]),
    "Subset: 2 samples an epoch, shuffled (seed 4)": lambda: lk.Subset([7, 9], shuffle=True, seed=4),
    "Weighted: 1,500 samples an epoch": lambda: lk.Weighted(LENGTHS),
    "ShardOrder: 1,700 samples an epoch in 2 shards, shuffled in 2 lanes by 64 (seed 5)": (
        lambda: lk.ShardOrder([1000, 700], seed=5, lanes=2, window=64)
    ),
    "Mixture: 40 samples an epoch of 2 sources (0.75 of 1,000, 0.25 of 20)": (
        lambda: lk.Mixture([1000, 20], [3, 1], size=40)
    ),
    "LengthBuckets: 1,500 samples, shuffled by 1,024; ranks 1, batch size 8": lambda: lk.LengthBuckets(LENGTHS, 8),
    "TokenBudget: 1,500 samples, in order by 1,024; ranks 1, max_tokens 64": (
        lambda: lk.TokenBudget(LENGTHS, max_tokens=64, shuffle=False)
    ),
    "PackPlan: 1,500 samples, shuffled by 1,024; ranks 1, batch size 2, row_length 16": (
        lambda: lk.PackPlan(LENGTHS, row_length=16, batch_size=2)
    ),
    "Stages: 52 samples in 2 stages of books: 20, web: 60": lambda: lk.Stages(
        [lk.Stage({"web": 3, "books": 1}, 8, samples=40), lk.Stage("books", 4, samples=12)], {"web": 60, "books": 20}
    ),
    "StepLog('runs/steps.log')": lambda: lk.StepLog("runs/steps.log"),
}


@pytest.mark.parametrize("wanted", SAID)
def test_orders_plans_and_logs_say_what_they_are(wanted: str) -> None:
    made = SAID[wanted]()
    with nothing_is_read():
        assert repr(made) == wanted


def test_the_repr_of_an_order_draws_nothing_from_its_sampler() -> None:
    class Once(torch_data.Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            raise RuntimeError("drawn")

    assert repr(as_order(Once(), seed=0)) == "SamplerOrder of a Once"


@pytest.mark.parametrize("kind", [lk.ArrayDataset, lk.ConcatDataset, lk.Mixture, lk.Subset, lk.PackPlan])
def test_an_object_that_is_half_made_has_a_repr(kind: type) -> None:
    assert kind.__name__ in repr(kind.__new__(kind))
