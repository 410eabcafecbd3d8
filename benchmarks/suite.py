"""Run every benchmark, then write the summary and the README's table: what `make bench` does.

A script that fails, or whose peers are not installed, is said and passed over. Peers with an environment of their own are looked
for in envs/NAME (see benchmarks/README.md).
"""

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent


@dataclass(frozen=True, slots=True)
class Script:
    """A benchmark, and how many minutes it takes on two cores."""

    name: str
    minutes: float
    arguments: tuple[str, ...] = ()


SCRIPTS = (
    Script("rows", 3),
    Script("per_sample", 3),
    Script("pictures", 2),
    Script("tokens", 1.5),
    Script("stragglers", 8),
    Script("transport", 2),
    Script("startup", 2),
    Script("order", 1.5),
    Script("resume", 1.5),
    Script("memory", 3),
    Script("shard_order", 0.5),
    Script("collate", 0.5),
    Script("text", 2),
    Script("device", 0.5),
    Script("peers/peers_throughput", 5, ("--rounds", "3", "--seconds", "0.6", "--skip", "costs")),
)


def own_environments() -> list[str]:
    """Return the options that name the peers' own interpreters."""
    found = sorted(ROOT.glob("envs/*/bin/python"))
    return [part for path in found for part in ("--python", f"{path.parent.parent.name}={path}")]


def run(script: Script, quick: bool, out: Path | None) -> str:
    """Run a script; return what came of it."""
    command = [sys.executable, str(HERE / f"{script.name}.py"), *script.arguments]
    command += ["--quick"] if quick else []
    command += ["--out", str(out)] if out else []
    command += own_environments() if script.name.startswith("peers/") else []
    began = time.monotonic()
    try:
        code = subprocess.run(command, check=False, cwd=ROOT, timeout=1200).returncode
    except subprocess.TimeoutExpired:
        return "stopped after 20 minutes"
    taken = f"{(time.monotonic() - began) / 60:.1f} minutes"
    return taken if code == 0 else f"failed with {code} after {taken}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: a check that all scripts work")
    parser.add_argument("--out", type=Path, help="where results go; without, benchmarks/results and the README")
    parser.add_argument("--only", help="some scripts, with commas between")
    given = parser.parse_args()
    only = given.only.split(",") if given.only else [script.name for script in SCRIPTS]
    chosen = [script for script in SCRIPTS if script.name in only]
    said: dict[str, str] = {}
    for number, script in enumerate(chosen, 1):
        about = "" if given.quick else f", about {script.minutes:g} minutes"
        print(f"\n== {number} of {len(chosen)}: {script.name}{about}", flush=True)
        said[script.name] = run(script, given.quick, given.out)
    print("\n== done")
    for name, what in said.items():
        print(f"{name}: {what}")
    if not given.quick or given.out:
        where = ["--results", str(given.out)] if given.out else []
        subprocess.run([sys.executable, str(HERE / "summary.py"), *where], check=False, cwd=ROOT)
    if not given.quick and not given.out:
        subprocess.run([sys.executable, str(HERE / "table.py"), "--write", "README.md"], check=False, cwd=ROOT)
    if any("failed" in what or "stopped" in what for what in said.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
