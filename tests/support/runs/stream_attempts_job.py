"""A rank of a stream that is killed in each attempt but the last, and goes on from the last state in the next one.

It runs as a script under torchrun, and as a function with another store.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore

import loaderkit as lk

LANES, BATCHES, BATCH_SIZE = 12, 6, 2  # batches of a lane

# For each attempt: the ranks, the batches until a state, and the rank that is killed, before its first meeting or later.
# At a state each lane has given the same number of batches: the rest is the same for any number of ranks.
ATTEMPTS = [
    {"ranks": 3, "killed": 1, "at": "start"},
    {"ranks": 3, "save": 4, "killed": 0, "at": "later"},
    {"ranks": 2, "save": 12, "killed": 1, "at": "later"},
    {"ranks": 4},
]


def read(shard: str, start: int) -> Any:
    size = BATCHES * BATCH_SIZE
    return iter(range(int(shard) * size + start, (int(shard) + 1) * size))


def run_rank(attempt: int, rank: int, store: Any, folder: Path) -> None:
    plan: Any = ATTEMPTS[attempt]
    if rank >= plan["ranks"]:
        time.sleep(120 if "killed" in plan else 0)
        return
    stream = lk.StreamDataset([str(number) for number in range(LANES)], read, lanes=LANES)
    world = lk.World(rank, plan["ranks"])
    loader: Any = lk.Loader(stream, BATCH_SIZE, world=world, store=store, stop="shortest", meet_timeout_s=120)
    if (state := folder / "state.json").exists():
        loader.load_state_dict(json.loads(state.read_text()))
    killed = plan.get("killed") == rank
    if killed and plan["at"] == "start":
        os.kill(os.getpid(), signal.SIGKILL)
    given: list[int] = []
    for number, batch in enumerate(loader, 1):
        given += batch.tolist()
        if number == plan.get("save"):
            found = json.dumps(loader.state_dict())
            (folder / f"given-{attempt}-{rank}.json").write_text(json.dumps(given))
            store.add(f"test/{attempt}", 1)
            if killed:
                while store.add(f"test/{attempt}", 0) < plan["ranks"]:
                    time.sleep(0.01)
                state.write_text(found)
                os.kill(os.getpid(), signal.SIGKILL)
    (folder / f"given-{attempt}-{rank}.json").write_text(json.dumps(given))


def connect(host: str, port: int) -> TCPStore:
    return TCPStore(host, port, is_master=False)


if __name__ == "__main__":
    run_rank(
        int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        int(os.environ["RANK"]),
        connect(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])),
        Path(sys.argv[1]),
    )
