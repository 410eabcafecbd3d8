"""A small language model on token shards: it is killed in the middle of an epoch, and goes on with the next window.

    python examples/language_model.py --kill-after 60
    python examples/language_model.py

The tokens are the bytes of Python's own help texts (`pydoc_data.topics`), in shards of raw uint8. A sample is a
window of 65 of them, and stays uint8 until it reaches the device. The second command resumes after the last checkpoint.
"""

import argparse
import os
import signal
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn

import loaderkit as lk

LENGTH, WIDTH, SHARDS = 64, 64, 8


class LanguageModel(pl.LightningModule):
    """Two causal transformer layers over bytes, which print their loss."""

    def __init__(self, kill_after: int | None) -> None:
        super().__init__()
        self.kill_after = kill_after
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        if self.global_step == self.kill_after:
            print(f"killed in epoch {self.current_epoch}, before batch {batch_idx}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        batch = batch.long()
        hidden = self.tokens(batch[:, :-1]) + self.places.weight
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device=batch.device)
        logits = self.head(self.net(hidden, mask=mask, is_causal=True))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        if self.global_step % 20 == 0:
            print(f"step {self.global_step:3}: {loss.item():.4f} nats a byte", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def write_tokens(folder: Path) -> None:
    """Write the texts in shards, once."""
    if folder.is_dir():
        return
    folder.mkdir(parents=True)
    data = np.frombuffer("\n".join(topics[name] for name in sorted(topics)).encode(), dtype=np.uint8)
    for number, shard in enumerate(np.array_split(data, SHARDS)):
        shard.tofile(folder / f"topics-{number}.bin")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/language_model"))
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--kill-after", type=int, metavar="STEPS")
    given = parser.parse_args()
    write_tokens(given.folder / "tokens")
    data = lk.ShardDataModule(
        given.folder / "tokens",
        format="tokens",
        options={"length": LENGTH + 1, "stride": LENGTH, "dtype": "uint8"},
        loader=lk.LoaderConfig(batch_size=32, num_workers=given.workers),
    )
    pl.seed_everything(0, verbose=False)
    callbacks: list[Any] = [
        ModelCheckpoint(given.folder, every_n_train_steps=25, save_last=True, enable_version_counter=False),
        lk.SeedSteps(),  # dropout draws the same numbers after a resume
    ]
    trainer = pl.Trainer(
        max_steps=given.steps,
        accelerator="auto",
        devices=1,
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=given.folder,
    )
    model = LanguageModel(given.kill_after)
    saved = given.folder / "last.ckpt"
    trainer.fit(model, datamodule=data, ckpt_path=saved if saved.exists() else None)
    torch.save(model.state_dict(), given.folder / "weights.pt")
    print(f"done after {trainer.global_step} steps")


if __name__ == "__main__":
    main()
