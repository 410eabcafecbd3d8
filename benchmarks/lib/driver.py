"""Talk to peers, each in its own environment (see benchmarks/README.md)."""

import argparse
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PEERS = ("loaderkit", "litdata", "mosaicml", "webdataset", "hf", "energon", "torch")
IMPORT_S = 180  # some take half a minute, on an idle machine
Answers = list[dict[str, Any]]  # one for each rank


def options(description: str | None, known: Sequence[str] = PEERS, **numbers: float) -> argparse.Namespace:
    """Read the command line of a script over the peers; `numbers` are more options, and their defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small; prints, and writes only where --out says")
    parser.add_argument("--out", type=Path, help="where results go")
    parser.add_argument("--logs", type=Path, help="a folder for what the peers print")
    parser.add_argument("--peers", default=",".join(known), help="which, with commas between")
    of_peer = "the interpreter of a peer's environment, where it is not this one"
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH", help=of_peer)
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    return parser.parse_args()


@contextmanager
def running(given: argparse.Namespace, known: Sequence[str] = PEERS) -> Iterator[tuple[Path, dict[str, "Peer"]]]:
    """Start the peers that were asked for and are known; return a folder for their data, and them."""
    with tempfile.TemporaryDirectory() as folder:
        logs = given.logs or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        with started(interpreters(given, known), logs) as peers:
            yield Path(folder), peers


def interpreters(given: argparse.Namespace, known: Sequence[str] = PEERS) -> dict[str, str]:
    """Return the interpreter of each peer that was asked for."""
    own = dict(text.split("=", 1) for text in given.python)
    names = given.peers.split(",")
    unknown = [name for name in [*names, *own] if name not in known]
    if unknown:
        raise SystemExit(f"peers: {unknown} not known, wanted some of {', '.join(known)}.")
    return {name: own.get(name, sys.executable) for name in names}


class Peer:
    """A peer's process, that forks for each rank of each job."""

    def __init__(self, peer: str, python: str, log: Path, scratch: str) -> None:
        self._log = log.open("ab")
        settings = {"TMPDIR": scratch}  # some leave files behind
        paths = [str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [python, str(HERE / "serve.py"), peer],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | settings | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        found = self._read(IMPORT_S)
        self.name, self.version = found["name"], found["version"]

    def call(self, function: str, *, world: int = 1, limit_s: float = 60, **arguments: Any) -> Answers:
        job = {"call": function, "world": world, "limit_s": limit_s, "arguments": arguments}
        if self._process.stdin is None:
            raise RuntimeError("the peer has no input.")
        print(json.dumps(job), file=self._process.stdin, flush=True)
        answers: Answers = self._read(limit_s + 30)  # it keeps the limit itself
        return answers

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _read(self, limit_s: float) -> Any:
        """Return the next answer, a line: it comes whole, so that nothing of it is in the buffer before."""
        if self._process.stdout is None:
            raise RuntimeError("the peer has no output.")
        if not select.select([self._process.stdout], [], [], limit_s)[0]:
            self._process.kill()
            raise RuntimeError(f"gave nothing for {limit_s:g} seconds, see {self._log.name}.")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"ended with {self._process.wait(30)}, see {self._log.name}.")
        return json.loads(line)


@contextmanager
def started(pythons: Mapping[str, str], folder: Path) -> Iterator[dict[str, Peer]]:
    """Start the peers; those that can't be imported are said and left out."""
    peers: dict[str, Peer] = {}
    scratch = tempfile.mkdtemp()
    try:
        for name, python in pythons.items():
            try:
                peers[name] = Peer(name, python, folder / f"{name}.log", scratch)
            except (RuntimeError, OSError) as error:
                text = (folder / f"{name}.log").read_text(errors="replace").strip().split("\n")[-1]
                print(f"{name}: left out: {error} {text}", file=sys.stderr)
        yield peers
    finally:
        for peer in peers.values():
            peer.close()
        shutil.rmtree(scratch, ignore_errors=True)
