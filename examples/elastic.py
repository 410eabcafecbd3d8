"""torchrun on two nodes: one node is killed, the other goes on, a new one joins, and every sample is trained on exactly once.

    python examples/elastic.py

The nodes are agents of torchrun on this host, with one rank each. `--kill-at` says at which step node 1 dies. Node 0 trains
`ALONE` steps on one rank, and then node 2 joins. The final weights are those of an uninterrupted run on one rank, up to
rounding, because a step has the same samples.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

import loaderkit as lk

SAMPLES, SAMPLES_PER_STEP, SAVE_EVERY, ALONE = 1600, 32, 5, 7


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

    def train(self, rank: int, record: Path, kill_at: int | None = None, pause_at: int | None = None) -> None:
        """Train to the epoch's end, and write down the samples of each step."""
        while self.loader.cursor.epoch == 0:
            for batch in self.loader:
                (record / f"{self.step + 1}-{rank}.json").write_text(json.dumps(batch["id"].tolist()))
                loss = nn.functional.mse_loss(self.model(batch["x"]), batch["y"])
                self.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                if self.step == kill_at:
                    os.kill(os.getppid(), signal.SIGKILL)  # torchrun's agent
                    os.kill(os.getpid(), signal.SIGKILL)
                self.optimizer.step()
                self.step += 1
                if self.step % SAVE_EVERY == 0 and rank == 0:  # the state of indexed data is the same on every rank
                    self.save()
                if self.step == pause_at:
                    (record / "waits").touch()
                    time.sleep(120)  # torchrun ends this rank as soon as the new node is there

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
    if rank == 0:  # steps after the checkpoint are lost with their weights
        for path in folder.glob("*-*.json"):
            if int(path.name.split("-")[0]) > training.step:
                path.unlink()
    dist.barrier()
    pause_at = training.step + ALONE if ranks == 1 else None
    training.train(rank, folder, kill_at if os.environ["NODE"] == "1" else None, pause_at)
    if rank == 0:
        torch.save(training.net.state_dict(), folder / "weights.pt")
    dist.barrier()
    dist.destroy_process_group()


def start_node(node: int, port: int, folder: Path, kill_at: int) -> "subprocess.Popen[bytes]":
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1"),
        *("--max-restarts", "5", "--monitor-interval", "0.1", "--rdzv-backend", "c10d", "--rdzv-id", "elastic"),
        *("--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1"),
        *("--rdzv-conf", "is_host=0,last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=4"),
        *(__file__, "--folder", str(folder), "--kill-at", str(kill_at), "--work"),
    ]
    environment = {**os.environ, "NODE": str(node), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else torch 2.14 tells a new node no address
    return subprocess.Popen(command, env=environment, start_new_session=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/elastic"))
    parser.add_argument("--kill-at", type=int, default=random.randrange(SAVE_EVERY, 40), help="of 50 steps")
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
        killed, waits = nodes[1].wait(120), given.folder / "waits"
        print(f"node 1 was killed at step {given.kill_at}: exit code {killed}", flush=True)
        waits.unlink(missing_ok=True)  # of node 0, if node 1 came late
        while not waits.exists() and nodes[0].poll() is None:
            time.sleep(0.1)
        nodes.append(start_node(2, store.port, given.folder, given.kill_at))
        print(f"nodes 0 and 2 ended with {nodes[0].wait(120)} and {nodes[2].wait(120)}")
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    compare(given.folder)


def compare(folder: Path) -> None:
    """Count how often each sample was trained on, and compare the weights."""
    times: Counter[int] = Counter()
    for path in folder.glob("*-*.json"):
        times.update(json.loads(path.read_text()))
    print(f"{len(times)} of {SAMPLES} samples trained, each {' or '.join(map(str, set(times.values())))} time(s)")
    alone = Training(folder / "alone", ranks=1)
    alone.train(0, folder / "alone")
    weights = torch.load(folder / "weights.pt", weights_only=True)
    apart = max(float((weights[name] - value).abs().max()) for name, value in alone.net.state_dict().items())
    print(f"the weights differ from those of an uninterrupted run by {apart:.1g}")
    if len(times) != SAMPLES or set(times.values()) != {1} or apart > 1e-4:
        raise SystemExit("not the same training")
    print("the same training")


if __name__ == "__main__":
    main()
