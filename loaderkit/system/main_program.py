"""Check whether worker processes can import the main program again. Workers that are not forked do."""

import ast
import inspect
import sys
from pathlib import Path

from loaderkit.system.start import Start

WAYS_OUT = "give multiprocessing_context='fork' where fork exists, or num_workers=0"
_ASKS_WHO_RUNS = (
    "__name__",
    "__mp_main__",
    "process",
)  # the condition of a main guard has one of these


def check_main_guard(start: Start) -> None:
    """Refuse to start workers that would run the whole main program again.

    Raises:
        RuntimeError: If workers are not forked, and the main program starts them outside a main guard.
    """
    if start.method == "fork" or (file := main_file()) is None or (line := _line_at_top(file)) is None:
        return
    if _is_guarded(file, line):
        return
    raise RuntimeError(
        f"loader: workers started by {start.method!r} ({start.why}) import the main program again, and line {line} of {file} starts "
        'workers without a main guard: each worker would run the program once more. Put what it does under if __name__ == "__main__": '
        f"or {WAYS_OUT}."
    )


def main_file() -> Path | None:
    """Return the file of the main program; None in a notebook and in an interpreter without one."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return Path(file) if file is not None and Path(file).is_file() else None


def why_it_ended(start: Start) -> str:
    """Return what to check if a worker ended while it started; empty for one that was forked."""
    if start.method == "fork":
        return ""
    return (
        f"Workers started by {start.method!r} ({start.why}) import the main program again and unpickle the dataset: the error above, of "
        'the worker, says what failed. Put what the program does under if __name__ == "__main__": and define what workers need in a '
        f"module; loaderkit.testing.find_unpicklable(dataset) lists what does not pickle. Or {WAYS_OUT}."
    )


def _line_at_top(file: Path) -> int | None:
    """Return the line of the main program's top level that is running in this thread; None if none is."""
    found, frame = None, inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals is vars(sys.modules["__main__"]):
            found = frame
        frame = frame.f_back
    return None if found is None or Path(found.f_code.co_filename).name != file.name else found.f_lineno


def _is_guarded(file: Path, line: int) -> bool:
    """Return whether a line is inside an `if`, or after an `if` whose condition asks which process this is."""
    try:
        top = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return True  # nothing can be said
    for statement in top:
        if statement.lineno > line:
            break
        if isinstance(statement, ast.If):
            if line <= (statement.end_lineno or line):
                return True
            if any(each in ast.dump(statement.test) for each in _ASKS_WHO_RUNS):
                return True
    return False
