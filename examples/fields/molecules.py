"""Random SMILES of molecules, by RDKit: killed, resumed, and the same bit for bit.

    pip install rdkit
    python examples/fields/molecules.py

`MolToSmiles(doRandom=True)` draws from a generator of C++ that cannot be seeded. `MolToRandomSmilesVect` takes a seed: give it
one from `lk.sample_rng()`.
"""

from typing import Any

from killed import compare
from rdkit import Chem

import loaderkit as lk

SMILES = [
    "CC(=O)Oc1ccccc1C(=O)O",  # aspirin
    "Cn1cnc2c1c(=O)n(C)c(=O)n2C",  # caffeine
    "CC(C)Cc1ccc(cc1)C(C)C(=O)O",  # ibuprofen
    "CC(=O)Nc1ccc(O)cc1",  # paracetamol
    "CN1CCC[C@H]1c1cccnc1",  # nicotine
    "NCCc1ccc(O)c(O)c1",  # dopamine
]


class Molecules:
    draws_only_sample_rng = True  # saves the time to seed the global generators

    def __init__(self) -> None:
        self.molecules = [Chem.MolFromSmiles(text) for text in SMILES * 6]

    def __len__(self) -> int:
        return len(self.molecules)

    def __getitem__(self, index: int) -> dict[str, Any]:
        seed = int(lk.sample_rng().integers(1, 2**31))
        return {"smiles": Chem.MolToRandomSmilesVect(self.molecules[index], 1, randomSeed=seed)[0]}


def make(workers: int) -> lk.Loader:
    return lk.Loader(Molecules(), batch_size=4, shuffle=True, seed=1, num_workers=workers)


if __name__ == "__main__":
    compare(make)
