"""Graphs of PyTorch Geometric, in batches of at most so many nodes: killed, resumed, and the same bit for bit.

    pip install torch-geometric
    python examples/fields/graphs.py

A plan by length replaces PyG's `DynamicBatchSampler`. It knows how many batches there are, and all ranks get as many.
"""

from typing import Any

import torch
from killed import compare
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import Compose, RandomJitter, RandomRotate

import loaderkit as lk

GRAPHS, NODES = 64, 200


def graph(number: int) -> Data:
    generator = torch.Generator().manual_seed(number)
    nodes = int(torch.randint(5, 60, (), generator=generator))
    edges = torch.randint(0, nodes, (2, 3 * nodes), generator=generator)
    return Data(pos=torch.randn(nodes, 3, generator=generator), edge_index=edges, y=torch.tensor([number % 2]))


class Graphs:
    def __init__(self) -> None:
        self.graphs = [graph(number) for number in range(GRAPHS)]
        self.augment = Compose([RandomJitter(0.1), RandomRotate(30, axis=2)])

    def __len__(self) -> int:
        return GRAPHS

    def __getitem__(self, index: int) -> Any:
        return self.augment(self.graphs[index])


def make(workers: int) -> lk.Loader:
    data = Graphs()
    nodes = [each.num_nodes for each in data.graphs]
    plan = lk.TokenBudget(nodes, max_tokens=NODES, padded=False, seed=1)
    return lk.Loader(data, plan=plan, num_workers=workers, collate_fn=Batch.from_data_list)


if __name__ == "__main__":
    compare(make)
