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

HERE = Path(__file__).parent
ROOT = HERE.parent
QUICK_MINUTES = 2.0  # for a script with --quick


@dataclass(frozen=True, slots=True)
class Script:
    """A benchmark, and the most minutes that it takes on two cores with nothing else to do."""

    name: str
    minutes: float
    arguments: tuple[str, ...] = ()


SCRIPTS = (
    Script("rows", 3),
    Script("per_sample", 4.5),
    Script("pictures", 11),
    Script("photographs", 6),
    Script("cached", 2),
    Script("media", 6),
    Script("seeding", 17),
    Script("large", 5),
    Script("tokens", 2),
    Script("stragglers", 6),
    Script("transport", 3),
    Script("startup", 4),
    Script("memory", 5),
    Script("peers/peers_throughput", 8, ("--rounds", "3", "--seconds", "0.5", "--minutes", "6", "--skip", "costs")),
    Script("tar", 2),
    Script("order", 1.5),
    Script("resume", 1.5),
    Script("shard_order", 1),
    Script("collate", 1),
    Script("text", 2.5),
    Script("packing", 8),
    Script("balance", 6),
    Script("peers/packed_throughput", 7, ("--minutes", "5")),
    Script("tokenising", 6),
    Script("chats", 6),
    Script("data_wait", 1),
    Script("index", 4),
    Script("cloud", 12),
    Script("cloud_cases", 4),
    Script("ranges", 8),
    Script("hedging", 4),
    Script("device", 0.5),
    Script("device_step", 0.5),
)


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


def run(script: Script, quick: bool, out: Path | None) -> Outcome:
    """Run a script, and pass on what it says."""
    command = [sys.executable, str(HERE / f"{script.name}.py"), *script.arguments]
    command += ["--quick"] if quick else []
    command += ["--out", str(out)] if out else []
    command += own_environments() if script.name.startswith("peers/") else []
    limit_s = 180 * (QUICK_MINUTES if quick else script.minutes)
    begun = time.monotonic()
    left_out: list[str] = []
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        reading = threading.Thread(target=pass_on, args=(process.stderr, left_out), daemon=True)
        reading.start()
        code = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(limit_s)
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
    names = {script.name for script in SCRIPTS}
    only = set(given.only.split(",")) if given.only else names
    if unknown := sorted(only - names):
        raise SystemExit(f"suite: {', '.join(unknown)} not known, wanted some of {', '.join(sorted(names))}.")
    chosen = [script for script in SCRIPTS if script.name in only]
    outcomes: dict[str, Outcome] = {}
    for number, script in enumerate(chosen, 1):
        minutes = QUICK_MINUTES if given.quick else script.minutes
        print(f"\n== {number} of {len(chosen)}: {script.name}, at most about {minutes:g} minutes", flush=True)
        outcomes[script.name] = run(script, given.quick, given.out)
    failed = [name for name, outcome in outcomes.items() if outcome.failed]
    if not given.quick or given.out:
        where = ["--results", str(given.out)] if given.out else []
        failed += [name for name in ("summary", "targets") if call(name, *where)]
    if not given.quick and not given.out:
        failed += ["table"] if call("table", "--write") else []
    print("\n== done")
    for name, outcome in outcomes.items():
        print("\n    ".join([f"{name}: {outcome.said}", *outcome.left_out]))
    if failed:
        raise SystemExit(f"suite: {', '.join(failed)} did not come to the end, see above.")


def call(name: str, *arguments: str) -> int:
    """Run a script that reads results; return its exit code."""
    print(f"\n== {name}", flush=True)
    return subprocess.run([sys.executable, str(HERE / f"{name}.py"), *arguments], check=False, cwd=ROOT).returncode


if __name__ == "__main__":
    main()
