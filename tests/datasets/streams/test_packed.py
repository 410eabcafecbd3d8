"""Packed streams: documents whose lengths nobody knows before, in rows; each token once, and rows the same bit for bit."""

import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data
from drawing import equal
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_ranks import over_changed_ranks

import loaderkit as lk

ROW = 16
pytestmark = [
    pytest.mark.filterwarnings("ignore:Loader. an epoch without more"),
    pytest.mark.filterwarnings("ignore:.*are idle"),
    pytest.mark.filterwarnings("ignore:interleave. the streams have"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


class Lengths:
    """Reads shards "number:length,length,..." of documents: the first token, and the number of tokens."""

    def __call__(self, shard: str, start: int) -> Iterator[tuple[int, int]]:
        number, _, lengths = shard.partition(":")
        for row, length in enumerate(lengths.split(",") if lengths else []):
            if row >= start:
                yield int(number) * 1_000_000 + row * 1_000, int(length)


def tokenize(document: tuple[int, int]) -> dict[str, Any]:
    """Tokens that no other document has, and a weight for each that is drawn under the document's seed."""
    first, length = document
    return {"tokens": np.arange(first, first + length, dtype=np.int32), "weights": lk.sample_rng().random(length)}


def shards(count: int, documents: int = 9, seed: int = 0) -> list[str]:
    """Shards of documents with 0 to 5 rows of tokens, most of them short."""
    rng, made = np.random.default_rng(seed), []
    for number in range(count):
        lengths = rng.choice([0, 1, 2, 3, 5, 7, 9, 12, ROW - 1, ROW, ROW + 1, 2 * ROW, 70], documents)
        made.append(f"{seed * 100 + number}:{','.join(map(str, lengths))}")
    return made


def tokens_of(names: list[str]) -> Counter[int]:
    read = Lengths()
    return Counter(t for name in names for document in read(name, 0) for t in tokenize_plain(*document))


def tokenize_plain(first: int, length: int) -> range:
    return range(first, first + length)


def only_tokens(document: tuple[int, int]) -> list[int]:
    return list(tokenize_plain(*document))


def plain(names: list[str], *, lanes: int = 3, shuffle: bool = True, **options: Any) -> lk.StreamDataset:
    return lk.StreamDataset(names, Lengths(), lanes=lanes, shuffle=shuffle, window=5, seed=5, **options)


def pack(stream: lk.StreamDataset, waiting: int = 6, **options: Any) -> lk.StreamDataset:
    return stream.map(tokenize).pack(ROW, fields={"weights": 0.0}, waiting=waiting, **options)


def is_kept(document: tuple[int, int]) -> bool:
    return document[0] // 1_000 % 4 != 1


def add_noise(row: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A map of rows, which draws under the row's seed."""
    return [{**document, "weights": document["weights"] + lk.sample_rng().random()} for document in row]


A, B = shards(5), shards(3, seed=1)
KEPT = Counter(t for name in A for d in Lengths()(name, 0) if is_kept(d) for t in tokenize_plain(*d))
MADE: dict[str, tuple[Callable[..., lk.StreamDataset], Counter[int]]] = {
    "plain": (lambda waiting=6, **options: pack(plain(A, **options), waiting), tokens_of(A)),
    "shared": (
        lambda waiting=6, lanes=3, **options: pack(
            plain(A, lanes=lanes, share=min(2, lanes), block=3, **options), waiting
        ),
        tokens_of(A),
    ),
    "filtered": (lambda waiting=6, **options: pack(plain(A, **options).filter(is_kept), waiting), KEPT),
    "mapped": (lambda waiting=6, **options: pack(plain(A, **options), waiting).map(add_noise), tokens_of(A)),
    "balanced": (
        lambda waiting=6, **options: pack(plain(A, **options), waiting, balance=lk.AttentionCost(1), together=4),
        tokens_of(A),
    ),
    "interleaved": (
        lambda waiting=6, **options: pack(
            lk.interleave({plain(A, **options): 3, plain(B, **options).filter(bool): 1}), waiting
        ),
        tokens_of(A + B),
    ),
    "rows interleaved": (
        lambda waiting=6, **options: lk.interleave(
            {pack(plain(A, **options), waiting): 1, pack(plain(B, **options), waiting): 1}
        ),
        tokens_of(A + B),
    ),
}
each = pytest.mark.parametrize(("make", "wanted"), MADE.values(), ids=MADE)


def loader_of(stream: Any, batch_size: int | None = 2, rank: int = 0, ranks: int = 1, **options: Any) -> Any:
    return lk.Loader(stream, batch_size, world=lk.World(rank, ranks), **options)


def tokens_in(batches: list[Any]) -> Counter[int]:
    return Counter(t for batch in batches for piece in lk.unpack(batch) for t in piece.tolist())


def rows_in(batches: list[Any]) -> Counter[tuple[Any, ...]]:
    """The rows, with their weights, whatever batches they are in."""
    return Counter(
        tuple(zip(tokens.tolist(), weights.tolist(), strict=True))
        for batch in batches
        for tokens, weights in zip(batch["tokens"], batch["weights"], strict=True)
    )


@pytest.mark.each_value
@each
@pytest.mark.parametrize(("lanes", "waiting"), [(1, 20), (2, 1), (5, 6)])
def test_each_token_comes_once_over_ranks(make: Any, wanted: Counter[int], lanes: int, waiting: int) -> None:
    """In each epoch, and in the same rows for any number of ranks and any batch size."""
    for epoch in range(2):
        rows = []
        for ranks in range(1, min(lanes, 3) + 1):
            batches = []
            for rank in range(ranks):
                loader = loader_of(make(waiting, lanes=lanes), ranks, rank, ranks, stop="each")
                loader.seek(epoch=epoch)
                batches += list(loader)
            assert tokens_in(batches) == wanted
            rows.append(rows_in(batches))
        assert rows == rows[:1] * len(rows)


def draw(row: list[Any]) -> float:
    return float(lk.sample_rng().random())


def test_each_row_has_a_seed_of_its_own() -> None:
    """What a map of rows draws differs from row to row, over lanes and epochs."""
    loader = loader_of(pack(plain(A)).map(draw), 1, collate_fn=list)
    drawn = [value for _ in range(2) for batch in loader for value in batch]
    assert len(set(drawn)) == len(drawn) > 70


@pytest.mark.each_value
@each
@pytest.mark.parametrize(("shuffle", "waiting"), [(False, 1), (True, 6)])
def test_a_stop_anywhere_resumes_exactly(make: Any, wanted: Counter[int], shuffle: bool, waiting: int) -> None:
    """At every stop, through JSON, and once more one batch later."""

    def loader() -> Any:
        return loader_of(make(waiting, shuffle=shuffle))

    whole = list(loader())
    assert tokens_in(whole) == wanted
    assert len(whole) > 10
    iterator = iter(first := loader())
    for stop in range(1, len(whole)):
        next(iterator)
        state = json.loads(json.dumps(first.state_dict()))
        then = loader()
        then.load_state_dict(state)
        assert then.state_dict() == state
        assert equal(next(iter(then)), whole[stop])
        if stop % 7 == 0 and stop + 1 < len(whole):
            chain = loader()
            chain.load_state_dict(json.loads(json.dumps(then.state_dict())))
            assert equal(list(chain), whole[stop + 1 :])


@each
def test_workers_dont_matter(make: Any, wanted: Counter[int]) -> None:
    mine, other = loader_of(make()), loader_of(make(), num_workers=2)
    whole = list(mine)
    assert tokens_in(whole) == wanted
    iterator = iter(other)
    head = [next(iterator) for _ in range(3)]
    state = other.state_dict()
    other.close()
    then = loader_of(make(), num_workers=1)
    then.load_state_dict(state)
    assert equal(head + list(then), whole)
    assert then.state_dict() == mine.state_dict()


@pytest.mark.each_value
@each
@pytest.mark.parametrize(("ranks", "stop"), [((1, 2), 4), ((3, 2), 1), ((3, 2), 4), ((2, 3), 3)])
def test_other_ranks_go_on_with_each_token_once(
    make: Any, wanted: Counter[int], ranks: tuple[int, int], stop: int
) -> None:
    """And in the same rows."""
    batches = over_changed_ranks(lambda *each: loader_of(make(), *each, stop="each"), *ranks, stop)
    assert tokens_in(batches) == wanted
    assert rows_in(batches) == rows_in(list(loader_of(make())))


@settings(max_examples=40, derandomize=True)
@given(data=st.data())
def test_any_lengths_any_stops(data: Any) -> None:
    """For any documents and settings: exact through three resumes, each token once."""
    lengths = st.lists(st.sampled_from([0, 1, 3, 8, 16, 17, 47, 48, 49]), max_size=12)
    names = [
        f"{number}:{','.join(map(str, each))}"
        for number, each in enumerate(data.draw(st.lists(lengths, min_size=1, max_size=4)))
    ]
    options: dict[str, Any] = {"lanes": data.draw(st.integers(1, 3)), "shuffle": data.draw(st.booleans())}
    waiting, dropping = data.draw(st.sampled_from([1, 2, 5, 100])), data.draw(st.booleans())

    def loader() -> Any:
        stream = pack(plain(names, **options), waiting, too_long="drop" if dropping else "split")
        return loader_of(stream, data_size)

    data_size = data.draw(st.integers(1, 3))
    whole = list(loader())
    kept = [d for name in names for d in Lengths()(name, 0) if not dropping or d[1] <= ROW]
    assert tokens_in(whole) == Counter(t for d in kept for t in tokenize_plain(*d))
    got: list[Any] = []
    state = None
    for stop in [*sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=3))), len(whole)]:
        this = loader()
        if state is not None:
            this.load_state_dict(json.loads(json.dumps(state)))
        iterator = iter(this)
        got += [next(iterator) for _ in range(stop - len(got))]
        state = this.state_dict()
    assert equal(got, whole)


@pytest.mark.parametrize("waiting", [1, 6, 100])
def test_documents_that_fit_stay_whole_and_pieces_follow_each_other(waiting: int) -> None:
    pieces: dict[int, list[Any]] = {}
    for batch in loader_of(pack(plain(A), waiting)):
        for piece in lk.unpack(batch):
            pieces.setdefault(int(piece[0]) // 1_000, []).append(piece)
    lengths = {first // 1_000: length for name in A for first, length in Lengths()(name, 0) if length}
    assert pieces.keys() == lengths.keys()
    assert any(len(found) == 5 for found in pieces.values())
    for document, found in pieces.items():
        assert torch.cat(found).tolist() == list(tokenize_plain(document * 1_000, lengths[document]))
        assert [len(piece) for piece in found[:-1]] == [ROW] * (len(found) - 1)


def test_a_golden_row() -> None:
    """The first row takes the first document, then the longest that fit."""
    stream = lk.StreamDataset(["0:5,9,20,2,11,4"], Lengths(), lanes=1).map(tokenize).pack(ROW, waiting=6)
    rows = [[(int(d["tokens"][0]), len(d["tokens"])) for d in row] for row in stream]
    assert rows == [
        [(2_000, 16)],  # the full row of the long document
        [(0, 5), (4_000, 11)],
        [(1_000, 9), (2_016, 4), (3_000, 2)],
        [(5_000, 4)],
    ]


def test_rows_are_full_and_states_small() -> None:
    """Of 2,048 tokens, with documents of a few hundred: over 99 %, under 500 bytes a lane."""
    rng = np.random.default_rng(0)
    lengths = np.maximum(1, rng.lognormal(np.log(400), 1.0, 4_000).astype(int))
    names = [f"{n}:{','.join(map(str, lengths[n::4]))}" for n in range(4)]
    loader = loader_of(lk.StreamDataset(names, Lengths(), lanes=4).map(only_tokens).pack(2_048), 1)
    used = rows = 0
    for batch in loader:
        used += int((batch["document_ids"] >= 0).sum())
        rows += 1
        assert len(json.dumps(loader.state_dict()["lanes"])) < 4 * 500
    assert rows > 1_000
    assert used / rows / 2_048 > 0.99


def test_short_documents_fill_rows() -> None:
    """Although fewer of them wait than a row takes."""
    loader = loader_of(plain([f"0:{'1,' * 199}1"], lanes=1).map(only_tokens).pack(ROW, waiting=2), 1)
    assert [int((batch["document_ids"] >= 0).sum()) for batch in loader] == [ROW] * 12 + [8]


def test_a_huge_document_is_cut_and_only_its_end_stays() -> None:
    """A row holds its own tokens, and not a view of the whole document."""

    def read(shard: str, start: int) -> Iterator[Any]:
        yield from [torch.arange(1_000_003), torch.arange(3)][start:]

    rows = list(lk.StreamDataset(["a"], read, lanes=1).pack(2_048))
    assert torch.cat([row[0] for row in rows]).tolist() == list(range(1_000_003))
    assert [len(piece) for piece in rows[-1]] == [1_000_003 % 2_048, 3]
    assert max(piece.untyped_storage().nbytes() for row in rows for piece in row) == 8 * 2_048


class Noted(Lengths):
    def __init__(self, read: list[int]) -> None:
        self.read = read

    def __call__(self, shard: str, start: int) -> Iterator[tuple[int, int]]:
        for document in super().__call__(shard, start):
            self.read.append(document[0])
            yield document


def test_a_resume_reads_only_from_the_oldest_waiting_document_on() -> None:
    """And tokenizes only those that wait."""
    read: list[int] = []
    tokenized: list[int] = []

    def note(document: tuple[int, int]) -> Any:
        tokenized.append(document[0])
        return only_tokens(document)

    def loader() -> Any:
        stream = lk.StreamDataset([f"0:{'7,3,' * 400}5"], Noted(read), lanes=1).map(note)
        return loader_of(stream.pack(ROW, waiting=6), 1)

    iterator = iter(first := loader())
    for _ in range(200):
        next(iterator)
    state = first.state_dict()
    read.clear()
    tokenized.clear()
    then = loader()
    then.load_state_dict(state)
    assert equal(next(iter(then)), next(iterator))
    assert 6 <= len(set(tokenized)) <= len(set(read)) < 60
    assert min(read) > 300_000


def bad(document: tuple[int, int]) -> Any:
    if document[0] // 1_000 % 5 == 2:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    return tokenize(document)


@pytest.mark.parametrize("waiting", [1, 6, 40])
def test_bad_documents_follow_the_policy(waiting: int) -> None:
    """The others come once, the bad ones are counted, and a resume is exact."""

    def loader() -> Any:
        policy = lk.BadSamples("skip", max_rate=1)
        return loader_of(plain(A).map(bad).pack(ROW, fields={"weights": 0.0}, waiting=waiting), bad_samples=policy)

    whole = list(first := loader())
    good = [d for name in A for d in Lengths()(name, 0) if d[0] // 1_000 % 5 != 2]
    assert tokens_in(whole) == Counter(t for d in good for t in tokenize_plain(*d))
    found = [(each.shard, each.index) for each in first.bad_samples]
    assert len(found) == len(set(found)) == 5 * 2
    assert all("invalid start byte" in each.error for each in first.bad_samples)
    iterator = iter(first := loader())
    for stop in range(1, len(whole)):
        next(iterator)
        then = loader()
        then.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert equal(list(then), whole[stop:])
    with pytest.raises(UnicodeDecodeError, match="invalid start byte") as raised:
        list(loader_of(plain(A).map(bad).pack(ROW)))
    assert "transforming sample 2 of shard '" in str(raised.value.__notes__)


def test_lines_that_are_not_utf8_are_left_out(tmp_path: Path) -> None:
    """If the lines are parsed by a map: a reader cannot go on after a line that it does not understand."""
    path = tmp_path / "texts.jsonl"
    path.write_bytes(b'{"text": "a b"}\n{"text": "\xff"}\nnot json\n{"text": ""}\n{"text": "c"}\n')

    def encode(line: bytes) -> list[int]:
        return [ord(word) for word in json.loads(line)["text"].split()]

    stream = lk.StreamDataset([str(path)], lk.LineReader(parse=bytes), lanes=1).map(encode).pack(4)
    loader = loader_of(stream, 1, bad_samples=lk.BadSamples("skip", max_rate=1))
    assert [lk.unpack(batch)[0].tolist() + lk.unpack(batch)[1].tolist() for batch in loader] == [[97, 98, 99]]
    assert [type(each.error) for each in loader.bad_samples] == [str, str]


def test_a_document_that_is_long_in_error() -> None:
    too_long = plain(["0:3,17"]).map(tokenize).pack(ROW, too_long="error")
    with pytest.raises(ValueError, match=r"a document has 17 tokens, wanted at most row_length=16.*too_long='split'"):
        list(loader_of(too_long))


def test_batches_are_those_of_a_pack_collate() -> None:
    """With all other fields, and with a collate function of one's own."""
    stream = pack(plain(A))
    rows = list(stream)
    made = list(loader_of(stream, None))
    assert equal(made[0], lk.PackCollate(row_length=ROW, fields={"weights": 0.0})(rows[:1]))
    same = next(iter(loader_of(stream, 2, collate_fn=lk.PackCollate(row_length=ROW, labels="same"))))
    assert torch.equal(same["labels"][0, 1:4], same["tokens"][0, 1:4].long())


def test_batches_of_rows_are_those_of_a_loader() -> None:
    """With one lane; and they resume at every stop."""
    collate = lk.PackCollate(row_length=ROW, fields={"weights": 0.0})

    def loader() -> Any:
        return loader_of(pack(plain(A, lanes=1)).batch(2, collate_fn=collate), None)

    whole = list(loader())
    assert equal(whole, list(loader_of(pack(plain(A, lanes=1)), 2)))
    assert tokens_in(whole) == tokens_of(A)
    iterator = iter(first := loader())
    for stop in range(1, len(whole)):
        next(iterator)
        then = loader()
        then.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert equal(list(then), whole[stop:])


def test_documents_made_of_batches_are_packed() -> None:
    stream = plain(["0:3,4,5,6"], lanes=1, shuffle=False).map(only_tokens).batch(2, collate_fn=list)
    rows = list(stream.map(lambda texts: [*texts[0], *texts[1]]).pack(ROW))
    assert [[len(document) for document in row] for row in rows] == [[7], [11]]


def test_hugging_face_names_and_encodings() -> None:
    class Encoding:
        ids = (1, 2, 3)

    stream = lk.StreamDataset(["a"], lambda shard, start: [Encoding()][start:], lanes=1).pack(4)
    assert next(iter(loader_of(stream)))["tokens"].tolist() == [[1, 2, 3, 0]]
    named = lk.StreamDataset(["a"], lambda shard, start: [{"input_ids": [1, 2], "text": "x"}][start:], lanes=1)
    batch = next(iter(loader_of(named.pack(3, tokens="input_ids"))))
    assert batch["input_ids"].tolist() == [[1, 2, 0]]
    assert batch["text"] == ["x"]


def test_a_packed_stream_pickles_and_feeds_a_bare_dataloader() -> None:
    stream = pack(plain(A))
    assert equal(list(pickle.loads(pickle.dumps(stream))), list(stream))
    bare: Any = torch_data.DataLoader(stream, 1, num_workers=2, collate_fn=list)
    found = Counter(t for (row,) in bare for document in row for t in document["tokens"].tolist())
    assert found == tokens_of(A)


def test_rows_of_an_epoch_differ_from_those_of_another() -> None:
    loader = loader_of(pack(plain(A)))
    assert rows_in(list(loader)) != rows_in(list(loader))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("a text", r"the 'tokens' of a document are a str \('a text'\).*Tokenize before"),
        ([[1], [2, 3]], "the 'tokens' of a document are a list"),
        (["a"], "wanted a list or array of numbers"),
        ({"input_ids": [1]}, r"has the fields \['input_ids'\], wanted \['tokens'\] too. Name the tokens' field"),
    ],
)
def test_documents_that_cannot_be_packed(document: Any, message: str) -> None:
    stream = lk.StreamDataset(["a"], lambda shard, start: [document][start:], lanes=1).pack(4)
    with pytest.raises((ValueError, KeyError), match=message):
        list(loader_of(stream))


def test_fields_as_long_as_the_tokens() -> None:
    stream = lk.StreamDataset(["a"], lambda s, start: [{"tokens": [1, 2], "weights": [1]}], lanes=1)
    with pytest.raises(ValueError, match="field 'weights' has length 1, wanted 2 as the tokens have"):
        list(loader_of(stream.pack(4, fields={"weights": 0})))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"row_length": 0}, "row_length is 0, wanted an integer of at least 1"),
        ({"waiting": 0}, "waiting is 0, wanted an integer of at least 1"),
        ({"too_long": "cut"}, "too_long is 'cut', wanted one of 'split', 'error', 'drop'"),
    ],
)
def test_settings_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plain(A).pack(**{"row_length": 8, **options})
    with pytest.raises(ValueError, match="packed already"):
        plain(A).pack(8).pack(8)


def test_data_that_has_changed_is_refused() -> None:
    """Fewer documents than wait, and a long one that is short now."""

    def loader(name: str) -> Any:
        return loader_of(
            lk.StreamDataset(["a"], lambda _, start: Lengths()(name, start), lanes=1).map(only_tokens).pack(4), 1
        )

    iterator = iter(before := loader("0:2,3,3,3,3"))
    next(iterator)
    then = loader("0:2,3,3")
    then.load_state_dict(before.state_dict())
    with pytest.raises(ValueError, match=r"cannot resume: .* documents were read, and now there are"):
        next(iter(then))
    iterator = iter(before := loader("0:17,3"))
    next(iterator)
    then = loader("0:7,3")
    then.load_state_dict(before.state_dict())
    with pytest.raises(ValueError, match="1 row of sample 0 of shard 'a' was used, and now the sample has 7 tokens"):
        next(iter(then))


def test_another_row_length_is_refused() -> None:
    iterator = iter(before := loader_of(plain(A).map(tokenize).pack(8)))
    next(iterator)
    with pytest.raises(lk.StateError, match=r"the state is for order .*8 tokens.* this loader has .*9 tokens"):
        loader_of(plain(A).map(tokenize).pack(9)).load_state_dict(before.state_dict())


@pytest.mark.parametrize(
    "place",
    [
        [0, 1, 0, 0, 0],
        [0, 0, 0, 3, 0],
        [0, 0, 0, 0, 2, 5, 0, 0, 0, 0],
        [0, 0, 0, 0, 2, 99, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 2, 5, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 2, 5, 0, 9, 0, 0, 0, 0],
        [0, 0, 0, 0, 2, 5, 0, 0, 0, 0, 0, 3],
        [0, 0, 0, 0, 2, 5, 0, 0, 0, 0, 0, 3, 2],
        [0, 0, 0, 0, 2, 5, 0, 0, 0, 0, 0, 3, 1 << 48],
        [0, 0, 0, 0, 2, 5, 0, 0, 0, 0, 0, 0, 1],
        [0, 0, 0, 0, 2, 5, 0, 0, 0, 0, 0, -1],
    ],
)
def test_places_that_no_state_has(place: list[int]) -> None:
    """Each is refused; the place itself, mended, is taken."""
    stream = pack(plain(A, lanes=1))
    assert stream.flaw(0, [0, 0, 0, 0, 2, 5, 0, 0, 0, 0, 0, 3, 1]) is None
    assert stream.flaw(0, place)


def test_balanced_lanes_deliver_rows_of_like_cost_at_the_same_time() -> None:
    """Each rank reads one lane here, and a step ends with the slowest rank."""
    cost, row, ranks = lk.AttentionCost(1), 64, 4
    lengths = np.clip(np.random.default_rng(0).lognormal(2, 1, 4000).astype(int), 1, row)

    def epoch(rank: int, **options: Any) -> list[tuple[float, tuple[int, ...]]]:
        documents = lk.StreamDataset(
            [str(n) for n in range(ranks)],
            lambda shard, start: map(int, lengths[int(shard) :: ranks][start:]),
            lanes=ranks,
        )
        rows = documents.map(lambda length: np.full(length, 7)).pack(row, **options)
        loader = lk.Loader(rows, 1, world=lk.World(rank, ranks), collate_fn=lambda found: found[0], steps=128)
        sizes = [tuple(len(document) for document in one) for one in loader]
        return [(float(cost(np.array([*one, row - sum(one)])).sum()), one) for one in sizes]

    found = {}
    for name, options in {"plain": {}, "balanced": {"balance": cost, "together": 32}}.items():
        times = np.array([[one[0] for one in epoch(rank, **options)] for rank in range(ranks)])
        assert times.shape == (ranks, 128)
        found[name] = times.max(axis=0).sum() / times.mean(axis=0).sum() - 1
    assert found["balanced"] < found["plain"] / 2.5


def test_what_balances_rows_of_a_stream_is_checked_and_named() -> None:
    stream = plain(A).map(tokenize)
    assert "pack(16, balance=AttentionCost(hidden_size=64, causal=True))" in repr(
        stream.pack(ROW, balance=lk.AttentionCost(64))
    )
    with pytest.raises(ValueError, match="together is 0, wanted an integer of at least 1"):
        stream.pack(ROW, balance=lk.AttentionCost(64), together=0)
    with pytest.raises(TypeError, match="balance is 5, wanted lk"):
        stream.pack(ROW, balance=5)  # type: ignore[arg-type]
    state = loader_of(stream.pack(ROW, balance=lk.AttentionCost(64))).state_dict()
    loader_of(stream.pack(ROW, balance=lk.AttentionCost(64))).load_state_dict(state)
    for other in (stream.pack(ROW), stream.pack(ROW, balance=lk.AttentionCost(32))):
        with pytest.raises(lk.StateError, match="balance-1"):
            loader_of(other).load_state_dict(state)
