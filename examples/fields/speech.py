"""Cuts of speech, perturbed by Lhotse, in batches of at most so many seconds: killed, resumed, and the same bit for bit.

    pip install lhotse soundfile
    python examples/fields/speech.py

Lhotse's transforms make a generator when they are first called, from numbers of the system. The Loader finds it then, and reads the
first samples again.
"""

import io
from typing import Any

import numpy as np
import soundfile
import torch
from killed import compare
from lhotse import CutSet, Recording
from lhotse.dataset import CutMix, PerturbSpeed, PerturbVolume

import loaderkit as lk

CUTS, RATE = 32, 8_000


def cut(name: str, seconds: float) -> Any:
    file = io.BytesIO()
    noise = np.random.default_rng(int(1_000 * seconds)).normal(0, 0.1, int(RATE * seconds))
    soundfile.write(file, noise, RATE, "FLOAT", format="WAV")
    return Recording.from_bytes(file.getvalue(), name).to_cut()


class Speech:
    def __init__(self) -> None:
        self.cuts = [cut(f"speech {number}", 0.3 + number % 7 / 10) for number in range(CUTS)]
        noise = CutSet.from_cuts([cut("street", 1.25)])
        self.steps = [PerturbSpeed([0.9, 1.1], p=0.6), PerturbVolume(p=0.5), CutMix(noise, p=0.5, preserve_id=True)]

    def __len__(self) -> int:
        return CUTS

    def __getitem__(self, index: int) -> dict[str, Any]:
        cuts = CutSet.from_cuts([self.cuts[index]])
        for step in self.steps:
            cuts = step(cuts)
        return {"sound": torch.from_numpy(cuts[0].load_audio()[0]), "id": self.cuts[index].recording_id}


def make(workers: int) -> lk.Loader:
    data = Speech()
    lengths = [each.num_samples for each in data.cuts]
    plan = lk.TokenBudget(lengths, max_tokens=4 * RATE, seed=1)  # before the speed changes
    return lk.Loader(data, plan=plan, num_workers=workers, collate_fn=lk.PadCollate({"sound": lk.Pad(lengths=True)}))


if __name__ == "__main__":
    compare(make)
