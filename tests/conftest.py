"""What all tests share."""

import gc
import signal

import huge_pages
import pytest
import torch
from hypothesis import HealthCheck, settings

# A busy machine is no failure: what has to end in time says so itself.
settings.register_profile("loaderkit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaderkit")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--flips", type=int, default=100, help="damaged copies of each file with random bits flipped")


def pytest_configure() -> None:
    """Let Ctrl-C end what tests start, also where a shell started all of this in the background, to ignore it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs CUDA, and torch.cuda.is_available() is False"))


def pytest_collection_finish() -> None:
    """Let garbage collection look at what tests make alone: all that was imported takes it 0.3 s each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _cheap_forks() -> None:
    """Thousands of workers are forked from here: it takes each half as long."""
    huge_pages.use()


def pytest_unconfigure() -> None:
    """Let go of what was frozen: libraries look for leaks at the interpreter's end."""
    gc.unfreeze()
