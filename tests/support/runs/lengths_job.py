"""Jobs for `lightning_job.launch`: trainings of texts, chats and boxes on one and two ranks, one after another."""

import json
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_runs import quiet_trainer

import loaderkit as lk

EPOCHS, SIZE = 2, 41


def numbers_of(text: str) -> list[int]:
    """Tokenize "7 5" as five times the token 7."""
    token, count = map(int, text.split())
    return [token] * count


class Noise:
    """Adds random numbers to a picture."""

    def __call__(self, image: torch.Tensor, target: Any) -> tuple[torch.Tensor, Any]:
        return image.float() + torch.rand(image.shape), target


def make_data(kind: str) -> lk.DataModule:
    if kind == "boxes":
        pictures = [
            {"image": torch.full((3, 4, 4 + row % 5), row, dtype=torch.uint8), "boxes": [[0, 0, 2, 2]], "labels": ["a"]}
            | {"image_id": 1 + row}
            for row in range(SIZE)
        ]
        return lk.DetectionDataModule(pictures, train_transform=Noise(), loader=lk.LoaderConfig(batch_size=2, seed=5))
    if kind == "chats":
        chats = [
            {"instruction": str(1 + row), "output": " ".join([str(1 + row)] * (1 + row * 7 % 19))}
            for row in range(SIZE)
        ]
        return lk.ChatDataModule(
            chats,
            splits={"train": 1},
            tokenizer=word_tokenizer(),
            batching=lk.TextBatching(how="packed", window=24, max_length=24),
            loader=lk.LoaderConfig(batch_size=2, seed=5),
        )
    texts = [f"{1 + row} {2 + row * 7 % 19}" for row in range(SIZE)]
    batching = lk.TextBatching(
        how=kind,  # type: ignore[arg-type]
        window=24,
        max_tokens=40 if kind == "budget" else None,
        max_length=24 if kind == "packed" else None,
    )
    return lk.TextDataModule(
        {"text": texts},
        splits={"train": 1},
        tokenizer=numbers_of,
        vocab_size=SIZE + 1,
        batching=batching,
        loader=lk.LoaderConfig(batch_size=2, seed=5),
    )


def word_tokenizer() -> Any:
    """Return a tokenizer in which the number 7 is the token 7, and a chat template without blocks."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", *map(str, range(1, SIZE + 1)), "user", "assistant"]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    template = "{% for m in messages %}{{ m.role + ' ' + m.content + ' ' }}{% endfor %}"
    template += "{% if add_generation_prompt %}assistant {% endif %}"
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", chat_template=template)


class Model(pl.LightningModule):
    """One weight with dropout; it writes each step's ids and loss to a file. It may kill its process at a step."""

    def __init__(self, folder: Path, kill_at: int | None = None) -> None:
        super().__init__()
        self.folder, self.kill_at = folder, kill_at
        self.scale = torch.nn.Parameter(torch.ones(()))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.global_step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if isinstance(batch, dict):
            tokens = batch["input_ids" if "input_ids" in batch else "tokens"]
            values, ids = tokens.float(), tokens.unique().tolist()
        else:
            images, targets = batch
            values, ids = torch.cat([image.flatten() for image in images]), [int(t["image_id"]) for t in targets]
        loss = torch.nn.functional.dropout(values * self.scale).mean()
        line = [self.current_epoch, [number for number in ids if 0 < number <= SIZE], float(loss)]
        with Path(self.folder, f"steps-{self.global_rank}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-4, momentum=0.9)


def fit(folder: Path, kind: str, ranks: int, ckpt: str | None, kill_at: int | None = None) -> None:
    folder.mkdir(parents=True)
    saving = ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)
    settings: dict[str, Any] = {"callbacks": [lk.SeedSteps(), saving], "enable_checkpointing": True}
    strategy = "ddp_fork" if ranks > 1 else "auto"
    trainer = quiet_trainer(folder, devices=ranks, strategy=strategy, max_epochs=EPOCHS, **settings)
    trainer.fit(Model(folder, kill_at), datamodule=make_data(kind), ckpt_path=ckpt)


def run_one(job: dict[str, Any]) -> None:
    """Train a kind as the job says."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    fit(Path(job["dir"], job["name"]), **job["fit"])


def run(job: dict[str, Any]) -> None:
    """Train each kind on two ranks, then resume mid-epoch on two ranks, on one, and from that one on two."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for kind in job["kinds"]:
        folder = Path(job["dir"], kind)
        at, further = job["at"]
        fit(folder / "whole", kind, 2, None)
        fit(folder / "resumed", kind, 2, str(folder / "whole" / f"step={at}.ckpt"))
        fit(folder / "one", kind, 1, str(folder / "whole" / f"step={at}.ckpt"))
        fit(folder / "two", kind, 2, str(folder / "one" / f"step={further}.ckpt"))
