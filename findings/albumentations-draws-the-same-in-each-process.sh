#!/usr/bin/env bash
# A good guess: albumentations without a seed draws other numbers in each worker, and other ones in each epoch.
# What happens instead: each transform keeps generators, which the workers of a DataLoader copy when they are forked. Nothing seeds them
# again. All workers draw the same numbers, and so does each epoch, because its workers are forked from the same parent.
# albumentations 2.0.8. albumentationsx 2.5.1 takes torch's worker seed.
# Output seen: 4 forked processes, without a seed: 1 different picture(s)
# Who meets it: whoever gives it to a DataLoader with workers, without calling set_random_seed in worker_init_fn.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet albumentations==2.0.8 opencv-python-headless==5.0.0.93 numpy==2.4.6
NO_ALBUMENTATIONS_UPDATE=1 "$folder/venv/bin/python" - <<'PYTHON'
import hashlib
import os

import albumentations
import numpy as np

augment = albumentations.Compose([albumentations.GaussNoise(p=1), albumentations.RandomCrop(16, 16)])
picture = np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)


def drawn():
    """Return a digest of a picture that a forked process has augmented."""
    read, write = os.pipe()
    if not os.fork():
        os.write(write, hashlib.md5(augment(image=picture)["image"].tobytes()).hexdigest().encode())
        os._exit(0)
    return os.read(read, 32)


found = {drawn() for _ in range(4)}
print(f"4 forked processes, without a seed: {len(found)} different picture(s)")
assert len(found) == 1, "the behaviour changed"
PYTHON
