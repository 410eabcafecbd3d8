"""Audio classification on random clips: killed, resumed, and the same to the last bit.

    python examples/audio.py --kill-after 40
    python examples/audio.py --workers 0

Writes FLAC files of four chords in noise, one folder for each chord, between one and three seconds long. Each epoch trains on half
a second from another place of each file. The second command resumes after the last checkpoint, here without workers, and ends with the
weights of a run that was never killed.
"""

import argparse
import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from torch import Tensor, nn

import loaderkit as lk

RATE, EPOCHS, SAVE_EVERY = 8000, 4, 15
CHORDS = {"major": (0, 4, 7), "minor": (0, 3, 7), "diminished": (0, 3, 6), "augmented": (0, 4, 8)}  # semitones


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(257, 64, 3, padding=1), nn.ReLU(), nn.Dropout(0.1), nn.Conv1d(64, len(CHORDS), 3, padding=1)
        )

    def forward(self, waves: Tensor) -> Tensor:
        window = torch.hann_window(512, device=waves.device)
        spectrum = torch.stft(waves[:, 0], 512, 256, window=window, return_complex=True).abs()
        scores: Tensor = self.net(torch.log1p(spectrum)).mean(-1)
        return scores


def write_files(folder: Path, each: int, seed: int) -> None:
    """Write files of each chord; existing ones stay."""
    rng = np.random.default_rng(seed)
    for name, chord in CHORDS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(each):
            time = np.arange(rng.integers(RATE, 3 * RATE)) / RATE
            pitches = 440 * 2 ** (np.array(chord) / 12) * rng.uniform(0.99, 1.01)
            wave = np.sin(2 * np.pi * pitches[:, None] * time).mean(0) + rng.normal(0, 0.5, len(time))
            path = folder / name / f"{number}.flac"
            if path.exists():
                continue
            frame = av.AudioFrame.from_ndarray((wave * 8000).astype(np.int16)[None], format="s16", layout="mono")
            frame.sample_rate = RATE
            with av.open(str(path), "w") as file:
                stream: Any = file.add_stream("flac", rate=RATE, layout="mono")
                file.mux([*stream.encode(frame), *stream.encode()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/audio"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill-after", type=int, metavar="STEPS")
    given = parser.parse_args()
    write_files(given.folder / "train", 60, seed=0)
    write_files(given.folder / "val", 10, seed=1)

    torch.manual_seed(0)
    torch.set_num_threads(1)
    sounds = lk.AudioDataset(given.folder / "train", labels="folder", clip_s=0.5)
    loader = lk.Loader(sounds, batch_size=8, shuffle=True, num_workers=given.workers)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
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
            loss = nn.functional.cross_entropy(model(batch["waveform"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if step % SAVE_EVERY == 0:
                save(checkpoint, model=model, optimizer=optimizer, loader=loader)
            if step == given.kill_after:
                print(f"killed after step {step}", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

    model.eval()
    clips = lk.AudioDataset(given.folder / "val", labels="folder", clip_s=0.5, clips="all", cache_dir=given.folder)
    found = [(model(batch["waveform"]).argmax(1) == batch["label"]) for batch in lk.Loader(clips, batch_size=32)]
    print(f"accuracy {torch.cat(found).float().mean():.3f} on {len(clips)} clips")
    weights = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
    print(f"final weights: {weights.hexdigest()[:16]}")


def save(path: Path, **parts: Any) -> None:
    """Write a checkpoint atomically: a kill never leaves a partial file."""
    unfinished = path.with_suffix(".unfinished")
    torch.save({name: part.state_dict() for name, part in parts.items()}, unfinished)
    unfinished.replace(path)


if __name__ == "__main__":
    main()
