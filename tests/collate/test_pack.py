"""Packed rows hold the samples, and nothing crosses from one sample to the next, gradients included."""

import pickle
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

import loaderkit as lk
from loaderkit import CollateError

rows_of_lengths = st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=4), min_size=1, max_size=3)
dtypes = st.sampled_from([torch.int64, torch.uint16, torch.int32, torch.uint8])


def make_rows(lengths: list[list[int]], dtype: torch.dtype) -> list[list[Tensor]]:
    return [
        [(torch.arange(n) * 7 + 3 * i + 11 * r + 1).to(dtype) for i, n in enumerate(row)]
        for r, row in enumerate(lengths)
    ]


def slowly(rows: list[list[Tensor]], steps: int, labels: str, pad_value: int) -> dict[str, Any]:
    """Pack token by token."""
    names = ("tokens", "position_ids", "document_ids", "labels")
    packed: dict[str, list[list[int]]] = {name: [] for name in names}
    ends, longest, place = [0], 0, 0
    for row in rows:
        lines: dict[str, list[int]] = {name: [] for name in names}
        for number, sample in enumerate(row):
            for step, token in enumerate(sample.tolist()):
                lines["tokens"].append(token)
                lines["position_ids"].append(step)
                lines["document_ids"].append(number)
                if labels == "next":
                    lines["labels"].append(int(sample[step + 1]) if step + 1 < len(sample) else -100)
                else:
                    lines["labels"].append(token if step else -100)
            place += len(sample)
            ends.append(place)
            longest = max(longest, len(sample))
        left = steps - len(lines["tokens"])
        lines["tokens"] += [pad_value] * left
        lines["position_ids"] += list(range(left))
        lines["document_ids"] += [-1] * left
        lines["labels"] += [-100] * left
        if left:
            place += left
            ends.append(place)
            longest = max(longest, left)
        for name in names:
            packed[name].append(lines[name])
    return {**packed, "cu_seqlens": ends, "max_seqlen": longest}


@given(rows_of_lengths, dtypes, st.sampled_from(["next", "same"]), st.integers(0, 3), st.integers(1, 4), st.booleans())
def test_packing_equals_a_simple_slow_way_and_unpacks(
    lengths: list[list[int]], dtype: torch.dtype, labels: Any, more: int, multiple: int, fixed: bool
) -> None:
    rows = make_rows(lengths, dtype)
    longest = max(map(sum, lengths))
    if fixed:
        steps = max(1, longest + more)
        collate = lk.PackCollate(row_length=steps, labels=labels, pad_value=9)
    else:
        steps = -(-longest // multiple) * multiple
        collate = lk.PackCollate(multiple_of=multiple, labels=labels, pad_value=9)
    batch = collate(rows)
    wanted = slowly(rows, steps, labels, 9)
    assert set(batch) == set(wanted)
    for name, value in wanted.items():
        found = batch[name].tolist() if isinstance(batch[name], Tensor) else batch[name]
        assert found == value, name
    assert batch["tokens"].dtype == dtype
    assert (batch["cu_seqlens"].dtype, batch["document_ids"].dtype) == (torch.int32, torch.int32)
    assert (batch["position_ids"].dtype, batch["labels"].dtype) == (torch.int64, torch.int64)

    flat = [sample for row in rows for sample in row]
    assert len(lk.unpack(batch)) == len(flat)
    for left, right in zip(lk.unpack(batch), flat, strict=True):
        assert left.dtype == right.dtype
        assert left.tolist() == right.tolist()

    ragged = lk.Ragged(torch.cat(flat), torch.tensor([0, *map(len, flat)]).cumsum(0))
    whole = collate.collate_batch(ragged, np.cumsum([0, *map(len, rows)]))
    arrays = collate([[sample.numpy() for sample in row] for row in rows])
    named = collate([[{"tokens": sample, "id": 1} for sample in row] for row in rows])
    assert named.pop("id").tolist() == [1] * len(flat)
    for other in (whole, arrays, named):
        assert set(other) == set(batch)
        for name in batch:
            assert torch.equal(torch.as_tensor(batch[name]), torch.as_tensor(other[name]))


def test_a_list_of_samples_makes_one_row() -> None:
    for samples in ([[1, 2], [3]], [torch.tensor([1, 2]), torch.tensor([3])], [[], [1, 2], [3]]):
        assert lk.PackCollate()(samples)["tokens"].tolist() == [[1, 2, 3]]
        assert lk.PackCollate()([list(samples)])["tokens"].tolist() == [[1, 2, 3]]


def test_other_fields_go_along() -> None:
    rows = [
        [{"tokens": [1, 2], "weights": [0.5, 1.0], "name": "a"}, {"tokens": [3], "weights": [2.0], "name": "b"}],
        [{"tokens": [4], "weights": [3.0], "name": "c"}],
    ]
    collate = lk.PackCollate(fields={"weights": -1}, labels=None)
    batch = pickle.loads(pickle.dumps(collate))(rows)
    assert batch["weights"].tolist() == [[0.5, 1.0, 2.0], [3.0, -1.0, -1.0]]
    assert batch["name"] == ["a", "b", "c"]
    assert "labels" not in batch
    assert [part.tolist() for part in lk.unpack(batch, "weights")] == [[0.5, 1.0], [2.0], [3.0]]
    given = lk.PackCollate(tokens="x", fields={"labels": -100}, labels=None)([{"x": [1, 2], "labels": [7, 8]}])
    assert given["labels"].tolist() == [[7, 8]]


class Labelled(NamedTuple):
    label: int
    tokens: list[int]
    weights: list[float]


@given(rows_of_lengths, dtypes)
def test_tuples_are_packed_as_dicts_are(lengths: list[list[int]], dtype: torch.dtype) -> None:
    rows = make_rows(lengths, dtype)
    dicts = [[{"tokens": part, 1: number, 2: part} for number, part in enumerate(row)] for row in rows]
    tuples = [[(part, number, part) for number, part in enumerate(row)] for row in rows]
    collate = lk.PackCollate(fields={2: 9})
    wanted, found = collate(dicts), collate(tuples)
    assert list(found) == list(wanted)
    assert found[1].tolist() == [number for row in rows for number in range(len(row))]
    for name, value in wanted.items():
        assert torch.equal(torch.as_tensor(found[name]), torch.as_tensor(value)), name


def test_where_nothing_is_learnt_is_the_ignored_index() -> None:
    for labels, wanted in (("next", [[2, -7, -7, -7]]), ("same", [[-7, 2, -7, -7]])):
        collate = lk.PackCollate(labels=labels, ignore_index=-7, row_length=4)  # type: ignore[arg-type]
        assert collate([[1, 2], [3]])["labels"].tolist() == wanted


def test_the_parts_of_namedtuples_have_their_names() -> None:
    batch = lk.PackCollate(fields={"weights": 0.0})([Labelled(7, [1, 2], [0.5, 1.0]), Labelled(8, [3], [2.0])])
    assert batch["tokens"].tolist() == [[1, 2, 3]]
    assert batch["weights"].tolist() == [[0.5, 1.0, 2.0]]
    assert batch["label"].tolist() == [7, 8]


@pytest.mark.parametrize(
    ("collate", "samples", "message", "rows"),
    [
        (lk.PackCollate(row_length=3), [[[1], [2]], [[3, 4], [5, 6]]], "row 1 has 4 steps, wanted at most", (2, 3)),
        (
            lk.PackCollate(),
            [{"tokens": [1]}, {"tokens": [1], "y": 1}],
            r"keys \['tokens'\] and \['tokens', 'y'\]",
            (0, 1),
        ),
        (lk.PackCollate(), [([1], 2), ([1],)], "samples have 2 parts and 1", (0, 1)),
        (lk.PackCollate(), [([1], 2), {"tokens": [1]}], "samples have 2 parts and dict", (0, 1)),
        (lk.PackCollate(), [(1, 2)], "'tokens' is int, wanted a sequence", (0,)),
        (lk.PackCollate(), [np.ones(2, np.int64), np.ones(2, np.int8)], "'tokens' has dtype", (0, 1)),
        (
            lk.PackCollate(fields={"w": 0}),
            [{"tokens": [1], "w": [1]}, {"tokens": [1], "w": [1, 2]}],
            "'w' has length 2, wanted 1 as the tokens have",
            (1,),
        ),
        (lk.PackCollate(), [np.ones(2)], "labels='next' of tokens .*float64.*use labels=None", ()),
        (
            lk.PackCollate(pad_value=-1, row_length=5),
            [np.ones(2, np.uint8)],
            "PackCollate: .*'tokens' is padded with -1",
            (),
        ),
    ],
)
def test_what_does_not_fit_is_named(collate: Any, samples: Any, message: str, rows: tuple[int, ...]) -> None:
    with pytest.raises(CollateError, match=message) as caught:
        collate(samples)
    assert caught.value.rows == rows


def test_settings_and_samples_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="row_length is 0"):
        lk.PackCollate(row_length=0)
    with pytest.raises(ValueError, match=r"row_length is 2\.5, wanted an integer of at least 1"):
        lk.PackCollate(row_length=2.5)  # type: ignore[arg-type]
    for wrong in ({"fields": ["w"]}, {"fields": {"w": None}}, {"pad_value": None}):
        with pytest.raises(TypeError, match="wanted a number, and one for each field"):
            lk.PackCollate(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="both row_length and multiple_of are"):
        lk.PackCollate(row_length=4, multiple_of=2)
    with pytest.raises(ValueError, match="labels is 'all'"):
        lk.PackCollate(labels="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fields has 'labels' too"):
        lk.PackCollate(fields={"labels": 0})
    with pytest.raises(
        KeyError, match=r"fields \['x'\], wanted \['tokens'\] too. Name the field of the tokens by tokens="
    ):
        lk.PackCollate()([{"x": [1]}])
    with pytest.raises(KeyError, match="a field 'cu_seqlens', which packing adds"):
        lk.PackCollate()([{"tokens": [1], "cu_seqlens": 1}])
    with pytest.raises(ValueError, match="row 1 has no samples"):
        lk.PackCollate()([[[1]], []])


class Model(torch.nn.Module):
    """An embedding with positions, two heads of attention and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(50, 8), torch.nn.Embedding(128, 8)
        self.mix, self.out = torch.nn.Linear(8, 24), torch.nn.Linear(8, 50)

    def forward(self, tokens: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        hidden = self.tokens(tokens.long()) + self.places(places)
        parts = self.mix(hidden).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).flatten(2))


@settings(max_examples=12)
@given(rows_of_lengths.filter(lambda rows: any(n > 1 for row in rows for n in row)), st.booleans(), st.integers(0, 3))
def test_loss_and_gradients_of_a_packed_batch_are_those_of_the_samples_alone(
    lengths: list[list[int]], causal: bool, more: int
) -> None:
    torch.manual_seed(0)
    model = Model().double()
    rows = make_rows(lengths, torch.uint8)
    batch = lk.PackCollate(row_length=max(map(sum, lengths)) + more)(rows)
    mask = lk.document_mask(batch["document_ids"], causal=causal)
    results = model(batch["tokens"] % 50, batch["position_ids"], mask)
    loss = packed_loss(results, batch["labels"])
    loss.backward()
    packed = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    alone = torch.zeros((), dtype=torch.float64)
    for sample, found in zip(
        (s for row in rows for s in row), lk.unpack({**batch, "out": results}, "out"), strict=True
    ):
        if not len(sample):
            continue
        size = len(sample)
        triangle = torch.ones(size, size, dtype=torch.bool)
        result = model(sample[None] % 50, torch.arange(size)[None], triangle.tril() if causal else triangle)
        assert torch.allclose(result[0], found, atol=1e-12)
        alone = alone + functional.cross_entropy(result[0, :-1], sample[1:].long() % 50, reduction="sum")
    alone.backward()
    assert alone.item() > 0
    assert torch.allclose(loss, alone, atol=1e-10)
    for left, parameter in zip(packed, model.parameters(), strict=True):
        assert left is not None
        assert parameter.grad is not None
        assert torch.allclose(left, parameter.grad, atol=1e-10)


def packed_loss(results: Tensor, labels: Tensor) -> Tensor:
    wanted = torch.where(labels >= 0, labels % 50, labels)
    return functional.cross_entropy(results.flatten(0, 1), wanted.flatten(), reduction="sum")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pack_plan_feeds_it(workers: int) -> None:
    generator = np.random.default_rng(1)
    data = [np.full(n, i, dtype=np.uint16) for i, n in enumerate(generator.integers(1, 40, 100))]
    plan = lk.PackPlan([len(row) for row in data], row_length=64, batch_size=3, seed=1)
    batches = list(lk.Loader(data, plan=plan, collate_fn=lk.PackCollate(row_length=64), num_workers=workers))
    assert len(batches) > 5
    assert all(batch["tokens"].shape[1] == 64 for batch in batches)
    seen = [sample for batch in batches for sample in lk.unpack(batch)]
    assert sorted(int(sample[0]) for sample in seen) == list(range(100))
    assert all(len(sample) == len(data[int(sample[0])]) for sample in seen)
    bad = [*data[:-1], np.ones((2, 2), dtype=np.uint16)]
    with pytest.raises(CollateError, match="99"):
        list(lk.Loader(bad, plan=plan, collate_fn=lk.PackCollate(row_length=64), num_workers=workers))


@pytest.mark.parametrize("workers", [0, 2])
def test_documents_are_packed_and_padded_as_they_are_read(tmp_path: Path, workers: int) -> None:
    """A batch of tokens that is read at once gives the batch that single samples give."""
    generator = np.random.default_rng(2)
    sizes = generator.integers(0, 30, 80)
    tokens = generator.integers(0, 60_000, sizes.sum()).astype("<u2")
    tokens.tofile(tmp_path / "a.ds")
    np.cumsum(sizes).astype("<u8").tofile(tmp_path / "a.ds.index")
    data = lk.DocumentDataset(tmp_path / "a.ds")
    alone = [data[index] for index in range(len(data))]
    plan = lk.PackPlan(sizes, row_length=48, batch_size=2, seed=1)
    for make in (
        lambda source: lk.Loader(source, plan=plan, collate_fn=lk.PackCollate(row_length=48), num_workers=workers),
        lambda source: lk.Loader(
            source, 8, collate_fn=lk.PadCollate(lk.Pad(mask=True)), order=lk.Shuffled(80), num_workers=workers
        ),
        lambda source: lk.Loader(source, 8, collate_fn=lk.RaggedCollate(nested=False), num_workers=workers),
    ):
        with mock.patch.object(lk.DocumentDataset, "__getitems__", side_effect=AssertionError("cut into samples")):
            whole = list(make(data))
        wanted = list(make(alone))
        assert len(whole) == len(wanted) > 3
        for left, right in zip(whole, wanted, strict=True):
            names = list(left) if isinstance(left, dict) else range(len(left))
            assert all(torch.equal(torch.as_tensor(left[name]), torch.as_tensor(right[name])) for name in names)


@pytest.mark.parametrize("full", [False, True], ids=["with room", "full rows"])
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int64])
def test_a_dtype_changes_the_tokens_alone(full: bool, dtype: Any) -> None:
    rows = [
        [np.array([1, 40_000], dtype), np.array([3, 4], dtype)],
        [np.array([5, 6, 7, 8][: 4 if full else 3], dtype)],
    ]
    plain = lk.PackCollate(row_length=4)(rows)
    wide = lk.PackCollate(row_length=4, pad_value=0, dtype=torch.int64)(rows)
    assert wide["tokens"].dtype == torch.int64
    assert wide["tokens"].tolist() == plain["tokens"].tolist()
    others = plain.keys() - {"tokens"}
    assert len(others) == 5
    assert all(np.array_equal(wide[name], plain[name]) for name in others)
    wide["tokens"].zero_()  # a copy
    assert rows[0][0].tolist() == [1, 40_000]
    if not full:
        assert lk.PackCollate(row_length=4, pad_value=-1, dtype=torch.int64)(rows)["tokens"][1, 3] == -1
    with pytest.raises(TypeError, match="PackCollate: dtype is 'int64', wanted a dtype of torch"):
        lk.PackCollate(dtype="int64")  # type: ignore[arg-type]
