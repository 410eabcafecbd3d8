#!/usr/bin/env bash
# A good guess: the state of a pipeline whose order is index arithmetic fits any number of workers.
# What happens instead: it fits the number that it was saved with. grain.DataLoader says so; a MapDataset's iterator ends with an IndexError or
# a KeyError. (TFRecordIterDataset, ParquetIterDataset and random_map, which the guide names, exist.)
# grain 0.2.18
# Output seen: iterator, 2 workers, then 2: exact; then 3: IndexError: list assignment index out of range; then 0: KeyError: 'next_index'
#              loader, 2 workers, then 3: ValueError: Worker count in checkpoint does not match dataloader worker count.
# Who meets it: whoever resumes on a machine with other cores.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet grain==0.2.18

cat > "$folder/case.py" <<'PYTHON'
import sys

import grain
import grain.experimental

SIZE, BATCH, STOP = 100, 4, 5


class Source:
    """A source of grain: it has a length and gives records by index."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return {"number": index}

    def __repr__(self):
        return "Source()"  # a DataLoader's state is for sources of one repr


def to_sample(record):
    return record["number"]


def iterator(workers):
    data = grain.MapDataset.source(Source()).seed(1).shuffle().map(to_sample).batch(BATCH)
    return iter(data.to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(workers)))


class Number(grain.transforms.Map):
    def map(self, record):
        return record["number"]


def loader(workers):
    sampler = grain.samplers.IndexSampler(SIZE, shuffle=True, seed=1, num_epochs=1)
    operations = [Number(), grain.transforms.Batch(BATCH)]
    return iter(grain.DataLoader(data_source=Source(), sampler=sampler, operations=operations, worker_count=workers))


def numbers(batches):
    return [int(number) for batch in batches for number in batch]


def resumed(make, before, after):
    """Say how a run that is stopped and resumed with other workers differs from each sample once."""
    batches = make(before)
    seen = numbers(next(batches) for _ in range(STOP))
    again = make(after)
    try:
        again.set_state(batches.get_state())
        seen += numbers(again)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    lost, twice = SIZE - len(set(seen)), len(seen) - len(set(seen))
    return f"{lost} lost, {twice} twice" if lost or twice else "exact"


def main():
    print("grain", grain.__version__)
    right = all(hasattr(grain.experimental, name) for name in ("TFRecordIterDataset", "ParquetIterDataset"))
    right &= hasattr(grain.MapDataset, "random_map")
    for make, wanted in [(iterator, ("IndexError", "KeyError")), (loader, ("ValueError",))]:
        for before, after in [(2, 2), (2, 3), (2, 1), (2, 0), (3, 2)]:
            found = resumed(make, before, after)
            print(f"{make.__name__}, {before} workers, then {after}: {found}")
            right &= found == "exact" if before == after else found.startswith(wanted)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
PYTHON
"$folder/venv/bin/python" "$folder/case.py"
