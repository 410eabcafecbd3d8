"""Rows packed from an index: each token once an epoch, in the same rows, with every guarantee of a Loader."""

import itertools
import json
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawing import equal
from hypothesis import given, settings
from hypothesis import strategies as st
from tier import examples

import loaderkit as lk

ROW = 16
LENGTHS = np.random.default_rng(0).choice([0, 1, 2, 3, 5, 7, 9, 12, 15, 16, 17, 32, 70], 90).tolist()
LONG = LENGTHS.index(70)


def document(number: int, length: int) -> list[int]:
    """Tokens that no other document has."""
    return list(range(number * 1_000, number * 1_000 + length))


def tokenize(sample: tuple[int, int]) -> dict[str, Any]:
    number, length = sample
    return {"tokens": document(number, length), "weights": lk.sample_rng().random(length), "id": number}


def only_tokens(sample: tuple[int, int]) -> list[int]:
    return document(*sample)


def add_noise(row: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**each, "weights": each["weights"] + lk.sample_rng().random()} for each in row]


def is_long(row: list[Any]) -> bool:
    return len(row) < 3


def texts(lengths: list[int] = LENGTHS) -> lk.Pipeline:
    return lk.Pipeline(lk.RecordDataset(list(enumerate(lengths))))


def tokens_of(lengths: list[int], most: int | None = None) -> list[int]:
    return [
        token
        for number, length in enumerate(lengths)
        if length <= (most or length)
        for token in document(number, length)
    ]


def tokens_in(rows: Any) -> list[int]:
    """All tokens of rows."""
    found = [each["tokens"] if isinstance(each, dict) else each for row in rows for each in row]
    return [token for tokens in found for token in tokens.tolist()]


def row_ids(batch: Any) -> list[tuple[int, ...]]:
    """The rows of a batch, by their tokens."""
    return [tuple(row[there].tolist()) for row, there in zip(batch["tokens"], batch["document_ids"] >= 0, strict=True)]


WEIGHTED: dict[str, Any] = {"fields": {"weights": 0.0}, "window": 20}
PACKED: dict[str, Callable[[], lk.Pipeline]] = {
    "plain": lambda: texts().map(only_tokens).pack(ROW),
    "windows": lambda: texts().map(only_tokens).pack(ROW, window=20),
    "random": lambda: texts().map(tokenize).pack(ROW, **WEIGHTED),
    "mapped": lambda: texts().map(tokenize).pack(ROW, **WEIGHTED).map(add_noise),
    "shuffled": lambda: texts().shuffle(3).map(only_tokens).pack(ROW).shuffle(4),
    "part": lambda: texts().map(only_tokens).pack(ROW).skip(3).take(20),
    "filtered": lambda: texts().map(only_tokens).pack(ROW).filter(is_long),
    "mixed": lambda: lk.Pipeline.mix(
        [texts().map(only_tokens).pack(ROW), texts([3] * 40).map(only_tokens).pack(ROW)], [2, 1]
    ),
}
each = pytest.mark.parametrize("make", PACKED.values(), ids=PACKED)


@each
def test_a_loader_keeps_its_guarantees(make: Callable[[], lk.Pipeline]) -> None:
    """Each row once over ranks and batch sizes, exact after any stop, the same for each engine."""
    wanted = [tuple(tokens_in([row])) for row in make()]
    assert len(wanted) > 10

    def loader(batch_size: int = 4, **options: Any) -> lk.Loader:
        return lk.Loader(make(), batch_size, **{"shuffle": True, "seed": 4, **options})

    lk.testing.assert_exactly_once(loader, samples=wanted, worlds=(1, 3), ids=row_ids)
    lk.testing.assert_resumable(loader, epochs=1, stops=(0, 1, 3), consumers=("loop",), ids=row_ids)
    lk.testing.assert_elastic(
        loader, [{"world_size": 2}, {"world_size": 3, "batch_size": 3}], samples=wanted, stops=(1,), ids=row_ids
    )
    whole = list(loader())
    for engine in ("ring", "torch"):
        assert equal(whole, list(loader(num_workers=2, engine=engine)))


@settings(max_examples=examples(60), derandomize=True)
@given(
    lengths=st.lists(st.sampled_from([0, 1, 3, 8, 15, 16, 17, 47, 48, 49]), min_size=1, max_size=30),
    window=st.sampled_from([1, 2, 5, 100]),
    dropping=st.booleans(),
)
def test_each_token_comes_once(lengths: list[int], window: int, dropping: bool) -> None:
    """For any lengths and windows: in rows that fit, with documents that fit in one piece, and the others in few."""
    packed = texts(lengths).map(only_tokens).pack(ROW, window=window, too_long="drop" if dropping else "split")
    rows = list(packed)
    assert len(packed) == len(rows)
    assert sorted(tokens_in(rows)) == tokens_of(lengths, ROW if dropping else None)
    assert all(0 < sum(map(len, row)) <= ROW for row in rows)
    pieces = Counter(int(piece[0]) // 1_000 for row in rows for piece in row)
    assert pieces == {
        number: -(-length // ROW) for number, length in enumerate(lengths) if length and (length <= ROW or not dropping)
    }


def test_a_golden_packing() -> None:
    """Best fit decreasing; rows in the order of their first documents."""
    rows = texts([5, 9, 20, 0, 2, 11, 4]).map(only_tokens).pack(ROW)
    found = [[(int(piece[0]), len(piece)) for piece in row] for row in rows]
    assert found == [
        [(0, 5), (5_000, 11)],
        [(1_000, 9), (2_016, 4), (4_000, 2)],
        [(2_000, 16)],
        [(6_000, 4)],
    ]


def test_rows_are_full() -> None:
    """Of 2,048 tokens, with documents of a few hundred: over 99.8 %."""
    lengths = np.maximum(1, np.random.default_rng(0).lognormal(np.log(400), 1.0, 4_000).astype(int)).tolist()
    rows = lk.Pipeline([np.zeros(length, np.uint8) for length in lengths]).pack(2_048)
    assert sum(lengths) / len(rows) / 2_048 > 0.998


@each
def test_rows_by_index_one_or_many(make: Callable[[], lk.Pipeline]) -> None:
    packed = make()
    rows = [tokens_in([row]) for row in packed]
    assert [tokens_in([row]) for row in packed.__getitems__([3, 0, -1 + len(rows)])] == [rows[3], rows[0], rows[-1]]
    assert tokens_in([packed[-1]]) == rows[-1]
    with pytest.raises(IndexError, match=f"index {len(rows)} in a dataset of"):
        packed[len(rows)]
    again = pickle.loads(pickle.dumps(packed))
    assert [tokens_in([row]) for row in again] == rows
    assert again.fingerprint() == packed.fingerprint()


def test_rows_are_those_of_a_stream() -> None:
    """The same layout, tokens and batches, whichever row a document is in."""
    documents = texts().map(tokenize)
    packed, stream = documents.pack(ROW, **WEIGHTED), documents.stream(lanes=1).pack(ROW, fields={"weights": 0.0})
    assert sorted(tokens_in(packed)) == sorted(tokens_in(stream)) == tokens_of(LENGTHS)
    for row in (packed[0], next(iter(stream))):
        assert [{name: type(value) for name, value in each.items()} for each in row] == [
            {"tokens": np.ndarray, "weights": np.ndarray, "id": int} for _ in row
        ]
    one, two = (next(iter(lk.Loader(data, 2))) for data in (packed, stream))
    assert {name: getattr(value, "dtype", 0) for name, value in one.items() if name != "max_seqlen"} == {
        name: getattr(value, "dtype", 0) for name, value in two.items() if name != "max_seqlen"
    }
    rows_again = next(iter(lk.Loader(texts().map(only_tokens).pack(ROW).stream(lanes=1), 2)))
    assert rows_again["tokens"].shape == (2, ROW)


def test_the_rows_of_an_epoch_are_shuffled_and_not_repacked() -> None:
    loader = lk.Loader(texts().map(only_tokens).pack(ROW), 4, shuffle=True)
    one, two = ([row for batch in loader for row in row_ids(batch)] for _ in range(2))
    assert one != two
    assert sorted(one) == sorted(two)


def test_what_documents_draw_belongs_to_their_row() -> None:
    """Other rows of the batch, and the place in it, don't matter."""
    packed = texts().map(tokenize).pack(ROW, **WEIGHTED)
    loaders = [lk.Loader(packed, batch_size, shuffle=True) for batch_size in (1, 7)]
    one, two = (
        {
            tuple(row.tolist()): weights.tolist()
            for batch in loader
            for row, weights in zip(batch["tokens"], batch["weights"], strict=True)
        }
        for loader in loaders
    )
    assert one == two
    drawn = [weight for weights in one.values() for weight in weights if weight]
    assert len(set(drawn)) == len(drawn) == sum(LENGTHS)


def test_documents_on_disk_are_not_measured_and_read_by_the_piece(tmp_path: Path) -> None:
    lk.write_shards(
        [document(n, size) for n, size in enumerate(LENGTHS)], tmp_path, format=lk.TokenFormat(dtype="uint32")
    )
    data = lk.DocumentDataset(str(tmp_path / "*.bin"), dtype="uint32")
    packed = lk.Pipeline(data).pack(ROW)
    assert packed.dataset.draws_nothing  # type: ignore[attr-defined]
    assert sorted(tokens_in(packed)) == tokens_of(LENGTHS)
    assert [tokens_in([row]) for row in packed] == [tokens_in([row]) for row in texts().map(only_tokens).pack(ROW)]


class Noted:
    """Counts how often samples are read."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> list[int]:
        self.reads += 1
        return document(index, LENGTHS[index])

    def fingerprint(self) -> str:
        return "noted"


@pytest.mark.parametrize("workers", [0, 2])
def test_lengths_are_measured_once_and_kept(tmp_path: Path, workers: int) -> None:
    cache = str(tmp_path / "lengths.npz")
    first = lk.Pipeline(Noted()).pack(ROW, cache=cache, num_workers=workers)
    again = lk.Pipeline(data := Noted()).pack(ROW, cache=cache)
    assert data.reads == 16  # those that are compared
    assert first.fingerprint() == again.fingerprint()
    with pytest.warns(
        UserWarning, match="kept lengths of other data: length is tokens in 'ids', was tokens in 'tokens'"
    ):
        lk.Pipeline(Noted()).pack(ROW, cache=cache, tokens="ids")


def test_another_tokenizer_makes_other_rows_and_is_refused() -> None:
    """If the lengths differ, also if there are as many rows: some would come again, and others never."""

    def loader(first: int) -> lk.Loader:
        rows = (
            texts([5, 9, 12, 2]).map(lambda sample: only_tokens(sample)[: first if sample[0] == 0 else None]).pack(ROW)
        )
        assert len(rows) == 2
        return lk.Loader(rows)

    next(iter(before := loader(5)))
    state = json.loads(json.dumps(before.state_dict()))
    loader(5).load_state_dict(state)
    with pytest.raises(lk.StateError, match="the state is for dataset"):
        loader(3).load_state_dict(state)


def test_a_drawing_says_the_rows() -> None:
    packed = texts([5, 9, 20, 0, 2, 11, 4]).map(only_tokens).pack(ROW).take(2)
    assert repr(packed).splitlines() == [
        "RecordDataset: 7",
        "  .map(only_tokens): 7",
        "  .pack(16): 4",
        "  .take(2): 2",
    ]


def test_batches_of_rows_need_a_collate_function() -> None:
    packed = texts().map(only_tokens).pack(ROW)
    with pytest.raises(ValueError, match=r"packed rows, which do not stack. Give .*PackCollate\(row_length=16\)"):
        packed.batch(2)
    collate = lk.PackCollate(row_length=ROW)
    assert equal(list(packed.batch(2, collate_fn=collate)), list(lk.Loader(packed, 2)))
    assert equal(list(lk.Loader(packed.batch(2, collate_fn=collate), None)), list(lk.Loader(packed, 2)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: range(10),
        lambda: texts().map(only_tokens).pack(ROW).take(8),
        lambda: texts().map(only_tokens).pack(ROW).stream(lanes=1),
        lambda: texts().map(tokenize).stream(lanes=1).pack(ROW, fields={"weights": 0.0}),
        lambda: lk.interleave({texts().map(only_tokens).stream(lanes=1).pack(ROW): 1.0 for _ in range(2)}),
    ],
    ids=["no rows", "index", "stream of rows", "packed stream", "interleaved"],
)
def test_the_collate_function_of_a_loader_is_the_one_that_runs(make: Callable[[], Any]) -> None:
    samples = next(iter(lk.Loader(make(), 2, collate_fn=list)))
    assert len(samples) == 2
    loader = lk.Loader(make(), 2)
    assert equal(loader.collate_fn(samples), next(iter(loader)))


def test_bad_rows_follow_the_policy() -> None:
    """A document that fails makes its row bad, and is named."""

    class Broken(Noted):
        def __getitem__(self, index: int) -> list[int]:
            if index == LONG and self.reads >= len(LENGTHS):
                raise OSError("gone")
            return super().__getitem__(index)

    lengths_known = lk.Pipeline(Broken()).pack(ROW)
    with pytest.raises(OSError, match="gone") as raised:
        list(lk.Loader(lengths_known, 2))
    assert "of the documents" in str(raised.value.__notes__)
    loader = lk.Loader(lengths_known, 8, bad_samples=lk.BadSamples("skip", max_rate=1))
    rows = list(itertools.chain.from_iterable(map(row_ids, loader)))
    bad = -(-LENGTHS[LONG] // ROW)
    assert len(rows) == len(lengths_known) - bad
    assert len(loader.bad_samples) == bad == 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: texts().map(only_tokens).pack(0), "pack: row_length is 0, wanted an integer of at least 1"),
        (lambda: texts().map(only_tokens).pack(8, window=0), "pack: window is 0, wanted an integer of at least 1"),
        (lambda: texts().map(only_tokens).pack(8, too_long="cut"), "too_long is 'cut', wanted one of"),  # type: ignore[arg-type]
        (
            lambda: texts([3, 17]).map(only_tokens).pack(ROW, too_long="error"),
            r"pack: sample 1 counts 17, over row_length=16 \(1 samples are\).*too_long='split'",
        ),
        (lambda: texts().take(0).pack(8), "pack: there are no documents"),
        (lambda: texts().map(only_tokens).pack(8).pack(8), "the samples are rows already"),
        (
            lambda: texts().map(only_tokens).batch(2, collate_fn=list).pack(8),
            "the samples are batches, wanted documents",
        ),
    ],
)
def test_settings_that_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ("a text", r"the 'tokens' of a document are a str.*Tokenize before.*\(samples 0\)"),
        ({"input_ids": [1]}, r"has the fields \['input_ids'\], wanted \['tokens'\] too. Name the tokens' field"),
    ],
)
def test_documents_that_cannot_be_packed(sample: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        lk.Pipeline([sample]).pack(8)


def test_a_document_that_has_another_length_now_is_refused() -> None:
    data = [[1, 2, 3], [4]]
    packed = lk.Pipeline(data).pack(4)
    data[0].append(9)
    with pytest.raises(
        ValueError, match=r"document 0 has 4 tokens, its length was given as 3. Measure the lengths again"
    ):
        packed[0]
    assert torch.is_tensor(next(iter(lk.Loader(lk.Pipeline(data).pack(4))))["tokens"])
