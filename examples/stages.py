"""Pretraining in stages: a linear change of weights, a stage and a source that are added after a kill, and longer rows.

    python examples/stages.py --kill-after 70
    python examples/stages.py --anneal

The sources are texts that come with Python: its help, the standard library's code, and the code of its package `email`. The
first command plans two stages, saves every 20 steps, and kills itself (SIGKILL) in the second. The second command adds an
annealing stage with another source and four times longer rows, and continues after the last checkpoint. It prints a digest of the
final weights. A run without interruption that knows all stages from the start prints the same digest:

    python examples/stages.py --anneal --folder runs/whole
"""

import argparse
import email
import hashlib
import os
import signal
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import loaderkit as lk

LONG, SHORT = 128, 32  # bytes in a row; a window has one more, for the last target
SAVE_EVERY = 20  # steps


def cut(rows: list[Any]) -> Tensor:
    """Cut B windows into rows of SHORT + 1 bytes, (4 B, SHORT + 1). So every byte comes once, whatever the length of rows."""
    windows = torch.from_numpy(np.stack(rows))
    return windows.unfold(1, SHORT + 1, SHORT).reshape(-1, SHORT + 1)


def write_sources(folder: Path) -> dict[str, lk.TokenDataset]:
    """Write the texts as bytes, once, and open them as windows."""
    library, mail = Path(os.__file__).parent, Path(email.__file__).parent
    texts = {
        "help": "\n".join(topics[name] for name in sorted(topics)).encode(),
        "code": b"".join(path.read_bytes() for path in sorted(library.glob("[a-d]*.py"))),
        "mail": b"".join(path.read_bytes() for path in sorted(mail.glob("*.py"))),
    }
    folder.mkdir(parents=True, exist_ok=True)
    sources = {}
    for name, text in texts.items():
        path = folder / f"{name}.bin"
        path.write_bytes(text)
        sources[name] = lk.TokenDataset(str(path), length=LONG + 1, stride=LONG, dtype="uint8")
    return sources


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/stages"))
    parser.add_argument("--anneal", action="store_true", help="add the third stage")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--kill-after", type=int, metavar="STEPS")
    given = parser.parse_args()

    stages = [
        lk.Stage({"help": 3, "code": 1}, 16, samples=800, collate_fn=cut),
        lk.Stage({"help": (3, 1), "code": (1, 3)}, 16, samples=640, collate_fn=cut),
    ]
    sources = write_sources(given.folder / "bytes")
    if given.anneal:
        stages.append(lk.Stage({"code": 1, "mail": 1}, 8, samples=240))
    else:
        del sources["mail"]  # nobody has thought of it yet
    plan = lk.Stages(stages, sources, window=100)
    print(plan.plan())

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Embedding(256, 32), nn.Linear(32, 256))  # the next byte from the one before it
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = lk.Loader(plan.dataset, plan=plan, num_workers=given.workers)
    checkpoint = given.folder / "checkpoint.pt"
    if checkpoint.exists():
        load(checkpoint, model, optimizer, loader)
        print(f"resumed in stage {plan.stage_of(loader.cursor)}, step {loader.cursor.batches} of {len(loader)}")

    step = loader.cursor.batches
    for rows in loader:
        step += 1
        loss = train_on(rows.long(), model, optimizer)
        if step % SAVE_EVERY == 0:
            print(f"step {step}, stage {plan.stage_of(loader.cursor)}: rows {tuple(rows.shape)}, loss {loss:.3f}")
            save(checkpoint, model, optimizer, loader)
        if step == given.kill_after:
            print(f"killed in stage {plan.stage_of(loader.cursor)}, after step {step}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    print(f"final weights: {digest(model)}")


def train_on(rows: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.item()


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, loader: lk.Loader) -> None:
    """Write a checkpoint atomically: a kill never leaves a partial file."""
    unfinished = path.with_suffix(".unfinished")
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
    torch.save(states, unfinished)
    unfinished.replace(path)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, loader: lk.Loader) -> None:
    states = torch.load(path, weights_only=True)
    model.load_state_dict(states["model"])
    optimizer.load_state_dict(states["optimizer"])
    loader.load_state_dict(states["loader"])


def digest(model: nn.Module) -> str:
    weights = [value.detach().numpy().tobytes() for value in model.state_dict().values()]
    return hashlib.blake2b(b"".join(weights), digest_size=8).hexdigest()


if __name__ == "__main__":
    main()
