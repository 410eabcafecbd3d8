"""The fuzzer of kill and resume: it runs random cases, and finds a simpler one for each that breaks a law."""

import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from fuzz_cases import Case, draw_case, simpler
from fuzz_laws import check
from fuzz_runs import MakeLoader, Run, WrongError

import loaderkit as lk


class Fuzzer:
    """Runs cases until the time is over.

    Args:
        folder: Where data is written.
        make_loader: Makes the loaders of the runs that are killed and resumed; a test gives one with a fault.
    """

    def __init__(self, folder: Path, make_loader: MakeLoader = lk.Loader) -> None:
        self.folder, self.make_loader = folder, make_loader
        self.resumes = 0  # so far

    def run(self, seed: int, numbers: Iterator[int], seconds: float) -> int:
        """Run cases with these numbers; return how many.

        Raises:
            AssertionError: If a case breaks a law. It names the case, and a simpler one that fails too.
        """
        end, count = time.monotonic() + seconds, 0
        for number in numbers:
            case = draw_case(seed, number)
            try:
                self.check(case)
            except BaseException as error:
                line = f"repeat it: pytest tests/laws/test_fuzz_resume.py --fuzz-seed={seed}:{number}"
                if not isinstance(error, WrongError):  # a time limit, an interrupt
                    error.add_note(line)
                    raise
                raise AssertionError(f"{error}\n{line}\nsimplest found: {self.simplest(case)}") from error
            count += 1
            if time.monotonic() > end:
                break
        return count

    def check(self, case: Case) -> None:
        """Run one case; raise WrongError if it breaks a law."""
        run = Run(case, self.folder, self.make_loader)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of idle workers, and lanes without samples
            taken, complete = run.interrupted()
            if taken:
                check(run, taken, complete=complete)
        self.resumes += run.resumes

    def simplest(self, case: Case, seconds: float = 20) -> Case:
        """Return the simplest case found that fails too."""
        end, found = time.monotonic() + seconds, True
        while found and time.monotonic() < end:
            found = False
            for other in simpler(case):
                try:
                    self.check(other)
                except WrongError:
                    case, found = other, True
                    break
        return case
