"""Windows of EEG, augmented by braindecode: killed, resumed, and the same bit for bit.

    pip install braindecode
    python examples/fields/eeg.py

With `random_state=7` each transform keeps a generator of its own, which the Loader seeds with each sample. `AugmentedDataLoader`
gives the same augmentations in each worker and each epoch.
"""

from typing import Any

import mne
import numpy as np
import torch
from braindecode.augmentation import ChannelsDropout, Compose, FTSurrogate, GaussianNoise
from braindecode.datasets import create_from_X_y
from killed import compare

import loaderkit as lk

TRIALS, CHANNELS, STEPS = 16, 4, 256


class Windows:
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        signals = rng.normal(size=(TRIALS, CHANNELS, STEPS))
        self.windows = create_from_X_y(
            signals,
            np.arange(TRIALS) % 2,
            drop_last_window=True,
            sfreq=128,
            window_size_samples=128,
            window_stride_samples=128,
        )
        self.augment = Compose(
            [FTSurrogate(0.5, random_state=7), ChannelsDropout(0.5, random_state=7), GaussianNoise(1.0, random_state=7)]
        )

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        signal, label, _ = self.windows[index]
        augmented, label = self.augment(torch.from_numpy(signal)[None], torch.tensor([label]))
        return {"signal": augmented[0], "label": label[0]}


def make(workers: int) -> lk.Loader:
    return lk.Loader(Windows(), batch_size=4, shuffle=True, seed=1, num_workers=workers)


if __name__ == "__main__":
    mne.set_log_level("ERROR")
    compare(make)
