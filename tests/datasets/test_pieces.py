"""Pieces of long documents: each token comes once, whatever packs the pieces and whoever reads them."""

import tracemalloc
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from drawing import equal
from hypothesis import given, settings
from hypothesis import strategies as st
from shards import check_laws, check_reads, with_draws
from token_files import write_documents

import loaderkit as lk
from loaderkit import testing
from loaderkit.datasets.base import reads_batches
from loaderkit.datasets.places import Place, place_of

SIZES = [5, 0, 17, 8, 30, 1, 24, 3, 41, 2, 9, 16]


class Sample(NamedTuple):
    tokens: list[int]
    name: str


def cut(documents: list[Any], length: int) -> list[Any]:
    """The expected pieces."""
    return [one[start : start + length] for one in documents for start in range(0, max(1, len(one)), length)]


@settings(max_examples=25)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(1, 12), st.integers(1, 3))
def test_the_pieces_are_the_slices(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], length: int, shards: int
) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    documents = write_documents(folder, sizes, shards)
    wanted = cut(documents, length)
    for data in (
        lk.PieceDataset(lk.DocumentDataset(folder), length),
        lk.PieceDataset(documents, length, lengths=sizes),
    ):
        assert data.lengths().tolist() == [len(piece) for piece in wanted]
        check_reads(data, wanted)
        assert equal(np.concatenate(list(data)), np.concatenate(documents))
    batch = lk.PieceDataset(lk.DocumentDataset(folder), length)._read_batch(np.arange(len(wanted))[::-1])
    assert equal([each.numpy() for each in batch.values.split(batch.offsets.diff().tolist())], wanted[::-1])


def test_each_field_of_tokens_is_cut_and_the_others_stay() -> None:
    tokens, weights = [1, 2, 3, 4, 5], [5, 4, 3, 2, 1]
    dicts = lk.PieceDataset([{"tokens": tokens, "w": weights, "id": "a"}], 3, lengths=[5], fields=["tokens", "w"])
    assert list(dicts) == [{"tokens": [1, 2, 3], "w": [5, 4, 3], "id": "a"}, {"tokens": [4, 5], "w": [2, 1], "id": "a"}]
    assert list(lk.PieceDataset([(tokens, "a")], 3, lengths=[5])) == [([1, 2, 3], "a"), ([4, 5], "a")]
    named = lk.PieceDataset([Sample(tokens, "a")], 3, lengths=[5])
    assert list(named) == [Sample([1, 2, 3], "a"), Sample([4, 5], "a")]


def test_the_laws(tmp_path: Path) -> None:
    documents = write_documents(tmp_path, [size + 1 for size in SIZES])
    starts = [int(piece[0]) for piece in cut(documents, 8)]

    def make() -> Any:
        return lk.MapDataset(lk.PieceDataset(lk.DocumentDataset(tmp_path), 8), with_draws)

    check_laws(make, lambda piece: starts.index(int(piece[0])))


def tokens_of(batch: dict[str, Any]) -> list[int]:
    return [int(token) for row in lk.unpack(batch) for token in row.tolist()]


def packed(folder: Path) -> Any:
    def make(batch_size: int = 2, **settings: Any) -> lk.Loader[Any]:
        data = lk.DocumentDataset(folder)
        plan = lk.PackPlan(data.lengths(), 8, batch_size, too_long="split", window=7, seed=3)
        return lk.Loader(data, plan=plan, collate_fn=lk.PackCollate(row_length=8), **settings)

    return make


@pytest.mark.parametrize("engine", ["inline", "threads", "ring", "torch"])
def test_a_packed_epoch_has_each_token_once_on_any_ranks(engine: Any, tmp_path: Path) -> None:
    write_documents(tmp_path, SIZES)
    make, workers = packed(tmp_path), 0 if engine == "inline" else 2
    assert len(make()) > 8

    def loader(**settings: Any) -> lk.Loader[Any]:
        return make(engine=engine, num_workers=workers, **settings)

    worlds = [1, 2, 3] if engine == "inline" else [2]
    testing.assert_exactly_once(loader, samples=sum(SIZES), worlds=worlds, epochs=2, ids=tokens_of)


def test_a_packed_run_resumes_anywhere_and_on_other_ranks(tmp_path: Path) -> None:
    write_documents(tmp_path, SIZES)
    make = packed(tmp_path)
    testing.assert_resumable(make, epochs=2, stops=[1, 6, len(make())], consumers=["trainer"], ids=tokens_of)
    elastic: list[dict[str, Any]] = [{"batch_size": 2}, {"world_size": 2, "batch_size": 3}]
    testing.assert_elastic(make, elastic, samples=sum(SIZES), ids=tokens_of)


def test_the_loader_cuts_as_the_collate_joins() -> None:
    """Samples with several fields for each token, of a dataset in memory."""
    samples = [
        {"tokens": np.arange(9), "w": np.arange(9.0), "id": 7},
        {"tokens": np.arange(2), "w": np.ones(2), "id": 8},
    ]
    plan = lk.PackPlan([9, 2], 6, too_long="split", shuffle=False)
    loader = lk.Loader(samples, plan=plan, collate_fn=lk.PackCollate(row_length=6, fields={"w": -1}))
    batches = list(loader)
    assert [batch["tokens"].tolist() for batch in batches] == [[[6, 7, 8, 0, 1, 0]], [[0, 1, 2, 3, 4, 5]]]
    assert batches[0]["w"].tolist() == [[6, 7, 8, 1, 1, -1]]
    assert batches[0]["id"].tolist() == [7, 8]
    assert isinstance(loader.dataset, lk.PieceDataset)
    again = lk.Loader.from_config(loader.dataset, loader.config)
    assert again.dataset is loader.dataset
    assert equal(list(again), batches)
    assert [loader.dataset.document(index) for index in (0, 1, 2, -1)] == [0, 0, 1, 1]


@pytest.mark.parametrize("kind", ["long", "mixed"])
def test_rows_are_full_and_all_tokens_are_used(kind: str) -> None:
    """At least 99.9 % of the rows of a corpus of long documents are tokens, and all of its tokens are in rows."""
    random = np.random.default_rng(0)
    lengths = random.lognormal(9.5 if kind == "long" else 6.5, 1, 3000).astype(int)
    plan = lk.PackPlan(lengths, 2048, 8, too_long="split")
    found = plan.summary()
    assert found.tokens == lengths.sum()
    assert (found.left_out, found.repeated) == (0, 0)
    assert found.padded_to_real < (1.001 if kind == "long" else 1.005)
    dropped = lk.PackPlan(lengths, 2048, 8, too_long="drop").summary()
    assert dropped.tokens < 0.8 * found.tokens


def test_a_piece_of_a_huge_document_reads_only_itself(tmp_path: Path) -> None:
    size = 10**8
    with (tmp_path / "a.ds").open("wb") as file:
        file.truncate(2 * size)
        file.seek(2 * (size - 1))
        file.write(b"\7\0")
    np.array([size], "<u8").tofile(tmp_path / "a.ds.index")
    data = lk.PieceDataset(lk.DocumentDataset(tmp_path), 2048)
    assert len(data) == -(-size // 2048)
    tracemalloc.start()
    last = data[-1]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(last), int(last[-1])) == (size % 2048, 7)
    assert peak < 1 << 20


def test_what_a_piece_knows(tmp_path: Path) -> None:
    write_documents(tmp_path, SIZES)
    documents = lk.DocumentDataset(tmp_path)
    data = lk.PieceDataset(documents, 8)
    assert place_of(data, 3) == place_of(documents, 2) == Place(str(tmp_path / "0.ds"), 2)
    prints = {lk.PieceDataset(documents, length).fingerprint() for length in (8, 9)}
    assert len(prints) == 2
    assert data.fingerprint() in prints
    assert reads_batches(data)
    assert data.draws_nothing
    slow = lk.PieceDataset(lk.DocumentDataset(tmp_path, transform=torch.from_numpy), 8, lengths=SIZES)
    assert not reads_batches(slow)
    assert equal([piece.numpy() for piece in slow], list(data))


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(TypeError, match=r"list does not know its lengths.*measure_lengths"):
        lk.PieceDataset([[1]], 2)
    with pytest.raises(ValueError, match="lengths of 2 documents, the dataset has 1"):
        lk.PieceDataset([[1]], 2, lengths=[1, 1])
    with pytest.raises(ValueError, match="length is 0, wanted an integer of at least 1"):
        lk.PieceDataset([[1]], 0, lengths=[1])
    with pytest.raises(ValueError, match="document 1 has 3 tokens, its length was given as 9"):
        lk.PieceDataset([[1], [1, 2, 3]], 4, lengths=[1, 9])[2]
    with pytest.raises(KeyError, match=r"document 0 has the fields \['text'\], wanted \['tokens'\] too"):
        lk.PieceDataset([{"text": [1]}], 4, lengths=[1])[0]
    with pytest.raises(ValueError, match=r"order= and too_long='split' are both given.*PieceDataset"):
        lk.PackPlan([3, 9], 4, too_long="split", order=lk.Shuffled(2))
    with pytest.raises(TypeError, match="the dataset is 'tokens', wanted the data itself"):
        lk.Loader("tokens", plan=lk.PackPlan([3, 9], 4, too_long="split"), collate_fn=lk.PackCollate())
    with pytest.raises(ValueError, match="PackPlan has the lengths of 2 samples, the dataset has 1"):
        lk.Loader([[1]], plan=lk.PackPlan([3, 9], 4, too_long="split"), collate_fn=lk.PackCollate())


def test_a_state_of_other_pieces_is_refused(tmp_path: Path) -> None:
    write_documents(tmp_path, SIZES)
    make = packed(tmp_path)
    loader = make()
    next(iter(loader))
    other = lk.PackPlan(SIZES, 9, 2, too_long="split", window=7, seed=3)
    with pytest.raises(lk.StateError, match=r"\(pieces of 8 of .*\(pieces of 9 of "):
        lk.Loader(lk.DocumentDataset(tmp_path), plan=other, collate_fn=lk.PackCollate()).load_state_dict(
            loader.state_dict()
        )
