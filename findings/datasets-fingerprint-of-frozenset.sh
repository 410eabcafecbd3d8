#!/usr/bin/env bash
# A good guess: a function with a frozenset of words has the same fingerprint in each process, as one with a set has.
# What happens instead: datasets sorts a set before it hashes it, and not a frozenset. Its order depends on the seed of Python's hashes, which
# each process draws. So map() never finds its own cache, and each rank of a run writes another one. No warning is given.
# datasets 5.2.0
# Output seen: fingerprints in 6 processes: 1 with a set, 6 with a frozenset (fewer if two processes have the same order)
# Who meets it: preprocessing with stop words or labels in a frozenset.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datasets==5.2.0

cat > "$folder/case.py" <<'PYTHON'
import os
import subprocess
import sys

WORDS = ["the", "a", "an", "of", "to", "and", "or"]


def fingerprint(kind):
    import datasets

    datasets.disable_progress_bars()
    stop = kind(WORDS)
    given = datasets.Dataset.from_dict({"word": ["the", "cat"]})
    return given.map(lambda row: {"stop": row["word"] in stop})._fingerprint


def main():
    found = {}
    for kind in ("set", "frozenset"):
        found[kind] = {
            subprocess.check_output([sys.executable, __file__, kind], env={**os.environ, "PYTHONHASHSEED": str(seed)})
            for seed in range(1, 7)
        }
    print(f"fingerprints in 6 processes: {len(found['set'])} with a set, {len(found['frozenset'])} with a frozenset")
    if len(found["set"]) > 1 or len(found["frozenset"]) < 2:
        sys.exit("the behaviour changed")


if __name__ == "__main__":
    print(fingerprint({"set": set, "frozenset": frozenset}[sys.argv[1]])) if sys.argv[1:] else main()
PYTHON
"$folder/venv/bin/python" "$folder/case.py"
