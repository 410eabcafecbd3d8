"""A cached sample is made once on a host, and nobody can tell by the batches whether it was made or read."""

import fcntl
import logging
import multiprocessing
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawing import Drawing, add_draws, draws, equal, generator_states
from leftovers import nothing_left
from PIL import Image
from torchvision import tv_tensors

import loaderkit as lk
from loaderkit.datasets.base import knows_lengths, reads_many
from loaderkit.sampling.fingerprint import fingerprint_of

SIZE, BATCH, ROOM = 40, 6, 1 << 20
FORK = multiprocessing.get_context("fork")


class Counted:
    """Samples that note in a file that they are made."""

    draws_nothing = True

    def __init__(self, folder: Path, size: int = SIZE, values: int = 100) -> None:
        self.log, self.size, self.values = folder / "made", size, values

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        with self.log.open("ab", buffering=0) as file:
            file.write(b"%d\n" % index)
        values = np.random.default_rng(index).integers(256, size=(2, self.values), dtype=np.uint8)
        return {"tensor": torch.from_numpy(values).t(), "array": values, "name": f"sample {index}"}

    def fingerprint(self) -> str:
        return "counted"

    def made(self) -> list[int]:
        """The samples made since the last call, sorted."""
        found = sorted(map(int, self.log.read_text().split())) if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return found


class CountedMany(Counted):
    """The same, read many at a time."""

    draws_nothing = True

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]


class Own:
    """A transform that draws from the sample's own generator alone."""

    draws_only_sample_rng = True

    def __call__(self, sample: Any) -> Any:
        return sample, lk.sample_rng().random(3)


def epochs(dataset: Any, count: int = 1, **settings: Any) -> list[Any]:
    loader = lk.Loader(dataset, BATCH, shuffle=True, **settings)
    return [list(loader) for _ in range(count)]


def in_child(work: Callable[..., Any], *given: Any) -> multiprocessing.process.BaseProcess:
    process = FORK.Process(target=work, args=given)
    process.start()
    return process


def ended(*processes: multiprocessing.process.BaseProcess) -> list[int | None]:
    for process in processes:
        process.join(60)
        if process.is_alive():
            process.kill()
            process.join(60)
    return [process.exitcode for process in processes]


@pytest.mark.each_value
@pytest.mark.parametrize("kind", [Counted, CountedMany])
@pytest.mark.parametrize(
    ("settings", "transform"),
    [
        ({}, add_draws),
        ({"num_workers": 2}, add_draws),
        ({"num_workers": 2, "engine": "torch"}, add_draws),
        ({"num_workers": 2, "engine": "threads"}, Own()),
        ({}, None),
    ],
)
def test_a_batch_is_the_same_without_a_cache_made_and_read(
    kind: Any, settings: dict[str, Any], transform: Any, tmp_path: Path
) -> None:
    """Draws of the transform included; each sample is made once."""
    raw = kind(tmp_path)
    whole = epochs(raw if transform is None else lk.MapDataset(raw, transform), 2)
    assert len(raw.made()) == 2 * SIZE
    data = lk.CachedDataset(raw, max_bytes=ROOM, transform=transform)
    assert equal(epochs(data, 2, **settings), whole)
    assert raw.made() == list(range(SIZE))
    assert equal(epochs(data, 2, **settings), whole)
    assert raw.made() == []
    assert data.cached_samples == SIZE


@pytest.mark.parametrize(("method", "in_folder"), [("fork", True), ("forkserver", True), ("spawn", False)])
def test_workers_share_it_however_they_are_started(method: str, in_folder: bool, tmp_path: Path) -> None:
    raw = Counted(tmp_path)
    whole = epochs(lk.MapDataset(raw, add_draws), 2)
    raw.made()
    data = lk.CachedDataset(raw, tmp_path / "cache" if in_folder else "memory", max_bytes=ROOM, transform=add_draws)
    settings: dict[str, Any] = {"multiprocessing_context": method, "persistent_workers": True}
    assert equal(epochs(data, 2, num_workers=2, **settings), whole)
    made = raw.made()
    assert sorted(set(made)) == list(range(SIZE))
    assert len(made) <= SIZE + 2 * 2 * in_folder  # each process compares two
    assert data.cached_samples == SIZE


def read_rank(data: Any, rank: int, epoch: int, world: int) -> None:
    loader = lk.Loader(data, BATCH, shuffle=True, world=lk.World(rank, world), num_workers=1)
    loader.seek(epoch=epoch)
    assert sum(len(batch[0]["name"]) for batch in loader) == SIZE // world


@pytest.mark.parametrize("in_folder", [False, True])
def test_ranks_share_it(in_folder: bool, tmp_path: Path) -> None:
    """Through a folder, each opens it by itself; in memory they share it if one process has made it."""
    raw = Counted(tmp_path)

    def make() -> Any:
        return lk.CachedDataset(raw, tmp_path / "cache" if in_folder else "memory", max_bytes=ROOM, transform=add_draws)

    shared = None if in_folder else make()
    for epoch in range(3):
        ranks = [in_child(lambda *given: read_rank(shared or make(), *given), rank, epoch, 2) for rank in range(2)]
        assert ended(*ranks) == [0, 0]
        made = raw.made()
        if epoch == 0:
            assert made == list(range(SIZE))
        else:
            assert len(made) == (4 if in_folder else 0)  # what the two workers compare


@pytest.mark.parametrize("stop", [0, 1, 5, 9])
def test_a_resume_continues_the_uninterrupted_run(stop: int, tmp_path: Path) -> None:
    """With the cache of the stopped run, with an empty one, and without a cache."""
    raw = Counted(tmp_path)

    def cached() -> Any:
        return lk.CachedDataset(raw, max_bytes=ROOM, transform=add_draws)

    whole = [batch for epoch in epochs(cached(), 2) for batch in epoch]
    assert len(whole) == 14
    data = cached()
    loader: Any = lk.Loader(data, BATCH, shuffle=True)
    batches = [batch for _, batch in zip(range(stop), (b for _ in range(2) for b in loader), strict=False)]
    assert equal(batches, whole[:stop])
    state = loader.state_dict()
    for later in (data, cached(), pickle.loads(pickle.dumps(data))):
        resumed: Any = lk.Loader(later, BATCH, shuffle=True, num_workers=2 * (stop == 5))
        resumed.load_state_dict(state)
        rest = [batch for _ in range(2) for batch in resumed][: len(whole) - stop]
        assert equal(rest, whole[stop:])
    lk.Loader(raw, BATCH, shuffle=True).load_state_dict(state)  # the cache is no part of the data's identity


def test_a_dataset_that_draws_gives_the_same_samples_in_each_epoch_and_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A sample's draws depend on its index alone, so that a run with an empty cache resumes exactly."""
    first = lk.CachedDataset(Drawing(SIZE), max_bytes=ROOM, transform=add_draws)
    direct = {index: first[index][0] for index in random.Random(3).sample(range(SIZE), SIZE)}
    assert [record.message for record in caplog.records if "draws random numbers" in record.message] == [
        f"CachedDataset: Drawing draws random numbers to make sample {next(iter(direct))}, and the cache keeps what they make: it is "
        "the same in each epoch. Move what is random to CachedDataset(transform=...)."
    ]
    second = lk.CachedDataset(Drawing(SIZE), max_bytes=ROOM)
    for seed in (1, 2):
        for batch in lk.Loader(second, 1, collate_fn=list, shuffle=True, seed=seed):
            ((index, drawn),) = batch
            assert equal(drawn, direct[index][1])
    assert len({tuple(drawn.tolist()) for _, drawn in direct.values()}) == SIZE


class Quiet(Drawing):
    """Draws only what it is told to."""

    def __init__(self, size: int, draw: Callable[[], Any] | None) -> None:
        super().__init__(size)
        self.draw = draw

    def __getitem__(self, index: int) -> Any:
        return index, None if self.draw is None else self.draw()


@pytest.mark.parametrize(
    "draw",
    [
        None,
        lambda: torch.rand(()),
        lambda: np.random.rand(),
        lambda: np.random.randn(),
        random.random,
        lambda: lk.sample_rng().random(),
    ],
)
def test_each_generator_is_watched_and_left_as_it_was(draw: Any, caplog: pytest.LogCaptureFixture) -> None:
    data = lk.CachedDataset(Quiet(SIZE, draw), max_bytes=ROOM)
    before = generator_states()
    assert [data[index][0] for index in range(SIZE)] == list(range(SIZE))
    assert generator_states() == before
    assert len(caplog.records) == (draw is not None)


def test_a_full_cache_makes_the_rest_each_time_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raw, room = Counted(tmp_path), 10_000
    whole = epochs(raw, 2)
    raw.made()
    for where in ("memory", tmp_path / "cache"):
        data = lk.CachedDataset(raw, where, max_bytes=room)
        copy = pickle.loads(pickle.dumps(data))
        assert equal(epochs(data, 2), whole)
        assert 5 < data.cached_samples == copy.cached_samples < SIZE - 5
        assert room - 1000 < data.cached_bytes <= room
        raw.made()
        assert equal(epochs(copy, 1), whole[:1])
        assert len(raw.made()) == SIZE - data.cached_samples + 2 * (where != "memory")
        if where != "memory":
            assert [path.stat().st_size for path in (tmp_path / "cache").iterdir()] == [data.cached_bytes]
    said = [record.message for record in caplog.records]
    assert [" is full: " in text for text in said] == [True, True]
    assert "of 40 samples are in max_bytes=10,000. The others are made each time" in said[0]


def read_for_ever(data: Any, seed: int) -> None:
    order = random.Random(seed)
    while True:
        data[order.randrange(len(data))]


def kill_writers(data: Any, wanted: list[Any], draw: random.Random) -> int:
    """Kill pairs of processes that fill a cache; return how many were killed while they wrote a sample."""
    head, entry = data.cached_bytes, wanted[0]["array"].nbytes * 2
    for number in range(12):
        processes = [in_child(read_for_ever, data, 2 * number + one) for one in range(2)]
        before, deadline = data.cached_bytes, time.monotonic() + 30
        while data.cached_bytes == before and data.cached_samples < len(data) and time.monotonic() < deadline:
            time.sleep(1e-4)
        time.sleep(draw.random() * 0.002)
        for process in processes:
            assert process.pid
            os.kill(process.pid, signal.SIGKILL)
        assert ended(*processes) == [-signal.SIGKILL] * 2
        stored = data.cached_samples
        assert stored * entry <= data.cached_bytes - head <= (1 << 27) - head
        for index in draw.sample(range(len(data)), 3):
            assert equal(data[index], wanted[index])
        assert stored <= data.cached_samples <= len(data)
    lost = (data.cached_bytes - head) // entry - data.cached_samples
    assert equal([data[index] for index in range(len(data))], wanted)
    assert data.cached_samples == len(data)
    return lost


def test_kills_leave_no_damaged_entry_and_no_lock(tmp_path: Path) -> None:
    """Processes are killed while they write samples of 2 MB; what others read is right, and all is stored in the end."""
    raw, draw = Counted(tmp_path, size=30, values=1 << 19), random.Random(0)
    wanted = [raw[index] for index in range(len(raw))]
    lost = 0
    for attempt in range(5):
        data = lk.CachedDataset(raw, tmp_path / f"cache{attempt}", max_bytes=1 << 27)
        lost += kill_writers(data, wanted, draw)
        if lost:
            return
    pytest.fail("no kill met a process that was writing")


def test_killed_workers_of_a_loader_leave_the_cache_whole(tmp_path: Path) -> None:
    raw = Counted(tmp_path, values=1 << 18)
    data = lk.CachedDataset(raw, max_bytes=1 << 27)
    whole = epochs(raw)
    before = set(multiprocessing.active_children())
    loader = lk.Loader(data, BATCH, shuffle=True, num_workers=2)
    batches = iter(loader)
    next(batches)
    for worker in set(multiprocessing.active_children()) - before:
        assert worker.pid
        os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError):
        list(batches)
    assert data.cached_samples > 0
    assert equal(epochs(data), whole)
    assert data.cached_samples == SIZE


def test_damage_is_found_and_the_sample_made_again(tmp_path: Path) -> None:
    """What a power cut can leave: pages of zeros, a shorter file, records without entries, entries without records."""
    raw = Counted(tmp_path)
    wanted = [raw[index] for index in range(SIZE)]
    draw = random.Random(0)

    def opened() -> tuple[Any, Path]:
        return lk.CachedDataset(raw, tmp_path / "cache", max_bytes=ROOM), next((tmp_path / "cache").iterdir())

    (tmp_path / "cache").mkdir()
    data = lk.CachedDataset(raw, tmp_path / "cache", max_bytes=ROOM)
    for index in range(SIZE):
        data[index]
    path = opened()[1]
    content = path.read_bytes()
    damaged = 0
    for _ in range(60):
        changed = bytearray(content)
        start = draw.randrange(64, len(content))
        if draw.random() < 0.2:
            del changed[max(start, 64 + 24 * SIZE + 64) :]
        elif draw.random() < 0.4:
            changed[start : start + 512] = bytes(len(changed[start : start + 512]))
        else:
            changed[start] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        raw.made()
        data, _ = opened()
        assert equal([data[index] for index in range(SIZE)], wanted)
        damaged += len(raw.made()) > 2  # two are compared
        assert equal([data[index] for index in range(SIZE)], wanted)
    assert damaged > 20
    for head in (b"", b"LKENTRY1", bytes(len(content)), b"x" * 4000):
        path.write_bytes(head)
        if len(head) < 1000:  # its process was killed while it began
            assert equal([opened()[0][index] for index in range(SIZE)], wanted)
        else:
            with pytest.raises(ValueError, match=r"is damaged or no cache: .* Delete it"):
                opened()


class Other(Counted):
    draws_nothing = True

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) | {"name": "other"}


Other.__qualname__ = "Counted"


@pytest.mark.parametrize("workers", [0, 2])
def test_entries_of_another_version_are_never_read(workers: int, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    room: dict[str, Any] = {"max_bytes": ROOM}
    epochs(lk.CachedDataset(Counted(tmp_path), folder, **room))
    changed = Other(tmp_path)
    with pytest.raises(
        ValueError, match=r"sample \d+ in .*lkcache differs from what the dataset makes now.* Give another version="
    ):
        epochs(lk.CachedDataset(changed, folder, **room), num_workers=workers)
    skip = lk.BadSamples("skip", max_rate=0.5)
    with pytest.raises(lk.BadSamplesError, match="differs from what"):
        epochs(lk.CachedDataset(changed, folder, **room), num_workers=workers, bad_samples=skip)
    for other in (
        lk.CachedDataset(changed, folder, version="2", **room),
        lk.CachedDataset(Counted(tmp_path, SIZE - 1), folder, **room),
        lk.CachedDataset(CountedMany(tmp_path), folder, **room),
    ):
        assert other.cached_samples == 0
    assert len(list(folder.iterdir())) == 4
    assert lk.CachedDataset(Counted(tmp_path), folder, **room).cached_samples == SIZE


def test_equal_samples_may_pickle_differently(tmp_path: Path) -> None:
    """As sets of strings do, whose order differs from process to process."""

    class Sets:
        draws_nothing = True

        def __init__(self, words: Any) -> None:
            self.words = words

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return dict.fromkeys(self.words)

    Sets.__qualname__ = "Sets"
    first = lk.CachedDataset(Sets("abc"), tmp_path, max_bytes=ROOM)
    assert first[0] == dict.fromkeys("abc")
    second = lk.CachedDataset(Sets("cba"), tmp_path, max_bytes=ROOM)
    assert list(second[0]) == ["a", "b", "c"]


class Failing(Counted):
    """Some samples fail, until a file says that they do not."""

    def __getitem__(self, index: int) -> Any:
        if index % 10 == 3 and not (self.log.parent / "mended").exists():
            raise KeyError("broken")
        return super().__getitem__(index)


class FailingMany(Failing):
    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("kind", [Failing, FailingMany])
def test_an_error_is_not_stored_and_names_the_sample_as_before(kind: Any, tmp_path: Path) -> None:
    raw = kind(tmp_path)
    data = lk.CachedDataset(raw, max_bytes=ROOM, transform=add_draws)
    plain = lk.MapDataset(raw, add_draws)
    settings: dict[str, Any] = {"num_workers": 0, "bad_samples": lk.BadSamples("skip", max_rate=0.5)}
    found = []
    for dataset in (plain, data, data):
        loader: Any = lk.Loader(dataset, BATCH, **settings)
        found.append((list(loader), [(bad.index, bad.error) for bad in loader.bad_samples]))
        notes = []
        try:
            list(lk.Loader(dataset, BATCH))
        except KeyError as error:
            notes = error.__notes__
        found[-1] += (notes,)
    assert len(found[0][1]) == 4
    for (batches, bad, plain_notes), (own_batches, own_bad, notes) in zip(found[:1] * 2, found[1:], strict=True):
        assert equal(own_batches, batches)
        assert own_bad == bad
        # The first samples of a process are made one by one, which names the sample instead of the batch.
        exact = ["loaderkit: raised while reading sample 3 (epoch 0, position 3)."]
        assert notes in ([plain_notes] if kind is Failing else [plain_notes, exact])
    assert data.cached_samples == SIZE - 4
    (tmp_path / "mended").touch()
    assert equal(list(lk.Loader(data, BATCH)), list(lk.Loader(plain, BATCH)))


def test_an_error_among_many_names_its_row(tmp_path: Path) -> None:
    """Where the dataset reads many by one call, and says which sample it is at."""
    texts = lk.RecordDataset([str(n) if n != 17 else "oops" for n in range(SIZE)], transform=int)
    data = lk.CachedDataset(texts, max_bytes=ROOM)
    data[16]
    data[18]
    with pytest.raises(ValueError, match="oops") as caught:
        list(lk.Loader(data, SIZE, shuffle=True))
    assert caught.value.__notes__[0].startswith("loaderkit: raised while reading sample 17 (epoch 0")


class Holds:
    """A dataset of one value."""

    draws_nothing = True

    def __init__(self, value: Any) -> None:
        self.value = value

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self.value


def test_every_kind_of_sample_is_read_as_it_was() -> None:
    base = torch.arange(24.0).reshape(2, 3, 4)
    values = [
        base,
        base.permute(2, 0, 1),
        base[:, :, 1],
        base.bfloat16(),
        base.to_sparse(),
        torch.zeros(0, 3),
        torch.tensor(True),
        base.clone().requires_grad_(),
        tv_tensors.Image(torch.zeros(3, 4, 5, dtype=torch.uint8)),
        tv_tensors.BoundingBoxes(torch.ones(2, 4), format="XYXY", canvas_size=(9, 9)),
        np.arange(6).reshape(2, 3).T,
        np.array(["a", None], dtype=object),
        np.float32(1.5),
        Image.new("RGB", (3, 2), (1, 2, 3)),
        {"text": "a\ud800", "bytes": b"x" * 10_000, "none": None, "list": [1, (2, 3.5)]},
        bytearray(b"abc"),
    ]
    for value in values:
        data = lk.CachedDataset(Holds(value), max_bytes=ROOM)
        made, read = data[0], data[-1]
        assert data.cached_samples == 1
        for found in (made, read):
            assert type(found) is type(value)
            if isinstance(value, torch.Tensor):
                assert (found.dtype, found.shape, found.layout) == (value.dtype, value.shape, value.layout)
                assert found.requires_grad == value.requires_grad
                assert torch.equal(found.to_dense(), value.to_dense())
                assert value.layout != torch.strided or found.stride() == value.stride() or not value.is_contiguous()
            elif isinstance(value, np.ndarray):
                assert np.array_equal(found, value)
            else:
                assert found == value
    row = lk.CachedDataset(Holds(torch.zeros(1 << 20)[:8]), max_bytes=ROOM)
    assert len(row[0]) == 8
    assert row.cached_bytes < 1000  # not the whole storage


def test_a_change_of_a_read_sample_does_not_reach_the_cache(tmp_path: Path) -> None:
    data = lk.CachedDataset(Counted(tmp_path), max_bytes=ROOM)
    for _ in range(3):
        sample = data[0]
        assert sample["array"].any()
        assert sample["tensor"].any()
        sample["array"][:] = 0
        sample["tensor"].zero_()


def test_a_sample_that_does_not_pickle_is_named() -> None:
    data = lk.CachedDataset(Holds(lambda: 1), max_bytes=ROOM)
    with pytest.raises(TypeError, match=r"sample 0 \(a function\) cannot be stored: .*CachedDataset\(transform="):
        data[0]


def test_what_cannot_be_cached_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="the dataset is of type generator, wanted a dataset with a length"):
        lk.CachedDataset((n for n in range(3)), max_bytes=ROOM)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_bytes is '1GB', wanted an integer"):
        lk.CachedDataset([1], max_bytes="1GB")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_bytes is 100, wanted at least 1,024: 24 bytes for each of 40 samples"):
        lk.CachedDataset(range(40), max_bytes=100)
    data = lk.CachedDataset(range(40), max_bytes=ROOM)
    with pytest.raises(IndexError, match="index 40 in a dataset of 40 samples"):
        data[40]
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        lk.CachedDataset(range(40), tmp_path / "file", max_bytes=ROOM)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_a_file_of_another_user_is_not_read(tmp_path: Path) -> None:
    data = lk.CachedDataset(range(40), tmp_path / "cache", max_bytes=ROOM)
    assert data[3] == 3
    (path,) = (tmp_path / "cache").iterdir()
    assert path.stat().st_mode & 0o77 == 0
    os.chown(path, 12345, 12345)
    with pytest.raises(PermissionError, match=r"belongs to user 12345.*Give a folder of your own"):
        lk.CachedDataset(range(40), tmp_path / "cache", max_bytes=ROOM)


def test_it_has_what_the_dataset_has(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(12).reshape(6, 2))
    shards = lk.CachedDataset(lk.NpyDataset(tmp_path / "a.npy"), max_bytes=ROOM)
    assert shards.shard_sizes.tolist() == [6]
    assert shards.fingerprint() == lk.NpyDataset(tmp_path / "a.npy").fingerprint()
    assert reads_many(shards)
    assert lk.CachedDataset([1, 2, 3], max_bytes=ROOM).fingerprint() == fingerprint_of([1, 2, 3])
    plain = lk.CachedDataset([{"x": 1}, {"x": 2}], max_bytes=ROOM)  # nothing tells it from other records
    for name in ("shard_sizes", "fingerprint", "__getitems__", "lengths", "no_such_attribute"):
        assert not hasattr(plain, name)
    assert not knows_lengths(plain)


def test_memory_is_freed_and_a_copy_that_outlives_its_process_starts_empty(tmp_path: Path) -> None:
    with nothing_left():
        data = lk.CachedDataset(Counted(tmp_path), max_bytes=ROOM)
        data[0]
        copy = pickle.loads(pickle.dumps(data))
        assert copy.cached_samples == 1
        del data
        assert copy.cached_samples == 1
        del copy
    made = f"import sys, pickle, loaderkit as lk; sys.stdout.buffer.write(pickle.dumps(lk.CachedDataset(range(9), max_bytes={ROOM})))"
    packed = subprocess.run([sys.executable, "-c", made], capture_output=True, check=True).stdout
    alone = pickle.loads(packed)
    assert [alone[index] for index in range(9)] == list(range(9))
    assert pickle.loads(pickle.dumps(alone)).cached_samples == 9


def test_a_copy_never_opens_another_file_in_the_same_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = lk.CachedDataset(range(40), max_bytes=ROOM)
    packed = pickle.dumps(first)
    del first
    second = lk.CachedDataset([7] * 40, max_bytes=ROOM)  # takes its descriptor
    second[3]
    copy = pickle.loads(packed)
    assert copy[3] == 3
    assert "starts an empty cache of its own" in caplog.text


def test_without_memfd_the_cache_is_a_file_that_its_process_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    raw = Counted(tmp_path)
    data = lk.CachedDataset(raw, max_bytes=ROOM)
    assert len(list(tmp_path.glob("loaderkit-samples-*"))) == 1
    epochs(data, num_workers=2, engine="torch")
    assert raw.made() == list(range(SIZE))
    assert pickle.loads(pickle.dumps(data)).cached_samples == SIZE
    del data
    assert not list(tmp_path.glob("loaderkit-samples-*"))


def in_little_space(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("loaderkit").addHandler(handler)
    data = lk.CachedDataset([bytes([n]) * 500 for n in range(SIZE)], folder, max_bytes=ROOM)
    for _ in range(2):
        assert [data[index] for index in range(SIZE)] == [bytes([n]) * 500 for n in range(SIZE)]
    assert 0 < data.cached_samples < 9
    assert len(said) == 1
    assert "no space is left for " in said[0]
    assert "This process adds no more samples" in said[0]


def test_without_space_samples_are_made_each_time(tmp_path: Path) -> None:
    assert ended(in_child(in_little_space, tmp_path / "cache")) == [0]


def test_a_process_that_holds_the_lock_does_not_stop_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = lk.CachedDataset(range(SIZE), tmp_path, max_bytes=ROOM)
    data[0]
    (path,) = tmp_path.iterdir()
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert [data[index] for index in range(SIZE)] == list(range(SIZE))
    assert data.cached_samples == 1
    assert caplog.text.count("another process has held the lock") == 1  # it waits once


def test_samples_that_a_dataset_gains_later_are_made_each_time(tmp_path: Path) -> None:
    raw = Counted(tmp_path)
    data = lk.CachedDataset(raw, max_bytes=ROOM)
    epochs(data)
    raw.size = 2 * SIZE
    raw.made()
    for _ in range(2):
        assert [data[index]["name"] for index in range(2 * SIZE)] == [f"sample {index}" for index in range(2 * SIZE)]
        assert raw.made() == list(range(SIZE, 2 * SIZE))


def test_a_deleted_file_is_used_until_its_end(tmp_path: Path) -> None:
    data = lk.CachedDataset(range(SIZE), tmp_path, max_bytes=ROOM)
    data[0]
    (path,) = tmp_path.iterdir()
    path.unlink()
    assert [data[index] for index in range(SIZE)] == list(range(SIZE))
    assert data.cached_samples == SIZE
    assert lk.CachedDataset(range(SIZE), tmp_path, max_bytes=ROOM).cached_samples == 0


def test_draws_in_a_collate_are_those_without_a_cache(tmp_path: Path) -> None:
    raw = Counted(tmp_path)

    def collate(samples: list[Any]) -> Any:
        return samples, draws()

    plain = epochs(raw, collate_fn=collate)
    data = lk.CachedDataset(raw, max_bytes=ROOM)
    assert equal(epochs(data, collate_fn=collate), plain)
    assert equal(epochs(data, collate_fn=collate), plain)
