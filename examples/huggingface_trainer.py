"""A Hugging Face Trainer that resumes in the middle of an epoch, and of nothing it has seen.

    python examples/huggingface_trainer.py --kill-after 30
    python examples/huggingface_trainer.py

The first command trains a tiny BERT, made here, to tell whether two numbers in a text are equal. It saves every 10 steps of the
optimizer, each of two batches, and kills itself (SIGKILL). The second continues after the last whole checkpoint and prints
a digest of the final weights. A run without interruption prints the same digest:

    python examples/huggingface_trainer.py --folder runs/whole

`ResumableTrainer` in front of `Trainer`, and `last_checkpoint`, are all that it takes. On two ranks:

    torchrun --nproc-per-node 2 examples/huggingface_trainer.py --folder runs/two
"""

import argparse
import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed
from transformers.utils import logging

import loaderkit as lk
from loaderkit.integrations.huggingface import ResumableTrainer, last_checkpoint


class Pairs(Dataset[dict[str, Any]]):
    """Texts of two numbers below 16, drawn again in each epoch; the label says whether they are equal."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        first = int(torch.randint(16, ()))
        second = first if index % 2 else int(torch.randint(16, ()))
        return {"input_ids": torch.tensor([first, 16, second]), "labels": int(first == second)}


class KillableTrainer(ResumableTrainer, Trainer):  # type: ignore[misc]  # mypy does not read transformers here
    kill_after: int | None = None  # batches

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.kill_after is not None:
            if self.kill_after == 0:
                print(f"killed after step {self.state.global_step}", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            self.kill_after -= 1
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/huggingface_trainer"))
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--kill-after", type=int, metavar="BATCHES")
    given = parser.parse_args()

    set_seed(0)
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    config = BertConfig(
        vocab_size=17, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=2
    )
    trainer = KillableTrainer(
        BertForSequenceClassification(config),
        TrainingArguments(
            output_dir=str(given.folder),
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            num_train_epochs=2,
            save_steps=10,
            save_total_limit=2,
            learning_rate=3e-3,
            dataloader_num_workers=given.workers,
            disable_tqdm=True,
            report_to=[],
            use_cpu=not torch.accelerator.is_available(),  # else ranks on CPUs would not work together
        ),
        train_dataset=Pairs(500),
        eval_dataset=lk.Loader(Pairs(100), 32, seed=1),  # a Loader keeps its own settings
    )
    trainer.kill_after = given.kill_after
    resumed = last_checkpoint(given.folder)
    print(f"resumed from {resumed}")
    trainer.train(resume_from_checkpoint=resumed)
    print(f"loss on new pairs: {trainer.evaluate()['eval_loss']:.3f}")
    weights = b"".join(value.numpy(force=True).tobytes() for value in trainer.model.state_dict().values())
    print(f"final weights: {hashlib.sha256(weights).hexdigest()[:16]}")


if __name__ == "__main__":
    main()
