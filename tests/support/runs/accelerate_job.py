"""A loop under Accelerate, on one or two ranks, which may be killed: `python accelerate_job.py JOB.json`.

The job: `folder` (the checkpoints'), `out` (what the run leaves), `loader` ("ours" or "own"), `data`, `ranks`, `accumulate`,
`dropout`, `noise`, `save_every` (batches), `kill_at` (the batch in which all ranks die), `evaluate`.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

os.environ |= {"ACCELERATE_USE_CPU": "true"}

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from job_ranks import run_ranks
from torch import nn

import loaderkit as lk

SIZE, EPOCHS, BATCH = 43, 2, 4


class Samples(torch.utils.data.Dataset[dict[str, Any]]):
    noise = 1.0  # of an augmentation at random

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"number": index, "x": self.noise * torch.randn(4) + index / 20, "y": torch.tensor([index % 3.0])}


def shard(name: str, start: int) -> Any:
    return (Samples()[number] for number in range(int(name) + 4 * start, SIZE, 4))


def make_loader(job: dict[str, Any], accelerator: Accelerator) -> Any:
    if job.get("loader") == "own":
        return accelerator.prepare(torch.utils.data.DataLoader(Samples(), BATCH, shuffle=True))
    if job.get("data") == "stream":
        stream = lk.StreamDataset(["0", "1", "2", "3"], shard, lanes=4, shuffle=True, window=6)
        loader = lk.Loader(stream, BATCH, stop="shortest")
    else:
        loader = lk.Loader(Samples(), BATCH, shuffle=True, num_workers=job.get("workers", 0))
    return lk.integrations.accelerate.prepare(accelerator, loader)


def work(job: dict[str, Any], rank: int) -> None:
    config = DataLoaderConfiguration(use_seedable_sampler=True)  # of its own loader
    accelerator = Accelerator(gradient_accumulation_steps=job.get("accumulate", 1), dataloader_config=config)
    if job.get("evaluate"):
        evaluate(job, accelerator)
        return
    torch.manual_seed(rank)
    layers = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(job.get("dropout", 0)), nn.Linear(16, 1))
    model, optimizer = accelerator.prepare(layers, torch.optim.SGD(layers.parameters(), lr=0.01, momentum=0.9))
    loader, folder = make_loader(job, accelerator), Path(job["folder"])
    folder.mkdir(exist_ok=True)
    saved = sorted(folder.glob("[0-9]*-[0-9]*"), key=lambda path: tuple(map(int, path.name.split("-"))))
    epoch, done = map(int, saved[-1].name.split("-")) if saved else (0, 0)
    accelerator.wait_for_everyone()
    if saved:
        accelerator.load_state(str(saved[-1]))
        if isinstance(loader, lk.Loader):
            epoch, done = loader.cursor.epoch, loader.cursor.batches
    batches = 0
    while epoch < EPOCHS:
        active = loader
        if job.get("loader") == "own":
            loader.set_epoch(epoch)
            active = accelerator.skip_first_batches(loader, done) if done else loader
        for batch in active:
            if batches == job.get("kill_at"):
                os.killpg(0, signal.SIGKILL)
            batches, done = batches + 1, done + 1
            with accelerator.accumulate(model):
                loss = (model(batch["x"]) - batch["y"]).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            with Path(f"{job['out']}.{rank}.log").open("a") as log:
                log.write(json.dumps([epoch, done, batch["number"].tolist()]) + "\n")
            if done % job.get("save_every", 3) == 0 and (accelerator.sync_gradients or not job.get("dropout")):
                save(accelerator, folder, f"{epoch}-{done}")
        epoch, done = epoch + 1, 0
    if rank == 0:
        torch.save({"model": layers.state_dict(), "resumed": str(saved[-1]) if saved else None}, job["out"])


def save(accelerator: Accelerator, folder: Path, name: str) -> None:
    """Save under another name first, so that a kill never leaves half a checkpoint."""
    part = folder / f"part-{name}"
    accelerator.save_state(str(part))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(folder / name, ignore_errors=True)
        part.rename(folder / name)
    accelerator.wait_for_everyone()


def evaluate(job: dict[str, Any], accelerator: Accelerator) -> None:
    if job.get("loader") == "own":
        loader = accelerator.prepare(torch.utils.data.DataLoader(Samples(), BATCH))
    else:
        loader = lk.integrations.accelerate.prepare(accelerator, lk.Loader(Samples(), BATCH), evaluation=True)
    found = [number for batch in loader for number in accelerator.gather_for_metrics(batch["number"]).tolist()]
    if accelerator.is_main_process:
        Path(job["out"]).write_text(json.dumps(found))


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    Samples.noise = job.get("noise", 1.0)
    run_ranks(work, job)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
