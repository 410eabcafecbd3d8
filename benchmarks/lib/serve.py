"""Run a peer's jobs, each in fresh processes: one line of JSON in, one out.

python serve.py PEER

The peer is imported once; each rank of a job is a fork of that process, which has made no dataset
and no loader. So a job starts in milliseconds, where some peers take half a minute to import.
"""

import importlib
import json
import os
import pickle
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def main() -> None:
    sys.path[0] = str(HERE.parent)
    peer: Any = importlib.import_module(f"peers.with_{sys.argv[1]}")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the peers print
    print(json.dumps({"name": peer.NAME, "version": peer.VERSION}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(peer, json.loads(line))), file=answers, flush=True)


def run(peer: Any, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a job's ranks at the same time; return what each says, {"error": ...} where it failed."""
    with tempfile.TemporaryDirectory() as folder:
        world, port = job.get("world", 1), free_port()
        children = [start(peer, job, rank, world, port, Path(folder) / str(rank)) for rank in range(world)]
        deadline = time.monotonic() + job.get("limit_s", 60)
        waiting = set(children)
        while waiting and time.monotonic() < deadline:
            waiting = {child for child in waiting if os.waitpid(child, os.WNOHANG) == (0, 0)}
            time.sleep(0.005)
        for child in waiting:
            os.killpg(child, 9)
            os.waitpid(child, 0)
        for child in children:
            end_group(child)
        return [read_answer(Path(folder) / str(rank), child in waiting) for rank, child in enumerate(children)]


def start(peer: Any, job: dict[str, Any], rank: int, world: int, port: int, path: Path) -> int:
    child = os.fork()
    if child:
        return child
    os.setpgid(0, 0)
    code = 0
    try:
        if world > 1:
            join_world(rank, world, port)
        answer = getattr(peer, job["call"])(**job["arguments"])
    except BaseException as error:
        traceback.print_exc()
        text = str(error).strip().split("\n")[-1]
        answer, code = {"error": type(error).__name__, "message": text[:300]}, 1
    path.with_suffix(".part").write_bytes(pickle.dumps(answer))
    path.with_suffix(".part").replace(path)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def join_world(rank: int, world: int, port: int) -> None:
    import torch.distributed

    settings: dict[str, Any] = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    settings |= {"NODE_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {key: str(value) for key, value in settings.items()}
    torch.distributed.init_process_group("gloo")


def end_group(child: int) -> None:
    """End the workers that a rank left behind."""
    try:
        os.killpg(child, 9)
    except ProcessLookupError:
        return


def read_answer(path: Path, late: bool) -> dict[str, Any]:
    if not path.exists():
        return {"error": "hang" if late else "died", "message": ""}
    answer: dict[str, Any] = pickle.loads(path.read_bytes())
    return answer


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    main()
