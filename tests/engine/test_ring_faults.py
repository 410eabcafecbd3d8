"""The ring under faults: each ends in a clear error or a clean stop within seconds, and leaves nothing."""

import contextlib
import copy
import ctypes
import errno
import faulthandler
import functools
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import popen_fork
from pathlib import Path
from typing import Any

import pytest
import scripts
import torch
from leftovers import nothing_left

import loaderkit as lk
from loaderkit.engine.ring.engine import RingEngine
from loaderkit.engine.ring.team import WorkerDied
from loaderkit.reading.batch_reader import BatchReader
from loaderkit.sampling.batch_plan import BatchPlan

BAD = 17  # the index of the sample at which something happens
RING: dict[str, Any] = {"engine": "ring", "num_workers": 2, "multiprocessing_context": "fork"}


class Numbers:
    """Sample i is a row of i; sample BAD runs `what`."""

    def __init__(self, size: int = 40, what: Callable[[], Any] | None = None) -> None:
        self.size, self.what = size, what

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if self.what is not None and index == BAD and (done := self.what()) is not None:
            return done
        return torch.full((100,), index)


class Unshuffled(lk.ShardOrder):
    """A shard order, which makes the ring deal batches in turn, that does not shuffle."""

    def at(self, epoch: int, positions: Any) -> Any:
        return positions


in_turn = False


def make_loader(what: Callable[[], Any] | None = None, size: int = 40, **settings: Any) -> lk.Loader:
    order = Unshuffled([size], block=4) if in_turn else None
    return lk.Loader(Numbers(size, what), 4, order=order, **RING | settings)


def firsts(batches: Any) -> list[int]:
    return [int(batch[0, 0]) for batch in batches]


def is_whole(loader: lk.Loader, size: int = 40) -> bool:
    return firsts(loader) == list(range(0, size, 4))


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """Open what a process opens only once, such as the fork server and its tracker."""
    scripts.warm(scripts.CORE)
    assert is_whole(make_loader())
    assert is_whole(make_loader(multiprocessing_context="forkserver"))


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(_warm: None) -> Iterator[None]:
    with nothing_left():
        yield


@pytest.fixture(params=["free", pytest.param("in turn", marks=pytest.mark.slow)])
def dealing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with both ways in which the ring deals batches."""
    monkeypatch.setattr(f"{__name__}.in_turn", request.param == "in turn")
    return str(request.param)


either_way = pytest.mark.usefixtures("dealing")

# ---- what user code raises


class OddError(Exception):
    """It cannot be made from a message."""

    def __init__(self, where: int, what: int) -> None:
        super().__init__(f"odd at {where}: {what}")


class MuteError(Exception):
    """It ignores its message."""

    def __init__(self, *args: Any) -> None:
        super().__init__("mute")


class HoldingError(Exception):
    """It cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


def throw(error: BaseException) -> Any:
    raise error


def throw_local() -> Any:
    class LocalError(Exception):
        pass

    raise LocalError("of this process alone")


RAISED: dict[str, tuple[Callable[[], Any], type[BaseException], str]] = {
    "an error": (lambda: throw(LookupError("no such thing")), LookupError, "no such thing"),
    "an error with a key": (lambda: throw(KeyError("name")), KeyError, "name"),
    "an error of the system": (lambda: throw(FileNotFoundError(2, "gone", "x.png")), FileNotFoundError, "x.png"),
    "an error without a message": (lambda: throw(MemoryError()), MemoryError, "MemoryError"),
    "an error of two arguments": (lambda: throw(OddError(3, 4)), RuntimeError, "odd at 3: 4"),
    "an error that hides its message": (lambda: throw(MuteError()), MuteError, "mute"),
    "an error that holds a lock": (lambda: throw(HoldingError("held")), HoldingError, "held"),
    "an error of a local class": (throw_local, RuntimeError, "of this process alone"),
    "the end of something": (lambda: throw(StopIteration()), RuntimeError, "StopIteration"),
    "an exit": (lambda: sys.exit("enough"), RuntimeError, "SystemExit: enough"),
    "an interrupt": (lambda: throw(KeyboardInterrupt()), RuntimeError, "KeyboardInterrupt"),
}


@pytest.mark.each_value
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("what", RAISED)
def test_what_a_dataset_raises_comes_with_its_sample_and_traceback(what: str, persistent: bool) -> None:
    function, kind, message = RAISED[what]
    seen: list[int] = []
    with pytest.raises(kind) as caught:
        firsts_into(seen, make_loader(function, persistent_workers=persistent))
    assert seen == [0, 4, 8, 12]
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert type(caught.value) is kind
    assert message in text
    assert "in loader worker process" in text
    assert "in __getitem__" in text  # the worker's own traceback
    assert str(BAD) in text or "samples 16, 17, 18, 19" in text


def firsts_into(seen: list[int], batches: Any) -> None:
    seen.extend(int(batch[0, 0]) for batch in batches)


def broken_collate(samples: list[Any]) -> Any:
    if any(int(sample[0]) == BAD for sample in samples):
        raise LookupError("no such field")
    return torch.stack(samples)


def test_what_a_collate_raises_comes_with_its_samples_and_traceback() -> None:
    with pytest.raises(LookupError, match=r"(?s)in broken_collate.*no such field.*samples 16, 17, 18, 19"):
        list(make_loader(collate_fn=broken_collate))


@either_way
@pytest.mark.parametrize("what", [lambda _: throw(OSError("no licence")), lambda _: sys.exit("no licence")])
def test_what_a_worker_raises_at_its_start_comes_with_its_traceback(what: Any) -> None:
    with pytest.raises((OSError, RuntimeError), match=r"(?s)process ., when it started.*no licence"):
        next(iter(make_loader(worker_init_fn=what)))


def test_a_batch_that_does_not_pickle_is_named() -> None:
    with pytest.raises(TypeError, match=r"(?s)cannot pickle.*samples 16, 17, 18, 19 was sent"):
        list(make_loader(threading.Lock, collate_fn=list))


class Fragile:
    def __setstate__(self, state: Any) -> None:
        raise LookupError("not here")

    def __getstate__(self) -> Any:
        return 1


def test_a_batch_that_cannot_be_unpickled_is_an_error() -> None:
    with pytest.raises(LookupError, match="not here"):
        list(make_loader(lambda: [torch.ones(5), Fragile()], collate_fn=list))


# ---- workers that die or hang


def end_by(sent: signal.Signals) -> None:
    faulthandler.disable()  # its report would go to the terminal
    os.kill(os.getpid(), sent)


def hang_deaf() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    while True:
        time.sleep(100)


def hang_in_native_code() -> None:
    ctypes.PyDLL(None).sleep(100)  # keeps the interpreter's lock


DIED: dict[str, tuple[Callable[[], Any], str]] = {
    "exits": (lambda: os._exit(3), "ended by itself, with exit code 3"),
    "is killed": (lambda: end_by(signal.SIGKILL), r"killed by SIGKILL \(by the system, if memory ran out\)"),
    "is terminated": (lambda: end_by(signal.SIGTERM), "killed by SIGTERM"),
    "crashes": (lambda: end_by(signal.SIGSEGV), "killed by SIGSEGV: a crash in native code"),
    "aborts": (lambda: end_by(signal.SIGABRT), "killed by SIGABRT: a crash in native code"),
    "reads beyond a file": (lambda: end_by(signal.SIGBUS), "killed by SIGBUS: a crash in native code"),
    "reads at no address": (lambda: (faulthandler.disable(), ctypes.string_at(8))[1], "killed by SIGSEGV"),
}


@pytest.fixture
def _sigterm_ends_this_process() -> Iterator[None]:
    """A worker outlives SIGTERM if its trainer handles it, as it does once a test has made it."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("_sigterm_ends_this_process")
@pytest.mark.each_value
@either_way
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("how", DIED)
def test_a_worker_that_dies_is_an_error_that_names_what_it_did(how: str, persistent: bool, tmp_path: Path) -> None:
    """The same loader starts new workers and reads everything once the fault is gone."""
    function, message = DIED[how]
    faulty = tmp_path / "faulty"
    faulty.touch()
    loader = make_loader(lambda: function() if faulty.exists() else None, persistent_workers=persistent)
    seen: list[int] = []
    with pytest.raises(WorkerDied, match=rf"(?s){message}.*worked on samples \[16, 17, 18, 19\]"):
        firsts_into(seen, loader)
    assert seen in ([0, 4, 8, 12][:count] for count in range(5))
    faulty.unlink()
    loader.seek(epoch=0)
    assert is_whole(loader)
    loader.close()


HANGS: dict[str, Callable[[], Any]] = {
    "sleeps": lambda: time.sleep(100),
    "is stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "is deaf": hang_deaf,
    "is in native code": hang_in_native_code,
}


@either_way
@pytest.mark.parametrize("how", HANGS)
def test_a_worker_that_hangs_is_an_error_in_time(how: str) -> None:
    with pytest.raises(
        RuntimeError,
        match=r"no batch in 4.5 s .timeout.: worker \d .process \d+.* hangs, or samples \[16, 17, 18, 19\]",
    ):
        list(make_loader(HANGS[how], timeout=4.5))  # at load 10 the first batch may take more than half a second


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_worker_that_is_killed_is_an_error_however_it_was_started(method: str) -> None:
    loader = lk.Loader(
        Numbers(what=functools.partial(end_by, signal.SIGKILL)),
        4,
        **RING | {"multiprocessing_context": method, "num_workers": 1},
    )
    with pytest.raises(WorkerDied, match=r"(?s)killed by SIGKILL.*worked on samples \[16, 17, 18, 19\]"):
        list(loader)


class Absent:
    """It cannot be unpickled in a worker."""

    def __init__(self, pid: int) -> None:
        if os.getpid() != pid:
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - of a process that ends at once
            raise ImportError("no such module")
        self.pid = pid

    def __reduce__(self) -> Any:
        return Absent, (self.pid,)


@pytest.mark.parametrize(
    ("dataset", "kind", "message"),
    [
        (Absent(os.getpid()), RuntimeError, "a worker cannot unpickle what it received: ImportError: no such module"),
        (
            threading.Lock(),
            TypeError,
            r"(?s)cannot pickle.*dataset.what does not.* under 'forkserver' .multiprocessing_context.. Define it in a module",
        ),
        ([lambda: None], (AttributeError, pickle.PicklingError), r"(?s)pickle.*dataset.what\[0\] does not pickle"),
    ],
)
def test_a_worker_that_cannot_start_is_an_error(dataset: Any, kind: Any, message: str) -> None:
    data = Numbers(what=dataset)
    with pytest.raises(kind, match=message):
        list(lk.Loader(data, 4, **RING | {"multiprocessing_context": "forkserver"}))


@either_way
@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_was_killed_between_epochs_is_an_error_and_then_replaced(workers: int) -> None:
    loader = make_loader(lambda: torch.full((100,), os.getpid()), persistent_workers=True, num_workers=workers)
    pid = next(int(batch[1, 0]) for batch in [list(loader)[4]])
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # on a busy machine that takes its time
    with pytest.raises(WorkerDied, match=f"worker process {pid} was killed by SIGKILL"):
        iter(loader).begin()  # type: ignore[attr-defined]  # before the other one could make all batches
    assert len(list(loader)) == 10
    loader.close()


@either_way
@pytest.mark.parametrize("child", [False, True])
def test_a_worker_killed_in_the_middle_of_a_large_answer_blocks_nothing(child: bool) -> None:
    """Also if a process that the dataset started keeps the worker's pipes open."""
    write = os.write

    def send_half(fd: int, content: Any) -> int:
        if len(content) > 50_000:
            if child and os.fork() == 0:
                time.sleep(1)
                os._exit(0)
            write(fd, content[:50_000])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(fd, content)

    loader = make_loader(
        lambda: b"x" * 60_000, collate_fn=list, worker_init_fn=lambda _: setattr(os, "write", send_half)
    )
    with pytest.raises(WorkerDied, match="killed by SIGKILL"):
        list(loader)


# ---- memory and open files that run out


def refuse(*args: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


@either_way
def test_without_memory_batches_come_through_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = iter(make_loader())
    assert int(next(batches)[0, 0]) == 0
    batches = iter(make_loader(worker_init_fn=lambda _: setattr(os, "posix_fallocate", refuse)))
    assert firsts(batches) == list(range(0, 40, 4))


def test_too_little_shared_memory_for_a_key_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match=r"no memory left for a batch's key of .* bytes: No space left on device"):
        list(make_loader())


@contextlib.contextmanager
def limited(kind: int, value: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def count_free_files() -> int:
    """Return how many files this process can open now."""
    opened: list[int] = []
    try:
        while True:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return len(opened)
    finally:
        for fd in opened:
            os.close(fd)


def files_limit(spare: int) -> int:
    """Return the limit under which `spare` more files can be opened."""
    used = {int(fd) for fd in os.listdir("/proc/self/fd")}  # noqa: PTH208
    used = {fd for fd in used if is_open(fd)}  # without that of the listing
    free = (fd for fd in range(max(used) + spare + 2) if fd not in used)
    return next(fd for number, fd in enumerate(free) if number == spare)


@pytest.mark.parametrize(
    "spare",
    [0, 9, 15, 18, *(pytest.param(more, marks=pytest.mark.slow) for more in (1, 3, 5, 12, 14, 16, 17, 20, 24))],
)
def test_too_many_open_files_at_the_start_are_an_error(spare: int, dealing: str) -> None:
    with limited(resource.RLIMIT_NOFILE, files_limit(spare)):
        before = count_free_files()
        try:
            failed = None if is_whole(make_loader()) else "not whole"
        except OSError as error:
            failed = f"{error.errno}: {error}"
        after = count_free_files()
    needed = 16 if dealing == "free" else 18
    if max(before, after) < needed:
        assert failed
    if min(before, after) >= needed:
        assert failed is None
    if failed:
        assert re.search(rf"^{errno.EMFILE}: .*too many files are open .* to start 2 workers", failed)


def test_batches_need_no_more_open_files() -> None:
    big = [torch.full((n, 1000), n) for n in range(1, 100)]
    batches = iter(lk.Loader(big, None, **RING))
    held = [next(batches)]
    with limited(resource.RLIMIT_NOFILE, files_limit(0)):
        held += batches
    assert len(held) == 99
    assert all(torch.equal(batch, sample) for batch, sample in zip(held, big, strict=True))


@pytest.mark.parametrize("kind", [resource.RLIMIT_FSIZE, resource.RLIMIT_AS])
def test_limits_of_the_process_make_slots_smaller(kind: int) -> None:
    size = 0 if kind == resource.RLIMIT_FSIZE else int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    with limited(kind, size + (1 << 30)):
        batches = iter(lk.Loader([torch.full((1 << 22,), n) for n in range(6)], None, **RING))
        assert [int(batch[-1]) for batch in batches] == list(range(6))


def test_a_batch_larger_than_a_slot_comes_through_the_pipe() -> None:
    rows = [torch.full((size,), size) for size in (10, 5000, 20, 100_000, 30)]
    engine = RingEngine(BatchReader(rows, None, 0, batched=False), num_workers=2, largest=8192)
    found = list(engine.run(BatchPlan(order=lk.Sequential(5), batch_size=None).keys(lk.Cursor())))
    engine.close()
    assert len(found) == 5
    assert all(torch.equal(one, row) for one, row in zip(found, rows, strict=True))


SMALL_SHM = """
mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"
"""


def test_a_full_dev_shm_does_not_matter(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine has no user namespaces to mount a small /dev/shm in")
    script = tmp_path / "small.py"
    script.write_text(
        "import os, torch, loaderkit as lk\n"
        "assert os.statvfs('/dev/shm').f_blocks * os.statvfs('/dev/shm').f_frsize <= 65536\n"
        "rows = [torch.full((100_000,), n) for n in range(8)]\n"
        "found = list(lk.Loader(rows, 2, num_workers=2, engine='ring'))\n"
        "print(int(sum(batch[:, -1].sum() for batch in found)))\n"
    )
    command = ["unshare", "-rm", "sh", "-c", SMALL_SHM, "sh", sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("28", 0), done.stderr


# ---- what the trainer does


@pytest.mark.each_value
@either_way
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("how", ["deleted", "in a cycle", "closed", "kept"])
def test_an_iterator_that_is_left_leaves_nothing(how: str, persistent: bool) -> None:
    loader = make_loader(size=400, persistent_workers=persistent)
    batches = iter(loader)
    first = next(batches)
    if how == "in a cycle":
        cycle: list[Any] = [batches]
        cycle.append(cycle)
        del cycle
    if how == "closed":
        loader.close()
    if how != "kept":
        del batches
    loader.seek(epoch=0)
    assert is_whole(loader, 400)
    assert int(first[0, 0]) == 0
    loader.close()


LEFT_AT_THE_END = """
import gc
import numpy as np, psutil
import loaderkit as lk
gc.freeze()  # what is frozen goes last of all, when modules are empty
loader = lk.Loader(np.arange(1000), 10, num_workers=2, engine="ring", persistent_workers=bool({persistent}))
batches = iter(loader)
first = next(batches)
if {held}:
    import builtins
    builtins.batches, builtins.first = batches, first
print(*[process.pid for process in psutil.Process().children()])
"""


@pytest.mark.each_value
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_an_iterator_that_is_left_at_the_end_of_the_process_says_nothing(
    persistent: bool, held: bool, tmp_path: Path
) -> None:
    said = scripts.run_code(tmp_path, LEFT_AT_THE_END.format(persistent=persistent, held=held))
    workers = said.split()
    assert len(workers) == 2, said
    assert not [worker for worker in workers if Path(f"/proc/{worker}").exists()]


@either_way
def test_an_engine_gives_a_second_run_all_that_it_has() -> None:
    engine = RingEngine(BatchReader(Numbers(), None, 0), num_workers=2, persistent_workers=True, in_turn=in_turn)
    keys = list(BatchPlan(order=lk.Sequential(40), batch_size=4).keys(lk.Cursor()))
    first = engine.run(keys)
    next(first)
    assert len(list(engine.run(keys))) == 10
    assert list(first) == []
    engine.close()


def test_a_loader_under_way_can_be_pickled_and_copied() -> None:
    loader = lk.Loader(Numbers(), 4, **RING)
    batches = iter(loader)
    next(batches)
    for other in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)):
        assert other.state_dict() == loader.state_dict()
        assert firsts(other) == list(range(4, 40, 4))
    assert firsts(batches) == list(range(4, 40, 4))


@either_way
def test_loaders_work_in_threads_and_beside_each_other() -> None:
    whole: list[bool] = []
    threads = [threading.Thread(target=lambda: whole.append(is_whole(make_loader(size=200), 200))) for _ in range(3)]
    for thread in threads:
        thread.start()
    pairs = [(int(a[0, 0]), int(b[0, 0])) for a, b in zip(make_loader(), make_loader(), strict=True)]
    for thread in threads:
        thread.join(60)
    assert pairs == [(n, n) for n in range(0, 40, 4)]
    assert whole == [True] * 3


@either_way
def test_more_tasks_than_the_pipe_holds_do_not_block() -> None:
    loader = lk.Loader(torch.arange(4000), 1, **RING | {"prefetch_factor": 4000, "num_workers": 1})
    assert torch.equal(torch.cat(list(loader)), torch.arange(4000))


def test_a_huge_key_fits() -> None:
    data = lk.ArrayDataset({"x": torch.arange(2_000_000)})
    found = [batch["x"] for batch in lk.Loader(data, 1_000_000, shuffle=True, **RING)]
    assert torch.equal(torch.cat(found).sort().values, torch.arange(2_000_000))


@either_way
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_waiting_stops_all(sent: signal.Signals) -> None:
    """The signals are Ctrl-C, and SIGTERM with a handler that exits."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    try:
        timer = threading.Timer(0.5, os.kill, (os.getpid(), sent))
        timer.start()
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            list(make_loader(lambda: time.sleep(100)))
    finally:
        timer.join()
        signal.signal(signal.SIGTERM, before)


def do_after_each_start(what: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call a function when a worker has begun, and multiprocessing has not yet kept it."""
    launch = popen_fork.Popen._launch  # type: ignore[attr-defined]

    def patched(*given: Any) -> None:
        launch(*given)
        what()

    monkeypatch.setattr(popen_fork.Popen, "_launch", patched)


@pytest.mark.parametrize("when", ["in functions that run after a fork", "after them"])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_during_a_fork_is_not_lost_nor_is_the_worker(
    sent: signal.Signals, persistent: bool, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python ignores exceptions in functions that run after a fork, and logging registers one. After them a worker has begun."""
    armed = [True]

    def interrupt() -> None:
        if armed:
            armed.clear()
            os.kill(os.getpid(), sent)

    if when == "after them":
        do_after_each_start(interrupt, monkeypatch)
    else:
        os.register_at_fork(after_in_parent=interrupt)
    before = signal.signal(sent, lambda number, _: throw(InterruptedError(number)))
    handler = signal.getsignal(sent)
    try:
        loader = make_loader(persistent_workers=persistent)
        with pytest.raises(InterruptedError):
            next(iter(loader))
        assert not armed
        assert signal.getsignal(sent) is handler
        assert is_whole(loader)
        loader.close()
    finally:
        signal.signal(sent, before)


@pytest.mark.parametrize("raising", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_all_signals_during_a_fork_are_handled_also_if_one_raises(
    raising: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    told: list[int] = []

    def handle(number: int, _: Any) -> None:
        told.append(number)
        if number == raising:
            raise InterruptedError(number)

    def send() -> None:
        for number in sent:
            os.kill(os.getpid(), number)

    do_after_each_start(send, monkeypatch)
    before = [signal.signal(number, handle) for number in sent]
    try:
        with pytest.raises(InterruptedError):
            next(iter(make_loader()))
    finally:
        for number, handler in zip(sent, before, strict=True):
            signal.signal(number, handler)
    assert sorted(told) == sorted(sent)


def test_a_signal_that_is_handled_disturbs_nobody() -> None:
    """A scheduler announces the end by a signal: the loader continues, and the trainer can save."""
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        assert is_whole(make_loader(lambda: time.sleep(0.6)))
    finally:
        timer.join()
        signal.signal(signal.SIGTERM, before)
    assert told == [signal.SIGTERM]


@either_way
def test_ctrl_c_while_stopping_leaves_nothing() -> None:
    loader = make_loader(hang_deaf, persistent_workers=True)
    batches = iter(loader)
    assert int(next(batches)[0, 0]) == 0
    time.sleep(0.5)  # by then the worker hangs
    timer = threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT))  # in the second in which the worker may end
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            loader.close()
    finally:
        timer.cancel()
