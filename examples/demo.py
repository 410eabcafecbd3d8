"""Kill a training in the middle of an epoch, resume it, and see what it was trained on.

    make demo        (or: python examples/demo.py)

A small classifier with dropout and random augmentation learns scikit-learn's digits
three times: uninterrupted; in a process that gets SIGKILL in the middle of its second
epoch; and in a new process that resumes from the last checkpoint, with another number
of workers. It does so first with loaderkit's DataModule, then with torch's DataLoader, both under Lightning.
Each step records the ids of its samples. At the end the script compares the runs id by id,
and the final weights bit by bit. It exits with 1 if loaderkit's resumed run differs
from the uninterrupted one.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.forkserver import set_forkserver_preload
from pathlib import Path
from typing import Any, Literal

import torch
from demo_picture import Timeline, draw
from demo_training import BATCH, EPOCHS, TRAIN, Classifier, Digits, Run, train
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

KILLED_EPOCH, KILLED_BATCH = 1, 30
HELD_OUT = 297
STEPS = EPOCHS * -(-TRAIN // BATCH)
WORKERS = {"uninterrupted": 2, "killed": 2, "resumed": 1}

console = Console()
Kind = Literal["loaderkit", "DataLoader"]
Steps = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a killed and resumed run, compared with the uninterrupted one."""

    timeline: Timeline
    same_order: bool
    same_weights: bool
    changed_answers: int
    state_bytes: int

    @property
    def exact(self) -> bool:
        return self.same_order and self.same_weights and not self.timeline.twice and not self.timeline.never


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/demo"), help="for logs, checkpoints and the picture")
    folder: Path = parser.parse_args().folder / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True, exist_ok=True)
    # A server that has imported Lightning once starts each of the six processes.
    set_forkserver_preload(["lightning.pytorch", "sklearn.datasets", "torchvision.transforms.v2", "loaderkit"])
    console.print(f"{TRAIN:,} digits, batches of {BATCH}, {EPOCHS} epochs; all files are in {folder}", soft_wrap=True)
    kinds: tuple[Kind, ...] = ("loaderkit", "DataLoader")
    outcomes = {kind: kill_and_resume(kind, folder) for kind in kinds}
    console.print(make_table(outcomes))
    picture = folder.parent.with_suffix(".png")
    draw({str(kind): outcome.timeline for kind, outcome in outcomes.items()}, picture)
    console.print(f"Both timelines: {picture}", soft_wrap=True)
    if not outcomes["loaderkit"].exact:
        console.print("[bold red]loaderkit's resumed run is not the uninterrupted one.[/]")
        return 1
    console.print("[bold green]loaderkit's resumed run is the uninterrupted one, bit for bit.[/]")
    return 0


def kill_and_resume(kind: Kind, folder: Path) -> Outcome:
    """Train the three runs and compare them."""
    console.print(f"\n[bold]{kind}[/]")
    whole = Run(name="uninterrupted", kind=kind, folder=folder, workers=WORKERS["uninterrupted"])
    execute(whole)
    at = (KILLED_EPOCH, KILLED_BATCH)
    killed = Run(name="killed", kind=kind, folder=folder, workers=WORKERS["killed"], kill_at=at)
    execute(killed)
    last = max(killed.checkpoints.glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    resumed = Run(name="resumed", kind=kind, folder=folder, workers=WORKERS["resumed"], resume_from=last)
    execute(resumed)
    return compare(whole, killed, resumed)


def execute(run: Run) -> None:
    """Run a training in a new process and wait for its end."""
    process = multiprocessing.get_context("forkserver").Process(target=train, args=(run,))
    process.start()
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    done = 0
    if run.resume_from is not None:
        done = torch.load(run.resume_from, weights_only=True)["global_step"]
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"{run.name}, process {process.pid}", total=STEPS)
        while process.is_alive():
            process.join(0.1)
            progress.update(task, completed=done + len(read_steps(run)))
    steps = read_steps(run)
    if process.exitcode != (0 if run.kill_at is None else -9) or not steps:
        console.print(run.log.read_text()[-3000:], markup=False)
        raise SystemExit(f"demo: the {run.name} run ended with exit code {process.exitcode}; its log is above.")
    start = f"from the checkpoint at step {done}" if done else "from the start"
    end = "to the end" if run.kill_at is None else f"[red]SIGKILL[/] after step {len(steps)}"
    workers = f"{run.workers} worker{'s' if run.workers > 1 else ''}"
    console.print(f"  {run.name:13} process {process.pid}, {workers}: {start}, {end}", highlight=False, soft_wrap=True)


def read_steps(run: Run) -> Steps:
    """Return the steps that were trained so far."""
    if not run.steps.exists():
        return []
    return [json.loads(line) for line in run.steps.read_text().splitlines(keepends=True) if line.endswith("\n")]


def compare(whole: Run, killed: Run, resumed: Run) -> Outcome:
    """Join the killed run up to its checkpoint with the resumed run, and compare them with the uninterrupted run."""
    wanted, before, after = read_steps(whole), read_steps(killed), read_steps(resumed)
    if len(wanted) != STEPS or resumed.resume_from is None:
        raise SystemExit(f"demo: the uninterrupted run has {len(wanted)} steps, wanted {STEPS}.")
    checkpoint = torch.load(resumed.resume_from, weights_only=True)
    saved = checkpoint["global_step"]
    kept, lost = before[:saved], before[saved:]
    order = {sample: position for position, sample in enumerate(ids_of(wanted, KILLED_EPOCH))}
    times = Counter(ids_of(kept + after, KILLED_EPOCH))
    timeline = Timeline(
        kept=[[order[sample] for sample in step["ids"]] for step in kept if step["epoch"] == KILLED_EPOCH],
        lost=[[order[sample] for sample in step["ids"]] for step in lost],
        resumed=[[order[sample] for sample in step["ids"]] for step in after if step["epoch"] == KILLED_EPOCH],
        twice=sorted(order[sample] for sample, count in times.items() if count > 1),
        never=sorted(order[sample] for sample in order.keys() - times.keys()),
        same_weights=same_bits(whole.weights, resumed.weights),
    )
    return Outcome(
        timeline=timeline,
        same_order=ids_of(kept + after) == ids_of(wanted),
        same_weights=timeline.same_weights,
        changed_answers=int((answers(whole.weights) != answers(resumed.weights)).sum()),
        state_bytes=state_bytes(checkpoint),
    )


def ids_of(steps: Steps, epoch: int | None = None) -> list[int]:
    return [sample for step in steps if epoch in (None, step["epoch"]) for sample in step["ids"]]


def same_bits(first: Path, second: Path) -> bool:
    """Return whether two files hold the same weights, bit for bit."""
    weights = [torch.load(path, weights_only=True) for path in (first, second)]
    contents = [{name: value.numpy().tobytes() for name, value in state.items()} for state in weights]
    return contents[0] == contents[1]


def answers(weights: Path) -> torch.Tensor:
    """Return what a model takes the held-out digits for."""
    model = Classifier().eval()
    model.load_state_dict(torch.load(weights, weights_only=True))
    rest = Digits(TRAIN, TRAIN + HELD_OUT, augment=False)
    with torch.no_grad():
        return model(rest.images).argmax(1)  # type: ignore[no-any-return]


def state_bytes(checkpoint: dict[str, Any]) -> int:
    """Return the size in bytes of the data position in a checkpoint, as JSON; 0 if there is none."""
    loaders = checkpoint["loops"]["fit_loop"]["state_dict"].get("combined_loader")
    state = checkpoint.get("DataModule") or loaders
    return len(json.dumps(state)) if state else 0


def make_table(outcomes: dict[Kind, Outcome]) -> Table:
    table = Table(title=f"Killed in epoch {KILLED_EPOCH}, resumed, against the uninterrupted run")
    table.add_column("")
    for kind in outcomes:
        table.add_column(kind, justify="right")

    def row(what: str, show: Any, good: Any) -> None:
        cells = [f"[{'green' if good(outcome) else 'red'}]{show(outcome)}[/]" for outcome in outcomes.values()]
        table.add_row(what, *cells)

    row("samples trained twice in that epoch", lambda o: len(o.timeline.twice), lambda o: not o.timeline.twice)
    row("samples never trained in that epoch", lambda o: len(o.timeline.never), lambda o: not o.timeline.never)
    row("samples in the same order", lambda o: "yes" if o.same_order else "no", lambda o: o.same_order)
    row("final weights bit-identical", lambda o: "yes" if o.same_weights else "no", lambda o: o.same_weights)
    # Not the accuracy: over many seeds a kill changes its mean by less than chance changes one run's.
    row(
        f"of {HELD_OUT} test digits, answers that the kill changed",
        lambda o: o.changed_answers,
        lambda o: not o.changed_answers,
    )
    row("place in the data, in the checkpoint", lambda o: f"{o.state_bytes} bytes", lambda o: o.state_bytes)
    return table


if __name__ == "__main__":
    sys.exit(main())
