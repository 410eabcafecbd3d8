#!/usr/bin/env bash
# A good guess: MolToSmiles(doRandom=True) draws other SMILES in each process, and rdBase.SeedRandomNumberGenerator seeds it.
# What happens instead: it draws from a generator of C++ that begins with the same seed in each process. So all workers and each run draw the
# same SMILES. rdBase.SeedRandomNumberGenerator does not reach it; a call of MolToRandomSmilesVect(..., randomSeed=n) does, with 0 < n < 2**31.
# rdkit 2026.9.1
# Output seen: 2 new processes draw the same SMILES: True
# Output seen: the same after SeedRandomNumberGenerator(5): False; after MolToRandomSmilesVect(randomSeed=5): True
# Who meets it: whoever augments molecules in the workers of a loader.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet rdkit==2026.9.1
cat > "$folder/drawn.py" <<'PYTHON'
from rdkit import Chem

molecule = Chem.MolFromSmiles("CC(=O)Oc1ccccc1C(=O)O")


def drawn():
    return [Chem.MolToSmiles(molecule, doRandom=True) for _ in range(5)]


if __name__ == "__main__":
    print(drawn())
PYTHON
cat > "$folder/case.py" <<'PYTHON'
import subprocess
import sys

from drawn import drawn
from rdkit import Chem, rdBase

methane = Chem.MolFromSmiles("C")
first, second = (subprocess.check_output([sys.executable, sys.argv[1]]) for _ in range(2))


def same_after(seed):
    seed()
    one = drawn()
    seed()
    return one == drawn()


by_base = same_after(lambda: rdBase.SeedRandomNumberGenerator(5))
by_vector = same_after(lambda: Chem.MolToRandomSmilesVect(methane, 1, randomSeed=5))
print(f"2 new processes draw the same SMILES: {first == second}")
print(f"the same after SeedRandomNumberGenerator(5): {by_base}; after MolToRandomSmilesVect(randomSeed=5): {by_vector}")
assert (first == second, by_base, by_vector) == (True, False, True), "the behaviour changed"
PYTHON
cd "$folder" && "$folder/venv/bin/python" case.py "$folder/drawn.py"
