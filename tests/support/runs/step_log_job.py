"""A training that logs its steps and saves now and then, to be killed."""

import json
from pathlib import Path

import loaderkit as lk

SIZE, BATCH = 1000, 8


def make_loader() -> lk.Loader:
    return lk.Loader(range(SIZE), BATCH, shuffle=True, seed=7, world=lk.World())


def train(folder: Path, steps: int) -> None:
    loader, log, saved = make_loader(), lk.StepLog(folder / "steps.log"), folder / "state.json"
    step = 0
    if saved.exists():
        step, state = json.loads(saved.read_text())
        loader.load_state_dict(state)
    while step < steps:
        for _ in loader:
            log.record(loader, step)
            step += 1
            if step % 37 == 0:
                (folder / "new.json").write_text(json.dumps([step, loader.state_dict()]))
                (folder / "new.json").rename(saved)
            if step == steps:
                return
