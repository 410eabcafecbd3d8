"""Stop in the middle of an epoch and resume in a fresh process: what each peer delivers.

1,013 samples in 11 shards, batches of 8, two workers unless the row says otherwise. A run is stopped after 41
of its 127 batches (21 on two ranks, and where it is resumed twice); its state goes to a fresh process, that runs to the epoch's end. `dup`
counts samples delivered again, `skip` those never delivered, over both processes and all ranks. "exact" is
neither; in the rows of the same setting it also means that the batches are those of the uninterrupted run.
A peer that gives a state for each rank gets them back by rank, a new rank the last one's.
"""

import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from lib.driver import Answers, Peer, options, running
from lib.peer_jobs import BATCH, SAMPLES
from lib.resumes import FailedError, Table, cells_of, checked, markdown, turned, write
from report.declare import Report
from report.results import RESULTS, Results, Rows

STOP, STOP_EARLY = 41, 21  # odd, so that they are no whole number of rounds or of larger batches
MANY = 400  # batches: more than any epoch has
Setting = dict[str, Any]


def run(peer: Peer, folder: str, setting: Setting, *, take: int = MANY, state: list[str] | None = None) -> Answers:
    base = {"shuffle": False, "workers": 2, "batch": BATCH, **setting}
    world = base.pop("world", 1)
    answers = peer.call("resume", world=world, folder=folder, take=take, state=state, **base)
    return checked(answers, "without a message")


def states(answers: Answers) -> list[str]:
    return [answer["state"] for answer in answers]


def ids_of(*runs: Answers) -> list[int]:
    return [number for answers in runs for answer in answers for batch in answer["ids"] for number in batch]


def count(ids: list[int]) -> str:
    """Say what came twice and what never."""
    found = Counter(ids)
    dup, skip = sum(found.values()) - len(found), SAMPLES - len(found)
    return " / ".join(f"{number} {what}" for number, what in ((dup, "dup"), (skip, "skip")) if number) or "exact"


def same(peer: Peer, folder: str, shuffle: bool) -> str:
    setting = {"shuffle": shuffle}
    whole = run(peer, folder, setting)
    first = run(peer, folder, setting, take=STOP)
    rest = run(peer, folder, setting, state=states(first))
    said = count(ids_of(first, rest))
    if first[0]["ids"] + rest[0]["ids"] == whole[0]["ids"]:
        return said
    return f"other batches ({said})" if said == "exact" else said


def changed(peer: Peer, folder: str, before: Setting, *after: Setting) -> str:
    """Run, and resume under each of some other settings in turn."""
    parts = [run(peer, folder, before, take=STOP if before.get("world", 1) == 1 else STOP_EARLY)]
    for number, setting in enumerate(after):
        last = number == len(after) - 1
        parts.append(run(peer, folder, setting, take=MANY if last else STOP_EARLY, state=states(parts[-1])))
    return count(ids_of(*parts))


def augmented(peer: Peer, folder: str) -> str:
    whole = run(peer, folder, {})
    first = run(peer, folder, {}, take=STOP)
    rest = run(peer, folder, {}, state=states(first))
    wanted, found = whole[0]["draws"][STOP:], rest[0]["draws"]
    return "equal" if wanted == found and wanted else "different"


def uneven(peer: Peer, folder: str) -> str:
    """Two ranks that 1,013 samples can't be shared by evenly."""
    found = run(peer, folder, {"world": 2})
    batches = [len(answer["ids"]) for answer in found]
    return f"{count(ids_of(found))}; {' / '.join(map(str, batches))} batches"


def state_size(peer: Peer, folder: str) -> str:
    found = [run(peer, folder, {"shuffle": shuffle}, take=STOP)[0]["state_bytes"] for shuffle in (False, True)]
    return f"{found[0]:,} B" if found[0] == found[1] else f"{found[0]:,} / {found[1]:,} B"


def cut(peer: Peer, folder: str, shards: list[str]) -> str:
    """Cut a shard in the middle of the data to 60 % of its bytes."""
    if not shards:
        return "-"
    path = Path(shards[len(shards) // 2])
    content = path.read_bytes()
    try:
        path.write_bytes(content[: len(content) * 6 // 10])
        return f"{count(ids_of(run(peer, folder, {})))}, no error"
    except FailedError as error:
        return f"error: {error}"
    finally:
        path.write_bytes(content)


def rows(quick: bool) -> dict[str, Callable[[Peer, str, list[str]], str]]:
    two, one = {"world": 2}, {"world": 1}
    few: dict[str, Callable[[Peer, str, list[str]], str]] = {
        "same setting, in order": lambda peer, folder, _: same(peer, folder, False),
        "same setting, shuffled": lambda peer, folder, _: same(peer, folder, True),
    }
    if quick:
        return few
    return few | {
        "2 workers, then 3": lambda peer, folder, _: changed(peer, folder, {}, {"workers": 3}),
        "2 workers, then 0": lambda peer, folder, _: changed(peer, folder, {}, {"workers": 0}),
        "resumed twice": lambda peer, folder, _: changed(peer, folder, {}, {}, {}),
        "2 workers, then 3, then 2": lambda peer, folder, _: changed(peer, folder, {}, {"workers": 3}, {}),
        "2 workers, then 3, then 2, shuffled": lambda peer, folder, _: changed(
            peer, folder, {"shuffle": True}, {"shuffle": True, "workers": 3}, {"shuffle": True}
        ),
        "batch 8, then 16": lambda peer, folder, _: changed(peer, folder, {}, {"batch": 16}),
        "2 ranks, then 1": lambda peer, folder, _: changed(peer, folder, two, one),
        "1 rank, then 2": lambda peer, folder, _: changed(peer, folder, one, two),
        "2 ranks, then 1, then 2, shuffled": lambda peer, folder, _: changed(
            peer, folder, two | {"shuffle": True}, one | {"shuffle": True}, two | {"shuffle": True}
        ),
        "random augmentation after the resume": lambda peer, folder, _: augmented(peer, folder),
        "state, in order / shuffled": lambda peer, folder, _: state_size(peer, folder),
        "uneven data on 2 ranks": lambda peer, folder, _: uneven(peer, folder),
        "a shard cut to 60 %": cut,
    }


def measure(peer: Peer, folder: str, quick: bool) -> dict[str, str]:
    written = peer.call("write", folder=folder)[0]
    if "error" in written:
        raise SystemExit(f"{peer.name}: can't write its data: {written}")
    return cells_of(
        peer.name, {name: partial(row, peer, folder, written["shards"]) for name, row in rows(quick).items()}
    )


def resumed_cases(results: Results) -> Rows:
    """Return the cases that stop and resume."""
    return [row for row in results.rows() if " then " in row["case"] or row["case"].startswith(("same", "resumed"))]


def exact_cases(results: Results) -> dict[str, int]:
    """Count the cases in which each sample comes once, by peer, the best first."""
    cases = resumed_cases(results)
    found = {name.rpartition(" ")[0]: sum(row[name] == "exact" for row in cases) for name in cases[0] if name != "case"}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


REPORT = Report(minutes=0, group="Data on disk")
REPORT.target(
    "Stopped and resumed, compared with the peers: cells of ours that are not exact",
    lambda results: [
        sum(
            not cell.startswith(("exact", "equal"))
            for row in results.rows()
            for name, cell in row.items()
            if name.startswith("loaderkit") and not row["case"].startswith(("state", "a shard"))
        )
    ],
    most=0,
)
REPORT.line(
    lambda results: (
        "Stopped in the middle of an epoch and resumed, also with other workers, ranks and batch size: cases of "
        f"{len(resumed_cases(results))} in which each sample comes exactly once"
    ),
    lambda results: str(exact_cases(results)["loaderkit"]),
    lambda results: ", ".join(f"{name} {count}" for name, count in exact_cases(results).items() if name != "loaderkit"),
)


def main() -> None:
    given = options(__doc__)
    found: Table = {}
    with running(given) as (folder, peers):
        for key, peer in peers.items():
            (folder / key).mkdir()
            found[f"{peer.name} {peer.version}"] = measure(peer, str(folder / key), given.quick)
    by_case = turned(found)
    text = markdown(by_case)
    print(text)
    if given.out or not given.quick:
        title = "# Stop in the middle of an epoch, resume in a fresh process"
        write("peers_resume", title, __doc__ or "", text, by_case, given.out or RESULTS)


if __name__ == "__main__":
    main()
