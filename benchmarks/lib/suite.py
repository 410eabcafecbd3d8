"""Run every benchmark, then write the summary, the targets and the documents' tables: `make bench`.

The suite stops a script that takes three times its time, and reports scripts that fail and contenders that are left out. It looks
for peers with their own environment in envs/NAME (see benchmarks/README.md).
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from report.questions import QUESTIONS, declared

HERE = Path(__file__).parents[1]
ROOT = HERE.parent
QUICK_MINUTES = 2.0  # for a script with --quick


@dataclass(slots=True)
class Outcome:
    """What came of a script."""

    said: str
    failed: bool
    left_out: list[str] = field(default_factory=list)


def own_environments() -> list[str]:
    """Return the options that name the peers' own interpreters."""
    found = sorted(ROOT.glob("envs/*/bin/python"))
    return [part for path in found for part in ("--python", f"{path.parent.parent.name}={path}")]


def run(script: str, minutes: float, arguments: Iterable[str], quick: bool, out: Path | None) -> Outcome:
    """Run a script, and pass on what it says; stop it after three times its minutes."""
    command = [sys.executable, str(HERE / f"{script}.py"), *arguments]
    command += ["--quick"] if quick else []
    command += ["--out", str(out)] if out else []
    command += own_environments() if script.startswith("peers/") else []
    begun = time.monotonic()
    left_out: list[str] = []
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        reading = threading.Thread(target=pass_on, args=(process.stderr, left_out), daemon=True)
        reading.start()
        code = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(180 * minutes)
        finally:
            end_group(
                process.pid
            )  # Ctrl-C goes to this process alone; and what a script leaves behind holds its stderr
            reading.join()
    said = f"{(time.monotonic() - begun) / 60:.1f} minutes"
    if code is None:
        return Outcome(f"stopped after {said}", True, left_out)
    return Outcome(said if code == 0 else f"failed with {code} after {said}", code != 0, left_out)


def pass_on(lines: Iterable[str], left_out: list[str]) -> None:
    """Pass on what a script says, and remember which contenders were left out."""
    for line in lines:
        sys.stderr.write(line)
        left_out += [line.strip()] if ": left out: " in line else []


def end_group(group: int) -> None:
    """Kill a script with all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: a check that all scripts work")
    parser.add_argument("--out", type=Path, help="where results go; without, benchmarks/results and the documents")
    parser.add_argument("--only", help="some scripts, with commas between")
    given = parser.parse_args()
    names = [name for name in QUESTIONS if declared(name).minutes]
    wanted = given.only.split(",") if given.only else names
    if unknown := sorted(set(wanted) - set(names)):
        raise SystemExit(f"suite: {', '.join(unknown)} not known, wanted some of {', '.join(names)}.")
    only = [name for name in names if name in wanted]
    outcomes: dict[str, Outcome] = {}
    for number, name in enumerate(only, 1):
        minutes = QUICK_MINUTES if given.quick else declared(name).minutes
        print(f"\n== {number} of {len(only)}: {name}, at most about {minutes:g} minutes", flush=True)
        outcomes[name] = run(name, minutes, declared(name).arguments, given.quick, given.out)
    failed = [name for name, outcome in outcomes.items() if outcome.failed]
    if given.out or not given.quick:
        where = ["--results", str(given.out)] if given.out else []
        command = [sys.executable, str(HERE / "report"), *where]
        failed += ["report"] if subprocess.run(command, check=False, cwd=ROOT).returncode else []
    print("\n== done")
    for name, outcome in outcomes.items():
        print("\n    ".join([f"{name}: {outcome.said}", *outcome.left_out]))
    if failed:
        raise SystemExit(f"suite: {', '.join(failed)} did not come to the end, see above.")


if __name__ == "__main__":
    main()
