"""Train on raw texts that are tokenized and packed on the way, killed in the middle of an epoch: the weights are the same.

    python examples/raw_texts.py

Python's documentation is written to JSONL files, with a line that is not UTF-8 in each. Three processes train a small
next-byte model on packed rows: one runs to the end of the epoch, one is killed with SIGKILL, and one resumes after the killed
one's last checkpoint, with another number of workers.
"""

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch

import loaderkit as lk

ROW, PARTS = 512, 6


def write_texts(folder: Path) -> list[str]:
    """Write texts of all lengths as JSONL; return the paths."""
    texts = sorted(topics.items())
    paths = [folder / f"texts-{part}.jsonl" for part in range(PARTS)]
    for part, path in enumerate(paths):
        lines = [json.dumps({"id": row, "text": text[:5_000]}).encode() for row, (_, text) in enumerate(texts)]
        path.write_bytes(b"\n".join([*lines[part::PARTS], b'{"text": "\xff"}']))
    return [str(path) for path in paths]


def tokenize(sample: dict[str, Any]) -> dict[str, Any]:
    """One token for each byte, and the text's number at each of them."""
    tokens = list(sample["text"].encode())
    return {"tokens": tokens, "texts": [sample["id"]] * len(tokens)}


def train(paths: list[str], folder: Path, workers: int, kill_after: int | None) -> None:
    """Train for the rest of an epoch; count the tokens of each text that were trained on."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(256, 32), torch.nn.ReLU(), torch.nn.Linear(32, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    lines = lk.StreamDataset(paths, lk.LineReader(parse=bytes), shuffle=True, lanes=4, window=32)
    rows = lines.map(json.loads).map(tokenize).pack(ROW, fields={"texts": -1}, waiting=32)
    loader = lk.Loader(rows, 8, num_workers=workers, bad_samples=lk.BadSamples("skip"))
    checkpoint = folder / "checkpoint.pt"
    seen: Counter[int] = Counter()
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
        seen = Counter(saved["seen"])
    for step, batch in enumerate(loader, 1):
        logits = model(batch["tokens"].long())
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seen.update(batch["texts"].flatten().tolist())
        if step % 8 == 0:
            state = {"model": model.state_dict(), "loader": loader.state_dict(), "seen": dict(seen)}
            torch.save(state, folder / "part.pt")
            (folder / "part.pt").replace(checkpoint)
        if step == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
    torch.save({"model": model.state_dict(), "seen": dict(seen), "loss": loss.item()}, folder / "done.pt")


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
    with tempfile.TemporaryDirectory() as name:
        whole, cut = Path(name, "whole"), Path(name, "cut")
        whole.mkdir()
        cut.mkdir()
        paths = write_texts(Path(name))
        code = run(paths, whole, 0, None)
        killed = run(paths, cut, 2, kill_after)
        print(f"killed after batch {kill_after} of its epoch, with 2 workers: exit code {killed}")
        resumed = run(paths, cut, 1, None)
        if (code, killed, resumed) != (0, -signal.SIGKILL, 0):
            print("a run failed")
            return 1
        wanted, found = (torch.load(folder / "done.pt", weights_only=True) for folder in (whole, cut))
    each = {row: len(text[:5_000].encode()) for row, (_, text) in enumerate(sorted(topics.items()))}
    tokens, padding = sum(each.values()), found["seen"].pop(-1)
    once = found["seen"] == {row: size for row, size in each.items() if size}
    same = all(torch.equal(wanted["model"][name], found["model"][name]) for name in wanted["model"])
    print(f"resumed with 1 worker: {len(each)} texts, {tokens:,} tokens, each once: {once}")
    print(f"padding: {padding / (tokens + padding):.1%} of the rows; the last loss: {found['loss']:.2f}")
    print(f"the same weights as the uninterrupted run, bit for bit: {same}")
    return 0 if once and same else 1


if __name__ == "__main__":
    sys.exit(main())
