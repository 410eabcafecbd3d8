#!/usr/bin/env bash
# A good guess: a tensor that pickle.dumps took, pickle.loads gives back; it works for float32, and torch.save and torch.load take all dtypes.
# What happens instead: tensors of uint16, uint32, uint64 and float8 are pickled without an error, and cannot be read again. They have
# no typed storage, which the form of a plain pickle names. Between the workers of a DataLoader they travel well, as they are not pickled so.
# torch 2.14.1, Python 3.11 or later
# Output seen: float32 and bfloat16: read again
# Output seen: uint16, uint32, uint64, float8_e4m3fn and float8_e5m2: AttributeError: type object 'torch.storage.UntypedStorage' has no attribute 'dtype'
# Who meets it: caches on disk and in databases (diskcache, LMDB, shelve), queues, and copies of token ids kept as uint16. What was written is
# there, but plain pickle does not read it. Write x.numpy(), x.view(torch.int16) or torch.save's bytes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.14.1 numpy==2.4.6

cat > "$folder/case.py" <<'PYTHON'
import io
import pickle

import torch

WANTED = {"float32": True, "bfloat16": True} | dict.fromkeys(
    ["uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"], False
)
found = {}
for name in WANTED:
    tensor = torch.tensor([1.0, 2.0]).to(getattr(torch, name))
    saved = io.BytesIO()
    torch.save(tensor, saved)
    saved.seek(0)
    assert torch.load(saved).dtype == tensor.dtype
    pickled = pickle.dumps(tensor)
    try:
        found[name] = pickle.loads(pickled).dtype == tensor.dtype
        print(f"{name}: read again")
    except AttributeError as error:
        found[name] = False
        print(f"{name}: AttributeError: {error}")
if found != WANTED:
    raise SystemExit("the behaviour changed")
PYTHON
"$folder/venv/bin/python" "$folder/case.py"
