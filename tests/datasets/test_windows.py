"""Windows over shuffled, joined documents: slices of one line of tokens, another each epoch, each document in it once."""

import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawing import equal
from hypothesis import given, settings
from hypothesis import strategies as st
from shards import check_laws, with_draws
from token_files import write_documents

import loaderkit as lk
from loaderkit import testing

GOLDEN = [8, 7, 5, 9, 6, 2, 0, 4, 3, 10, 11]  # documents of an epoch, in blocks of 5
SIZES = [5, 0, 17, 8, 30, 1, 24, 3, 41, 2, 9, 16]


def line_of(data: Any, epoch: int) -> list[int]:
    """All tokens of an epoch, one window each."""
    size = sum(data.documents.lengths().tolist())
    ones = lk.WindowDataset(data.documents, 1, seed=data.seed, block=data.block)
    return ones.read_batch(np.arange(size) + epoch * size)[:, 0].tolist()


def order_of(line: list[int], documents: list[Any]) -> list[int]:
    """The numbers of the documents that a line joins, without the empty ones; fails unless each is whole."""
    by_first = {int(one[0]): number for number, one in enumerate(documents) if len(one)}
    found, place = [], 0
    while place < len(line):
        number = by_first[line[place]]
        assert line[place : place + len(documents[number])] == documents[number].tolist()
        found.append(number)
        place += len(documents[number])
    return found


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=14).filter(lambda sizes: sum(sizes) > 7),
    st.integers(1, 7),
    st.integers(1, 8),
    st.sampled_from([1, 2, 3, 256]),
    st.integers(1, 3),
)
def test_the_windows_are_slices_of_documents_in_a_new_order_each_epoch(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], length: int, stride: int, block: int, shards: int
) -> None:
    folder = tmp_path_factory.mktemp("windows")
    documents = write_documents(folder, sizes, shards)
    data = lk.WindowDataset(lk.DocumentDataset(folder), length, stride=stride, seed=4, block=block)
    for epoch in (0, 3):
        line = line_of(data, epoch)
        order = order_of(line, documents)
        assert sorted(order) == [number for number, size in enumerate(sizes) if size]
        blocks = [number // block for number in order]
        assert len([one for one, before in zip(blocks, [None, *blocks], strict=False) if one != before]) == len(
            set(blocks)
        )
        starts = range(0, len(line) - length + 1, stride)
        wanted = [np.array(line[start : start + length], "uint16") for start in starts]
        assert len(data) == len(wanted) > 0
        assert data.left_out == len(line) - (starts[-1] + length)
        indices = np.arange(len(data)) + epoch * len(data)
        assert equal([data[index] for index in indices.tolist()], wanted)
        assert equal(data.read_batch(indices[::-1]).numpy(), np.stack(wanted[::-1]))
        assert equal(data.__getitems__(indices.tolist()), wanted)
    assert equal(list(data), [data[index] for index in range(len(data))])
    assert equal(data[-1], data[len(data) - 1])


def test_epochs_have_other_orders_of_documents_and_a_golden_one(tmp_path: Path) -> None:
    documents = write_documents(tmp_path, SIZES)
    data = lk.WindowDataset(lk.DocumentDataset(tmp_path), 10, block=5)
    assert order_of(line_of(data, 0), documents) == GOLDEN
    orders = {tuple(order_of(line_of(data, epoch), documents)) for epoch in range(20)}
    assert len(orders) > 15


@pytest.mark.parametrize("block", [1, 5, 256])
def test_the_seed_orders_the_blocks_and_the_documents_of_each(block: int, tmp_path: Path) -> None:
    """Blocks of one document are in another order for each seed, and so are the documents of a single block."""
    documents = write_documents(tmp_path, SIZES)
    made = [lk.WindowDataset(lk.DocumentDataset(tmp_path), 10, block=block, seed=seed) for seed in range(10)]
    orders = [order_of(line_of(data, 0), documents) for data in made]
    assert len(set(map(tuple, orders))) == 10


def ids(batch: torch.Tensor) -> list[int]:
    return [int(token) for token in batch.flatten().tolist()]


def make_loader(folder: Path) -> Any:
    def make(batch_size: int = 3, **settings: Any) -> lk.Loader[torch.Tensor]:
        data = lk.WindowDataset(lk.DocumentDataset(folder), 4, block=3)
        return lk.Loader(data, batch_size, shuffle=True, seed=5, **settings)

    return make


def test_each_epoch_of_a_loader_has_its_own_windows_once(tmp_path: Path) -> None:
    """At most the tokens of less than one window are left out, others in each epoch."""
    write_documents(tmp_path, [31, *SIZES])
    loader = make_loader(tmp_path)()
    data, size, left = loader.dataset, 31 + sum(SIZES), set()
    for epoch in range(4):
        seen = sorted(token for batch in loader for token in ids(batch))
        line = line_of(data, epoch)
        assert seen == sorted(line[: len(data) * 4])
        assert len(seen) == size - data.left_out > 180
        left |= set(range(size)) - set(seen)
        indices = np.concatenate([loader.indices(epoch, batch) for batch in range(len(loader))])
        assert sorted(indices.tolist()) == list(range(epoch * len(data), (epoch + 1) * len(data)))
    assert len(left) > data.left_out > 0
    list(loader)
    wanted = list(loader)  # of epoch 5
    assert equal(loader.replay(lk.Cursor(epoch=5), ahead=2), wanted[2])


@pytest.mark.parametrize("engine", ["inline", "threads", "ring", "torch"])
def test_they_come_once_on_any_ranks_and_workers(engine: Any, tmp_path: Path) -> None:
    write_documents(tmp_path, SIZES)
    make, workers = make_loader(tmp_path), 0 if engine == "inline" else 2
    plain = make()
    batches = [list(plain), list(plain)]
    same = make(engine=engine, num_workers=workers)
    assert [equal(list(same), epoch) for epoch in batches] == [True, True]
    worlds = [1, 2, 3] if engine == "inline" else [2]
    expected = line_of(plain.dataset, 0)[: 4 * len(plain.dataset)]
    testing.assert_exactly_once(
        lambda **more: make(engine=engine, num_workers=workers, **more), samples=expected, worlds=worlds, ids=ids
    )


def test_a_run_resumes_anywhere_and_on_other_ranks(tmp_path: Path) -> None:
    write_documents(tmp_path, SIZES)
    make = make_loader(tmp_path)
    testing.assert_resumable(make, epochs=2, stops=[1, 6, len(make())], consumers=["trainer"], ids=ids)
    testing.assert_small_state(make)
    expected = line_of(make().dataset, 0)[: 4 * len(make().dataset)]
    elastic: list[dict[str, Any]] = [{"batch_size": 3}, {"world_size": 2, "batch_size": 2}]
    testing.assert_elastic(make, elastic, samples=expected, ids=ids)
    # In a later epoch, which takes its documents in another order.
    loader, again = make(), make()
    whole = [*loader, *loader]
    list(again)
    before = list(islice(again, 2))
    resumed = make()
    resumed.load_state_dict(pickle.loads(pickle.dumps(again.state_dict())))
    assert len(before) == 2
    assert equal([*before, *resumed], whole[len(whole) // 2 :])


def test_the_laws_of_datasets(tmp_path: Path) -> None:
    write_documents(tmp_path, SIZES)
    plain = list(make_loader(tmp_path)().dataset)
    starts = [int(window[0]) for window in plain]

    def make() -> Any:
        return lk.MapDataset(lk.WindowDataset(lk.DocumentDataset(tmp_path), 4, block=3), with_draws)

    check_laws(make, lambda window: starts.index(int(window[0])))


def test_a_share_of_the_documents_can_be_windowed(tmp_path: Path) -> None:
    documents = write_documents(tmp_path, SIZES)
    share = lk.SubsetDataset(lk.DocumentDataset(tmp_path), [2, 9, 4, 7])
    data = lk.WindowDataset(share, 6, block=2)
    kept = {int(token) for number in (2, 9, 4, 7) for token in documents[number]}
    seen = np.concatenate(list(data)).tolist()
    assert len(set(seen)) == len(seen) == 48
    assert set(seen) <= kept
    copy = pickle.loads(pickle.dumps(data))
    assert equal(list(copy), list(data))


def test_nearly_all_tokens_are_used(tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).lognormal(5, 1.2, 2000).astype(int)
    with (tmp_path / "a.ds").open("wb") as file:
        file.truncate(2 * int(lengths.sum()))
    np.cumsum(lengths).astype("<u8").tofile(tmp_path / "a.ds.index")
    data = lk.WindowDataset(lk.DocumentDataset(tmp_path), 129, stride=128)
    used = len(data) * 128
    assert len(data) > 1000
    assert used / lengths.sum() > 0.999
    batch = next(iter(lk.Loader(data, 16, shuffle=True)))
    assert (tuple(batch.shape), batch.dtype) == ((16, 129), torch.uint16)


def test_the_fingerprint_knows_the_settings(tmp_path: Path) -> None:
    write_documents(tmp_path, SIZES)
    documents = lk.DocumentDataset(tmp_path)
    changes: list[dict[str, Any]] = [{}, {"length": 5}, {"stride": 3}, {"seed": 1}, {"block": 9}]
    prints = {lk.WindowDataset(documents, **{"length": 4, **change}).fingerprint() for change in changes}
    assert len(prints) == 5
    state = make_loader(tmp_path)().state_dict()
    with pytest.raises(lk.StateError, match=r"seed=0 .* seed=1 "):
        lk.Loader(lk.WindowDataset(documents, 4, seed=1, block=3), 3, shuffle=True, seed=5).load_state_dict(state)


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    write_documents(tmp_path, SIZES)
    documents = lk.DocumentDataset(tmp_path)
    with pytest.raises(
        ValueError, match="all 12 documents together have 156 tokens, wanted at least one window of 157"
    ):
        lk.WindowDataset(documents, 157)
    assert len(lk.WindowDataset(documents, 156)) == 1
    with pytest.raises(ValueError, match="stride is 0, wanted an integer of at least 1"):
        lk.WindowDataset(documents, 4, stride=0)
    with pytest.raises(
        TypeError, match=r"parts of a list's samples can't be read, wanted a loaderkit\.DocumentDataset"
    ):
        lk.WindowDataset([[1, 2]], 1)
    with pytest.raises(TypeError, match="without a transform"):
        lk.WindowDataset(lk.DocumentDataset(tmp_path, transform=torch.from_numpy), 1)
    data = lk.WindowDataset(documents, 4)
    with pytest.raises(IndexError, match="index -40 in a dataset of 39"):
        data[-40]
    with pytest.raises(IndexError, match="index -1, wanted at least 0"):
        data.read_batch(np.array([-1]))
