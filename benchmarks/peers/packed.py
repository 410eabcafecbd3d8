"""What the peers' scripts share for the table of packed rows: a job."""

import base64
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from common import Setting

BATCH = 4  # rows
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
        setting = Setting.of(folder, True, workers, BATCH)
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
