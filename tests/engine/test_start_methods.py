"""How workers start: a decision that is the same under each version of Python, and what people are told if they cannot."""

import multiprocessing
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import loaderkit as lk

METHODS = ["fork", "forkserver", "spawn"]


class Numbers:
    """What a worker reads: a class that any process can import."""

    def __init__(self, held: Any = None) -> None:
        self.held = held

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


def loader_of(held: Any = None, **settings: Any) -> lk.Loader:
    return lk.Loader(Numbers(held), 4, **{"num_workers": 1} | settings)


def how(held: Any = None, **settings: Any) -> tuple[Any, str]:
    about = loader_of(held, **settings).describe()
    return about.start_method, about.start_why


def read_one(shard: str) -> Iterator[int]:
    yield 1


@pytest.fixture(params=METHODS)
def default(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a start method the interpreter's default, as each of the three is under some version or system."""
    methods = [request.param, *(each for each in METHODS if each != request.param)]
    get_context = multiprocessing.get_context
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: methods)
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: request.param)
    monkeypatch.setattr(multiprocessing, "get_context", lambda method=None: get_context(method or request.param))
    return str(request.param)


@pytest.mark.parametrize("engine", ["ring", "torch"])
def test_the_interpreters_default_does_not_decide(default: str, engine: str) -> None:
    loader = loader_of(engine=engine)
    assert loader.describe().start_method == "fork"
    assert torch.cat(list(loader)).tolist() == list(range(8))
    assert "started by fork (safe here)" in str(loader.describe())
    stream = lk.Loader(lk.StreamDataset(["a"], lk.from_start(read_one)), num_workers=1)
    assert stream.describe().start_method == "fork"


@pytest.mark.parametrize("name", ["cuda", "xpu"])
def test_a_process_that_uses_an_accelerator_is_not_forked(
    name: str, default: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"torch.{name}.is_initialized", lambda: True)
    assert how() == ("forkserver", f"this process uses {name.upper()}, which a fork would break")
    assert how(multiprocessing_context="fork")[0] == "fork"  # the user knows better


def test_a_process_whose_threads_read_is_not_forked() -> None:
    reading = lk.Loader(torch.arange(80), num_workers=2, engine="threads", persistent_workers=True)
    batches = iter(reading)
    next(batches)
    assert how() == ("forkserver", "a loader's threads run, and a fork may copy their locks")
    reading.close()
    assert how()[0] == "fork"


@pytest.mark.parametrize("library", ["polars", "deltalake", "array_record"])
def test_objects_of_libraries_that_die_in_forks_are_not_forked(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, sys)
    frame = type("Frame", (), {"__module__": f"{library}.frame"})()
    for held in (frame, [frame], {"a": {"b": (1, frame)}}, Numbers(frame)):
        assert how(held) == ("forkserver", f"the data holds objects of {library}, which does not survive a fork")
    assert how("no frame")[0] == "fork"


def test_on_other_systems_workers_are_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: None)
    assert how() == ("forkserver", "a fork is not safe on darwin")
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    assert how()[0] == "spawn"


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_method_that_the_user_sets_counts(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["fork", "spawn", "forkserver"])  # of 3.13
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: method)
    assert how() == (method, "multiprocessing.set_start_method")
    assert how(multiprocessing_context="fork") == ("fork", "multiprocessing_context")


def test_the_description_keeps_what_the_running_workers_were_started_by(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(persistent_workers=True)
    next(iter(loader))
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    assert loader.describe().start_method == "fork"
    assert how()[0] == "forkserver"
    loader.close()


READ = "lk.Loader(range(8), 4, num_workers=1, engine={engine!r}, multiprocessing_context={method!r})"
UNGUARDED = {
    "at the top": "print([batch.tolist() for batch in {loader}])",
    "in a function": "def main():\n    return [batch.tolist() for batch in {loader}]\n\nprint(main())",
    "in a loop": "for batch in {loader}:\n    print(batch)",
}


def script(layout: str, engine: str, method: str) -> str:
    return "import loaderkit as lk\n\n" + layout.format(loader=READ.format(engine=engine, method=method)) + "\n"


@pytest.mark.parametrize("engine", ["ring", "torch"])
@pytest.mark.parametrize("layout", UNGUARDED)
def test_a_program_without_a_main_guard_is_told_before_it_runs_twice(layout: str, engine: str, tmp_path: Path) -> None:
    for number, method in enumerate(["forkserver", "spawn"]):
        path = tmp_path / f"train{number}.py"
        path.write_text(script(UNGUARDED[layout], engine, method))
        line = len(path.read_text().splitlines()) - (layout == "in a loop")
        wanted = rf"by '{method}' \(multiprocessing_context\).*line {line} of {path}.*__main__.*'fork'.*num_workers=0"
        with pytest.raises(RuntimeError, match=wanted):
            runpy.run_path(str(path), run_name="__main__")


def test_a_forked_program_needs_no_main_guard(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(script(UNGUARDED["at the top"], "ring", "fork"))
    runpy.run_path(str(path), run_name="__main__")
    assert capfd.readouterr().out == "[[0, 1, 2, 3], [4, 5, 6, 7]]\n"


GUARDED = "import sys\n\nif {guard}:\n    print([batch.tolist() for batch in {loader}])\n"
INSIDE = """import loaderkit as lk

if __name__ == "__main__":
    class Inside:
        def __len__(self): return 8
        def __getitem__(self, index): return index

    loader = lk.Loader(Inside(), 4, num_workers=1, engine={engine!r}, multiprocessing_context={method!r})
    print([batch.tolist() for batch in loader])
"""


def run(path: Path, content: str) -> subprocess.CompletedProcess[str]:
    path.write_text(content)
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ring", "torch"])
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_program_with_a_main_guard_runs_and_others_say_what_is_wrong(
    engine: str, method: str, tmp_path: Path
) -> None:
    guarded = GUARDED.replace("{guard}", "__name__ == '__main__'")
    done = run(tmp_path / "guarded.py", script(guarded, engine, method))
    assert done.stdout == "[[0, 1, 2, 3], [4, 5, 6, 7]]\n", done.stderr
    done = run(tmp_path / "other.py", script(GUARDED.replace("{guard}", "len(sys.argv)"), engine, method))
    assert "import the main program again and unpickle the dataset" in done.stderr
    assert 'if __name__ == "__main__":' in done.stderr
    assert f"Workers started by '{method}' (multiprocessing_context)" in done.stderr
    done = run(tmp_path / "inside.py", INSIDE.format(engine=engine, method=method))
    assert re.search("a worker cannot unpickle what it received: AttributeError: .*'Inside'", done.stderr)
    assert "not under the main guard" in done.stderr


class _Ended(multiprocessing.Process):
    """A process whose server has ended."""

    def start(self) -> None:
        raise ConnectionResetError(104, "Connection reset by peer")


class _Server(type(multiprocessing.get_context("forkserver"))):  # type: ignore[misc]
    Process = _Ended


@pytest.mark.parametrize("engine", ["ring", "torch"])
def test_a_fork_server_that_ends_is_an_error_with_a_way_out(engine: str) -> None:
    loader = loader_of(engine=engine, multiprocessing_context=_Server())
    with pytest.raises(RuntimeError, match=r"the fork server ended.*main program again.*__main__.*num_workers=0"):
        list(loader)


def seeds_of_rank(rank: int, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setenv("RANK", str(rank))
    torch.manual_seed(3)
    settings: dict[str, Any] = {"worker_init_fn": lk.seed_worker, "multiprocessing_context": "forkserver"}
    return list(torch.utils.data.DataLoader(Drawn(), num_workers=1, batch_size=None, **settings))


class Drawn(Numbers):
    def __getitem__(self, index: int) -> int:
        return int(torch.initial_seed())


def test_seed_worker_takes_the_rank_of_the_process_that_starts_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork server has the environment that there was when it started: of another rank, or of none."""
    seeds = [seeds_of_rank(rank, monkeypatch) for rank in (0, 1)]
    assert len(set(seeds[0])) == len(set(seeds[1])) == 1
    assert seeds[0] != seeds[1]
