#!/usr/bin/env bash
# A good guess: RandAugment with timm's own text, "rand-m9-mstd0.5-inc1", augments any picture.
# What happens instead: the magnitude is drawn around 9. At 10 and more, "PosterizeIncreasing" keeps 0 bits, and Pillow 13 refuses that. So
# a training ends with a ValueError after some hundred pictures. Pillow 12 made a black picture of it.
# timm 1.0.31, pillow 13.0.0, torch 2.14.1, torchvision 0.29.1
# Output seen: after some of 2000 pictures: ValueError: bits must be between or equal to 1 and 8
# Who meets it: whoever trains by timm's recipes with a new Pillow.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet timm==1.0.31 pillow==13.0.0 torch==2.14.1 torchvision==0.29.1
"$folder/venv/bin/python" - <<'PYTHON'
import random

import numpy as np
from PIL import Image
from timm.data.auto_augment import rand_augment_transform

random.seed(0)
np.random.seed(0)
augment = rand_augment_transform("rand-m9-mstd0.5-inc1", {})
picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8))
said = ""
try:
    for _ in range(2000):
        augment(picture)
except ValueError as error:
    said = str(error)
print(f"after some of 2000 pictures: ValueError: {said}")
assert said == "bits must be between or equal to 1 and 8", "the behaviour changed"
PYTHON
