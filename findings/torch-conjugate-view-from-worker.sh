#!/usr/bin/env bash
# A good guess: a batch that a DataLoader's worker sends has the numbers that it has without workers.
# What happens instead: a tensor whose conjugation or negation is still to be done (x.conj(), x.conj().imag: views that note it) arrives without
# that note, so it has other numbers. torch.multiprocessing sends the storage, shape and strides.
# torch 2.14.1, Python 3.11 or later
# Output seen: conj: 0 workers [(1-2j)], 1 worker [(1+2j)]
# Output seen: imag of conj: 0 workers [-2.0], 1 worker [2.0]
# Who meets it: collates of spectra (STFT, radar, MRI) that end with conj(). Call resolve_conj() or resolve_neg() before the batch is returned.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.14.1 numpy==2.4.6

cat > "$folder/case.py" <<'PYTHON'
import torch
from torch.utils.data import DataLoader


def conj(samples):
    return torch.stack(samples).conj()


def imag(samples):
    return torch.stack(samples).conj().imag


def main():
    data = [torch.tensor(1 + 2j)]
    differ = []
    for name, collate in (("conj", conj), ("imag of conj", imag)):
        alone, sent = (next(iter(DataLoader(data, collate_fn=collate, num_workers=count))).tolist() for count in (0, 1))
        print(f"{name}: 0 workers {alone}, 1 worker {sent}")
        differ.append(alone != sent)
    if not all(differ):
        raise SystemExit("the behaviour changed")


if __name__ == "__main__":
    main()
PYTHON
"$folder/venv/bin/python" "$folder/case.py"
