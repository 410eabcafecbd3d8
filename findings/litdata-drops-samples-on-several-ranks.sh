#!/usr/bin/env bash
# A good guess: the ranks together read each sample once, as one process does.
# What happens instead: drop_last is False in one process and True on several ranks, as its docstring says, so samples that the ranks do not
# share evenly are left out. drop_last=False reads them, on unequally many batches, with a warning.
# litdata 0.2.76, torch 2.14.1
# Output seen: one process: 101 of 101 samples; two ranks: 100 samples, and 101 with drop_last=False
# Who meets it: whoever evaluates on several ranks, where each sample should count.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet litdata==0.2.76 torch==2.14.1

cat > "$folder/case.py" <<'PYTHON'
import os
import sys

import litdata
import torch.distributed as dist
import torch.multiprocessing as mp

SIZE, RANKS = 101, 2


def number(index):
    return index


def read(folder, drop_last):
    data = litdata.StreamingDataset(folder, shuffle=False, drop_last=drop_last)
    return [int(one) for one in data], data.drop_last


def rank(number, port, folder, answers):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(number), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(number))
    dist.init_process_group("gloo", rank=number, world_size=RANKS)
    answers.put((number, read(folder, None), read(folder, False)))
    dist.barrier()
    dist.destroy_process_group()


def main(folder):
    print("litdata", litdata.__version__)
    litdata.optimize(number, list(range(SIZE)), folder, chunk_size=10, num_workers=1)
    alone, setting = read(folder, None)
    print("one process:", len(set(alone)), "of", SIZE, "samples, drop_last =", setting)
    answers = mp.get_context("spawn").SimpleQueue()
    running = mp.spawn(rank, (29511, folder, answers), nprocs=RANKS, join=False)
    found = [answers.get() for _ in range(RANKS)]
    while not running.join():
        pass
    for which, name in ((1, "None"), (2, "False")):
        seen = [one for answer in found for one in answer[which][0]]
        print(f"two ranks, drop_last={name}:", len(set(seen)), "samples, drop_last =", found[0][which][1], [len(a[which][0]) for a in found])
    default = {one for answer in found for one in answer[1][0]}
    kept = {one for answer in found for one in answer[2][0]}
    right = len(alone) == SIZE and setting is False and found[0][1][1] is True and len(default) < SIZE and len(kept) == SIZE
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main(sys.argv[1])
PYTHON
"$folder/venv/bin/python" "$folder/case.py" "$folder/shards"
