"""torchrun on two nodes: one node is killed, the other goes on, and every sample is trained on exactly once.

    python examples/elastic.py

The nodes are two agents of torchrun on this host, with one rank each. `--kill-at` says at which step node 1 dies. The final
weights are those of an uninterrupted run on one rank, up to rounding, because a step has the same samples.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

import loaderkit as lk

SAMPLES, SAMPLES_PER_STEP, SAVE_EVERY = 1600, 32, 5


class Training:
    """A training of one epoch that continues from its checkpoint, on any number of ranks."""

    def __init__(self, folder: Path, ranks: int) -> None:
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(SAMPLES, 8, generator=generator)
        data = lk.ArrayDataset({"id": torch.arange(SAMPLES), "x": x, "y": x.sum(1, keepdim=True).sin()})
        self.net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        self.model: nn.Module = nn.parallel.DistributedDataParallel(self.net) if ranks > 1 else self.net
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.loader = lk.Loader(data, SAMPLES_PER_STEP // ranks, shuffle=True, seed=1)
        self.step, self.checkpoint = 0, folder / "checkpoint.pt"
        if self.checkpoint.exists():
            saved = torch.load(self.checkpoint, weights_only=True)
            self.net.load_state_dict(saved["net"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.loader.load_state_dict(saved["loader"])
            self.step = saved["step"]

    def train(self, rank: int, record: Path, kill_at: int | None) -> None:
        while self.loader.cursor.epoch == 0:
            for batch in self.loader:
                loss = nn.functional.mse_loss(self.model(batch["x"]), batch["y"])
                self.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                if self.step == kill_at:
                    os.kill(os.getppid(), signal.SIGKILL)  # torchrun's agent
                    os.kill(os.getpid(), signal.SIGKILL)
                self.optimizer.step()
                self.step += 1
                with record.open("a") as file:
                    file.write(json.dumps({"step": self.step, "ids": batch["id"].tolist()}) + "\n")
                if self.step % SAVE_EVERY == 0 and rank == 0:  # the state of indexed data is the same on every rank
                    self.save()

    def save(self) -> None:
        part = self.checkpoint.with_suffix(".part")
        states = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**states, "loader": self.loader.state_dict(), "step": self.step}, part)
        part.replace(self.checkpoint)


def work(folder: Path, kill_at: int) -> None:
    """Be one rank of one attempt."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    training = Training(folder, ranks)
    print(f"node {os.environ['NODE']}: rank {rank} of {ranks} begins after step {training.step}", flush=True)
    record = folder / f"trained-from-{training.step}-by-{ranks}-{rank}"
    training.train(rank, record, kill_at if os.environ["NODE"] == "1" else None)
    if rank == 0:
        torch.save(training.net.state_dict(), folder / "weights.pt")
    dist.barrier()
    dist.destroy_process_group()


def start_node(node: int, port: int, folder: Path, kill_at: int) -> "subprocess.Popen[bytes]":
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1"),
        *("--max-restarts", "5", "--monitor-interval", "0.1", "--rdzv-backend", "c10d", "--rdzv-id", "elastic"),
        *("--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1"),
        *("--rdzv-conf", "is_host=0,last_call_timeout=10,keep_alive_interval=1,keep_alive_max_attempt=2"),
        *(__file__, "--folder", str(folder), "--kill-at", str(kill_at), "--work"),
    ]
    environment = {**os.environ, "NODE": str(node), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(command, env=environment, start_new_session=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/elastic"))
    parser.add_argument("--kill-at", type=int, default=random.randrange(SAVE_EVERY, SAMPLES // SAMPLES_PER_STEP))
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.folder, given.kill_at)
        return
    shutil.rmtree(given.folder, ignore_errors=True)
    (given.folder / "alone").mkdir(parents=True)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # where the nodes meet: it must stay
    nodes = [start_node(node, store.port, given.folder, given.kill_at) for node in range(2)]
    try:
        killed, ended = nodes[1].wait(120), nodes[0].wait(120)
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    print(f"node 1 was killed at step {given.kill_at}: exit code {killed}; node 0 went on and ended with {ended}")
    compare(given.folder)


def compare(folder: Path) -> None:
    """Count how often each sample was trained on, and compare the weights."""
    starts = sorted({int(path.name.split("-")[2]) for path in folder.glob("trained-from-*")})
    times: Counter[int] = Counter()
    for path in folder.glob("trained-from-*"):
        start, ranks = (int(path.name.split("-")[part]) for part in (2, 4))
        until = min((later for later in starts if later > start), default=SAMPLES)  # what came after a save is lost
        steps = [step for step in map(json.loads, path.read_text().splitlines()) if step["step"] <= until]
        print(f"{len(steps)} steps from step {start} on one of {ranks} ranks count")
        times.update(sample for step in steps for sample in step["ids"])
    print(f"{len(times)} of {SAMPLES} samples trained, each {' or '.join(map(str, set(times.values())))} time(s)")
    alone = Training(folder / "alone", ranks=1)
    alone.train(0, folder / "alone" / "trained", None)
    weights = torch.load(folder / "weights.pt", weights_only=True)
    apart = max(float((weights[name] - value).abs().max()) for name, value in alone.net.state_dict().items())
    print(f"the weights differ from those of an uninterrupted run by {apart:.1g}")
    if len(times) != SAMPLES or set(times.values()) != {1} or apart > 1e-4:
        raise SystemExit("not the same training")
    print("the same training")


if __name__ == "__main__":
    main()
