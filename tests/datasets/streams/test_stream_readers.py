"""Streams of real sources: compressed lines and archives, generators, pages; and streams in a bare DataLoader."""

import gzip
import io
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data as torch_data
from drawing import equal
from stream_data import SIZES, expected, make_loader, make_stream, names, with_draws

import loaderkit as lk
from loaderkit.testing import assert_resumable

COUNT = 17  # samples a shard, give or take


def read_tar_gz(shard: str) -> Iterator[int]:
    with tarfile.open(shard, "r:gz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            yield int(file.read())


def generate(shard: str, start: int) -> Iterator[int]:
    base = int(shard) * 1000
    yield from range(base + start, base + COUNT + int(shard))


def write_jsonl_gz(path: Path, values: list[int]) -> None:
    with gzip.open(path, "wt") as file:
        file.writelines(f"{value}\n" for value in values)


def write_tar_gz(path: Path, values: list[int]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for number, value in enumerate(values):
            content = str(value).encode()
            member = tarfile.TarInfo(f"{number:05}.txt")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.fixture(params=["jsonl.gz", "tar.gz", "generator", "pages"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[list[str], Any]:
    """Five shards, and what reads them."""
    numbers = [str(number) for number in range(5)]
    if request.param == "generator":
        return numbers, generate
    if request.param == "pages":
        return numbers, lk.PageReader(lambda shard, page: list(generate(shard, 0))[5 * page : 5 * page + 5], 5)
    is_lines = request.param == "jsonl.gz"
    write, read = (write_jsonl_gz, lk.LineReader()) if is_lines else (write_tar_gz, lk.from_start(read_tar_gz))
    paths = [tmp_path / f"{number}.{request.param}" for number in numbers]
    for number, path in zip(numbers, paths, strict=True):
        write(path, list(generate(number, 0)))
    return [str(path) for path in paths], read


@pytest.mark.each_value
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_real_source_comes_once_and_resumes_exactly(source: tuple[list[str], Any], shuffle: bool) -> None:
    def make(num_workers: int = 0) -> Any:
        stream = lk.StreamDataset(*source, lanes=2, window=8, shuffle=shuffle)
        return lk.Loader(stream, 6, world=lk.World(), num_workers=num_workers)

    whole = list(make())
    wanted = Counter(value for number in range(5) for value in generate(str(number), 0))
    assert Counter(torch.cat(whole).tolist()) == wanted
    assert equal(list(make(2)), whole)
    assert_resumable(make, consumers=["loop"], epochs=1, stops=[1, 5, len(whole)])


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("sizes", [SIZES["with empty shards"], SIZES["one huge, many tiny"]])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_bare_dataloader_gets_each_sample_once(sizes: list[int], ranks: int, workers: int, monkeypatch: Any) -> None:
    got: list[list[int]] = []
    for _ in range(2):
        got.append([])
        for rank in range(ranks):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", str(ranks))
            loader: Any = torch_data.DataLoader(make_stream(sizes, transform=None), 4, num_workers=workers)
            got[-1] += [value for batch in loader for value in batch.tolist()]
    assert Counter(got[0]) == expected(sizes)
    assert got[0] == got[1]


@pytest.mark.slow
def test_workers_may_be_spawned() -> None:
    wanted = list(make_loader([9, 4]))
    assert equal(list(make_loader([9, 4], num_workers=1, multiprocessing_context="spawn")), wanted)


def test_single_samples_come_without_batches() -> None:
    stream = make_stream([3, 2], lanes=2, shuffle=False, transform=None)
    assert list(lk.Loader(stream, None, world=lk.World())) == [0, 1000, 1, 1001, 2]


def test_drop_last_leaves_a_lanes_last_batch_out() -> None:
    loader = make_loader([7, 4, 3], lanes=3, shuffle=False, drop_last=True)
    assert [batch[0].tolist() for batch in loader] == [[0, 1, 2, 3], [1000, 1001, 1002, 1003]]
    assert loader.cursor.epoch == 1


def test_leaving_an_epoch_early_goes_to_the_next() -> None:
    loader = make_loader([9, 9])
    next(iter(loader))
    assert (loader.cursor.epoch, loader.cursor.batches) == (0, 1)
    second = list(loader)
    assert sum(len(batch[0]) for batch in second) == 18
    fresh = make_loader([9, 9])
    fresh.seek(epoch=1)
    assert equal(list(fresh), second)


def fail_at_3(shard: str, start: int) -> Iterator[int]:
    for row in range(start, 9):
        if row == 3:
            raise OSError("connection reset")
        yield row


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_names_the_shard_and_the_sample(workers: int) -> None:
    loader = lk.Loader(lk.StreamDataset(["a"], fail_at_3, lanes=1), 2, num_workers=workers, world=lk.World())
    iterator = iter(loader)
    with pytest.raises(OSError, match="connection reset") as caught:
        list(iterator)
    told = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert "while reading sample 3 of shard 'a'" in told
    with pytest.raises(RuntimeError, match="this iterator is over"):
        next(iterator)


def divided(value: int) -> tuple[int, torch.Tensor]:
    return 1 // (value - 1002), torch.zeros(())


def test_a_failing_transform_names_its_sample() -> None:
    loader = make_loader([3, 9], lanes=1, shuffle=False, transform=divided)
    with pytest.raises(ZeroDivisionError) as caught:
        list(loader)
    assert "while transforming sample 2 of shard '1:9'" in caught.value.__notes__[0]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("steps", [None, 20])
def test_a_run_goes_on_after_an_error(steps: int | None, workers: int) -> None:
    """From the state before it: the batch that failed is read again."""
    broken = make_loader([9, 9], steps=steps, num_workers=workers, shuffle=False, transform=fail_once_at_1003)
    wanted = list(make_loader([9, 9], steps=steps, shuffle=False))
    got: list[Any] = []
    FAILING["now"] = True
    with pytest.raises(OSError):
        got.extend(broken)
    FAILING["now"] = False
    assert 0 < len(got) < len(wanted)
    broken.load_state_dict(broken.state_dict())
    assert equal(got + list(broken), wanted)


FAILING = {"now": False}


def fail_once_at_1003(value: int) -> tuple[int, torch.Tensor]:
    if value == 1003 and FAILING["now"]:
        raise OSError
    return with_draws(value)


def test_no_data_is_said_once() -> None:
    loader = make_loader([0, 0])
    with pytest.warns(
        UserWarning, match="an epoch without more batches: rank 0 of 1 found no samples in its part of 2 shards"
    ):
        assert list(loader) == []
    assert (list(loader), loader.cursor.epoch) == ([], 2)
    with pytest.warns(UserWarning, match="2 workers for 1 shards in 4 lanes of this rank: some workers are idle"):
        assert len(list(make_loader([3], num_workers=2))) == 1


def test_a_state_of_another_stream_is_refused() -> None:
    state = make_loader([9, 9]).state_dict()
    for other, message in (
        (make_loader([9, 8]), r"for shards '2 shards \(.*\)', this loader has '2 shards"),
        (
            make_loader([9, 9], lanes=2),
            "for order 'stream-1 in 4 lanes, shuffled by 3', this loader has 'stream-1 in 2",
        ),
        (make_loader([9, 9], window=5), "for order"),
        (make_loader([9, 9], seed=1), "for seed 5, this loader has 1"),
        (make_loader([9, 9], steps=4), "for epochs 'of the stream', this loader has 'of steps'"),
    ):
        with pytest.raises(ValueError, match=f"cannot resume: the state is {message}"):
            other.load_state_dict(state)
    with pytest.raises(ValueError, match="version 99, this loaderkit reads version 3"):
        make_loader([9, 9]).load_state_dict({**state, "version": 99})
    with pytest.raises(ValueError, match="not the state of a Loader of a stream"):
        make_loader([9, 9]).load_state_dict(lk.Loader([1, 2]).state_dict())


def test_resuming_into_a_shard_that_has_shrunk_is_a_clear_error() -> None:
    def loader_of(size: int, shuffle: bool) -> Any:
        def read(shard: str) -> Iterator[int]:
            return iter(range(size))

        stream = lk.StreamDataset(["a"], lk.from_start(read), lanes=1, window=8, shuffle=shuffle)
        return lk.Loader(stream, 3, world=lk.World())

    for shuffle, message in ((False, "shard 'a' has 2 samples, 6 of it"), (True, "6 samples were read from sample 0")):
        loader = loader_of(9, shuffle)
        iterator = iter(loader)
        next(iterator), next(iterator)
        again = loader_of(2, shuffle)
        again.load_state_dict(loader.state_dict())
        with pytest.raises(ValueError, match=f"cannot resume: {message}"):
            list(again)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shards": []}, "there are no shards"),
        ({"shards": ["a", "b", "a"]}, "shard 'a' comes twice"),
        ({"lanes": 0}, "lanes is 0, wanted an integer of at least 1"),
        ({"window": 1.5}, "window is 1.5, wanted an integer"),
        ({"seed": None}, "seed is None, wanted an integer"),
    ],
    ids=str,
)
def test_a_wrong_setting_of_a_stream_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lk.StreamDataset(**{"shards": names([3]), "read": generate, **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps is 0, wanted an integer of at least 1"),
        ({"stop": "last"}, "stop is 'last', wanted one of 'shortest', 'repeat', 'each', or None"),
        ({"steps": 2, "stop": "each"}, "steps=2 and stop='each' contradict each other"),
        ({"shuffle": True}, r"shuffle=True is for data with an index.*StreamDataset\(shuffle=True\)"),
        ({"order": lk.Sequential(3)}, "order=.* is for data with an index"),
        ({"tail": "pad"}, "tail='pad' is for data with an index"),
        ({"seed": 6}, "seed=6, and the stream has seed=5"),
    ],
    ids=str,
)
def test_a_setting_that_is_wrong_for_a_stream_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lk.Loader(make_stream([3]), **settings)


def test_what_only_data_with_an_index_has_is_refused() -> None:
    loader = lk.Loader(make_stream([3]), 2)
    with pytest.raises(TypeError, match=r"indices\(\) is for data with an index"):
        loader.indices(0, 0)
    with pytest.raises(TypeError, match=r"seek\(samples=4\) is for data with an index"):
        loader.seek(epoch=0, samples=4)
    with pytest.raises(ValueError, match="seek to epoch -1"):
        loader.seek(epoch=-1)
    with pytest.raises(TypeError, match=r"has no length.*Give the Loader steps="):
        len(loader)


@pytest.mark.parametrize(
    "settings", [{"steps": 3}, {"stop": "each"}, {"store": object()}], ids=lambda settings: next(iter(settings))
)
def test_what_only_streams_have_is_refused_for_other_data(settings: dict[str, Any]) -> None:
    name = next(iter(settings))
    with pytest.raises(ValueError, match=f"{name}=.* is for streams, and range has an index"):
        lk.Loader(range(9), 2, **settings)
