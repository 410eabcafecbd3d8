"""A small vision-language model learns to caption pictures of scikit-image and scikit-learn; killed and resumed.

    python examples/multimodal.py --kill-after 100
    python examples/multimodal.py --workers 0

The documents are JSON lines: pictures by their file names, each followed by its caption. They become packed rows of bytes and
placeholders, and patches without padding. The second command resumes after the last checkpoint, here without workers, and ends with
the weights of a run that was never killed. Then the model captions each picture.
"""

import argparse
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import skimage
import sklearn
import torch
from PIL import Image
from torch import Tensor, nn

import loaderkit as lk

CAPTIONS = {
    "skimage/data/astronaut.png": "an astronaut in her suit",
    "skimage/data/brick.png": "a wall of bricks",
    "skimage/data/camera.png": "a man with a camera",
    "skimage/data/cell.png": "a cell under a microscope",
    "skimage/data/chelsea.png": "a cat",
    "skimage/data/coffee.png": "a cup of coffee",
    "skimage/data/coins.png": "old coins",
    "skimage/data/grass.png": "grass from above",
    "skimage/data/horse.png": "the outline of a horse",
    "skimage/data/hubble_deep_field.jpg": "galaxies far away",
    "skimage/data/ihc.png": "tissue with a stain",
    "skimage/data/moon.png": "the surface of the moon",
    "skimage/data/motorcycle_left.png": "a motorcycle in a garage",
    "skimage/data/page.png": "a page of a book",
    "skimage/data/retina.jpg": "the retina of an eye",
    "skimage/data/rocket.jpg": "a rocket at its launch",
    "sklearn/datasets/images/china.jpg": "a palace in China",
    "sklearn/datasets/images/flower.jpg": "an orange flower",
}
PLACEHOLDER, END = 256, 10  # after the bytes; and a new line, with which each caption ends
ROW, ROWS, STEPS, SAVE_EVERY = 256, 4, 240, 40
PATCHES = lk.Patches(size=8, merge=2, max_tokens=24)
COLLATE = lk.PackCollate(tokens="input_ids", row_length=ROW, labels=None, fields={"labels": -100, "images": PATCHES})


class Captioner(nn.Module):
    """A decoder of bytes that sees pictures in the place of their placeholders."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.tokens, self.places = nn.Embedding(PLACEHOLDER + 1, width), nn.Embedding(ROW, width)
        self.patches = nn.Linear(PATCHES.merge**2 * 3 * PATCHES.size**2, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(width, PLACEHOLDER)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        ids = batch["input_ids"]
        pixels = batch["images"]["patches"].float() / 127.5 - 1
        seen = self.patches(pixels.reshape(-1, self.patches.in_features))  # the patches of a token are neighbours
        steps = self.tokens(ids).masked_scatter((ids == PLACEHOLDER)[..., None], seen) + self.places(
            batch["position_ids"]
        )
        hidden = ~lk.document_mask(batch["document_ids"]).repeat(1, self.heads, 1, 1).flatten(0, 1)
        for layer in self.layers:
            steps = layer(steps, src_mask=hidden)
        scores: Tensor = self.head(steps)
        return scores


def bytes_of(text: str) -> list[int]:
    return list(text.encode())


def write_documents(folder: Path, count: int = 400) -> Path:
    """Copy the pictures in different sizes, and write documents of one to three of them, unless they are there."""
    path = folder / "documents.jsonl"
    if path.exists():
        return path
    rng = np.random.default_rng(0)
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    packages = {package.__name__: Path(package.__path__[0]).parent for package in (skimage, sklearn)}
    for name in CAPTIONS:
        side = int(rng.integers(60, 120))
        with Image.open(packages[name.partition("/")[0]] / name) as picture:
            picture.thumbnail((side, side))
            picture.convert("RGB").save(folder / "pictures" / f"{Path(name).stem}.png")
    lines = []
    for _ in range(count):
        names = rng.choice(list(CAPTIONS), int(rng.integers(1, 4)), replace=False).tolist()
        lines.append(json.dumps({"content": [part for name in names for part in document(name)]}))
    path.write_text("\n".join(lines))
    return path


def document(name: str) -> list[Any]:
    return [{"type": "image", "image": f"{Path(name).stem}.png"}, CAPTIONS[name] + "\n"]


def caption(model: nn.Module, sample: dict[str, Any], start: int) -> str:
    """Return what the model writes after the first `start` tokens of a sample, up to a new line."""
    ids = sample["input_ids"][:start].tolist()
    while ids[-1] != END and len(ids) < start + 40:
        tokens = torch.tensor(ids)
        batch = COLLATE([[{"input_ids": tokens, "labels": tokens, "images": sample["images"]}]])
        ids.append(int(model(batch)[0, len(ids) - 1].argmax()))
    return bytes(ids[start:]).decode(errors="replace").strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/multimodal"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill-after", type=int, metavar="STEPS")
    given = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = lk.JsonlDataset(write_documents(given.folder))
    pictures = lk.Pictures(PATCHES, placeholder=PLACEHOLDER, root=given.folder / "pictures")
    data = lk.MultimodalDataset(rows, bytes_of, pictures)
    lengths = lk.measure_lengths(data)  # of the pictures, the headers alone are read
    plan = lk.PackPlan(lengths, ROW, ROWS)
    loader = lk.Loader(data, plan=plan, collate_fn=COLLATE, num_workers=given.workers)
    model = Captioner()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    checkpoint, step = given.folder / "last.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        step = state["step"]
        print(f"resumed after step {step}, at epoch {loader.cursor.epoch}, batch {loader.cursor.batches}")

    while step < STEPS:
        for batch in loader:
            step += 1
            scores, labels = model(batch)[:, :-1], batch["labels"][:, 1:]
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if step % SAVE_EVERY == 0:
                used = int((batch["document_ids"] >= 0).sum()) / batch["document_ids"].numel()
                print(f"step {step}: {loss.item():.4f} nats a byte, {used:.0%} of the rows used", flush=True)
                save(checkpoint, step, model=model, optimizer=optimizer, loader=loader)
            if step == given.kill_after:
                print(f"killed after step {step}", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            if step == STEPS:
                break

    alone = lk.MultimodalDataset([{"content": document(name)} for name in CAPTIONS], bytes_of, pictures)
    with torch.no_grad():
        found = [
            caption(model, sample, PATCHES.tokens(sample["images"]))
            for sample in map(alone.__getitem__, range(len(alone)))
        ]
    right = sum(text == wanted for text, wanted in zip(found, CAPTIONS.values(), strict=True))
    print(f"{right} of {len(found)} pictures get their caption; the first one is {found[0]!r}")
    weights = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
    print(f"final weights: {weights.hexdigest()[:16]}")


def save(path: Path, step: int, **parts: Any) -> None:
    """Write a checkpoint atomically: a kill never leaves a partial file."""
    unfinished = path.with_suffix(".unfinished")
    torch.save({"step": step, **{name: part.state_dict() for name, part in parts.items()}}, unfinished)
    unfinished.replace(path)


if __name__ == "__main__":
    main()
