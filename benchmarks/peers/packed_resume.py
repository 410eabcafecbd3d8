"""Stop in the middle of an epoch of packed rows and resume in a fresh process: which tokens are lost, repeated or reordered.

600 documents with 19,494 tokens, each a number of its own, become rows of 64 tokens, in batches of 4 rows, shuffled, with two workers
unless a column says otherwise. A run is stopped after 31 batches (15 on two ranks) of some 78. Its state goes to a fresh process, which
runs to the epoch's end. The tokens of both are compared with those of the uninterrupted run. "exact" is the same rows, each once; on one
rank also the same batches in the same order. "other order" is the same rows in another order. "other rows" is each token once in other
rows. `lost` counts tokens that never come, `twice` those that come again. A peer that gives a state for each rank gets them back by rank,
a new rank the last one's. What is "tokenized on the way" begins with texts.
"""

import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from lib.driver import Answers, Peer, options, running
from lib.packed_documents import Corpus
from lib.resumes import Table, cells_of, checked, markdown, turned, write
from report.declare import Report
from report.results import RESULTS

PEERS = ("loaderkit", "grain", "litdata", "hf", "mosaicml", "energon")
CORPUS = Corpus(size=600, mean=3, sigma=1, row=64, batch=4, shard=2048)  # one document in eight is longer than a row
STOP, STOP_EARLY = 31, 15  # odd, so that they are no whole number of rounds
MANY = 4_000  # batches: more than any epoch has
TOTAL = sum(CORPUS.lengths())
Setting = dict[str, Any]


class Way:
    """A peer's way to pack: runs it, each setting's whole epoch once."""

    def __init__(self, peer: Peer, name: str, folder: str) -> None:
        self._peer, self._name, self._folder = peer, name, folder
        self._whole: dict[tuple[int, int], Answers] = {}

    def run(self, *, workers: int = 2, world: int = 1, take: int = MANY, state: list[str] | None = None) -> Answers:
        arguments = {"folder": self._folder, "way": self._name, "workers": workers, "take": take, "state": state}
        return checked(self._peer.call("resume_packed", world=world, limit_s=120, **arguments))

    def whole(self, workers: int, world: int) -> Answers:
        if (workers, world) not in self._whole:
            self._whole[workers, world] = self.run(workers=workers, world=world)
        return self._whole[workers, world]


def rows_of(*runs: Answers) -> list[tuple[int, ...]]:
    return [tuple(row) for run in runs for answer in run for batch in answer["batches"] for row in batch]


def compare(whole: Answers, parts: list[Answers], *, in_order: bool) -> str:
    """Say what the parts of a run lost, repeated or reordered."""
    wanted, found = (Counter(chain(*rows_of(*runs))) for runs in ([whole], parts))
    lost = len(wanted.keys() - found.keys())
    twice = sum(max(0, count - wanted.get(token, 1)) for token, count in found.items())
    if lost or twice:
        return " / ".join(f"{number:,} {what}" for number, what in ((lost, "lost"), (twice, "twice")) if number)
    if Counter(rows_of(whole)) != Counter(rows_of(*parts)):
        return "other rows"
    batches = [batch for run in parts for batch in run[0]["batches"]]
    return "exact" if not in_order or batches == whole[0]["batches"] else "other order"


def resumed(way: Way, before: Setting, *after: Setting) -> str:
    """Run, and resume under each of some other settings in turn."""
    world = before.get("world", 1)
    whole = way.whole(before.get("workers", 2), world)
    parts = [way.run(**before, take=STOP if world == 1 else STOP_EARLY)]
    for number, setting in enumerate(after, 1):
        state = [answer["state"] for answer in parts[-1]]
        parts.append(way.run(**setting, take=MANY if number == len(after) else STOP_EARLY, state=state))
    return compare(whole, parts, in_order=all(setting.get("world", 1) == 1 for setting in (before, *after)))


def left_out(way: Way) -> str:
    """Say which tokens an uninterrupted epoch does not have."""
    found = Counter(chain(*rows_of(way.whole(2, 1))))
    return f"{TOTAL - len(found):,} of {TOTAL:,}"


def state_size(way: Way) -> str:
    return f"{way.run(take=STOP)[0]['state_bytes']:,} B"


def cases(quick: bool) -> dict[str, Callable[[Way], str]]:
    few: dict[str, Callable[[Way], str]] = {"same setting": lambda way: resumed(way, {}, {})}
    if quick:
        return few
    return few | {
        "resumed twice": lambda way: resumed(way, {}, {}, {}),
        "2 workers, then 3": lambda way: resumed(way, {}, {"workers": 3}),
        "2 workers, then 0": lambda way: resumed(way, {}, {"workers": 0}),
        "2 ranks, then 2": lambda way: resumed(way, {"world": 2}, {"world": 2}),
        "2 ranks, then 1": lambda way: resumed(way, {"world": 2}, {}),
        "1 rank, then 2": lambda way: resumed(way, {}, {"world": 2}),
        "tokens that a whole epoch leaves out": left_out,
        "state": state_size,
    }


def measure(peer: Peer, folder: str, quick: bool) -> Table:
    """Return the cells of each of a peer's ways."""
    CORPUS.save(folder)
    written = peer.call("write_packed", folder=folder, limit_s=120)[0]
    if "error" in written:
        raise SystemExit(f"{peer.name}: can't write its data: {written}")
    table: Table = {}
    for name in written["ways"]:
        way = Way(peer, name, folder)
        cells = cells_of(f"{peer.name}: {name}", {case: partial(row, way) for case, row in cases(quick).items()})
        table[f"{written.get('name', peer.name)} {peer.version}: {name}"] = cells
    return table


REPORT = Report(minutes=0)


def main() -> None:
    given = options(__doc__, PEERS)
    found: Table = {}
    with running(given, PEERS) as (folder, peers):
        for key, peer in peers.items():
            (folder / key).mkdir()
            found |= measure(peer, str(folder / key), given.quick)
    text = markdown(found)
    print(text)
    if given.out or not given.quick:
        write("packed_resume", "## Packed rows of tokens", __doc__ or "", text, turned(found), given.out or RESULTS)


if __name__ == "__main__":
    main()
