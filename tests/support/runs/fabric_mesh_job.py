"""Four ranks under Fabric's ModelParallelStrategy: two data-parallel groups of two tensor-parallel ranks.

Each writes down the samples of an epoch that it trains on, of data with an index and of a stream, with a save and a load by new
Loaders in the middle.
"""

import json
import os
import socket
import sys
from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard

import loaderkit as lk

RANKS = 4


def read(shard, start):
    return range(8 * int(shard) + start, 8 * int(shard) + 8)


def stream():
    return lk.StreamDataset(list("012345"), read, lanes=6, shuffle=True, window=3)


def parallelize(model, mesh):
    return fully_shard(model, mesh=mesh["data_parallel"])


def make(fabric):
    model = fabric.setup(nn.Linear(1, 1))
    optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.01))
    loader = lk.integrations.fabric.setup(fabric, lk.Loader(lk.ArrayDataset(torch.arange(42)), 4, shuffle=True))
    lines = lk.integrations.fabric.setup(fabric, lk.Loader(stream(), 4, stop="shortest"))
    return {"model": model, "optimizer": optimizer, "loader": loader, "lines": lines}


def train(fabric, state, seen, stop=None):
    """Train to the end of the epoch, or until `stop` batches are seen."""
    for batch, lines in zip(state["loader"], state["lines"], strict=False):
        seen.append((batch.tolist(), lines.tolist()))
        fabric.backward(state["model"](batch[:, None].float()).mean())
        state["optimizer"].step()
        state["optimizer"].zero_grad()
        if len(seen) == stop:
            break


def run(rank, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "NODE_RANK": "0"}
    torch.set_num_threads(1)
    strategy = ModelParallelStrategy(parallelize, data_parallel_size=2, tensor_parallel_size=2)
    fabric = Fabric(accelerator="cpu", devices=RANKS, strategy=strategy)
    fabric.launch()
    seen = []
    state = make(fabric)
    train(fabric, state, seen, stop=2)
    fabric.save("mesh.ckpt", state)
    state = make(fabric)
    lk.integrations.fabric.load(fabric, "mesh.ckpt", state)
    train(fabric, state, seen)
    batches, lines = zip(*seen, strict=True)
    found = {"world": state["loader"].world.size, "seen": batches, "lines": lines}
    Path(f"rank-{rank}.json").write_text(json.dumps(found))
    fabric.barrier()  # rank 0 keeps the store, through which the other group's ranks may still meet
    torch.distributed.destroy_process_group()


def main():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    children = []
    for rank in range(RANKS):
        if not (pid := os.fork()):
            run(rank, port)
            sys.stdout.flush()
            os._exit(0)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    sys.exit(max(map(abs, codes)))


if __name__ == "__main__":
    main()
