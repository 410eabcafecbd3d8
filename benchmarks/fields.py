"""Count the different augmentations that each library gives, and see whether they come again in a new run and after a kill.

    python benchmarks/fields.py              # writes results/fields.csv and fields.md
    python benchmarks/fields.py --examples   # runs examples/fields, and writes their output.md

Each library gets a folder of its own with pinned packages. torch, numpy and what else they need come from this environment. It takes
ten minutes and 1 GB, in a temporary folder unless `--environments` names one that is kept.
"""

import argparse
import contextlib
import csv
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from lib.field_cases import BATCH, CASES, EPOCHS, KILLED_AFTER, SAMPLES, WORKERS
from lib.harness import Row, machine, tell
from report.results import RESULTS

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples" / "fields"
TIMEOUT_S = 600
PINNED = tomllib.loads((HERE / "lib" / "fields.toml").read_text())
PACKAGES: dict[str, list[str]] = PINNED["packages"]
SCRIPTS: list[tuple[str, str]] = PINNED["scripts"]  # of examples/fields, with the library that each needs


def install(library: str, folder: Path) -> dict[str, str]:
    """Return the variables of a process that has a library, installed in a folder unless it is there."""
    # Only what lies under this name counts as installed: the code of other files is searched for generators in more depth.
    site = folder / library / "site-packages"
    wanted = "\n".join(PACKAGES[library])
    done = site / "installed.txt"
    if wanted and (not done.exists() or done.read_text() != wanted):
        tell(f"{library}: installing")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--no-deps", "--target", str(site)]
        subprocess.run([*command, *PACKAGES[library]], check=True)
        done.write_text(wanted)
    path = [str(HERE.parent), str(site), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "OMP_NUM_THREADS": "1",
        "NO_ALBUMENTATIONS_UPDATE": "1",
        "ALBUMENTATIONS_NO_TELEMETRY": "1",  # its thread may hold a lock when workers are forked
        "YOLO_CONFIG_DIR": str(folder),
    }


def compare(name: str, variables: dict[str, str]) -> Row:
    """Return what two runs of a case found, each in a new process; the second one resumes what was killed in the first."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "lib" / "field_cases.py"), name, folder]
        first, second = (_json(command, variables) for _ in range(2))
    row: Row = {
        "case": name,
        "library": name.partition("-")[0],
        "version": first["version"],
        "setting": CASES[name].setting,
    }
    for policy in ("seed", "leave", "own"):
        row |= {f"{policy}_different": _different(first[policy]), f"{policy}_again": first[policy] == second[policy]}
        if policy != "own":
            row |= {
                f"{policy}_without_workers": first[policy] == first[f"{policy}_inline"],
                f"{policy}_resumed": second[f"{policy}_resumed"] == second[policy],
            }
    row |= {"own_loader": first["own_loader"]} | first["cost"]
    return row


def _json(command: list[str], variables: dict[str, str]) -> Any:
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _different(found: list[int] | str) -> int:
    if isinstance(found, str):
        raise SystemExit(found)
    if len(found) != SAMPLES * EPOCHS:
        raise SystemExit(f"{len(found)} samples were read, wanted {SAMPLES * EPOCHS}")
    return len(set(found))


def markdown(rows: list[Row]) -> str:
    whole = SAMPLES * EPOCHS
    lines = [
        "<!-- written by benchmarks/fields.py -->",
        "",
        "## Augmentations of equal samples",
        "",
        f"{SAMPLES} equal samples are augmented in {EPOCHS} epochs, in batches of {BATCH}, with {WORKERS} workers. Numbers count different",
        f"results of {whole}. All contenders of a line ran next to each other. *again*: a new process, seeded alike, draws the same.",
        f"*resumed*: a run that was killed after batch {KILLED_AFTER} and resumed with 1 worker draws what the whole run draws; torch's DataLoader and",
        "those made of it cannot resume.",
        "",
        '| library | generators | `lk.Loader` | `private_generators="leave"` | its own loader | own loader |',
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [_cell(row, policy, whole) for policy in ("seed", "leave", "own")]
        lines.append(
            f"| {row['library']} {row['version']} | {row['setting'] or 'default'} | {' | '.join(cells)} | {row['own_loader']} |"
        )
    lines += [
        "",
        "## What it costs",
        "",
        "The search for generators runs once in each worker, and again after some of the first calls. Seeding counts the private generators",
        "alone, for one sample. A sample is what the library takes for it.",
        "",
        "| library | generators | private ones found | search, ms | seeding, us | sample, us | share |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        share = f"{row['seeding_us'] / row['sample_us']:.1%}" if row["generators"] else ""
        seeding = f"{row['seeding_us']:.1f}" if row["generators"] else "0"
        lines.append(
            f"| {row['library']} | {row['setting'] or 'default'} | {row['generators']} | {row['walk_ms']:.1f} | {seeding} "
            f"| {row['sample_us']:,.0f} | {share} |"
        )
    return "\n".join([*lines, "", f"{machine()}.", ""])


def _cell(row: Row, policy: str, whole: int) -> str:
    count = row[f"{policy}_different"]
    marks = [name for name in ("again", "resumed") if row.get(f"{policy}_{name}")]
    number = f"**{count}**" if count == whole else str(count)
    return ", ".join([number, *marks])


def write(rows: list[Row], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with (out / "fields.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "machine"], lineterminator="\n")
        writer.writeheader()
        shown = [
            {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()} for row in rows
        ]
        writer.writerows(row | {"machine": machine()} for row in shown)
    (out / "fields.md").write_text(markdown(rows))


def run_examples(environments: Path, only: list[str]) -> None:
    lines = ["<!-- written by benchmarks/fields.py --examples -->", "", "# What the scripts print", ""]
    for name, library in SCRIPTS:
        if only and library not in only:
            continue
        path = EXAMPLES / f"{name}.py"
        variables = install(library, environments)
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-W", "ignore", str(path)],
                env=variables,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        if done.returncode:
            raise SystemExit(f"{path} ended with {done.returncode}:\n{done.stdout}\n{done.stderr[-3000:]}")
        said = done.stdout[
            done.stdout.index("whole:") :
        ].rstrip()  # without what a library says when it is first imported
        print(path.name, said, sep="\n")
        pins = " ".join(PACKAGES[library][:1]) or f"{library}=={importlib.metadata.version(library)}"
        lines += [f"## {path.name}", "", f"`{pins}`", "", "```text", said, "```", ""]
    if not only:
        (EXAMPLES / "output.md").write_text("\n".join([*lines, f"{machine()}.", ""]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="libraries, with commas between; prints, writes nothing")
    parser.add_argument("--environments", type=Path, help="a folder for the libraries, which is kept")
    parser.add_argument("--examples", action="store_true", help="run examples/fields instead")
    parser.add_argument("--out", type=Path, default=RESULTS, help=f"where results go (benchmarks/{RESULTS.name})")
    given = parser.parse_args()
    only = given.only.split(",") if given.only else []
    if unknown := set(only) - PACKAGES.keys():
        raise SystemExit(f"libraries: {sorted(unknown)} not known, wanted some of {', '.join(PACKAGES)}.")
    with contextlib.ExitStack() as stack:
        folder = given.environments or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if given.examples:
            run_examples(folder, only)
            return
        rows = []
        for name in CASES:
            library = name.partition("-")[0]
            if only and library not in only:
                continue
            rows.append(compare(name, install(library, folder)))
            tell(
                f"{name}: {', '.join(_cell(rows[-1], policy, SAMPLES * EPOCHS) for policy in ('seed', 'leave', 'own'))}"
            )
    if only:
        print(markdown(rows))
    else:
        write(rows, given.out)


if __name__ == "__main__":
    main()
