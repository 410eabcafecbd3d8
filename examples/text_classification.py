"""Texts of different lengths: which chapter of Python's help is a paragraph from? An LSTM on packed sequences.

    python examples/text_classification.py

The texts are the paragraphs of the sixteen longest sections of `pydoc_data.topics`. A token is a word, hashed. Batches hold
paragraphs of similar lengths (`TextBatching(how="buckets")`), and `pack_padded_sequence` skips the remaining padding.
"""

import argparse
import re
import zlib
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import loaderkit as lk

WORDS, WIDTH = 4096, 64


def hash_words(text: str) -> list[int]:
    return [zlib.crc32(word.encode()) % WORDS for word in re.findall(r"\w+|[^\w\s]", text.lower())]


def paragraphs() -> dict[str, list[str]]:
    names = sorted(topics, key=lambda name: len(topics[name]))[-16:]
    rows = [(part, name) for name in names for part in topics[name].split("\n\n") if len(part.split()) > 3]
    return {"text": [text for text, _ in rows], "topic": [name for _, name in rows]}


class Classifier(pl.LightningModule):
    """An LSTM whose states are pooled over the real tokens."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(words, WIDTH), nn.Dropout(0.3)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.head = nn.Linear(4 * WIDTH, classes)
        self.real = self.padded = self.right = self.seen = 0

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        packed = pack_padded_sequence(
            self.dropout(self.embedding(batch["tokens"])),
            batch["tokens_lengths"].cpu(),
            batch_first=True,
            enforce_sorted=False,
        )
        states, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        mean = states.sum(dim=1) / batch["tokens_lengths"][:, None]
        logits: Tensor = self.head(self.dropout(torch.cat([mean, states.amax(dim=1)], dim=1)))
        return logits

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        self.real += int(batch["tokens_lengths"].sum())
        self.padded += batch["tokens"].numel()
        return nn.functional.cross_entropy(self(batch), batch["label"])

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.right += int((self(batch).argmax(dim=1) == batch["label"]).sum())
        self.seen += len(batch["label"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/text_classification"))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0)
    given = parser.parse_args()
    data = lk.TextDataModule(
        paragraphs(),
        text="text",
        label="topic",
        tokenizer=hash_words,
        vocab_size=WORDS,
        batching=lk.TextBatching(how="buckets", max_length=256),
        splits={"train": 0.85, "val": 0.15},
        loader=lk.LoaderConfig(batch_size=32, num_workers=given.workers),
    )
    pl.seed_everything(0, verbose=False)
    settings: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        max_epochs=given.epochs,
        limit_val_batches=0,
        devices=1,
        enable_checkpointing=False,
        default_root_dir=given.folder,
        **settings,
    )
    model = Classifier(data.vocab_size, data.num_classes)
    trainer.fit(model, datamodule=data)
    trainer.limit_val_batches = 1.0
    trainer.validate(model, datamodule=data, verbose=False)
    print(f"{model.padded / model.real:.3f} tokens computed for each real one")
    print(f"{model.right} of {model.seen} paragraphs are put under their section, of {data.num_classes}")


if __name__ == "__main__":
    main()
