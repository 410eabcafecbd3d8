"""A Hugging Face Trainer's run, on one or two ranks, which may be killed: `python trainer_job.py JOB.json`.

The job: `folder` (the checkpoints'), `out` (what the run leaves), `loader` ("ours" or "own"), `data`, `ranks`, `resume`, `noise`, `kill_at`
(the batch in which all ranks die), `kill_after_s` (when they die, whatever they do), `evaluate`, `settings` (of the TrainingArguments).
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "ACCELERATE_USE_CPU": "true"}

import datasets
import torch
from job_ranks import run_ranks
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed
from transformers.utils import logging

import loaderkit as lk

datasets.disable_progress_bars()
logging.set_verbosity_error()
SIZE = 43
noise = 8  # of an augmentation at random


def sample(number: int) -> dict[str, Any]:
    """Sample `number`: its number in base 8, and some noise."""
    return {"input_ids": [number // 8, number % 8, 8 + int(torch.randint(noise, ()))], "labels": number % 3}


class Samples(torch.utils.data.Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> dict[str, Any]:
        return sample(index)


def rows() -> Any:
    numbers = range(SIZE)
    return {"input_ids": [[n // 8, n % 8, 8] for n in numbers], "labels": [n % 3 for n in numbers]}


def shard(name: str, start: int) -> Any:
    return (sample(number) for number in range(int(name) + 4 * start, SIZE, 4))


def stack(samples: list[Any]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor([each[name] for each in samples]) for name in ("input_ids", "labels")}


def make_data(kind: str, batch: int) -> Any:
    if kind == "map":
        return Samples()
    if kind == "hf":
        return datasets.Dataset.from_dict(rows() | {"text": ["unused"] * SIZE})
    if kind == "hf_stream":
        return datasets.Dataset.from_dict(rows()).to_iterable_dataset(num_shards=4).shuffle(seed=5, buffer_size=6)
    if kind == "stream":
        stream = lk.StreamDataset(["0", "1", "2", "3"], shard, lanes=4, shuffle=True, window=6)
        return lk.Loader(stream, batch, collate_fn=stack, stop="shortest")
    plan = lk.LengthBuckets([n % 7 for n in range(SIZE)], batch_size=batch)
    return lk.Loader(Samples(), plan=plan, collate_fn=stack)


def make_trainer(job: dict[str, Any], rank: int) -> Trainer:
    class Logged(Trainer):
        batches = 0

        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self.batches == job.get("kill_at"):
                os.killpg(0, signal.SIGKILL)
            self.batches += 1
            numbers = (8 * inputs["input_ids"][:, 0] + inputs["input_ids"][:, 1]).tolist()
            with Path(f"{job['out']}.{rank}.log").open("a") as file:
                file.write(json.dumps([self.state.global_step, numbers]) + "\n")
            return super().training_step(model, inputs, *args, **kwargs)

    class Resumable(lk.integrations.huggingface.ResumableTrainer, Logged):
        pass

    set_seed(1)
    config = BertConfig(
        vocab_size=16, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3
    )
    settings: dict[str, Any] = {
        "output_dir": job["folder"],
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "num_train_epochs": 2,
        "save_steps": 2,
        "learning_rate": 1e-2,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "logging_strategy": "no",
        **job.get("settings", {}),
    }
    kind = Resumable if job.get("loader", "ours") == "ours" else Logged
    return kind(
        BertForSequenceClassification(config),
        TrainingArguments(**settings),
        train_dataset=make_data(job.get("data", "map"), settings["per_device_train_batch_size"]),
        eval_dataset=Samples(),
        data_collator=stack,
        compute_metrics=lambda found: {"labels": found.label_ids.tolist(), "mean": float(found.predictions.mean())},
    )


def work(job: dict[str, Any], rank: int) -> None:
    if "kill_after_s" in job and rank == 0 and not os.fork():
        time.sleep(job["kill_after_s"])
        os.killpg(0, signal.SIGKILL)
    trainer = make_trainer(job, rank)
    if job.get("evaluate"):
        found = trainer.evaluate()
        if rank == 0:
            Path(job["out"]).write_text(json.dumps(found))
        return
    resume: Any = None
    if job.get("resume"):
        last = lk.integrations.huggingface.last_checkpoint(job["folder"])
        resume = last if job.get("loader", "ours") == "ours" else newest(job["folder"])
    trainer.train(resume_from_checkpoint=resume)
    if "kill_after_s" in job:
        signal.pause()
    if rank == 0:
        torch.save({"model": trainer.model.state_dict(), "resumed": resume}, job["out"])


def newest(folder: str) -> str | None:
    found = sorted(Path(folder).glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    return str(found[-1]) if found else None


def main() -> None:
    global noise
    job = json.loads(Path(sys.argv[1]).read_text())
    noise = job.get("noise", 8)
    run_ranks(work, job)


if __name__ == "__main__":
    main()
