"""The memory of large batches is reused when nothing refers to it any more, and no batch changes by that."""

import contextlib
import gc
import io
import itertools
import mmap
import multiprocessing
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scripts
import torch
import torch.utils.data as torch_data
from drawing import equal
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import loaderkit as lk
from loaderkit.datasets.combine import MapDataset
from loaderkit.system.batch_memory import BatchMemory, BufferPool, empty_array, new_empty
from loaderkit.system.stack import stack

ENGINES = [("inline", {}), ("threads", {"num_workers": 2}), ("ring", {"num_workers": 2}), ("torch", {"num_workers": 2})]
SIZE, SHAPE, BATCH = 8, (512, 1024), 4  # of float32: 2 MB a sample, 8 MB a batch, which is large
LARGE = 8 << 20  # bytes


def sample(index: int) -> Tensor:
    return torch.full(SHAPE, float(index)) + torch.arange(SHAPE[1])


class Samples:
    """Large samples of one structure."""

    draws_nothing = True

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        value = sample(index)
        return {
            "tensor": value,
            "tuple": (index, value, value.numpy()),
            "dict": {"n": index, "a": value, "b": value.numpy()[:, ::2]},
            "swapped": value.numpy().astype(">f4"),
            "nested": {"deep": (value,)},
        }[self._kind]


class Negated:
    draws_nothing = True

    def __call__(self, value: Tensor) -> Tensor:
        return -value


ROWS = torch.stack([sample(index) for index in range(SIZE)])
DATA: dict[str, Any] = {
    **{kind: Samples(kind) for kind in ("tensor", "tuple", "dict", "nested", "swapped")},
    "rows": lk.ArrayDataset((ROWS, ROWS.numpy(), torch.arange(SIZE))),
    "transformed": MapDataset(Samples("tensor"), Negated()),
}


def views_of(batch: Any) -> Iterator[Any]:
    """Yield objects that keep a batch's memory alive."""
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, tuple | list):
        for part in batch:
            yield from views_of(part)
    elif isinstance(batch, Tensor) and batch.ndim > 1:
        yield from (batch, batch[1:], batch.numpy()[0], batch.view(-1)[5:9], batch.mT, batch.untyped_storage())


def content(view: Any) -> Tensor:
    if isinstance(view, torch.UntypedStorage):
        view = torch.empty(0, dtype=torch.uint8).set_(view)  # type: ignore[call-overload]
    return torch.as_tensor(view).clone()


@pytest.mark.parametrize(
    ("kind", "engine", "settings_"),
    [(kind, *ENGINES[0]) for kind in DATA] + [(kind, *engine) for kind in ("tuple", "rows") for engine in ENGINES[1:]],
)
def test_what_is_kept_of_a_batch_never_changes(kind: str, engine: Any, settings_: Any) -> None:
    draw = np.random.default_rng(0)
    kept: list[tuple[Any, Any]] = []
    loader = lk.Loader(DATA[kind], BATCH, shuffle=True, engine=engine, seed=1, **settings_)
    single = lk.Loader(DATA[kind], None, shuffle=True, seed=1)
    for _ in range(3):
        wanted = list(single)
        for number, batch in enumerate(loader):
            assert equal(batch, stack(wanted[number * BATCH : (number + 1) * BATCH]))
            views = list(views_of(batch))
            assert views
            view = views[draw.integers(len(views))]
            kept.append((view, content(view)))
            del batch, views, view
            if len(kept) > draw.integers(1, 9):
                del kept[draw.integers(len(kept))]
            for view, before in kept:
                assert equal(content(view), before)


def test_memory_is_reused() -> None:
    loader = lk.Loader(Samples("tuple"), BATCH, shuffle=True)
    addresses = [batch[1].data_ptr() for _ in range(3) for batch in loader]
    assert len(set(addresses)) < len(addresses) == 6


class Sequences:
    """Sequences of several lengths; a batch of them is large."""

    draws_nothing = True

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Tensor:
        return torch.arange(index, index + 300_000 + index * 371 % 997)


COLLATES = {
    "pad": lk.PadCollate(),
    "pad with a value": lk.PadCollate(lk.Pad(value=7)),
    "pad long rows": lk.PadCollate(lk.Pad(multiple_of=1 << 19)),
    "join": lk.RaggedCollate(nested=False),
}


@pytest.mark.parametrize("collate", COLLATES)
def test_padded_and_joined_batches_never_change(collate: str) -> None:
    made, data = COLLATES[collate], Sequences()
    kept, places = [], []
    loader = lk.Loader(data, BATCH, collate_fn=made, shuffle=False)
    for _ in range(3):
        for number, batch in enumerate(loader):
            wanted = made([data[index] for index in range(number * BATCH, (number + 1) * BATCH)])
            kept = [*kept[-2:], (batch, wanted)]
            assert all(equal(one, other) for one, other in kept)
            places.append(batch.data_ptr() if isinstance(batch, Tensor) else batch.values.data_ptr())
            del batch
    assert len(places) == 6
    assert len(set(places)) < 6 or collate == "join"  # which joins as torch.cat does


class Stream(torch_data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return map(sample, range(6 * BATCH))


@pytest.mark.parametrize(
    "data", [Stream(), lk.StreamDataset(["0"], lambda _, start: map(sample, range(start, 6 * BATCH)))]
)
def test_a_stream_reuses_memory_and_its_batches_never_change(data: Any) -> None:
    kept, places = [], []
    for number, batch in enumerate(lk.Loader(data, BATCH)):
        assert torch.equal(batch, torch.stack([sample(number * BATCH + row) for row in range(BATCH)]))
        places.append(batch.data_ptr())
        kept = [*kept[-1:], (batch[1:], number)]
        assert all((part[0, 0, 0], part[-1, -1, 0]) == (at * BATCH + 1, at * BATCH + 3) for part, at in kept)
        del batch
    assert len(set(places)) < len(places) == 6


def test_missing_memory_is_an_error_and_not_a_bad_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(12, "Cannot allocate memory")

    loader = lk.Loader(DATA["tuple"], BATCH, bad_samples=lk.BadSamples("skip", max_rate=1.0))
    monkeypatch.setattr(mmap, "mmap", full)
    with pytest.raises(MemoryError, match="cannot allocate 8,388,608 bytes for a batch"):
        next(iter(loader))


def test_what_autograd_keeps_never_changes() -> None:
    weight = torch.ones(SHAPE[1], requires_grad=True)
    losses, whole = [], []
    for batch in lk.Loader(DATA["tensor"], BATCH):
        losses.append((batch * weight).sum())  # keeps the batch without a Python object
        whole.append(batch.sum((0, 1)).clone())
        del batch
    torch.stack(losses).sum().backward()
    assert weight.grad is not None
    assert torch.allclose(weight.grad, torch.stack(whole).sum(0))


def test_a_pool_keeps_what_its_largest_batch_took() -> None:
    pool = BufferPool()
    for count, most in ((1, 1), (7, 7), (2, 7), (1, 7)):
        with BatchMemory(pool):
            batch = [empty_array((LARGE,), np.uint8) for _ in range(count)]
        assert len({part.ctypes.data for part in batch}) == count
        del batch
        assert pool.free_bytes == most * LARGE
    held = []
    for _ in range(20):
        with BatchMemory(pool):
            held.append(empty_array((LARGE,), np.uint8))
    del held
    assert pool.free_bytes == 7 * LARGE
    pool.batches = 2  # as large as the largest
    held = []
    for _ in range(20):
        with BatchMemory(pool):
            held.append(empty_array((LARGE,), np.uint8))
    del held
    assert pool.free_bytes == 14 * LARGE
    assert not pickle.loads(pickle.dumps(pool)).free_bytes


@given(st.lists(st.tuples(st.integers(1 << 14, 1 << 17), st.integers(1, 4), st.integers(0, 5)), max_size=40))
def test_what_is_lent_is_lent_once(steps: list[tuple[int, int, int]]) -> None:
    pool, live = BufferPool(), []
    for size, parts, dropped in steps:
        live += [pool.empty((size,), np.uint8, size * (part + 1)) for part in range(parts)]
        spans = sorted((one.ctypes.data, one.ctypes.data + one.nbytes) for one in live)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        del live[:dropped]
        assert pool.free_bytes <= max(size * parts for size, parts, _ in steps)


def test_threads_share_a_pool() -> None:
    pool, wrong = BufferPool(), []

    def work(number: int) -> None:
        held: list[Any] = []
        for turn in range(300):
            array = pool.empty((1 << 14,), np.uint8, 1 << 14)
            array[:] = mark = (number * 31 + turn) % 256
            held = [*held[-3:], (array, mark)]
            wrong.extend(mark for array, mark in held if (array != mark).any())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_small_arrays_objects_and_arrays_outside_a_batch_are_not_lent() -> None:
    pool = BufferPool()
    assert empty_array((LARGE,), np.uint8).base is None
    with BatchMemory(pool):
        assert empty_array((LARGE - 1,), np.uint8).base is None
        assert empty_array((LARGE // 8,), object).base is None
        assert empty_array((LARGE,), np.uint8).base is not None
        assert new_empty((LARGE,), torch.empty(0, dtype=torch.bfloat16)).dtype is torch.bfloat16


LEAVES = st.sampled_from([torch.float32, torch.uint8, torch.bfloat16, torch.complex64, torch.bool, torch.int16])
SHAPES = st.sampled_from([(1 << 19,), (1, 512, 1024), (3, 400, 400), (512, 1, 1024), (64, 64, 128), (1, 1, 1 << 19)])
FORMS = st.sampled_from(["plain", "permuted", "gap", "grad", "conj", "same", "expanded"])


def made(form: str, shape: tuple[int, ...], dtype: torch.dtype, count: int) -> list[Tensor]:
    first = [torch.arange(np.prod(shape)).add(number).reshape(shape).to(dtype) for number in range(count)]
    change: Any = {
        "permuted": lambda value: (
            value.permute(*range(1, value.ndim), 0).contiguous().permute(-1, *range(value.ndim - 1))
        ),
        "gap": lambda value: torch.stack([value, value], -1)[..., 0],
        "grad": lambda value: value.requires_grad_() if dtype.is_floating_point or dtype.is_complex else value,
        "conj": lambda value: value.conj(),
        "expanded": lambda value: value[:1].expand(shape),
    }.get(form, lambda value: value)
    changed = list(map(change, first))
    return changed[:1] * count if form == "same" else changed


@settings(deadline=None, max_examples=25)
@given(st.lists(FORMS, min_size=1, max_size=3), SHAPES, LEAVES, st.integers(1, 9), st.booleans())
def test_a_batch_is_what_torch_stacks(forms: list[str], shape: Any, dtype: Any, count: int, many: bool) -> None:
    """Values, strides and gradients, whether samples become rows or are stacked together."""
    samples = [made(form, shape, dtype, count) for form in forms]
    tuples = [tuple(forms[at % len(forms)] for at in range(number, number + 2)) for number in range(count)]
    data = [tuple(samples[forms.index(form)][number] for form in mixed) for number, mixed in enumerate(tuples)]
    feed = lk.Loader(Given(data, many=many), count)
    (batch,) = list(feed)
    for column, found in zip(zip(*data, strict=True), batch, strict=True):
        wanted = torch.stack(column)
        assert (found.dtype, found.shape, found.stride(), found.requires_grad) == (
            wanted.dtype,
            wanted.shape,
            wanted.stride(),
            wanted.requires_grad,
        )
        assert torch.equal(found, wanted)


class Given:
    """Samples as they are."""

    draws_nothing = True

    def __init__(self, samples: list[Any], *, many: bool = False) -> None:
        self._samples = samples
        if many:
            self.__getitems__ = lambda indices: [samples[index] for index in indices]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Any:
        return self._samples[index]


OTHER = [torch.zeros(3, 40), torch.zeros(SHAPE, dtype=torch.float64), np.zeros(SHAPE), None, (), {"a": 1}, "text", 5]


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("other", range(len(OTHER)))
@pytest.mark.parametrize("make", [sample, lambda index: sample(index).numpy()], ids=["tensors", "arrays"])
def test_samples_that_do_not_fit_are_named_as_in_a_small_batch(at: int, other: int, make: Any) -> None:
    for wrap in (lambda value: value, lambda value: {"a": value, "n": 1}):
        samples: list[Any] = [wrap(make(index)) for index in range(BATCH)]
        samples[at] = wrap(OTHER[other])
        with pytest.raises(Exception) as wanted:
            stack(samples)
        with pytest.raises(type(wanted.value)) as found:
            list(lk.Loader(Given(samples), BATCH))
        assert str(found.value).startswith(str(wanted.value).rstrip("."))


def test_an_array_of_another_byte_order_fits() -> None:
    samples = [sample(index).numpy() for index in range(BATCH)]
    samples[1] = samples[1].astype(">f4")
    (batch,) = lk.Loader(Given(samples), BATCH)
    assert equal(batch, stack(samples))


def test_a_datasets_own_tensors_are_copied() -> None:
    """Also if the batch has all rows of the dataset's tensor, in order."""
    owned = ROWS[:BATCH].clone()
    for data in (Given(list(owned)), Given(list(owned.numpy())), lk.ArrayDataset(owned)):
        (batch,) = lk.Loader(data, BATCH)
        batch.zero_()
        assert torch.equal(owned, ROWS[:BATCH])


def test_a_custom_collate_gets_what_the_dataset_returned() -> None:
    given: list[Any] = [(sample(index), index) for index in range(BATCH)]
    (batch,) = lk.Loader(Given(given), BATCH, collate_fn=list)
    for found in (batch, list(lk.Loader(Given(given), None))):
        assert all(one is other for one, other in zip(found, given, strict=True))


@pytest.mark.parametrize("wrong", [-1, SIZE, -SIZE - 1])
def test_an_index_out_of_range_is_an_error(wrong: int) -> None:
    rows = np.array([3] * 9 + [wrong])
    for column in (ROWS, ROWS.numpy()):
        with BatchMemory(BufferPool()), contextlib.suppress(IndexError):
            found = lk.ArrayDataset(column).read_batch(rows)
            assert torch.equal(torch.as_tensor(found), torch.cat([ROWS[[3] * 9], ROWS[[wrong]]]))


def test_a_replaced_sample_comes_in_its_row() -> None:
    class Bad(Samples):
        def __getitem__(self, index: int) -> Any:
            if index in (0, 5, 6):
                raise OSError(index)
            return super().__getitem__(index)

    for policy in ("replace", "skip"):
        loader = lk.Loader(Bad("tensor"), BATCH, bad_samples=lk.BadSamples(policy, max_rate=1.0))
        found = torch.cat(list(loader))
        numbers = found[:, 0, 0].int().tolist()
        assert torch.equal(found, ROWS[numbers])
        assert {0, 5, 6}.isdisjoint(numbers)


def test_a_buffer_that_a_dataset_refills_is_copied_in_time() -> None:
    class Again(Samples):
        buffer = torch.empty(SHAPE)

        def __getitem__(self, index: int) -> Any:
            return self.buffer.copy_(sample(index))

    assert torch.equal(torch.cat(list(lk.Loader(Again("tensor"), BATCH))), ROWS)


def test_batches_can_be_saved_shared_and_copied() -> None:
    file = io.BytesIO()
    batch = next(iter(lk.Loader(DATA["tensor"], BATCH)))
    torch.save(batch, file)
    file.seek(0)
    for found in (torch.load(file), pickle.loads(pickle.dumps(batch)), batch.clone(), batch.share_memory_()):
        assert torch.equal(found, ROWS[:BATCH])


def test_a_fork_does_not_write_to_its_parents_batches() -> None:
    loader = lk.Loader(DATA["tensor"], BATCH)
    kept = [next(iter(loader))]
    before, place = kept[0].clone(), kept[0].data_ptr()

    def child() -> None:
        torch.set_num_threads(1)  # OpenMP's threads do not exist in the child
        kept.clear()
        gc.collect()
        assert len([*lk.Loader(DATA["tensor"], BATCH, shuffle=True), *loader]) == 4

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert torch.equal(kept[0], before)
    assert kept[0].data_ptr() == place


KEEPS = """
import sys, torch, loaderkit as lk

class Data:
    def __len__(self): return 64
    def __getitem__(self, index): return torch.full((3, 300, 300), float(index))  # 17 MB a batch

class Holder: pass

kept = list(lk.Loader(Data(), 16, **eval(sys.argv[1])))
part, holder = kept[1][2:], Holder()
holder.itself, holder.batch = holder, kept[0]
"""


@pytest.mark.slow
@pytest.mark.parametrize("settings_", [{}, {"num_workers": 1, "engine": "ring"}], ids=str)
def test_batches_kept_to_the_interpreters_end_print_nothing(settings_: Any) -> None:
    command = [sys.executable, "-X", "dev", "-c", KEEPS, repr(settings_)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Exception ignored" not in scripts.without_triton(ended.stderr)
