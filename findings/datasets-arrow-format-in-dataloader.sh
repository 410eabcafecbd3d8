#!/usr/bin/env bash
# A good guess: a DataLoader reads a Dataset in each of its formats, as indexing does.
# What happens instead: with_format("arrow") raises a TypeError. DataLoader calls __getitems__, which takes the batch for a dict of columns
# and asks it for the first key. A table of pyarrow has columns there. A loop over indices works.
# datasets 5.2.0, torch 2.14.1, pyarrow 26.0.1
# Output seen: numpy, torch, pandas: read; arrow: TypeError: Index must either be string or integer
# Who meets it: whoever collates tables of Arrow, to be spared Python's objects.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datasets==5.2.0 torch==2.14.1 pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import datasets
from torch.utils.data import DataLoader

given = datasets.Dataset.from_dict({"i": [1, 2, 3, 4]})
errors = {}
for name in ("numpy", "torch", "pandas", "arrow"):
    loader = DataLoader(given.with_format(name), batch_size=2, collate_fn=list)
    try:
        assert len(next(iter(loader))) == 2
    except TypeError as error:
        errors[name] = str(error)
    print(f"{name}: {'TypeError: ' + errors[name] if name in errors else 'read'}")
assert len(given.with_format("arrow")[0]) == 1, "indexing works"
assert list(errors) == ["arrow"], "the behaviour changed"
PYTHON
