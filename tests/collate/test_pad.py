"""Padding equals a simple slow way, and errors name the field and the samples."""

import dataclasses
import pickle
from typing import Any, NamedTuple, Self

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchvision import tv_tensors

import loaderkit as lk
from loaderkit import CollateError, pad_sequences

rules = st.builds(
    lk.Pad,
    value=st.sampled_from([0, -100, 7]),
    side=st.sampled_from(["right", "left"]),
    multiple_of=st.integers(1, 5),
    lengths=st.booleans(),
    mask=st.booleans(),
)
dtypes = st.sampled_from([torch.int64, torch.float32, torch.int16, torch.float16])
shapes = st.sampled_from([(), (2,), (0,), (3, 1)])


@st.composite
def sequences(draw: st.DrawFn) -> list[Tensor]:
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
    dtype, shape = draw(dtypes), draw(shapes)
    return [torch.arange(1, 1 + length * int(np.prod(shape))).reshape(length, *shape).to(dtype) for length in lengths]


def slowly(values: list[Tensor], rule: lk.Pad) -> dict[str, Tensor]:
    """Pad step by step."""
    longest = max(map(len, values))
    while longest % rule.multiple_of:
        longest += 1
    rows, masks = [], []
    for value in values:
        filler = torch.full(value.shape[1:], rule.value, dtype=value.dtype)
        steps, there = list(value), [True] * len(value)
        while len(steps) < longest:
            steps.insert(len(steps) if rule.side == "right" else 0, filler)
            there.insert(len(there) if rule.side == "right" else 0, False)
        rows.append(torch.stack(steps) if steps else value)
        masks.append(torch.tensor(there, dtype=torch.bool))
    return {
        "padded": torch.stack(rows),
        "lengths": torch.tensor([len(value) for value in values]),
        "mask": torch.stack(masks),
    }


def same(left: Tensor, right: Tensor) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(left, right)


@given(sequences(), rules)
def test_padding_equals_a_simple_slow_way_in_every_form_of_sample(values: list[Tensor], rule: lk.Pad) -> None:
    wanted = slowly(values, rule)
    extras = [name for name in ("lengths", "mask") if getattr(rule, name)]

    alone = lk.PadCollate(rule)(values)
    found = alone if extras else (alone,)
    assert len(found) == 1 + len(extras)
    assert all(map(same, found, [wanted["padded"], *(wanted[name] for name in extras)]))

    named = lk.PadCollate({"x": rule})([{"n": row, "x": value} for row, value in enumerate(values)])
    assert list(named) == ["n", "x", *(f"x_{name}" for name in extras)]
    assert same(named["x"], wanted["padded"])
    assert all(same(named[f"x_{name}"], wanted[name]) for name in extras)
    assert named["n"].tolist() == list(range(len(values)))

    placed = lk.PadCollate({1: rule})([(row, value) for row, value in enumerate(values)])
    assert len(placed) == 2 + len(extras)
    assert all(map(same, placed[1:], [wanted["padded"], *(wanted[name] for name in extras)]))


class Tokens(Tensor):
    pass


FORMS: dict[str, Any] = {
    "tensors": list,
    "arrays": lambda values: [value.numpy() for value in values],
    "read-only arrays": lambda values: [np.frombuffer(v.numpy().tobytes(), v.numpy().dtype) for v in values],
    "strided arrays": lambda values: [value.repeat_interleave(2).numpy()[::2] for value in values],
    "strided tensors": lambda values: [value.repeat_interleave(2)[::2] for value in values],
    "big-endian arrays": lambda values: [v.numpy().astype(v.numpy().dtype.newbyteorder(">")) for v in values],
    "mixed": lambda values: [value if row % 2 else value.numpy() for row, value in enumerate(values)],
    "ragged": lambda values: lk.Ragged(torch.cat(values), torch.tensor([0, *map(len, values)]).cumsum(0)),
    "ragged, not from 0": lambda values: lk.Ragged(
        torch.cat([values[0][:1].new_ones(3), *values]), torch.tensor([3, *map(len, values)]).cumsum(0)
    ),
    "subclass": lambda values: [value.as_subclass(Tokens) for value in values],
    "parts of one tensor": lambda values: list(torch.cat(values).split([len(value) for value in values])),
}


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=7),
    st.sampled_from([torch.int64, torch.uint16, torch.uint32, torch.bool, torch.float16, torch.uint8]),
    rules,
    st.sampled_from(list(FORMS)),
)
def test_tokens_are_padded_and_joined_the_same_in_any_form(
    lengths: list[int], dtype: torch.dtype, rule: lk.Pad, form: str
) -> None:
    values = [(torch.arange(1, 1 + length) % 7).to(dtype) for length in lengths]
    rule = dataclasses.replace(rule, value=min(abs(rule.value), 1), lengths=True, mask=True)
    wanted = slowly(values, rule)
    found = lk.PadCollate(rule)(FORMS[form](values))
    joined = lk.RaggedCollate(nested=False)(FORMS[form](values))
    assert all(map(same, found, wanted.values()))
    assert isinstance(found[0], Tokens) == (form == "subclass")
    assert same(joined.values[joined.offsets[0] :], torch.cat(values))
    assert joined.offsets.diff().tolist() == lengths


@given(st.data())
def test_any_axes_are_padded(data: st.DataObject) -> None:
    """The expected batch is a full tensor, filled element by element."""
    axes = data.draw(st.integers(1, 3))
    dims = data.draw(st.permutations(range(axes)))[: data.draw(st.integers(1, axes))]
    some = data.draw(st.sampled_from([0, -axes]))
    rule = lk.Pad(
        value=-1,
        side=data.draw(st.sampled_from(["right", "left"])),
        dims=tuple(dim + some for dim in dims),
        multiple_of=tuple(data.draw(st.integers(1, 3)) for _ in dims),
        lengths=True,
        mask=True,
    )
    fixed = [data.draw(st.integers(1, 3)) for _ in range(axes)]
    count = data.draw(st.integers(1, 4))
    shapes = [[data.draw(st.integers(0, 4)) if a in dims else fixed[a] for a in range(axes)] for _ in range(count)]
    values = [torch.arange(int(np.prod(shape)), dtype=torch.int32).reshape(shape) for shape in shapes]
    padded, lengths, mask = lk.PadCollate(rule)(values)

    sizes = [max(shape[a] for shape in shapes) for a in range(axes)]
    for dim, multiple in zip(dims, rule.each_multiple, strict=True):
        while sizes[dim] % multiple:
            sizes[dim] += 1
    wanted, there = torch.full((count, *sizes), -1, dtype=torch.int32), torch.zeros(count, *sizes, dtype=torch.bool)
    for row, value in enumerate(values):
        for place in np.ndindex(*value.shape):
            at = tuple(p + (n - m) * (rule.side == "left") for p, n, m in zip(place, sizes, value.shape, strict=True))
            wanted[row, *at], there[row, *at] = value[place], True
    assert same(padded, wanted)
    assert lengths.reshape(count, -1).tolist() == [[shape[dim] for dim in dims] for shape in shapes]
    assert lengths.shape == ((count, len(dims)) if len(dims) > 1 else (count,))
    shown = mask.permute(0, *(1 + np.argsort(dims)).tolist())  # its axes come in the order of `dims`
    for axis in set(range(axes)) - set(dims):
        shown = shown.unsqueeze(1 + axis)
    assert torch.equal(shown.expand(count, *sizes), there) or 0 in padded.shape
    for value, again in zip(values, lk.unpad(padded, lengths, side=rule.side, dims=rule.dims), strict=True):
        assert same(value, again)


@given(sequences(), st.integers(1, 6), st.sampled_from(["truncate_left", "truncate_right"]), st.booleans())
def test_what_is_too_long_is_cut(values: list[Tensor], most: int, too_long: Any, general: bool) -> None:
    rule = lk.Pad(max_length=most, too_long=too_long, lengths=True, dims=(0,) if not general else -values[0].ndim)
    padded, lengths = lk.PadCollate(rule)(values)
    cut = [value[:most] if too_long == "truncate_right" else value[max(0, len(value) - most) :] for value in values]
    wanted = slowly(cut, lk.Pad())
    assert same(padded, wanted["padded"])
    assert same(lengths, wanted["lengths"])


def test_what_is_too_long_is_refused_with_its_rows() -> None:
    for rule in (lk.Pad(max_length=2), lk.Pad(max_length=(2,), dims=-1)):
        with pytest.raises(CollateError, match=r"'x' has length 3, wanted at most max_length=\(?2.*truncate") as caught:
            lk.PadCollate({"x": rule})([{"x": [1, 2]}, {"x": [1, 2, 3]}, {"x": [1, 2, 3, 4]}])
        assert caught.value.rows == (1, 2)


@pytest.mark.parametrize("size", [3, 40_000])
def test_long_sequences_and_those_with_gradients(size: int) -> None:
    values = [torch.randn(size - row, dtype=torch.float64, requires_grad=True) for row in range(3)]
    for side in ("left", "right"):
        padded, lengths = pad_sequences(values, value=2, side=side)
        assert torch.equal(padded, torch.nn.utils.rnn.pad_sequence(values, True, 2, side))
        assert lengths.tolist() == [size, size - 1, size - 2]
        (padded * torch.arange(padded.shape[1])).sum().backward()
        assert all(value.grad is not None for value in values)
    joined = lk.RaggedCollate(nested=False)(values)
    joined.values.sum().backward()
    assert all(float(value.grad.min()) >= 1 for value in values if value.grad is not None)


def test_masks_are_boolean_or_added() -> None:
    samples = [{"x": [1, 2]}, {"x": [3]}]
    for mask in (True, "bool"):
        assert lk.PadCollate({"x": lk.Pad(mask=mask)})(samples)["x_mask"].tolist() == [[True, True], [True, False]]
    added = lk.PadCollate({"x": lk.Pad(mask="additive")})(samples)["x_mask"]
    assert added.dtype == torch.float32
    assert added.tolist() == [[0, 0], [0, -np.inf]]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.sampled_from(["dict", "tuple", "bare", "whole"]))
def test_sorted_samples_pack_and_return_to_their_order(lengths: list[int], form: str) -> None:
    values = [torch.arange(1.0, 1 + length) + 10 * row for row, length in enumerate(lengths)]
    rule = lk.Pad(lengths=True)
    numbers = torch.arange(len(values))
    if form == "bare":
        padded, sizes, back = lk.PadCollate(rule, sort_by="")(values)
        ids = numbers[back.argsort()]
    elif form == "tuple":
        ids, padded, sizes, back = lk.PadCollate({1: rule}, sort_by=1)(list(zip(numbers, values, strict=True)))
    else:
        collate = lk.PadCollate({"in.x": rule}, sort_by="in.x")
        if form == "whole":
            ragged = lk.Ragged(torch.cat(values), torch.tensor([0, *lengths]).cumsum(0))
            batch = collate.collate_batch({"id": numbers, "in": {"x": ragged}})
        else:
            batch = collate([{"id": row, "in": {"x": value}} for row, value in enumerate(values)])
        ids, padded, sizes, back = batch["id"], batch["in"]["x"], batch["in"]["x_lengths"], batch["unsorted_indices"]
    assert sizes.tolist() == sorted(lengths, reverse=True)
    assert torch.nn.utils.rnn.pack_padded_sequence(padded, sizes, batch_first=True).data.numel() == sum(lengths)
    assert ids[back].tolist() == numbers.tolist()
    assert all(map(same, lk.unpad(padded[back], sizes[back]), values))


def test_errors_name_samples_in_their_own_order_when_sorted() -> None:
    samples = [{"x": [1], "y": [1.0]}, {"x": [1, 2], "y": [1.0]}, {"x": [1, 2, 3], "y": 1}]
    with pytest.raises(CollateError, match="'y' has types") as caught:
        lk.PadCollate({"x": lk.Pad()}, sort_by="x")(samples)
    assert set(caught.value.rows) == {2, 1}


def test_nested_fields_go_by_paths_or_nested_rules() -> None:
    samples = [{"a": {"b": [1], "c": ([2, 3], 4)}, "a.b": [5, 6]}, {"a": {"b": [1, 2], "c": ([2], 4)}, "a.b": [5]}]
    pad = lk.Pad(lengths=True)
    for rules in (
        {"a.c.0": pad, "a": {"b": pad}},
        {"a": {"b": pad, "c": {0: pad}}},
        {"a": {"b": pad}, "a.c": {"0": pad}},
    ):
        with pytest.raises(CollateError, match=r"field 'a\.b' has 2 and 1 parts"):
            lk.PadCollate(rules)(samples)  # the key with a dot in it
        batch = lk.PadCollate({**rules, "a.b": lk.Pad()})(samples)
        assert batch["a"]["b"].tolist() == [[1, 0], [1, 2]]
        assert batch["a"]["b_lengths"].tolist() == [1, 2]
        padded, four, lengths = batch["a"]["c"]
        assert (padded.tolist(), four.tolist(), lengths.tolist()) == ([[2, 3], [2, 0]], [4, 4], [2, 1])
        assert batch["a.b"].tolist() == [[5, 6], [5, 0]]
    with pytest.raises(ValueError, match=r"field 'a' has a rule, and so has 'a\.x'"):
        lk.PadCollate({"a": lk.Pad(), "a.x": lk.Pad()})([{"a": [1]}])


def test_lists_become_what_torch_makes_of_them() -> None:
    for values in (
        [[1, 2], [3]],
        [[1.5], []],
        [[], []],
        [(True,), (False, True)],
        [[], [1]],
        [[[1, 2]], [[3, 4], [5, 6]]],
    ):
        known = next((value for value in values if value), values[0])
        padded, lengths = pad_sequences(values)
        assert padded.dtype == torch.tensor(known).dtype
        assert lengths.tolist() == [len(value) for value in values]


def test_fields_have_rules_of_any_kind() -> None:
    pictures = [tv_tensors.Image(torch.ones(3, 2 + row, 4, dtype=torch.uint8)) for row in range(2)]
    samples = [
        {"text": [1] * (row + 1), "view": pictures[row], "meta": {"id": row}, "sound": [0.5] * row} for row in range(2)
    ]
    collate = lk.MultimodalCollate(
        {
            "text": lk.Pad(mask=True),
            "view": lk.Pad(dims=(1, 2), lengths=True),
            "meta": list,
            "sound": lk.Jagged(nested=False),
        }
    )
    batch = pickle.loads(pickle.dumps(collate))(samples)
    assert list(batch) == ["text", "text_mask", "view", "view_lengths", "meta", "sound"]
    assert isinstance(batch["view"], tv_tensors.Image)
    assert batch["view"].shape == (2, 3, 3, 4)
    assert batch["view_lengths"].tolist() == [[2, 4], [3, 4]]
    assert batch["meta"] == [{"id": 0}, {"id": 1}]
    assert batch["sound"].offsets.tolist() == [0, 0, 1]
    inner = lk.MultimodalCollate({"x": lk.PadCollate({"y": lk.Pad()})})
    assert inner([{"x": {"y": [1]}}, {"x": {"y": [1, 2]}}])["x"]["y"].tolist() == [[1, 0], [1, 2]]
    with pytest.raises(CollateError, match=r"field 'y' is int.*\(in field 'x'\)"):
        inner([{"x": {"y": 1}}])


@given(sequences(), rules)
def test_each_field_is_what_its_rule_makes_of_it_alone(values: list[Tensor], rule: lk.Pad) -> None:
    rule = dataclasses.replace(rule, lengths=True, mask=True)
    samples = [{"text": {"ids": value}, "sound": value, "meta": row, "n": row} for row, value in enumerate(values)]
    batch = lk.MultimodalCollate({"text.ids": rule, "sound": lk.Jagged(nested=False), "meta": list})(samples)
    wanted = slowly(values, rule)
    names = ("ids", "ids_lengths", "ids_mask")
    assert all(same(batch["text"][name], value) for name, value in zip(names, wanted.values(), strict=True))
    assert same(batch["sound"].values, torch.cat(values))
    assert batch["sound"].offsets.diff().tolist() == [len(value) for value in values]
    assert batch["meta"] == batch["n"].tolist() == list(range(len(values)))


def test_nested_tensors_hold_the_sequences() -> None:
    batch = lk.RaggedCollate(["x"])([{"x": torch.ones(2, 3), "y": 1}, {"x": torch.zeros(4, 3), "y": 2}])
    assert batch["x"].layout == torch.jagged
    assert [tuple(part.shape) for part in batch["x"].unbind()] == [(2, 3), (4, 3)]
    assert batch["y"].tolist() == [1, 2]


class Lines:
    """Documents, read one by one or by `read_batch`."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self.rows = [generator.integers(0, 60_000, size).astype(np.uint16) for size in generator.integers(0, 900, 60)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]

    def read_batch(self, indices: Any) -> lk.Ragged:
        rows = [self.rows[index] for index in indices.tolist()]
        offsets = np.cumsum([0, *map(len, rows)])
        return lk.Ragged(torch.from_numpy(np.concatenate(rows)), torch.from_numpy(offsets))


@pytest.mark.parametrize(
    "collate",
    [
        lk.PadCollate(lk.Pad(lengths=True, mask=True, value=1)),
        lk.PadCollate(lk.Pad(mask="additive"), sort_by=""),
        lk.RaggedCollate(nested=False),
        lk.RaggedCollate(),
    ],
    ids=["pad", "sorted", "ragged", "nested"],
)
def test_workers_and_whole_batches_change_nothing(collate: Any) -> None:
    """Also for batches of more than 256 KB, which torch's workers send in shared memory."""
    data = Lines()
    keys = [torch.tensor(part) for part in (range(32), range(32, 60))]
    for workers, engine in ((0, "inline"), (2, "torch"), (2, "auto")):
        batches = list(lk.Loader(data, 32, collate_fn=collate, num_workers=workers, engine=engine))
        assert len(batches) == len(keys)
        for batch, key in zip(batches, keys, strict=True):
            whole = collate.collate_batch(data.read_batch(key))
            assert flat(batch)
            for left, right in zip(flat(batch), flat(whole), strict=True):
                assert same(left, right)


def flat(batch: Any) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch.values(), batch.offsets()] if batch.is_nested else [batch]
    return [part for value in batch for part in flat(value)]


class Sample(NamedTuple):
    tokens: Any
    label: int


def test_a_namedtuples_fields_go_by_their_names() -> None:
    tokens, labels, lengths = lk.PadCollate({"tokens": lk.Pad(lengths=True)})([Sample([1], 5), Sample([2, 3], 6)])
    assert tokens.tolist() == [[1, 0], [2, 3]]
    assert labels.tolist() == [5, 6]
    assert lengths.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("samples", "message", "rows"),
    [
        ([{"x": torch.ones(2, 3)}, {"x": torch.ones(2, 4)}], r"'x' has shape after the first axis \(3,\) and", [0, 1]),
        ([{"x": torch.ones(2)}, {"x": torch.ones(2).int()}], "'x' has dtype torch.float32 and torch.int32", [0, 1]),
        ([{"x": torch.ones(2)}, {"x": torch.tensor(1)}], "'x' is a tensor without axes", [1]),
        ([{"x": torch.ones(2)}, {"x": 3}], "'x' is int, wanted a sequence", [1]),
        ([{"x": [1]}, {"x": [1]}, {"y": [1]}], r"the sample has keys \['x'\] and \['y'\], wanted the same", [0, 2]),
        ([{"x": [1], "y": torch.ones(1)}, {"x": [1], "y": torch.ones(2)}], "field 'y' has shapes", [0, 1]),
    ],
)
def test_sequences_that_do_not_fit_are_named(samples: list[Any], message: str, rows: list[int]) -> None:
    with pytest.raises(CollateError, match=message) as caught:
        lk.PadCollate({"x": lk.Pad()})(samples)
    assert list(caught.value.rows) == rows


def test_samples_with_fields_need_rules_for_them() -> None:
    with pytest.raises(CollateError, match=r"the sample is a dict of \['x'\], wanted a sequence .* Name the fields"):
        lk.PadCollate()([{"x": [1]}])


@pytest.mark.parametrize("workers", [0, 2])
def test_the_samples_that_do_not_fit_are_named_by_their_indices(workers: int) -> None:
    data = [{"x": torch.ones(2, 4 if index == 5 else 3)} for index in range(8)]
    loader = lk.Loader(
        data, 3, order=lk.Subset([7, 6, 1, 2, 0, 5]), collate_fn=lk.PadCollate({"x": lk.Pad()}), num_workers=workers
    )
    with pytest.raises(CollateError, match=r"\(samples 2, 5\)"):
        list(loader)


def test_tuples_of_other_lengths_are_named() -> None:
    with pytest.raises(CollateError, match="the sample has parts 2 and 1, wanted the same"):
        lk.PadCollate({0: lk.Pad()})([([1], 2), ([1],)])


def test_rules_for_fields_that_are_not_there_are_refused() -> None:
    with pytest.raises(KeyError, match=r"fields \['x'\], wanted \['y'\] too"):
        lk.PadCollate({"y": lk.Pad()})([{"x": [1]}])
    with pytest.raises(TypeError, match=r"fields \['y'\] of the sample, which is a Tensor; wanted dicts or tuples"):
        lk.PadCollate({"y": lk.Pad()})([torch.ones(2)])


def test_a_rule_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple_of is 0"):
        lk.Pad(multiple_of=0)
    with pytest.raises(ValueError, match="side is 'top'"):
        lk.Pad(side="top")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_length is 5 and multiple_of is 2"):
        lk.Pad(max_length=5, multiple_of=2)
    with pytest.raises(ValueError, match=r"multiple_of is \(1, 2\), wanted a number, or one for each of 1 dims"):
        lk.Pad(multiple_of=(1, 2))
    with pytest.raises(ValueError, match=r"dims is \(0, 0\), wanted"):
        lk.Pad(dims=(0, 0))
    for settings, message in (
        ({"value": None}, "value is None, wanted a number"),  # a tokenizer without a token for it says so
        ({"dims": [1, 2]}, r"dims is \[1, 2\], wanted an axis, or a tuple of axes"),
        ({"multiple_of": 2.5}, "multiple_of is 2.5, wanted an integer"),
        ({"max_length": (4, True), "dims": (0, 1)}, r"max_length is \(4, True\), wanted an integer"),
    ):
        with pytest.raises(TypeError, match=message):
            lk.Pad(**settings)  # type: ignore[arg-type]
    with pytest.raises(CollateError, match="'x' is padded with -100, wanted a whole number from 0 to 65535"):
        lk.PadCollate({"x": lk.Pad(value=-100)})([{"x": np.ones(1, dtype=np.uint16)}])
    half = [torch.ones(2, dtype=torch.float16), torch.ones(1, dtype=torch.float16)]
    with pytest.raises(
        CollateError, match=r"is padded with -1000000000.0, wanted a number from -65504.0 to 65504.0, or inf"
    ):
        lk.PadCollate(lk.Pad(value=-1e9))(half)
    assert lk.PadCollate(lk.Pad(value=-torch.inf))(half)[1].tolist() == [1, -torch.inf]
    with pytest.raises(CollateError, match=r"has 1 axes, wanted Pad\(dims=\(0, 1\)\)"):
        lk.PadCollate(lk.Pad(dims=(0, 1)))([torch.ones(1)])
    with pytest.raises(TypeError, match=r"a rule is .*wanted Pad.*MultimodalCollate"):
        lk.PadCollate({"x": list})
    with pytest.raises(ValueError, match=r"wanted a list: \['x'\]"):
        lk.RaggedCollate("x")
    with pytest.raises(KeyError, match="adds x_lengths, which the samples have already"):
        lk.PadCollate({"x": lk.Pad(lengths=True)})([{"x": [1], "x_lengths": 1}])
    with pytest.raises(ValueError, match="no sequences given"):
        pad_sequences([])
    with pytest.raises(ValueError, match=r"lengths are \(1,\) for a batch of 2"):
        lk.unpad(torch.ones(2, 3), torch.tensor([3]))
    for collate in (
        lk.PadCollate(),
        lk.PadCollate({"x": lk.Pad()}, sort_by="x"),
        lk.PadCollate(sort_by=""),
        lk.RaggedCollate(["x"]),
        lk.MultimodalCollate({"x": list}),
    ):
        with pytest.raises(ValueError, match="no samples given, wanted at least one"):
            collate([])


class Faulty(Lines):
    """Documents with one that cannot be read, neither alone nor in a batch."""

    def __getitem__(self, index: int) -> Any:
        if index == 7:
            raise OSError("unreadable")
        return super().__getitem__(index)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]

    def read_batch(self, indices: Any) -> lk.Ragged:
        if 7 in indices:
            raise OSError("unreadable")
        return super().read_batch(indices)


def test_a_whole_batch_without_its_bad_sample_is_collated() -> None:
    collate, data = lk.PadCollate(lk.Pad(lengths=True)), Faulty()
    loader = lk.Loader(data, 20, collate_fn=collate, bad_samples=lk.BadSamples("skip", max_count=1))
    batches = list(loader)
    wanted = [row for index, row in enumerate(data.rows) if index != 7]
    assert [len(padded) for padded, _ in batches] == [19, 20, 20]
    found = [sample for padded, lengths in batches for sample in lk.unpad(padded, lengths)]
    assert all(same(left, torch.from_numpy(right)) for left, right in zip(found, wanted, strict=True))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64])
@pytest.mark.parametrize("longest", [4, 40_000])
def test_a_ragged_gives_the_batch_of_its_sequences_and_is_not_changed(dtype: torch.dtype, longest: int) -> None:
    values = [(torch.arange(1, 1 + size) % 7).to(dtype) for size in (longest, 1, longest - 1)]
    ragged = lk.Ragged(torch.cat(values), torch.tensor([0, *map(len, values)]).cumsum(0))
    for rule in (lk.Pad(), lk.Pad(value=1, side="left"), lk.Pad(max_length=3, too_long="truncate_left")):
        wanted, found = lk.PadCollate(rule)(values), lk.PadCollate(rule).collate_batch(ragged)
        assert wanted.dtype == dtype
        assert wanted.tolist() == found.tolist()
        assert wanted[0].tolist()[-3:] == values[0].tolist()[-3:]
    for packing in (lk.PackCollate(labels=None), lk.PackCollate(labels=None, multiple_of=7, pad_value=1)):
        batch = packing.collate_batch(ragged)
        assert batch["tokens"].tolist() == packing(values)["tokens"].tolist()
        batch["tokens"].zero_()
    assert ragged.values.tolist() == torch.cat(values).tolist()


DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES += [torch.uint16, torch.uint32, torch.uint64]
DTYPES += [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]


@pytest.mark.parametrize("first", DTYPES)
def test_no_two_dtypes_are_padded_together(first: torch.dtype) -> None:
    """Some dtypes are checked only after `torch.cat`. This holds in every version of torch."""
    for second in set(DTYPES) - {first}:
        for values in (
            [torch.ones(3, dtype=dtype) for dtype in order] for order in ((first, second), (first, first, second))
        ):
            with pytest.raises(CollateError, match=f"has dtype {first} and {second}, wanted one in a batch"):
                lk.PadCollate()(values)
            if torch.bfloat16 not in (first, second):
                with pytest.raises(CollateError, match=r"has dtype .* and .*, wanted one in a batch"):
                    lk.PadCollate()([value.numpy() for value in values])


@pytest.mark.parametrize("kind", [torch.from_numpy, np.asarray])
@pytest.mark.parametrize("side", ["left", "right"])
def test_unusual_sequences_among_plain_ones_are_padded_or_refused(kind: Any, side: Any) -> None:
    plain = [kind(np.full(300, row, np.uint8)) for row in range(64)]
    collate = lk.PadCollate(lk.Pad(side=side))
    with pytest.raises(CollateError, match="is padded with 256, wanted a whole number from 0 to 255"):
        lk.PadCollate(lk.Pad(side=side, value=256))(plain)
    for shape in ((300, 2), (0, 5), (300, 1)):
        with pytest.raises(CollateError, match=r"has shape after the first axis .*, wanted one in a batch"):
            collate([*plain, kind(np.ones(shape, np.uint8))])
    with pytest.raises(CollateError, match="is a tensor without axes"):
        collate([*plain, kind(np.ones((), np.uint8))])
    assert collate([row[:, None] for row in plain]).tolist() == [[[row]] * 300 for row in range(64)]
    assert collate([row[::2] for row in plain]).tolist() == [[row] * 150 for row in range(64)]
    if kind is np.asarray:
        with pytest.raises(CollateError, match="is an array of float128"):
            collate([np.ones(3, np.longdouble)])
        assert same(collate([np.ones(3, ">i4")]), torch.ones(1, 3, dtype=torch.int32))
        assert same(collate([torch.ones(1), np.ones(1, np.float32)[::-1]]), torch.ones(2, 1))
        assert same(collate([np.ones(3, np.longlong), np.ones(3, np.int64)]), torch.ones(2, 3, dtype=torch.int64))


def test_gradients_go_through_padding_whichever_sequence_has_them() -> None:
    for wanting in range(3):
        values = [torch.ones(length, requires_grad=place == wanting) for place, length in enumerate((2, 3, 1))]
        (lk.PadCollate()(values) * torch.arange(9.0).view(3, 3)).sum().backward()
        assert values[wanting].grad is not None
        assert values[wanting].grad.tolist() == [[0, 1], [3, 4, 5], [6]][wanting]


@pytest.mark.parametrize("length", [3, 40_000], ids=["short", "long"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.int64])
@pytest.mark.parametrize("ragged", [False, True])
def test_a_dtype_is_that_of_the_padding_too(length: int, dtype: Any, ragged: bool) -> None:
    """A value that the samples' dtype cannot hold pads a wider one."""
    rows = [np.arange(size).astype(dtype) for size in (length, 1)]
    pad = lk.Pad(value=-100, dtype=torch.int64, lengths=True)
    samples = lk.RaggedCollate(nested=False)(rows) if ragged else rows
    padded, lengths = lk.PadCollate(pad).collate_batch(samples) if ragged else lk.PadCollate(pad)(samples)
    assert padded.dtype == torch.int64
    assert lengths.tolist() == [length, 1]
    assert padded[0].tolist() == rows[0].tolist()
    assert padded[1].tolist() == [0, *[-100] * (length - 1)]
    grid = [torch.ones(2, 3, dtype=torch.uint8), torch.ones(1, 1, dtype=torch.uint8)]
    wide = lk.PadCollate(lk.Pad(value=-1, dims=(0, 1), dtype=torch.float32))(grid)
    assert (wide.dtype, wide.sum().item()) == (torch.float32, 6 + 1 - 5)
    with pytest.raises(TypeError, match="dtype is 'int64', wanted a dtype of torch"):
        lk.Pad(dtype="int64")  # type: ignore[arg-type]


class Point(NamedTuple):
    """Named fields, and a constructor that takes something else."""

    tokens: Any
    label: Any


class OwnPoint(Point):
    def __new__(cls, size: int) -> Self:
        return super().__new__(cls, list(range(size)), size)


class OwnTuple(tuple[Any, ...]):
    def __new__(cls, size: int) -> Self:
        return super().__new__(cls, (list(range(size)), size))


@pytest.mark.parametrize(("kind", "field"), [(OwnPoint, "tokens"), (OwnTuple, 0)])
@pytest.mark.parametrize("sort_by", [False, True])
def test_a_tuple_keeps_its_type_whatever_its_constructor_takes(kind: Any, field: Any, sort_by: bool) -> None:
    samples = [kind(2), kind(3)]
    for sample in samples:
        sample.tag = "m"
    batch = lk.PadCollate({field: lk.Pad()})(samples)
    assert (type(batch), batch.tag) == (kind, "m")
    assert [part.tolist() for part in batch] == [[[0, 1, 0], [0, 1, 2]], [2, 3]]
    pieces = lk.PieceDataset(samples, 2, lengths=[2, 3], fields=[field] if kind is OwnPoint else ["tokens"])
    assert [list(pieces[index]) for index in range(3)] == [[[0, 1], 2], [[0, 1], 3], [[2], 3]]
    assert type(pieces[0]) is kind
