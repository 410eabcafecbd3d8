"""What all tests share."""

import gc

gc.disable()  # until all tests are collected: imports make no garbage, and looking for it took a sixth of their time

# ruff: noqa: E402
import multiprocessing
import os
import shutil
import signal
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Generator, Hashable
from functools import partial
from pathlib import Path

import frameworks
import huge_pages
import pytest
import tier
import warmed_spawn
from hypothesis import HealthCheck, settings

# Scripts that tests start import helpers too.
_HELPERS = sorted(str(folder) for folder in Path(tier.__file__).parents[1].iterdir() if folder.is_dir())
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), *_HELPERS]))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="all products of settings, and all examples of each law")
    parser.addoption("--pairs-seed", type=int, default=0, help="chooses the products of settings, without --full")
    parser.addoption(
        "--part", choices=("light", "frameworks"), help="test files without or with imports of large libraries"
    )
    parser.addoption("--flips", type=int, default=100, help="damaged copies of each file with random bits flipped")
    parser.addoption(
        "--fuzz-seconds", type=float, default=9, help="how long kills and resumes of random runs are fuzzed"
    )
    parser.addoption("--kills", type=int, default=1, help="how often a run of each trainer is killed and resumed")
    parser.addoption(
        "--kill-chains", type=int, default=1, help="chains of runs over a bucket that are killed at random"
    )
    parser.addoption("--fuzz-seed", default="0", help="the fuzzer's seed, or seed:number for one of its cases")


def pytest_configure(config: pytest.Config) -> None:
    """Set the tier. Let the fork server import torch once, for all. Let Ctrl-C end what tests start, also if a shell ignores it for us."""
    tier.full = config.getoption("full")
    os.environ["LOADERKIT_INDEX_DIR"] = tempfile.mkdtemp(prefix="loaderkit-tests-")  # not in the user's home
    # A busy machine is no failure: what has to end in time says so itself.
    settings.register_profile(
        "loaderkit", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=tier.examples(100)
    )
    settings.load_profile("loaderkit")
    for plugin in config.pluginmanager.get_plugins():
        if hasattr(plugin, "channel"):  # pytest-xdist's, in its workers
            os.register_at_fork(after_in_child=partial(_close_in_child, plugin.channel.gateway._io.outfile.fileno()))
    # `lightning_job` sets a longer list.
    multiprocessing.set_forkserver_preload(["torch", "loaderkit", "pytest", "hypothesis", "warmed_core"])
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _close_in_child(pipe: int) -> None:
    """Close the pipe to pytest-xdist. It learns of a worker's death by the pipe's end, for which the worker's children must not keep it open."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, pipe)  # nothing that the child opens gets the number
    os.close(null)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the test files of the other part."""
    part = config.getoption("part")
    if part is None or not collection_path.match("test_*.py"):
        return None
    return True if frameworks.uses(collection_path) != (part == "frameworks") else None


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs a GPU if there is none. Leave out products of settings. Call slow what starts processes that import torch anew, 2 s of CPU time each.

    Slow tests get a longer limit of time: under load 8 some take five minutes.
    """
    import torch  # not for pytest-xdist's own process, which runs no tests

    for item in items:
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs CUDA, and torch.cuda.is_available() is False"))
        values = (
            item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
        )
        if any(isinstance(value, str) and value in ("forkserver", "spawn") for value in values):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(900))
    if not config.getoption("full") and not any("[" in name for name in config.args):
        _leave_out_products(config, items)


def _leave_out_products(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test with three or more parameters, keep cases that have each pair of values which some case has.

    Of one whose cases are dear ("each_value"), keep cases that have each value.
    """
    cases: dict[tuple[str, bool], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and not list(item.iter_markers("skip")):
            cases[item.nodeid.partition("[")[0], item.get_closest_marker("slow") is not None].append(item)
    left_out: set[pytest.Item] = set()
    for found in cases.values():
        together = 1 if found[0].get_closest_marker("each_value") else 2
        chosen = tier.pairwise([_settings(item) for item in found], config.getoption("pairs_seed"), together)
        left_out |= set(found) - {found[number] for number in chosen}
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


def _settings(item: pytest.Function) -> list[Hashable]:
    """Return one value for each parameter of a test: names that are given together are one."""
    values = {name: id(value) for name, value in item.callspec.params.items()}  # pytest makes no copies of them
    together = [mark.args[0] for mark in item.iter_markers("parametrize")]
    names = [each.replace(" ", "").split(",") if isinstance(each, str) else list(each) for each in together]
    found: list[Hashable] = [tuple(values.pop(name) for name in each) for each in names]
    return [*found, *values.values()]  # the parameters of fixtures


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let slow tests alone start new interpreters."""
    warmed_spawn.use(not tier.full and not item.get_closest_marker("slow"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let go of what a failed test made: its traceback would keep loaders, and their workers, for the tests after it."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if report.failed and error is not None and not item.config.getoption("usepdb"):
        _release(error)
        gc.collect()
    return report


def _release(error: BaseException) -> None:
    """Drop the local variables of an error's frames, and of the errors that led to it."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or each in seen:
            continue
        seen.append(each)
        traceback.clear_frames(each.__traceback__)
        for frame, _ in traceback.walk_tb(each.__traceback__):
            frame.f_locals  # noqa: B018 - makes a frame forget the copy of its variables that pytest has asked for
        waiting += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]


@pytest.fixture(scope="module", autouse=True)
def _cheap_forks() -> None:
    """Thousands of workers are forked from here: it takes each half as long."""
    huge_pages.use()


@pytest.fixture(scope="module", autouse=True)
def _cheap_collections() -> None:
    """Let garbage collection look at what the module's tests make alone: all that was imported before takes it 1 s each time."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let go of what was frozen: libraries look for leaks at the interpreter's end. Remove the indexes."""
    gc.unfreeze()
    shutil.rmtree(os.environ["LOADERKIT_INDEX_DIR"], ignore_errors=True)
