#!/usr/bin/env bash
# A good guess: around a loader that resumes, timm's PrefetchLoader yields what the loader has yielded, so a state that is saved in the
# training step is the step's.
# What happens instead: it takes the next batch from the loader before it yields one, on the CPU too. The state is one batch ahead, and
# a resume leaves that batch out without a word.
# timm 1.0.31, torchdata 0.11.0, torch 2.14.1
# Output seen: saved in step 3, resumed: 36 of 40 samples, missing [12, 13, 14, 15]
# Who meets it: whoever resumes inside an epoch with timm's create_loader, or with any wrapper that fetches ahead.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet timm==1.0.31 torchdata==0.11.0 torch==2.14.1
"$folder/venv/bin/python" - <<'PYTHON'
import torch
from timm.data.loader import PrefetchLoader
from torchdata.stateful_dataloader import StatefulDataLoader

data = [(torch.zeros(3, 2, 2, dtype=torch.uint8), number) for number in range(40)]


def make():
    loader = StatefulDataLoader(data, batch_size=4)
    return loader, PrefetchLoader(loader, device=torch.device("cpu"))


seen = []
loader, batches = make()
for step, (_, numbers) in enumerate(batches, 1):
    seen += numbers.tolist()
    if step == 3:
        state = loader.state_dict()
        break
loader, batches = make()
loader.load_state_dict(state)
for _, numbers in batches:
    seen += numbers.tolist()
missing = sorted({*range(40)} - {*seen})
print(f"saved in step 3, resumed: {len(seen)} of 40 samples, missing {missing}")
assert missing == [12, 13, 14, 15], "the behaviour changed"
PYTHON
