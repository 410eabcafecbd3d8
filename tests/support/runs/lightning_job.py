"""A training described by a dict (a job), and functions that run it in a new process; also a script for one job."""

import contextlib
import json
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.forkserver import set_forkserver_preload  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import next_lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.plugins.environments import SLURMEnvironment

import loaderkit as lk

SIZE, BATCH, EPOCHS = 50, 4, 3
TIMEOUT_S = 280  # less than pytest's limit, so that the log is shown


class Samples:
    """Samples with an id and a random augmentation that uses every generator."""

    def __init__(self, size: int = SIZE, offset: int = 0) -> None:
        self.size = size
        self.offset = offset
        self.bad: set[int] = set()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.bad:
            raise ValueError(f"cannot decode {index}")
        noise = torch.rand(8) + float(np.random.rand()) + float(lk.sample_rng().random())
        return {"id": index + self.offset, "x": noise + index % 7, "y": torch.tensor([index % 5.0])}


class ShardedSamples(Samples):
    """Samples in shards, shuffled by a ShardOrder."""

    shard_sizes = (13, 0, 20, 17)


class DrawingSamples(Samples):
    """Samples that draw from `sample_rng` alone, so threads may read them."""

    draws_only_sample_rng = True

    def __getitem__(self, index: int) -> dict[str, Any]:
        noise = torch.from_numpy(lk.sample_rng().random(8)).float()
        return {"id": index, "x": noise + index % 7, "y": torch.tensor([index % 5.0])}


class IterableSamples(torch.utils.data.IterableDataset[Any]):
    """A stream of the same samples, in a new order each epoch."""

    def __init__(self, size: int) -> None:
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        yield from map(augmented, np.random.default_rng(self.epoch).permutation(self.size).tolist())


class StatefulSamples(IterableSamples):
    """A stream with a state."""

    at = 0

    def __iter__(self) -> Iterator[Any]:
        for index in np.random.default_rng(self.epoch).permutation(self.size).tolist()[self.at :]:
            self.at += 1
            yield augmented(index)
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class EndlessSampler(torch.utils.data.Sampler[int]):
    """Permutations without an end."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(SIZE).tolist()


DATA: dict[str, Any] = {
    "map": Samples,
    "sharded": ShardedSamples,
    "drawing": DrawingSamples,
    "iterable": IterableSamples,
    "stateful": StatefulSamples,
}


class Shards:
    """Reads shards "number:size": consecutive ids of Samples."""

    def __init__(self, sizes: list[int]) -> None:
        self.starts = [sum(sizes[:number]) for number in range(len(sizes))]

    def __call__(self, shard: str, start: int) -> Iterator[int]:
        number, size = map(int, shard.split(":"))
        return iter(range(self.starts[number] + start, self.starts[number] + size))


def augmented(index: int) -> dict[str, Any]:
    return Samples()[index]


class Augment:
    """Returns a sample by id, and fails at bad ids."""

    def __init__(self, bad: list[int]) -> None:
        self.samples = Samples()
        self.samples.bad = set(bad)

    def __call__(self, index: int) -> dict[str, Any]:
        return self.samples[index]


def make_stream(shards: list[int], **settings: Any) -> Any:
    """Return a stream of the samples 0, 1, ... in shards of these sizes."""
    names = [f"{number}:{size}" for number, size in enumerate(shards)]
    settings = {"lanes": 4, "window": 5, "seed": 5, "transform": augmented, **settings}
    return lk.StreamDataset(names, Shards(shards), **settings)


def make_stages(*batch_sizes: int) -> lk.Stages:
    """Return stages of two sources, of 30 samples and then of 20, in batches of these sizes."""
    weights: list[Any] = [{"a": (3, 1), "b": (1, 3)}, {"a": 1, "b": 1}, {"b": 1}]
    stages = [lk.Stage(weights[number], size, samples=20 if number else 30) for number, size in enumerate(batch_sizes)]
    return lk.Stages(stages, {"a": Samples(30), "b": Samples(14, offset=1000)}, window=8)


class Model(pl.LightningModule):
    """A small network with dropout that writes each step's ids and loss to a file."""

    stopped = False
    noted = 0  # ends of batches and epochs

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        self.job = job
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1)
        )

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        parts = list(batch.values()) if isinstance(batch, dict) and "id" not in batch else [batch]
        ids = [part["id"].tolist() for part in parts]
        self.stop("in_step", batch_idx)
        loss = sum(torch.nn.functional.mse_loss(self.net(part["x"]), part["y"]) for part in parts)
        line = {"epoch": self.current_epoch, "batch": batch_idx, "ids": ids, "loss": float(loss)}
        with Path(self.job["dir"], f"steps-{self.job['name']}-{self.global_rank}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.log("loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.stop("before_learning", self.trainer.fit_loop.epoch_loop.batch_idx)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.stop("after_step", batch_idx)

    def stop(self, where: str, batch_idx: int) -> None:
        stop = self.job.get("stop")
        if not stop or stop["where"] != where or [self.current_epoch, batch_idx] != stop["at"]:
            return
        if stop["by"] == "exception":
            raise RuntimeError("stopped by the test")
        self.stopped = True
        os.kill(os.getpid(), getattr(signal, stop["by"]))

    def on_fit_end(self) -> None:
        if self.global_rank:
            return
        loops: Any = self.trainer.fit_loop.epoch_loop
        counts = {"global_step": self.trainer.global_step, "epoch": self.trainer.current_epoch}
        counts |= {"batches": loops.batch_progress.total.processed, "log_steps": loops._batches_that_stepped}
        torch.save(
            {"weights": self.state_dict(), "counts": counts}, Path(self.job["dir"], f"final-{self.job['name']}.pt")
        )

    def note(self, what: str, value: float = 0.0) -> None:
        """Write what happened at the end of a batch or an epoch, and count it."""
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        line = {
            "what": what,
            "epoch": self.current_epoch,
            "step": self.trainer.global_step,
            "value": value,
            "rate": rate,
        }
        with Path(self.job["dir"], f"ends-{self.job['name']}-{self.global_rank}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.noted += 1

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.note("validated", float(self.trainer.callback_metrics["val"]))

    def on_train_epoch_end(self) -> None:
        self.note("epoch", float(self.trainer.callback_metrics.get("loss", 0)))

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        super().lr_scheduler_step(scheduler, metric)
        self.note("scheduler", 0.0 if metric is None else float(metric))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["noted"] = self.noted

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.noted = checkpoint.get("noted", 0)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", self.net(batch["x"]).mean(), batch_size=len(batch["id"]))

    def configure_optimizers(self) -> Any:
        if self.job.get("reads_steps"):
            assert self.trainer.estimated_stepping_batches > 0
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
        if "plateau" not in self.job:
            return optimizer
        schedulers = torch.optim.lr_scheduler
        plateau = schedulers.ReduceLROnPlateau(optimizer, factor=0.7, patience=0, threshold=10, threshold_mode="abs")
        config = {"scheduler": plateau, **self.job["plateau"]}
        return {"optimizer": optimizer, "lr_scheduler": config}


class IteratorModel(Model):
    """A Model whose step takes batches from a dataloader_iter."""

    def training_step(self, dataloader_iter: Iterator[Any]) -> torch.Tensor:  # type: ignore[override]
        batches = [next(dataloader_iter)[0] for _ in range(self.job.get("takes", 1))]
        return super().training_step(batches[-1], self.trainer.fit_loop.epoch_loop.batch_idx)

    def log(self, name: str, value: Any, **settings: Any) -> None:  # type: ignore[override]
        super().log(name, value, **{"batch_size": 1, **settings})


class KillOnSave(pl.Callback):
    """Kills a preempted job after its signal, as soon as its checkpoint exists."""

    def on_train_batch_end(self, trainer: pl.Trainer, model: Any, *_: Any) -> None:
        if model.stopped and list(Path(str(trainer.default_root_dir)).glob("hpc_ckpt_*")):
            os.kill(os.getpid(), signal.SIGKILL)


class SaveAtStarts(pl.Callback):
    """Saves a checkpoint at the start of the training and of each epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trainer.save_checkpoint(self.path / "start-training.ckpt")

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trainer.save_checkpoint(self.path / f"start-epoch={trainer.current_epoch}.ckpt")


def make_trainer(job: dict[str, Any], **settings: Any) -> pl.Trainer:
    callbacks: list[pl.Callback] = [lk.SeedSteps()]
    if "save_every" in job:
        path = Path(job["dir"], f"saved-{job['name']}")
        callbacks.append(ModelCheckpoint(path, "step-{step}", every_n_train_steps=job["save_every"], save_top_k=-1))
        callbacks.append(ModelCheckpoint(path, "epoch-{epoch}", every_n_epochs=1, save_top_k=-1))
        if job.get("save_at_starts"):
            callbacks.append(SaveAtStarts(path))
        if job.get("save_in_validation"):
            callbacks.append(
                ModelCheckpoint(path, "val-{step}", monitor="val", save_top_k=-1, save_on_train_epoch_end=False)
            )
    stop = job.get("stop") or {}
    if stop.get("by") in ("exception", "SIGTERM"):
        callbacks.append(OnExceptionCheckpoint(Path(job["dir"]), "stopped"))
    plugins: list[Any] = []
    if stop.get("by") == "SIGUSR1":
        callbacks.append(KillOnSave())
        task = job.get("slurm", {"rank": 0, "ranks": 1, "port": 0})
        rank, ranks = str(task["rank"]), str(task["ranks"])
        os.environ.update(
            SLURM_JOB_ID="1", SLURM_JOB_NAME="test", SLURM_NODEID="0", SLURM_PROCID=rank, SLURM_LOCALID=rank
        )
        os.environ.update(SLURM_NTASKS=ranks, SLURM_NTASKS_PER_NODE=ranks, SLURM_NNODES="1")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(task["port"]))
        os.environ["PATH"] = f"{job['dir']}:{os.environ['PATH']}"
        if rank == "0":
            fake = Path(job["dir"], "scontrol")
            fake.write_text("#!/bin/sh\nexit 0\n")
            fake.chmod(0o755)
        plugins.append(SLURMEnvironment(auto_requeue=True))
    base: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": EPOCHS,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(callback, Checkpoint) for callback in callbacks),
        "num_sanity_val_steps": 1,
        "default_root_dir": job["dir"],
    }
    return pl.Trainer(callbacks=callbacks, plugins=plugins or None, **{**base, **job.get("trainer", {}), **settings})


def make_data(job: dict[str, Any]) -> lk.DataModule:
    settings = {"batch_size": BATCH, "seed": 5, **job.get("loader", {})}
    train: Any = DATA[job.get("data", "map")](job.get("size", SIZE))
    if job.get("bad"):
        train.bad = set(job["bad"])
    if job.get("shards"):
        train = make_stream(job["shards"], shuffle=True, transform=Augment(job.get("bad", [])), **job.get("stream", {}))
    if job.get("stages"):
        settings["plan"] = make_stages(*job["stages"])
        train = settings["plan"].dataset
    if job.get("budget"):  # epochs have different numbers of batches
        lengths = [1 + index % 7 for index in range(len(train))]
        settings["plan"] = lk.TokenBudget(lengths, job["budget"], window=8, seed=5)
    if job.get("sizes"):
        more = {name: Samples(size, offset=1000 * row) for row, (name, size) in enumerate(job["sizes"].items())}
        stream = {"stream": train} if job.get("shards") or "data" in job else {}
        train = {**more, **stream} if job.get("stream_last") else {**stream, **more}
    config = lk.LoaderConfig(**settings)
    kind = MinSizeModule if job.get("mode") == "min_size" else lk.DataModule
    return kind(train, val=Samples(10), loader=config, eval_loader=lk.LoaderConfig(batch_size=BATCH))


class MinSizeModule(lk.DataModule):
    """A DataModule whose epochs end with the shortest dataset."""

    def train_dataloader(self) -> Any:
        return pl.utilities.CombinedLoader(super().train_dataloader(), "min_size")


def run(job: dict[str, Any]) -> None:
    """Train as the job says in this process, and save the final weights."""
    with next_lightning.installed() if job.get("next_lightning") else contextlib.nullcontext():
        _run(job)


def _run(job: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    pl.seed_everything(job.get("global_seed", 1), verbose=False)
    model = IteratorModel(job) if job.get("iterator") else Model(job)
    if "global_seed" in job:
        torch.manual_seed(1)
        model = Model(job)
        torch.manual_seed(job["global_seed"])
    trainer = make_trainer(job)
    data = make_data(job)
    ckpt = lk.newest_checkpoint(job["dir"]) if job.get("requeued") else job.get("ckpt")
    if job.get("direct"):
        settings = {"batch_size": BATCH, "seed": 5, **job.get("loader", {})}
        if job.get("shards"):
            loader = lk.Loader(make_stream(job["shards"], shuffle=True), **settings)
        else:
            loader = lk.Loader(Samples(job.get("size", SIZE)), shuffle=True, **settings)
        trainer.fit(model, loader, lk.Loader(Samples(10), BATCH), ckpt_path=ckpt)
    else:
        trainer.fit(model, datamodule=data, ckpt_path=ckpt)


def run_each(job: dict[str, Any]) -> None:
    """Run several jobs one after another."""
    for each in job["jobs"]:
        run(each)


def _main(job: dict[str, Any], target: Callable[[dict[str, Any]], None]) -> None:
    log = os.open(str(Path(job["dir"], f"log-{job['name']}.txt")), os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.setsid()
    multiprocessing.set_start_method(None, force=True)  # the job's workers start as in any training
    target(job)


# The fork server imports lightning once. Before Python 3.13 it finds this module only through PYTHONPATH, which conftest.py sets.
_context = multiprocessing.get_context("forkserver")
set_forkserver_preload(["lightning_job", "warmed"])


def launch(job: dict[str, Any], target: Callable[[dict[str, Any]], None] = run) -> int:
    """Run a job in a new process and return its exit code (negative: the signal that ended it)."""
    return launch_all([job], target)[0]


def launch_all(jobs: list[dict[str, Any]], target: Callable[[dict[str, Any]], None] = run) -> list[int]:
    """Run jobs in parallel, such as the tasks of one SLURM job; return their exit codes."""
    processes = [_context.Process(target=_main, args=(job, target)) for job in jobs]
    deadline = time.monotonic() + TIMEOUT_S
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(max(0, deadline - time.monotonic()))
    finally:
        late = [process for process in processes if process.is_alive()]
        for process in late:
            os.killpg(process.pid or 0, signal.SIGKILL)
            process.join()
    if late:
        raise TimeoutError(f"job {jobs[0]['name']} took more than {TIMEOUT_S} s: {log_of(jobs[0])}")
    return [process.exitcode or 0 for process in processes]


def log_of(job: dict[str, Any]) -> str:
    """Return what the job printed."""
    return Path(job["dir"], f"log-{job['name']}.txt").read_text()[-3000:]


def steps_of(job: dict[str, Any], rank: int = 0) -> list[dict[str, Any]]:
    """Return the epoch, batch, ids and loss of each step of a job."""
    path = Path(job["dir"], f"steps-{job['name']}-{rank}.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def ends_of(job: dict[str, Any], rank: int = 0) -> list[dict[str, Any]]:
    """Return the validations, updates of schedulers and ends of epochs of a job."""
    path = Path(job["dir"], f"ends-{job['name']}-{rank}.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def final_of(job: dict[str, Any]) -> dict[str, Any]:
    """Return the job's final weights and the Trainer's counts."""
    final: dict[str, Any] = torch.load(Path(job["dir"], f"final-{job['name']}.pt"), weights_only=True)
    return final


if __name__ == "__main__":
    import sys

    run(json.loads(Path(sys.argv[1]).read_text()))
