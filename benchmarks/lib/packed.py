"""What the peers' scripts share for packed rows: a job that stops and resumes, one that is timed, one that counts; and tar shards."""

import base64
import io
import pickle
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lib.packed_documents import Corpus
from lib.peer_jobs import SHARDS, Setting
from lib.workloads import timed_job

Rows = list[list[int]]  # the tokens of each row, without padding


def packed_job(
    ways: Mapping[str, Callable[[Setting], Any]],
    rows: Callable[[Any], Rows],
    *,
    merge: Callable[[list[Any]], list[Any]] = lambda states: states,
    save: Callable[[Any], Any] = lambda loader: loader.state_dict(),
    load: Callable[[Any, Any], None] = lambda loader, state: loader.load_state_dict(state),
) -> Callable[..., dict[str, Any]]:
    """Return the function that runs one of a peer's ways to pack, from a state or the start, for some batches or to the epoch's end.

    Args:
        ways: Make a loader, by name.
        rows: Returns the rows of a batch.
        merge: Makes states to load of those that the ranks saved.
        save: Returns a loader's state.
        load: Loads it.
    """

    def run(*, way: str, folder: str, workers: int, take: int, state: Sequence[str] | None = None) -> dict[str, Any]:
        torch.manual_seed(1 if state is None else 2)  # the resuming process draws other numbers of its own
        setting = Setting.of(folder, True, workers, Corpus.of(folder).batch)
        loader = ways[way](setting)
        if state is not None:
            states = merge([pickle.loads(base64.b64decode(text)) for text in state])
            load(loader, states[min(setting.rank, len(states) - 1)])  # a new rank gets the last one's
        found: list[Rows] = []
        saved = None
        for batch in loader:
            found.append(rows(batch))
            if len(found) == take:
                saved = save(loader)
                break
        text = base64.b64encode(pickle.dumps(saved)).decode()
        return {"batches": found, "state": text, "state_bytes": len(pickle.dumps(saved))}

    return run


def packed_speed_jobs(
    ways: Mapping[str, Callable[[Setting], Any]], parts: Callable[[Any], tuple[int, Any]]
) -> tuple[Callable[..., dict[str, Any]], Callable[..., dict[str, Any]]]:
    """Return two functions: one times a way's tokens, and one counts the rows and tokens of its whole epoch.

    Args:
        ways: Make a loader, by name.
        parts: Returns the number of rows in a batch, and its tokens: 0 is padding.
    """

    def loader_of(folder: str, kind: str, shuffle: bool, workers: int) -> Any:
        return ways[kind](Setting.of(folder, shuffle, workers, Corpus.of(folder).batch))

    def tokens_in(tokens: Any) -> int:
        """Count the tokens, as int64: what a model takes."""
        return int(torch.count_nonzero(torch.as_tensor(tokens).long()))

    def count(*, folder: str, kind: str, workers: int) -> dict[str, Any]:
        rows = tokens = 0
        for batch in loader_of(folder, kind, True, workers):
            size, found = parts(batch)
            rows, tokens = rows + size, tokens + tokens_in(found)
        return {"rows": rows, "tokens": tokens}

    return timed_job(loader_of, lambda batch: tokens_in(parts(batch)[1])), count


def write_tar(folder: Path, contents: Sequence[bytes], extension: str) -> list[str]:
    """Write a document's file each in tar shards; return the shards' names."""
    folder.mkdir()
    names = [f"{shard:03}.tar" for shard in range(SHARDS)]
    for shard, name in enumerate(names):
        with tarfile.open(folder / name, "w") as archive:
            for number in range(shard, len(contents), SHARDS):
                info = tarfile.TarInfo(f"{number:06}.{extension}")
                info.size = len(contents[number])
                archive.addfile(info, io.BytesIO(contents[number]))
    return names
