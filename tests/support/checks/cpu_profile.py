"""A pytest plugin that adds up the CPU time of tests by file: `pytest -p cpu_profile`.

The time is user and system time of the test's process, of the processes that it started, and of those that servers forked for it.
"""

import contextlib
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

_Times = tuple[float, float]  # of the process itself, and of its ended children
_STARTED = pytest.StashKey[_Times]()
_PROPERTY = "cpu_s"
_found: dict[str, list[tuple[str, _Times]]] = defaultdict(list)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    item.stash[_STARTED] = _times()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    try:
        return (yield)
    finally:
        spent = tuple(now - before for now, before in zip(_times(), item.stash[_STARTED], strict=True))
        item.user_properties.append((_PROPERTY, spent))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, spent in report.user_properties if report.when == "teardown" else ():
        if name == _PROPERTY:
            _found[report.nodeid.partition("::")[0]].append((report.nodeid, tuple(spent)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = sorted(((_sum(tests), file, tests) for file, tests in _found.items()), key=lambda row: -sum(row[0]))
    whole = sum(sum(spent) for spent, _, _ in rows)
    terminalreporter.section(f"CPU time by file: {whole:,.0f} s")
    terminalreporter.line("| file | tests | own s | children s | dearest test |")
    terminalreporter.line("|---|---|---|---|---|")
    for spent, file, tests in rows:
        test, dearest = max(tests, key=lambda each: sum(each[1]))
        name = test.partition("::")[2]
        terminalreporter.line(
            f"| {file} | {len(tests)} | {spent[0]:.1f} | {spent[1]:.1f} | {name[:80]} {sum(dearest):.1f} |"
        )


def _times() -> _Times:
    spent = os.times()
    return spent.user + spent.system, spent.children_user + spent.children_system + _of_children(os.getpid())


def _of_children(pid: int) -> float:
    """Return the time of the child processes that live, and of what they have waited for."""
    found = 0.0
    with contextlib.suppress(OSError):  # a process has ended meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                found += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + _of_children(int(child))
    return found


def _sum(tests: list[tuple[str, _Times]]) -> _Times:
    return sum(own for _, (own, _) in tests), sum(children for _, (_, children) in tests)
