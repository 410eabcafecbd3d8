"""Each law holds for the Loader, and fails for a loader that breaks it."""

import dataclasses
import functools
import random
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from toy import Numbered, ToyLoader

import loaderkit as lk
from loaderkit.testing import (
    LawError,
    assert_cost_independent_of_size,
    assert_elastic,
    assert_epochs_differ,
    assert_exactly_once,
    assert_generators_untouched,
    assert_no_private_generators,
    assert_resumable,
    assert_small_state,
    assert_workers_dont_matter,
    find_difference,
    find_private_generators,
    sample_ids,
)


def make_loader(**changes: Any) -> lk.Loader:
    return lk.Loader(Numbered(23), **{"batch_size": 3, "shuffle": True, "seed": 5} | changes)


class TestLoaderKeepsThem:
    def test_exactly_once(self) -> None:
        assert_exactly_once(make_loader, worlds=(1, 2, 3, 4), epochs=2)
        assert_exactly_once(functools.partial(make_loader, num_workers=2), epochs=2)

    def test_resumable(self) -> None:
        assert_resumable(make_loader)
        assert_resumable(make_loader, epochs=1, world_size=3)

    def test_resumable_with_workers(self) -> None:
        assert_resumable(functools.partial(make_loader, num_workers=2, batch_size=6), stops=(0, 1, 2, 3), world_size=2)
        persistent = functools.partial(make_loader, num_workers=2, persistent_workers=True, batch_size=6)
        assert_resumable(persistent, epochs=1, stops=(1, 4))

    @pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes:UserWarning")
    def test_workers_dont_matter(self) -> None:
        assert_workers_dont_matter(make_loader, workers=(0, 1, 2, 4))

    def test_start_methods_dont_matter(self) -> None:
        assert_workers_dont_matter(
            make_loader, workers=(0, 2), start_methods=("forkserver", "spawn"), persistent=(True,)
        )

    def test_elastic(self) -> None:
        settings = ({"world_size": 1}, {"world_size": 2, "batch_size": 4}, {"world_size": 3, "batch_size": 2})
        assert_elastic(functools.partial(_sized, 36), settings)
        assert_elastic(functools.partial(_sized, 36), ({"num_workers": 2}, {"num_workers": 0}), stops=(1, 5, 12))

    def test_small_state(self) -> None:
        assert_small_state(make_loader, worlds=(1, 2, 4))

    def test_epochs_differ(self) -> None:
        assert_epochs_differ(make_loader)
        # In order, but augmented anew.
        assert_epochs_differ(functools.partial(make_loader, shuffle=False))

    def test_generators_untouched(self) -> None:
        assert_generators_untouched(make_loader)
        assert_generators_untouched(functools.partial(make_loader, num_workers=2))

    def test_cost_independent_of_size(self) -> None:
        assert_cost_independent_of_size(_of_range, sizes=(1_000, 10**12))


def _sized(size: int, **changes: Any) -> lk.Loader:
    return lk.Loader(Numbered(size), **{"batch_size": 3, "shuffle": True} | changes)


def _of_range(size: int) -> lk.Loader:
    return lk.Loader(range(size), batch_size=32, shuffle=True)


LAWS: dict[str, Any] = {
    "once": assert_exactly_once,
    "once over ranks": functools.partial(assert_exactly_once, worlds=(1, 2)),
    "resume": assert_resumable,
    "resume on ranks": functools.partial(assert_resumable, world_size=2),
    "workers": assert_workers_dont_matter,
    "elastic": functools.partial(assert_elastic, settings=({"num_workers": 1}, {"num_workers": 2}, {"batch_size": 1})),
    "state": assert_small_state,
    "state on ranks": functools.partial(assert_small_state, worlds=(2,)),
    "epochs": assert_epochs_differ,
    "generators": assert_generators_untouched,
}

FAULTS = [
    ("once", "skips", r"epoch 0: samples \d+, \d+ come never\.$"),
    ("once", "repeats", r"epoch 0: samples \d+, \d+ come twice, samples \d+, \d+ come never\. For instance sample \d+: batch \d, batch 5\."),
    ("once", "lengthens", r"the loader says len\(\) = 7, but epoch 0 has 6 batches"),
    ("once over ranks", "uneven", r"epoch 0 over 2 ranks: samples \d+, \d+ come never"),
    ("resume", "forgets where", r"resume after 1 batch of epoch 0, as a Trainer draws: in epoch 0 batch 1 differs: wanted samples (\d+), (\d+), got \d+, \d+\. Over the epoch samples \d+, \d+ come twice, samples \d+, \d+ come never\."),
    ("resume", "state one ahead", r"resume after 0 batches of epoch 0, .* batch 0 differs: .* Over the epoch samples \d+, \d+ come never"),
    ("resume", "draws from torch", r"resume after 0 batches .* the samples are the right ones, but not what is in them: batch\['draw'\]\[0\] is 0\.\d+, wanted 0\.\d+"),
    ("resume", "raises on resume", r"resume after 0 batches of epoch 0 raised RuntimeError: the shard is gone"),
    ("resume", "empty epoch at the edge", r"in epoch 0 0 batches came, wanted 6\. Over the epoch samples"),
    ("resume on ranks", "forgets where", r"resume after 1 batch of epoch 0 \(rank 0 of 2\).* All ranks loaded rank 0's state"),
    ("workers", "order of workers", r"with 2 workers, epoch 0, batch 0 is not that of the run with 0 workers: wanted samples \d+, \d+, got"),
    ("workers", "draws by persistence", r"with 1 worker, persistent_workers=True, epoch 0, batch 0 .*: the samples are the right ones"),
    ("elastic", "forgets where", r"over an epoch of 1 batch with 1 worker, then 2 workers: samples .* come twice"),
    ("elastic", "order of workers", r"over an epoch of 1 batch with 1 worker, then 2 workers: sample"),
    ("elastic", "raises with 2 workers", r"resume with 2 workers \(after 1 batch with 1 worker\) raised AssertionError with no message"),
    ("state", "state with a tensor", r"the state after 0 batches has a Tensor at state\['position'\], wanted plain ints"),
    ("state", "state with an int key", r"has the key 7 in state\['seen'\]"),
    ("state", "state with a list of all", r"is [\d,]+ bytes of JSON, wanted at most 1,024; state\['order'\] alone has [\d,]+"),
    ("state on ranks", "state of the rank", r"after 0 batches the state of rank 1 of 2 is not that of rank 0.*state\['rank'\] is 1, wanted 0"),
    ("epochs", "same order", r"epoch 1 repeats epoch 0: 6 batches, all the same to the last bit"),
    ("generators", "makes with torch", r"making the loader moved torch's global generator"),
    ("generators", "begins with random", r"drawing batch 0 moved random's global generator"),
    ("generators", "draws with numpy", r"drawing batch 0 moved numpy's global generator"),
]  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
def test_a_faultless_loader_keeps_each_law(law: str) -> None:
    LAWS[law](ToyLoader)


@pytest.mark.parametrize(("law", "fault", "message"), FAULTS)
def test_each_law_can_fail(law: str, fault: str, message: str) -> None:
    with pytest.raises(LawError, match=message):
        LAWS[law](functools.partial(ToyLoader, fault))


def test_each_law_is_shown_to_fail() -> None:
    assert {law for law, _, _ in FAULTS} == set(LAWS)


def test_cost_that_grows_is_found() -> None:
    with pytest.raises(LawError, match=r"first batch of 1,000,000 samples takes .* bytes of memory, of 1,000 samples"):
        assert_cost_independent_of_size(lambda size: list(range(size)), sizes=(1_000, 1_000_000))


def test_a_law_leaves_the_caller_s_generators_alone() -> None:
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    wanted = torch.rand(()).item(), np.random.rand(), random.random()
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    assert_resumable(make_loader, epochs=1, stops=(1,))
    assert_exactly_once(make_loader)
    assert (torch.rand(()).item(), np.random.rand(), random.random()) == wanted


def test_a_loader_without_batches_shows_nothing() -> None:
    with pytest.raises(LawError, match="no batches: there is nothing to resume"):
        assert_resumable(list)


def test_a_stop_beyond_the_run_is_refused() -> None:
    with pytest.raises(ValueError, match="stop after batch 9, wanted at most 8: all in 1 epochs"):
        assert_resumable(make_loader, epochs=1, stops=(9,))


def test_elastic_needs_two_settings() -> None:
    with pytest.raises(ValueError, match="1 settings, wanted at least two"):
        assert_elastic(make_loader, [{"num_workers": 1}])


def test_the_samples_to_expect_have_to_be_known() -> None:
    with pytest.raises(LawError, match=r"cannot tell which samples to expect: give samples="):
        assert_exactly_once(lambda: [[1]])
    assert_exactly_once(lambda: [["a", "b"], ["c"]], samples="abc")
    with pytest.raises(LawError, match="sample d comes that is not in the data"):
        assert_exactly_once(lambda: [["a", "b"], ["c", "d"]], samples="abc")


Pair = namedtuple("Pair", "x index")  # noqa: PYI024


@dataclasses.dataclass
class Batch:
    idx: torch.Tensor


@pytest.mark.parametrize(
    ("batch", "wanted"),
    [
        (3, [3]),
        ("a", ["a"]),
        ([3, "a"], [3, "a"]),
        (torch.tensor([3, 4]), [3, 4]),
        (np.array(["a", "b"]), ["a", "b"]),
        ({"x": torch.rand(2), "index": torch.tensor([3, 4])}, [3, 4]),
        (Pair(x=torch.rand(2), index=np.array([3, 4])), [3, 4]),
        (Batch(idx=torch.tensor([3, 4])), [3, 4]),
    ],
)
def test_sample_ids_are_found_where_they_are_plain(batch: Any, wanted: list[Any]) -> None:
    assert sample_ids(batch) == wanted


@pytest.mark.parametrize("batch", [torch.rand(3), (torch.rand(3), torch.tensor([1, 2, 3])), {"x": 1}, None])
def test_sample_ids_are_not_guessed(batch: Any) -> None:
    with pytest.raises(TypeError, match=r"cannot tell which samples .* give ids="):
        sample_ids(batch)


class Box:
    def __init__(self, x: Any) -> None:
        self.x = x


VALUES: list[Any] = [
    torch.tensor([1.0, float("nan")]),
    torch.tensor([1.0, 2.0]),
    torch.tensor([1.0, 2.0], dtype=torch.float64),
    torch.tensor([[1.0, 2.0]]),
    torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
    torch.tensor(0.0),
    torch.tensor(-0.0),
    torch.tensor([], dtype=torch.int64),
    torch.tensor([1.0, 0.0, 2.0]).to_sparse(),
    np.array([1.0, 2.0]),
    np.array([1, "a", None], dtype=object),
    np.array(["a", "b"]),
    {"a": 1, "b": [1, 2]},
    {"b": [1, 2], "a": 1},
    {"a": 1, "b": [1, 3]},
    (1, 2),
    [1, 2],
    [1, 2, 3],
    Pair(1, torch.tensor(2)),
    Batch(torch.tensor([1])),
    Batch(torch.tensor([2])),
    Box(torch.tensor([1])),
    Box(torch.tensor([2])),
    float("nan"),
    1.0,
    1,
    True,
    "a",
    None,
]


def test_a_difference_is_found_if_and_only_if_there_is_one() -> None:
    for i, wanted in enumerate(VALUES):
        for j, got in enumerate(VALUES):
            assert (find_difference(wanted, got) is None) == (i == j), (wanted, got)
            assert (find_difference({"deep": [wanted]}, {"deep": [got]}) is None) == (i == j)


def test_a_difference_names_its_place() -> None:
    a, b = ({"x": [np.zeros(1), torch.zeros(2, 3)]} for _ in range(2))
    b["x"][1][1, 2] = 7
    assert find_difference(a, b) == "batch['x'][1][1, 2] is 7.0, wanted 0.0"
    assert find_difference(torch.zeros(2), torch.zeros(3)) == "batch is float32 (3,), wanted float32 (2,)"
    assert find_difference(Box(1), Box(2), "it") == "it.x is 2, wanted 1"


class Slotted:
    __slots__ = ("rng",)

    def __init__(self) -> None:
        self.rng = random.Random(0)


class TestPrivateGenerators:
    @pytest.mark.parametrize(
        ("hide", "path"),
        [
            (lambda: {"rng": np.random.default_rng(0)}, "dataset['rng']"),
            (lambda: [0, Box(torch.Generator())], "dataset[1].x"),
            (lambda: Box(functools.partial(max, np.random.RandomState(0))), "dataset.x.args[0]"),
            (lambda: Box(Slotted()), "dataset.x.rng"),
            (lambda: _closure(np.random.default_rng(0)), "dataset.<rng>"),
            (lambda: Box(random.Random(0).random), "dataset.x.__self__"),
        ],
    )
    def test_one_is_found_by_its_path(self, hide: Any, path: str) -> None:
        found = find_private_generators(hide())
        assert found == [path]

    def test_none_are_seen_where_none_are(self) -> None:
        box = Box([np.zeros(3), torch.zeros(3), torch.default_generator, np.random.rand, random.random, {"a": print}])
        box.x.append(box)  # a cycle
        assert find_private_generators(box) == []
        assert find_private_generators(torch.nn.Dropout()) == []
        assert_no_private_generators(Numbered(3))

    def test_the_error_names_the_path_and_the_way_out(self) -> None:
        with pytest.raises(LawError, match=r"dataset\.x is a random generator of the dataset's own: .*sample_rng\(\)"):
            assert_no_private_generators(Box(np.random.default_rng(0)))


def _closure(rng: np.random.Generator) -> Any:
    return lambda index: rng.random() + index
