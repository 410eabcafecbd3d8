"""Tokens a second and fullness of rows: loaderkit and the peers, from documents that lie in the page cache.

4,000 documents of lognormal lengths (median 700 tokens, sigma 1.2) become rows of 2,048 tokens, in batches of 8, shuffled,
with 0 and 2 workers. Each contender reads its own format as its documentation says; grain's documents are in memory. Its
packing does not cut, so it gets documents that are cut. "packed" keeps documents apart. "windows" are cut from joined documents.

A contender's run is a fresh process. The clock goes from an epoch's first batch to its end, or for a few seconds where an epoch
takes longer: in the process's first epoch (`first_epoch`), and in another epoch of the same loader (`later_epoch`). Every batch
becomes int64, and its tokens are counted while the clock runs. What comes before the first batch, making the loader included, is
`first_batch_ms`. It is not in the speed, so that a contender that packs blocks of documents has the first one for nothing: 5 % of
the tokens for datasets with trl, 200 documents at a time. Contenders take turns, in another order each round. `over_ours` is the
median over the rounds of a contender's speed over that of `PackPlan` ("packed") or `TokenDataset` ("windows").

`rows_full` and `tokens_used` come from an epoch of its own to the end, which is not timed.
"""

import math
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from lib.driver import Peer, options, running
from lib.harness import Options, Row, ratio, record, tell, turns
from lib.packed_documents import Corpus
from report.declare import BOTH, Report, cell, each, fastest, inverse, joined, over
from report.results import RESULTS

from peers.packed_resume import PEERS

PACKED, WINDOWS = "packed", "windows"
CONTENDERS = {
    "loaderkit": {"PackPlan, split": PACKED, "stream.pack": PACKED, "WindowDataset": WINDOWS, "TokenDataset": WINDOWS},
    "grain": {"FirstFitPack": PACKED, "BestFitPack": PACKED, "ConcatThenSplit": WINDOWS},
    "hf": {"bfd_split, packed before": PACKED, "bfd_split, on the way": PACKED, "wrapped, packed before": WINDOWS},
    "energon": {"packing buffer": PACKED},
    "litdata": {"TokensLoader": WINDOWS},
    "mosaicml": {"rows cut when written": WINDOWS},
}
LABELS = {"hf": "datasets + trl", "energon": "Megatron-Energon", "mosaicml": "mosaicml-streaming"}
REFERENCE = {PACKED: ("loaderkit", "PackPlan, split"), WINDOWS: ("loaderkit", "TokenDataset")}
EPOCHS = ("first", "later")
CORPUS = Corpus(size=4_000, mean=math.log(700), sigma=1.2, row=2048, batch=8, shard=1 << 19)
SMALL = Corpus(size=400, mean=math.log(700), sigma=1.2, row=2048, batch=8, shard=1 << 16)
Contender = tuple[str, str, int]  # the peer, its way to pack, and the number of workers
Answers = dict[int, dict[str, Any]]  # by round


def prepare(peers: dict[str, Peer], folder: Path, corpus: Corpus) -> dict[str, Peer]:
    """Let each peer write its data; return those that could."""
    found = {}
    for key, peer in peers.items():
        (folder / key).mkdir()
        corpus.save(folder / key)
        begun = time.monotonic()
        answer = peer.call("write_packed", folder=str(folder / key), limit_s=300)[0]
        if "error" in answer:
            tell(f"{key}: left out: its data can't be written: {answer}")
            continue
        tell(f"{key}: written in {time.monotonic() - begun:.1f} s")
        found[key] = peer
    return found


def measure(
    peers: dict[str, Peer], folder: Path, corpus: Corpus, *, rounds: int, seconds: float, deadline: float
) -> list[Row]:
    """Count each contender's rows and tokens once, and time it once a round; what fails or hangs is left out."""
    contenders = [(key, way, workers) for key in peers for way in CONTENDERS[key] for workers in (0, 2)]
    counted: dict[Contender, dict[str, Any]] = {}
    timed: dict[Contender, Answers] = {}

    def call(contender: Contender, function: str, **arguments: Any) -> dict[str, Any] | None:
        key, way, workers = contender
        arguments |= {"folder": str(folder / key), "kind": way, "workers": workers}
        answer = peers[key].call(function, **arguments)[0]
        if "error" in answer:
            tell(f"{name_of(contender)}, {workers} workers: left out: {answer}")
            return None
        return answer

    for contender in contenders:
        if answer := call(contender, "count_packed"):
            counted[contender], timed[contender] = answer, {}
    for number in range(rounds):
        if number and time.monotonic() > deadline:
            tell(f"{number} rounds in the time that there is, not {rounds}")
            break
        there = list(timed)
        for place in turns(len(there), number):
            answer = call(there[place], "throughput_packed", shuffle=True, seconds=seconds)
            if answer is None:
                del timed[there[place]]
            else:
                timed[there[place]][number] = answer
        tell(f"round {number + 1}")
    return list(rows_of(counted, timed, corpus))


def rows_of(counted: dict[Contender, dict[str, Any]], timed: dict[Contender, Answers], corpus: Corpus) -> Iterator[Row]:
    total = sum(corpus.lengths())
    for contender, answers in timed.items():
        key, way, workers = contender
        kind = CONTENDERS[key][way]
        row: Row = {"kind": kind, "workers": workers, "contender": name_of(contender)}
        row["first_batch_ms"] = 1e3 * statistics.median(answer["first_batch_s"] for answer in answers.values())
        for epoch in EPOCHS:
            speeds, ours = (
                {number: answer[epoch] for number, answer in found.items()}
                for found in (answers, timed.get((*REFERENCE[kind], workers), {}))
            )
            row[f"{epoch}_epoch_tokens_per_s"] = statistics.median(speeds.values())
            row[f"{epoch}_epoch_over_ours"] = ratio(speeds, ours) if ours else math.nan
        row["rows_full"] = counted[contender]["tokens"] / (counted[contender]["rows"] * corpus.row)
        row["tokens_used"] = counted[contender]["tokens"] / total
        yield row | {"repeats": len(answers)}


def name_of(contender: Contender) -> str:
    key, way, _ = contender
    return f"{LABELS.get(key, key)}, {way}"


REPORT = Report(minutes=7, arguments=("--minutes", "5"), group="Variable lengths")
for kind, text in (
    (PACKED, "Packed rows of tokens, `PackPlan`: tokens a second over the best peer that cuts and packs"),
    (WINDOWS, "Windows of joined tokens, `TokenDataset`: tokens a second over the best peer"),
):
    columns = [f"{epoch}_epoch_over_ours" for epoch in EPOCHS]
    REPORT.target(
        f"{text}; 0 workers, first and later epoch, then 2",
        inverse(
            joined(
                fastest(column, column, without=("loaderkit",), kind=kind, workers=workers)
                for workers in BOTH
                for column in columns
            )
        ),
        least=0.9,
    )
REPORT.target(
    "Packed rows, `PackPlan`: how full they are, over the fullest of any other",
    over(
        each("rows_full", kind=PACKED, workers="0", contender="loaderkit, PackPlan, split"),
        fastest("rows_full", "rows_full", without=("loaderkit, PackPlan",), kind=PACKED, workers="0"),
    ),
    least=0.99,
)
for kind, name in ((PACKED, "PackPlan, split"), (WINDOWS, "TokenDataset")):
    for workers in BOTH:
        setting, speed = {"kind": kind, "workers": workers}, "first_epoch_tokens_per_s"
        ours = each("repeats", speed, "rows_full", contender=f"loaderkit, {name}", **setting)
        theirs = fastest(speed, speed, "rows_full", without=("loaderkit",), **setting)
        REPORT.line(
            cell(
                f"Rows of 2,048 tokens from documents, {kind}, {workers} workers: tokens a second in a process's first epoch "
                "({:.0f} rounds)",
                ours,
            ),
            cell(f"{{1:m}} M ({{2:.2%}} full) by `{name.partition(',')[0]}`", ours),
            cell("{name} {:m} M ({:.2%} full), the fastest of the peers", theirs),
        )
REPORT.chart(
    "Tokens a second from documents (more is better)",
    {"first_epoch_tokens_per_s": "first epoch", "later_epoch_tokens_per_s": "later epoch", "rows_full": "rows full"},
    panels=("kind", "workers"),
)


def main() -> None:
    given = options(__doc__, PEERS, rounds=5, seconds=1.0, minutes=math.inf)
    rounds, seconds = (1, 0.3) if given.quick else (given.rounds, given.seconds)
    corpus, deadline = SMALL if given.quick else CORPUS, time.monotonic() + 60 * given.minutes
    with running(given, PEERS) as (folder, peers):
        able = prepare(peers, folder, corpus)
        rows = measure(able, folder, corpus, rounds=rounds, seconds=seconds, deadline=deadline)
    rows.sort(key=lambda row: row["kind"])  # stable: by peer, way and workers
    record("packed_throughput", rows, Options(quick=given.quick, out=given.out or (None if given.quick else RESULTS)))


if __name__ == "__main__":
    main()
