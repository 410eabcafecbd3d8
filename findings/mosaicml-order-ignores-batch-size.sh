#!/usr/bin/env bash
# A good guess, since StreamingDataset takes the batch size and its documentation asks for it: the order of samples depends on it.
# What happens: with its default settings on one rank the order is the same for every batch size and number of workers. How samples are dealt to
# workers does depend on it, but batches come back in that one order.
# mosaicml-streaming 0.13.0, torch 2.14.1
# Output seen: batch size 4, 0 workers: same; and so for 4, 8 and 16 with 0 and 2 workers
# Who meets it: nobody is harmed. Pages that compare loaders must not say otherwise.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet mosaicml-streaming==0.13.0 torch==2.14.1

cat > "$folder/case.py" <<'PYTHON'
import sys

import streaming
import torch
from streaming import MDSWriter, StreamingDataset
from torch.utils.data import DataLoader

SIZE = 1000


def order(folder, batch_size, workers):
    streaming.base.util.clean_stale_shared_memory()
    data = StreamingDataset(local=folder, shuffle=True, shuffle_seed=1, batch_size=batch_size, num_canonical_nodes=1)
    return [int(i) for batch in DataLoader(data, batch_size=batch_size, num_workers=workers) for i in batch["i"]]


def main(folder):
    print("mosaicml-streaming", streaming.__version__, "torch", torch.__version__)
    with MDSWriter(out=folder, columns={"i": "int"}, size_limit=1 << 11) as writer:
        for number in range(SIZE):
            writer.write({"i": number})
    first = order(folder, 4, 0)
    right = sorted(first) == list(range(SIZE)) and first != sorted(first)
    for batch_size in (4, 8, 16):
        for workers in (0, 2):
            same = order(folder, batch_size, workers) == first
            right &= same
            print(f"batch size {batch_size}, {workers} workers: {'same' if same else 'other'}")
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main(sys.argv[1])
PYTHON
"$folder/venv/bin/python" "$folder/case.py" "$folder/shards"
