#!/usr/bin/env bash
# A good guess: what an augmented image is depends on its index and on random numbers.
# What happens instead: unless cache="ram", a mosaic takes its other images from those that this process has read before. So an image differs
# with the number of workers, and after a resume, even if all random generators have the same state.
# ultralytics 8.4.190, torch 2.14.1
# Output seen: image 5, all generators seeded alike, after image 0 and after image 9: equal: False
# Output seen: the same with Mosaic.buffer_enabled = False: True
# Who meets it: whoever wants a run with other workers, or a resumed one, to see the same images.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet ultralytics==8.4.190 opencv-python-headless==5.0.0.93 torch==2.14.1 torchvision==0.29.1
"$folder/venv/bin/pip" uninstall --quiet --yes opencv-python  # it needs libraries of a desktop
"$folder/venv/bin/pip" install --quiet --force-reinstall --no-deps opencv-python-headless==5.0.0.93
cat > "$folder/case.py" <<'PYTHON'
import random
import sys
from pathlib import Path

import cv2
import numpy as np
import torch
from ultralytics.cfg import get_cfg
from ultralytics.data.augment import Mosaic
from ultralytics.data.dataset import YOLODataset

images, labels = (Path(sys.argv[1], name, "train") for name in ("images", "labels"))
for folder in (images, labels):
    folder.mkdir(parents=True)
for number in range(12):
    picture = np.random.default_rng(number).integers(0, 255, (64, 64, 3), np.uint8)
    cv2.imwrite(str(images / f"{number}.png"), picture)
    (labels / f"{number}.txt").write_text("0 0.5 0.5 0.4 0.4\n")


def mosaics(transform):
    """Yield the mosaics of a transform, also of those inside."""
    if isinstance(transform, Mosaic):
        yield transform
    for inner in getattr(transform, "transforms", []):
        yield from mosaics(inner)
    if getattr(transform, "pre_transform", None) is not None:
        yield from mosaics(transform.pre_transform)


def image_after(before, buffered):
    data = YOLODataset(
        img_path=str(images), imgsz=64, augment=True, hyp=get_cfg(), data={"names": {0: "a"}, "nc": 1, "channels": 3}, batch_size=4
    )
    for mosaic in mosaics(data.transforms):
        mosaic.buffer_enabled = buffered
    data[before]
    for seed in (random.seed, np.random.seed, torch.manual_seed, cv2.setRNGSeed):
        seed(0)
    return data[5]["img"]


own, whole = (torch.equal(image_after(0, buffered), image_after(9, buffered)) for buffered in (True, False))
print(f"image 5, all generators seeded alike, after image 0 and after image 9: equal: {own}")
print(f"the same with Mosaic.buffer_enabled = False: {whole}")
assert (own, whole) == (False, True), "the behaviour changed"
PYTHON
YOLO_CONFIG_DIR="$folder" "$folder/venv/bin/python" "$folder/case.py" "$folder" 2>&1 | grep -E "^(image|the same|Traceback|[A-Za-z]*Error)"
