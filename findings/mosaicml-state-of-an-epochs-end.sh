#!/usr/bin/env bash
# A good guess: a state that was saved after an epoch's last batch resumes at the start of the next epoch, since nothing is left of this one.
# What happens instead: the first pass after the resume yields nothing, whether the state was saved before or after StopIteration.
# mosaicml-streaming 0.13.0, torch 2.14.1
# Output seen: samples of two passes: [0, 64], for both
# Who meets it: a loop over a fixed number of epochs that resumes at an epoch's end counts an epoch without a step.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet mosaicml-streaming==0.13.0 torch==2.14.1

cat > "$folder/case.py" <<'PYTHON'
import sys

import streaming
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

SIZE, BATCH = 64, 8


def make(folder):
    streaming.base.util.clean_stale_shared_memory()
    data = StreamingDataset(local=folder, shuffle=True, shuffle_seed=1, batch_size=BATCH)
    return StreamingDataLoader(data, batch_size=BATCH)


def passes(loader):
    return [sum(len(batch["i"]) for batch in loader) for _ in range(2)]


def main(folder):
    print("mosaicml-streaming", streaming.__version__)
    with MDSWriter(out=folder, columns={"i": "int"}) as writer:
        for number in range(SIZE):
            writer.write({"i": number})
    right = True
    for finished in (False, True):
        loader = make(folder)
        batches = iter(loader)
        for _ in range(SIZE // BATCH):
            next(batches)
        if finished:
            next(batches, None)
        state = loader.state_dict()
        del batches, loader
        resumed = make(folder)
        resumed.load_state_dict(state)
        found = passes(resumed)
        print("saved after StopIteration:" if finished else "saved after the last batch:", state, "samples of two passes:", found)
        right &= found == [0, SIZE]
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main(sys.argv[1])
PYTHON
"$folder/venv/bin/python" "$folder/case.py" "$folder/shards"
