"""Train from a paged web service, killed in the middle of an epoch: every sample comes once, in the same order.

    python examples/stream_service.py

A server on this machine gives paragraphs of Python's documentation, page by page. Three processes train on them:
one runs to the end of the epoch, one is killed with SIGKILL, and one resumes after the last checkpoint of the killed one,
with another number of workers.
"""

import argparse
import functools
import http.server
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import urllib.request
from multiprocessing.connection import Connection
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch

import loaderkit as lk

PAGE = 16  # paragraphs
SECTIONS = 6
WORDS = 512  # buckets that words are hashed to


@functools.cache
def paragraphs(section: int) -> list[dict[str, Any]]:
    names = sorted(topics)[section::SECTIONS]
    texts = [text for name in names for text in topics[name].split("\n\n") if text.strip()]
    return [{"id": section * 100_000 + row, "text": text} for row, text in enumerate(texts)]


class Service(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        _, section, page = self.path.split("/")
        rows = paragraphs(int(section))[int(page) * PAGE : (int(page) + 1) * PAGE]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(rows).encode())

    def log_message(self, *args: Any) -> None:
        pass


def serve(port: Connection) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
    port.send(server.server_address[1])
    server.serve_forever()


def fetch(url: str, page: int) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/{page}", timeout=30) as answer:
        rows: list[dict[str, Any]] = json.load(answer)
    return rows


def is_text(sample: dict[str, Any]) -> bool:
    return len(sample["text"].split()) > 3


def encode(sample: dict[str, Any]) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Count words, and leave out one in ten at random, to predict the length of the text."""
    words = sample["text"].split()
    kept = [sum(word.encode()) % WORDS for word in words if lk.sample_rng().random() > 0.1]
    counts = torch.bincount(torch.tensor(kept, dtype=torch.int64), minlength=WORDS).float()
    return sample["id"], counts, torch.tensor(float(len(words)))


def train(url: str, folder: Path, workers: int, kill_after: int | None) -> None:
    """Train for the rest of an epoch; record the samples of each trained batch."""
    torch.manual_seed(0)
    model = torch.nn.Linear(WORDS, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    shards = [f"{url}/{section}" for section in range(SECTIONS)]
    stream = lk.StreamDataset(shards, lk.PageReader(fetch, PAGE), shuffle=True, lanes=4, window=128)
    loader = lk.Loader(stream.filter(is_text).map(encode), batch_size=32, num_workers=workers)
    checkpoint = folder / "checkpoint.pt"
    seen: list[int] = []
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
        seen = saved["seen"]
    for step, (ids, words, length) in enumerate(loader, 1):
        loss = torch.nn.functional.mse_loss(model(words)[:, 0], length)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seen += ids.tolist()
        if step % 8 == 0:
            state = {"model": model.state_dict(), "loader": loader.state_dict(), "seen": seen}
            torch.save(state, folder / "part.pt")
            (folder / "part.pt").replace(checkpoint)
        if step == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
    torch.save({"model": model.state_dict(), "seen": seen}, folder / "done.pt")


def run(*arguments: Any) -> int | None:
    # Not from a fork server: torch's workers then have named semaphores, which a killed process leaves behind.
    process = multiprocessing.Process(target=train, args=arguments)
    process.start()
    process.join(120)
    if process.is_alive():
        process.kill()
    return process.exitcode


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kill-after", type=int, default=30, help="batches")
    kill_after = parser.parse_args().kill_after
    port, told = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.Process(target=serve, args=(told,), daemon=True)  # no thread: this process forks
    server.start()
    url = f"http://127.0.0.1:{port.recv()}"
    with tempfile.TemporaryDirectory() as name:
        whole, cut = Path(name, "whole"), Path(name, "cut")
        whole.mkdir()
        cut.mkdir()
        code = run(url, whole, 0, None)
        killed = run(url, cut, 2, kill_after)
        print(f"killed after batch {kill_after} of its epoch, with 2 workers: exit code {killed}")
        resumed = run(url, cut, 1, None)
        if (code, killed, resumed) != (0, -signal.SIGKILL, 0):
            print("a run failed")
            return 1
        wanted, found = (torch.load(folder / "done.pt", weights_only=True) for folder in (whole, cut))
    server.terminate()
    each = sorted(row["id"] for section in range(SECTIONS) for row in paragraphs(section) if is_text(row))
    once = sorted(found["seen"]) == each
    same = found["seen"] == wanted["seen"]
    weights = all(torch.equal(wanted["model"][name], found["model"][name]) for name in wanted["model"])
    print(f"resumed with 1 worker: {len(found['seen'])} samples of {len(each)}, each once: {once}")
    print(f"the same order as the uninterrupted run: {same}; the same weights, bit for bit: {weights}")
    return 0 if once and same and weights else 1


if __name__ == "__main__":
    sys.exit(main())
