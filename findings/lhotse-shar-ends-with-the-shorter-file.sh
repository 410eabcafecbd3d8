#!/usr/bin/env bash
# A good guess: a field's file with fewer items than the shard has cuts is an error, and a resume reads only the cuts that are left.
# What happens instead: a Shar shard ends with the shorter of its files, without an error, and len() still counts all cuts. A sampler's resume
# gives the right batches, and reads all cuts again to get there: as many as a whole pass. (Half of them are for the bounds of the buckets.)
# lhotse 1.33.0 (it imports urllib3 without requiring it), torch 2.14.1
# Output seen: cuts read by a whole pass: 24 and by a resumed one, with 7 cuts left: 24
#              a field's file with 9 of 12 lines: 9 cuts, no error; the length is 12
# Who meets it: whoever copies or adds a field's files apart from the cuts, and long runs that resume late in an epoch.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet lhotse==1.33.0 urllib3==2.8.0 torch==2.14.1

cat > "$folder/case.py" <<'PYTHON'
import gzip
import sys
from pathlib import Path

import lhotse
from lhotse import CutSet, MonoCut
from lhotse.dataset import DynamicBucketingSampler

CUTS, LEFT, BATCHES = 12, 9, 4


def make(folder, reads):
    """The page's two lines, with a note of each cut that is read."""

    def note(cut):
        reads.append(cut.id)
        return cut

    cuts = CutSet.from_shar(in_dir=folder, shuffle_shards=True, split_for_dataloading=True)
    return DynamicBucketingSampler(cuts.map(note), max_duration=2, shuffle=True, num_buckets=2, buffer_size=4)


def batches_of(sampler):
    return [sorted(cut.id for cut in batch) for batch in sampler]


def main(folder):
    print("lhotse", lhotse.__version__)
    folder.mkdir()
    cuts = [MonoCut(f"cut-{number:02}", 0, 1 + number % 3 / 10, 0, custom={"score": number}) for number in range(CUTS)]
    CutSet.from_cuts(cuts).to_shar(folder, fields={"score": "jsonl"}, shard_size=CUTS, verbose=False)
    first = next(iter(CutSet.from_shar(in_dir=folder)))
    marks = "shard_origin" in first.custom and "shar_epoch" in first.custom
    print("each cut has shard_origin and shar_epoch:", marks)

    reads, all_reads = [], []
    whole = batches_of(make(folder, all_reads))
    sampler = make(folder, [])
    batches = iter(sampler)
    before = [sorted(cut.id for cut in next(batches)) for _ in range(BATCHES)]
    resumed = make(folder, reads)
    resumed.load_state_dict(sampler.state_dict())
    after = batches_of(resumed)
    print("batches before and after a resume are the whole:", before + after == whole)
    print("cuts read by a whole pass:", len(all_reads), "and by a resumed one, with", sum(map(len, after)), "cuts left:", len(reads))
    again = before + after == whole and len(reads) == len(all_reads)

    (scores,) = folder.glob("score*")
    lines = gzip.decompress(scores.read_bytes()).splitlines(keepends=True)
    scores.write_bytes(gzip.compress(b"".join(lines[:LEFT])))
    found = len(list(CutSet.from_shar(in_dir=folder)))
    print("a field's file with", LEFT, "of", CUTS, "lines:", found, "cuts, no error; the length is", len(CutSet.from_shar(in_dir=folder)))
    sys.exit(0 if marks and again and found == LEFT else 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
PYTHON
"$folder/venv/bin/python" "$folder/case.py" "$folder/shar"
