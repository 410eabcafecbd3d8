"""Video classification on random clips: killed, resumed, and the same to the last bit.

    python examples/video.py --kill-after 40
    python examples/video.py --workers 0

Writes videos of a square that moves up, down, left or right, into tar shards as WebDataset lays them out: `000000001.mp4`,
`000000001.cls`. Each epoch trains on four frames from another place of each video. The second command resumes after the last checkpoint,
here without workers, and ends with the weights of a run that was never killed.
"""

import argparse
import hashlib
import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from torch import Tensor, nn

import loaderkit as lk

SIZE, FRAMES, EPOCHS, SAVE_EVERY = 32, 30, 5, 15
WAYS = ((0, 1), (0, -1), (1, 0), (-1, 0))


def films(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield encoded videos with the number of the square's way."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        label, at = number % len(WAYS), rng.integers(0, SIZE, 2)
        background = rng.integers(0, 60, (SIZE, SIZE, 3), dtype=np.uint8)
        film = io.BytesIO()
        with av.open(film, "w", format="mp4") as file:
            stream: Any = file.add_stream("mpeg4", rate=25)  # its bytes are the same each time, unlike those of x264
            stream.width, stream.height, stream.gop_size, stream.thread_count = SIZE, SIZE, 10, 1
            for frame in range(FRAMES):
                rows, columns = ((at + np.array(WAYS[label]) * frame)[:, None] + np.arange(8)) % SIZE
                pixels = background.copy()
                pixels[np.ix_(rows, columns)] = 250
                file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
            file.mux(stream.encode())
        yield {"mp4": film.getvalue(), "cls": label}


def to_floats(frames: Tensor) -> Tensor:
    """Turn uint8 clips (B, N, 3, H, W) into what the network takes, (B, N, H, W)."""
    return frames.float().mean(2) / 255


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/video"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill-after", type=int, metavar="STEPS")
    given = parser.parse_args()
    for name, count, seed in (("train", 240, 0), ("val", 40, 1)):
        if not (given.folder / name).exists():
            lk.write_shards(list(films(count, seed)), given.folder / name, format="tar", samples_per_shard=60, jobs=1)

    torch.manual_seed(0)
    torch.set_num_threads(1)
    clips = lk.VideoDataset(lk.TarDataset(given.folder / "train"), frames=4, stride=2)
    loader = lk.Loader(clips, batch_size=8, shuffle=True, num_workers=given.workers)
    model = nn.Sequential(
        nn.Conv2d(4, 32, 5, padding=2), nn.ReLU(), nn.Conv2d(32, 32, 5, padding=2), nn.ReLU(), nn.AdaptiveMaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(128, len(WAYS)),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    checkpoint = given.folder / "last.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        print(f"resumed at epoch {loader.cursor.epoch}, batch {loader.cursor.batches} of {len(loader)}")

    while loader.cursor.epoch < EPOCHS:
        for batch in loader:
            step = loader.cursor.epoch * len(loader) + loader.cursor.batches
            torch.manual_seed(lk.derive_seed("step", step))  # the dropout's
            loss = nn.functional.cross_entropy(model(to_floats(batch["frames"])), batch["cls"])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if step % SAVE_EVERY == 0:
                save(checkpoint, model=model, optimizer=optimizer, loader=loader)
            if step == given.kill_after:
                print(f"killed after step {step}", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

    model.eval()
    middle = lk.VideoDataset(lk.TarDataset(given.folder / "val"), frames=4, stride=2, clips="middle")
    found = [
        (model(to_floats(batch["frames"])).argmax(1) == batch["cls"]) for batch in lk.Loader(middle, batch_size=20)
    ]
    print(f"accuracy {torch.cat(found).float().mean():.3f} on {len(middle)} clips")
    weights = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
    print(f"final weights: {weights.hexdigest()[:16]}")


def save(path: Path, **parts: Any) -> None:
    """Write a checkpoint atomically: a kill never leaves a partial file."""
    unfinished = path.with_suffix(".unfinished")
    torch.save({name: part.state_dict() for name, part in parts.items()}, unfinished)
    unfinished.replace(path)


if __name__ == "__main__":
    main()
