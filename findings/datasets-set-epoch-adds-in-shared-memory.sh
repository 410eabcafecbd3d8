#!/usr/bin/env bash
# A good guess: IterableDataset.set_epoch(1) sets epoch 1, also if each worker of a DataLoader calls it.
# What happens instead: the epoch lies in a torch tensor in shared memory, and set_epoch adds the difference to it in place. If two workers
# take the difference before one of them adds it, the epoch is 2. Or one of them reads it in between: their shuffles are then of different
# epochs, they do not share the shards, and samples come twice while others never come. A state with another epoch is left out without a
# word when it is loaded.
# The number that is given here waits in its subtraction until both processes have come there, so that the order of events is certain.
# datasets 5.2.0, torch 2.14.1
# Output seen: asked for epoch 1 in 2 processes, found 2
# Output seen: a state of epoch 1, loaded in epoch 2, begins at sample 0, wanted 3
# Who meets it: datasets and loaders that call set_epoch in the workers, on a busy machine.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datasets==5.2.0 torch==2.14.1

cat > "$folder/case.py" <<'PYTHON'
import multiprocessing
import sys

import datasets
import torch

fork = multiprocessing.get_context("fork")
both = fork.Barrier(2)


class Epoch(int):
    """An epoch. Both processes take its difference to the present one before one of them adds that."""

    def __sub__(self, present):
        difference = int(self) - int(present)
        both.wait(60)
        return difference


def work(stream):
    stream.set_epoch(Epoch(1))


def make():
    return datasets.Dataset.from_dict({"i": list(range(8))}).to_iterable_dataset(num_shards=1)


def main():
    print("datasets", datasets.__version__, "torch", torch.__version__)
    stream = make()
    workers = [fork.Process(target=work, args=(stream,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    print(f"asked for epoch 1 in 2 processes, found {stream.epoch}")

    first = make()
    first.set_epoch(1)
    samples = iter(first)
    for _ in range(3):
        next(samples)
    again = make()
    again.load_state_dict(first.state_dict())
    again.set_epoch(2)
    begins = next(iter(again))["i"]
    print(f"a state of epoch 1, loaded in epoch 2, begins at sample {begins}, wanted 3")
    sys.exit(0 if (stream.epoch, begins) == (2, 0) else 1)


if __name__ == "__main__":
    main()
PYTHON
"$folder/venv/bin/python" "$folder/case.py"
