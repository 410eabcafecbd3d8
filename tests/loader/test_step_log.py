"""The log of steps: it tells what each rank was trained on, whatever happened in between."""

import itertools
import json
import multiprocessing
import os
import pickle
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import step_log_job as job
import torch

import loaderkit as lk

SIZE = 23
LENGTHS = [1 + 7 * number % 13 for number in range(SIZE)]


class Run:
    """A training of several ranks in this process: it logs its steps, and remembers what each rank got."""

    def __init__(self, path: Path, *, accumulate: int = 1, **settings: Any) -> None:
        self.path, self.accumulate, self.settings = path, accumulate, {"shuffle": True, "seed": 3, **settings}
        self.seen: dict[int, list[list[list[int]]]] = {}  # for each step and batch, what each rank got
        self.step = 0
        self.state: Any = None

    def make(self, rank: int, ranks: int, batch_size: int) -> lk.Loader:
        settings = dict(self.settings)
        if plan := settings.pop("plan", None):
            settings |= {"plan": plan(batch_size), "shuffle": False}
            batch_size = 1
        return lk.Loader(range(SIZE), batch_size, world=lk.World(rank, ranks), **settings)

    def train(self, ranks: int, batch_size: int, steps: int) -> None:
        """Train a few steps in a new process, so to say."""
        loaders = [self.make(rank, ranks, batch_size) for rank in range(ranks)]
        logs = [lk.StepLog(self.path) for _ in loaders]
        for loader in loaders:
            if self.state is not None:
                loader.load_state_dict(self.state)
        iterators: list[Any] = [iter(()) for _ in loaders]
        for _ in range(steps):
            step: list[list[list[int]]] = []
            for _ in range(self.accumulate):
                batches = []
                for row, loader in enumerate(loaders):
                    batch = next(iterators[row], None)
                    if batch is None:
                        iterators[row] = iter(loader)
                        batch = next(iterators[row])
                    batches.append(batch.tolist())
                step.append(batches)
            for log, loader in zip(logs, loaders, strict=True):
                log.record(loader, self.step)
            self.seen[self.step] = step
            self.step += 1
        self.state = loaders[0].state_dict()

    def check(self, steps: Any = None) -> int:
        log, any_loader = lk.StepLog(self.path), self.make(0, 1, 2)
        assert log.steps() == sorted(self.seen)
        for step in steps or self.seen:
            loader = (self.settings.get("plan") and self.make(0, 1, self.batch_at(step))) or any_loader
            batches = self.seen[step]
            found = log.locate(loader, step)
            assert len(log.find(step)) == len(batches)
            for rank in range(len(batches[0])):
                mine = [each.indices.tolist() for each in found if each.rank == rank]
                assert mine == [ranks[rank] for ranks in batches], step
            again = log.replay(loader, step, rank=len(batches[0]) - 1)
            assert [batch.tolist() for batch in again] == [ranks[-1] for ranks in batches]
        return len(self.seen)

    def batch_at(self, step: int) -> int:
        return self.batch_sizes[step]

    batch_sizes: dict[int, int]


@pytest.mark.parametrize("tail", ["keep", "drop", "pad"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_log_tells_what_each_rank_got_across_resumes_on_other_ranks(
    accumulate: int, tail: str, tmp_path: Path
) -> None:
    checked = 0
    for number, (first, second) in enumerate(itertools.product([(1, 4), (2, 3), (3, 2)], repeat=2)):
        run = Run(tmp_path / f"{number}.log", accumulate=accumulate, tail=tail)
        for geometry, steps in ((first, 2), (second, 3), (first, 5)):
            run.train(*geometry, steps)
        checked += run.check()
    assert checked == 90


@pytest.mark.parametrize("kind", ["buckets", "budget", "packed"])
def test_the_log_tells_it_for_plans_by_length_whose_batch_size_changes_in_a_window(kind: str, tmp_path: Path) -> None:
    plans: dict[str, Any] = {
        "buckets": lambda batch: lk.LengthBuckets(LENGTHS, batch, window=12, seed=1),
        "budget": lambda batch: lk.TokenBudget(LENGTHS, 13 * batch, window=12, seed=1),
        "packed": lambda batch: lk.PackPlan(LENGTHS, 13, batch, window=12, seed=1),
    }
    settings: dict[str, Any] = {"collate_fn": lambda rows: torch.tensor([x for row in rows for x in row])}
    run = Run(tmp_path / "log", plan=plans[kind], **(settings if kind == "packed" else {}))
    run.batch_sizes = {}
    for ranks, batch, steps in ((1, 2, 2), (2, 1, 2), (1, 3, 4)):
        run.batch_sizes |= dict.fromkeys(range(run.step, run.step + steps), batch)
        run.train(ranks, batch, steps)
    assert run.check() == 8
    with pytest.raises(ValueError, match=r"a step of all ranks had \d+ samples or tokens, this loader's plan has \d+"):
        lk.StepLog(run.path).locate(run.make(0, 1, 1), 7)


def test_steps_that_are_repeated_after_a_resume_replace_the_earlier_ones(tmp_path: Path) -> None:
    run = Run(tmp_path / "log")
    run.train(2, 2, 3)
    state, step = run.state, run.step
    run.train(2, 2, 4)
    run.state, run.step = state, step  # back to the checkpoint, on other ranks
    for late in range(step, 7):
        del run.seen[late]
    run.train(1, 3, 2)
    assert run.check() == 5  # of the steps after the last one nothing is left


def test_the_log_follows_skips_seeks_and_a_state_that_is_loaded_in_between(tmp_path: Path) -> None:
    loader, log, seen = lk.Loader(range(SIZE), 2, shuffle=True), lk.StepLog(tmp_path / "log"), {}

    def train(first: int, steps: int) -> None:
        for step, batch in zip(range(first, first + steps), loader, strict=False):
            log.record(loader, step)
            seen[step] = batch.tolist()

    train(0, 3)
    saved = loader.state_dict()
    loader.skip(epoch=0, steps=range(4, 6))
    train(3, 3)
    loader.seek(epoch=5, samples=7)
    train(6, 2)
    loader.load_state_dict(saved)
    train(8, 20)
    assert len(seen) > 10
    for step, batch in seen.items():
        assert log.locate(lk.Loader(range(SIZE), 9, shuffle=True), step)[0].indices.tolist() == batch
    assert log.stretches(loader, 0, 5) == ((0, 0, 16),)  # what lies between was left out already
    assert log.stretches(loader, 2, 3) == ((0, 4, 8),)


@pytest.mark.parametrize("ahead", ["workers", "device"])
def test_what_counts_is_what_was_yielded(ahead: str, tmp_path: Path) -> None:
    loader = lk.Loader(range(SIZE), 2, shuffle=True, num_workers=2 if ahead == "workers" else 0)
    if ahead == "device":
        loader = lk.DeviceLoader(loader, "cpu", depth=4, transform=lambda batch: batch + 100 * torch.rand(()))
    log, seen = lk.StepLog(tmp_path / "log"), []
    for step, batch in enumerate(loader):
        log.record(loader, step)
        seen.append(batch)
    assert log.steps() == list(range(len(seen))) == list(range(12))
    for step, batch in enumerate(seen):
        [again] = log.replay(loader, step)
        assert torch.equal(again, batch)


def test_golden_bytes(tmp_path: Path) -> None:
    """The form of the file is a public contract."""
    loader, log = lk.Loader(range(10), 4, seed=1, shuffle=True), lk.StepLog(tmp_path / "log")
    for step, _ in enumerate(loader):
        log.record(loader, 300 + step)
    content = (tmp_path / "log").read_bytes()
    assert content[:18] == b"loaderkit steps 1\n"
    assert content[18:19] == b"H"
    length = int.from_bytes(content[19:23], "little")
    settings = json.loads(content[23 : 23 + length])
    assert settings == {
        "batch_size": 4,
        "ranks": 1,
        "start": lk.Loader(range(10), 4, seed=1, shuffle=True).state_dict(),
        "tail": "keep",
    }
    assert content[23 + length + 4 :].hex(" ", -25).split() == [
        "532c01000000000000000000000000000000000000cdf5379b",
        "532d010000000000000100000004000000000000001e8cbfe1",
        "532e010000000000000200000008000000000000006b06276e",
    ]


def test_a_step_takes_25_bytes(tmp_path: Path) -> None:
    loader, log = lk.Loader(range(1000), 1), lk.StepLog(tmp_path / "log")
    sizes = []
    for step, _ in enumerate(loader):
        log.record(loader, step)
        sizes.append((tmp_path / "log").stat().st_size)
    assert {after - before for before, after in itertools.pairwise(sizes)} == {25}
    assert sizes[0] < 600


def test_a_log_that_was_cut_at_any_byte_is_read_and_continued(tmp_path: Path) -> None:
    run = Run(tmp_path / "log")
    run.train(1, 4, 3)
    run.train(2, 2, 2)
    content, path, whole = run.path.read_bytes(), tmp_path / "cut", []
    for length in [*range(0, len(content), 3), len(content)]:
        path.write_bytes(content[:length])
        found = lk.StepLog(path).steps()
        assert found == list(range(len(found)))
        whole.append(len(found))
        if length % 10 == 0 or length > len(content) - 30:
            loader = lk.Loader(range(SIZE), 4, shuffle=True, seed=3)
            next(iter(loader))
            lk.StepLog(path).record(loader, 7)
            assert lk.StepLog(path).steps() == [*found, 7]
            assert lk.StepLog(path).locate(loader, 7)[0].indices.tolist() == run.seen[0][0][0]
    assert whole == sorted(whole)
    assert whole[-1] == 5
    path.write_bytes(content + bytes(100))  # a power failure: the file grew, and its content is lost
    assert lk.StepLog(path).steps() == [0, 1, 2, 3, 4]


def test_damage_before_the_last_record_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    run = Run(tmp_path / "log")
    run.train(1, 4, 5)
    content = run.path.read_bytes()
    found = 0
    for at in range(18, len(content) - 25, 7):
        run.path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(ValueError, match=r"is damaged at byte [\d,]+ of .*truncate -s \d+"):
            lk.StepLog(run.path).steps()
        found += 1
    assert found > 50


def test_a_run_that_is_killed_at_any_time_has_a_whole_log(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Kill -9 from outside; each run resumes from the last checkpoint of the one before."""
    draw = random.Random(1)
    for _ in range(max(4, request.config.getoption("--kills"))):
        process = multiprocessing.get_context("fork").Process(target=job.train, args=(tmp_path, 10**9))
        process.start()
        while not (tmp_path / "steps.log").exists():
            time.sleep(0.001)
        time.sleep(0.2 * draw.random())
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    log = lk.StepLog(tmp_path / "steps.log")
    steps = log.steps()
    assert steps == list(range(len(steps)))
    assert len(steps) > 100  # else the law is vacuous
    order = lk.Shuffled(job.SIZE, seed=7)
    for step in range(0, len(steps), 20):
        epoch, batch = divmod(step, job.SIZE // job.BATCH)
        [found] = log.locate(job.make_loader(), step)
        assert found.indices.tolist() == order.indices(epoch, batch * job.BATCH, (batch + 1) * job.BATCH).tolist()


def test_a_stream_s_log_knows_the_batch(tmp_path: Path) -> None:
    stream = lk.StreamDataset(["abcdef", "ghijkl"], lambda shard, start: iter(shard[start:]), lanes=2)
    loader, log, step = lk.Loader(stream, 2), lk.StepLog(tmp_path / "log"), 0
    for _ in range(2):
        for _ in loader:
            log.record(loader, step)
            step += 1
    assert [log.find(number)[0] for number in (0, 5, 6, 11)] == [
        lk.Cursor(epoch=epoch, batches=batches) for epoch, batches in ((0, 0), (0, 5), (1, 0), (1, 5))
    ]
    with pytest.raises(TypeError, match=r"does not say where the lanes of a stream were.*loaderkit locate CHECKPOINT"):
        log.locate(loader, 3)


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    loader, path = lk.Loader(range(10), 4), tmp_path / "log"
    log = lk.StepLog(path)
    with pytest.raises(FileNotFoundError):
        log.steps()
    with pytest.raises(ValueError, match="step 0 without a batch"):
        log.record(loader, 0)
    for step, _ in enumerate(loader):
        log.record(loader, step)
    with pytest.raises(ValueError, match="step 2 without a batch"):
        log.record(loader, 2)
    with pytest.raises(ValueError, match="step -1, wanted a number from 0"):
        log.record(loader, -1)
    with pytest.raises(ValueError, match=r"no step 7 in .*, which has steps from 0 to 2"):
        log.find(7)
    with pytest.raises(ValueError, match="rank 1, wanted one of the 1 ranks"):
        log.locate(loader, 1, rank=1)
    with pytest.raises(lk.StateError, match=r"for dataset '10 samples .*', this loader has '11 samples .*'"):
        log.locate(lk.Loader(range(11), 4), 1)
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(ValueError, match="It is no log of steps"):
        lk.StepLog(path).steps()
    assert pickle.loads(pickle.dumps(log)).path == os.fspath(path)


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    loader = lk.Loader(range(10), 2, world=lk.World(1, 2))
    next(iter(loader))
    lk.StepLog(tmp_path / "log").record(loader, 0)
    assert not (tmp_path / "log").exists()
