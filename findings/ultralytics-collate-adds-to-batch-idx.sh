#!/usr/bin/env bash
# A good guess: a collate function does not change the samples that it gets.
# What happens instead: YOLODataset.collate_fn adds each image's number in the batch to its "batch_idx" in place. If a dataset keeps its
# samples in memory, their numbers grow in each epoch, and boxes belong to images that are not in the batch.
# ultralytics 8.4.190, torch 2.14.1
# Output seen: batch_idx of 3 kept samples: epoch 0 [0.0, 1.0, 2.0], epoch 1 [0.0, 2.0, 4.0], epoch 2 [0.0, 3.0, 6.0]
# Who meets it: datasets of their own that keep samples in memory, with this collate. Its own datasets make new tensors.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet ultralytics==8.4.190 opencv-python-headless==5.0.0.93 torch==2.14.1 torchvision==0.29.1
"$folder/venv/bin/pip" uninstall --quiet --yes opencv-python  # it needs libraries of a desktop
"$folder/venv/bin/pip" install --quiet --force-reinstall --no-deps opencv-python-headless==5.0.0.93
YOLO_CONFIG_DIR="$folder" "$folder/venv/bin/python" - <<'PYTHON'
import torch
from ultralytics.data.dataset import YOLODataset

samples = [{"img": torch.zeros(3, 8, 8), "bboxes": torch.zeros(1, 4), "batch_idx": torch.zeros(1)} for _ in range(3)]
found = [YOLODataset.collate_fn(samples)["batch_idx"].tolist() for _ in range(3)]
print("batch_idx of 3 kept samples: " + ", ".join(f"epoch {epoch} {numbers}" for epoch, numbers in enumerate(found)))
assert found == [[0, 1, 2], [0, 2, 4], [0, 3, 6]], "the behaviour changed"
PYTHON
