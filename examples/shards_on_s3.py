"""Two ranks train on shards in S3-compatible storage, are killed in the middle of an epoch, and one rank goes on.

    python examples/shards_on_s3.py

The script starts an S3 server of its own (moto) on loopback and puts the handwritten digits there, in eight shards. Both ranks share one
cache folder. It prints how often each sample was trained on in the epoch: exactly once.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

import loaderkit as lk

SHARDS, SAVE_EVERY, KILL_AFTER = 8, 10, 15


def train(rank: int, ranks: int, folder: Path, options: dict[str, Any], resume: bool, kill_after: int | None) -> None:
    """Train one epoch as one of several ranks; write down which samples were trained on in which step."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", f"file://{folder.absolute()}/meet-{ranks}", rank=rank, world_size=ranks
    )
    storage = lk.Storage(options, cache_dir=folder / "cache", cache_bytes=10**6)
    data = lk.JsonlDataset(
        "s3://digits/train/*.jsonl", storage=storage, index_dir=folder / "index", transform=as_tensor
    )
    loader = lk.Loader(data, batch_size=16, shuffle=True, num_workers=1)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    if resume:
        saved = torch.load(folder / "checkpoint.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    with (folder / f"steps-{ranks}-{rank}").open("a", buffering=1) as record:
        for batch in loader:
            if step == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
            nn.functional.cross_entropy(model(batch["image"]), batch["label"]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            record.write(json.dumps({"step": step, "ids": batch["id"].tolist()}) + "\n")
            step += 1
            if rank == 0 and step % SAVE_EVERY == 0:
                part = folder / "checkpoint.part"
                torch.save({"model": model.state_dict(), "loader": loader.state_dict(), "step": step}, part)
                part.replace(folder / "checkpoint.pt")
    torch.distributed.destroy_process_group()


def as_tensor(row: dict[str, Any]) -> dict[str, Any]:
    """Encode a row of numbers as a picture."""
    return row | {"image": torch.tensor(row["image"], dtype=torch.float32) / 16}


def run(
    ranks: int, folder: Path, options: dict[str, Any], *, resume: bool = False, kill_after: int | None = None
) -> None:
    """Run the ranks as processes; if one is killed, end the others."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "sklearn.datasets", "loaderkit"])  # imported once for all three
    processes = [
        context.Process(target=train, args=(rank, ranks, folder, options, resume, kill_after)) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode != (0 if kill_after is None else -signal.SIGKILL):
            for other in processes:
                other.kill()
            raise SystemExit(f"a rank ended with {process.exitcode}")


def upload(options: dict[str, Any]) -> int:
    """Put the digits into the bucket and return how many there are."""
    import s3fs

    digits = load_digits()
    files = s3fs.S3FileSystem(**options)
    files.mkdir("digits")
    rows = [
        {"id": number, "image": image.astype(int).tolist(), "label": int(label)}
        for number, (image, label) in enumerate(zip(digits.data, digits.target, strict=True))
    ]
    for part in range(SHARDS):
        content = "".join(json.dumps(row) + "\n" for row in rows[part::SHARDS])
        files.pipe(f"digits/train/{part}.jsonl", content.encode())
    return len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/s3"))
    folder: Path = parser.parse_args().folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    with (folder / "server.log").open("w") as log:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for(port)
        options = {"key": "test", "secret": "test", "endpoint_url": f"http://127.0.0.1:{port}"}
        samples = upload(options)
        run(2, folder, options, kill_after=KILL_AFTER)
        print("two ranks: killed in the middle of the epoch")
        saved = torch.load(folder / "checkpoint.pt", weights_only=True)["step"]
        print(f"one rank goes on from the checkpoint at step {saved}")
        run(1, folder, options, resume=True)
    finally:
        server.kill()
        server.wait()
    before = [step for rank in range(2) for step in steps_of(folder / f"steps-2-{rank}") if step["step"] < saved]
    after = steps_of(folder / "steps-1-0")
    times = Counter(sample for step in before + after for sample in step["ids"])
    print(f"{sum(len(s['ids']) for s in before)} samples by two ranks, {sum(len(s['ids']) for s in after)} by one")
    print(f"{len(times)} of {samples} samples trained, each {' or '.join(map(str, set(times.values())))} time(s)")
    if len(times) != samples or set(times.values()) != {1}:
        raise SystemExit("not every sample exactly once")


def wait_for(port: int) -> None:
    """Wait until a server answers."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the S3 server did not start: see server.log")


def steps_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    main()
