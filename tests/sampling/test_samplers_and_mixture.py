"""Orders that draw: frequencies and shares follow the weights, and a user's sampler resumes if it is repeatable."""

import itertools
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as torch_data

from loaderkit import BadSamples, Loader, Mixture, Sequential, ShardOrder, Shuffled, Subset, Weighted, World
from loaderkit.sampling.samplers import as_order
from loaderkit.testing import assert_resumable

WEIGHTS = np.array([0, 1, 2, 0, 0, 3, 0.5, 10, 0])


def excess(counts: Any, chances: Any) -> float:
    """How many standard deviations the chi-square of counts is above its mean."""
    expected = np.asarray(chances) * np.sum(counts)
    freedom = len(expected) - 1
    return float((((np.asarray(counts) - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_with_replacement_frequencies_follow_the_weights(seed: int) -> None:
    order = Weighted(WEIGHTS, seed=seed, size=100_000)
    drawn = order.indices(seed, 0, 100_000)
    counts = np.bincount(drawn, minlength=len(WEIGHTS))
    assert not counts[WEIGHTS == 0].any()
    usable = WEIGHTS > 0
    assert excess(counts[usable], WEIGHTS[usable] / WEIGHTS.sum()) < 5
    assert not np.array_equal(drawn, order.indices(seed + 1, 0, 100_000))


@pytest.mark.parametrize("seed", [0, 1])
def test_without_replacement_each_comes_once_and_the_first_follows_the_weights(seed: int) -> None:
    order = Weighted(WEIGHTS, seed=seed, replacement=False)
    usable = np.flatnonzero(WEIGHTS)
    assert order.size(0) == len(usable) == 5
    epochs = np.array([order.indices(epoch, 0, 5) for epoch in range(8_000)])
    assert np.array_equal(np.sort(epochs, axis=1), np.broadcast_to(usable, epochs.shape))
    counts = np.bincount(epochs[:, 0], minlength=len(WEIGHTS))[usable]
    assert excess(counts, WEIGHTS[usable] / WEIGHTS.sum()) < 5
    # And the second, given that the heaviest came first.
    second = epochs[epochs[:, 0] == 7][:, 1]
    others = np.array([1, 2, 5, 6])
    counts = np.bincount(second, minlength=len(WEIGHTS))[others]
    assert excess(counts, WEIGHTS[others] / WEIGHTS[others].sum()) < 5


def test_extreme_weights_stay_in_range() -> None:
    weights = np.array([0, 1e-300, 1e300, 0])
    assert set(Weighted(weights, size=1000).indices(0, 0, 1000).tolist()) == {2}
    assert Weighted(weights, replacement=False).indices(0, 0, 2).tolist() == [2, 1]


@pytest.mark.parametrize(
    ("weights", "settings", "message"),
    [
        ([], {}, r"shape \(0,\)"),
        ([1, -1], {}, r"values from -1.0 to 1.0, wanted .* of at least 0"),
        ([1, float("nan")], {}, "finite"),
        ([[1]], {}, "one axis"),
        ([0, 0], {}, "all weights are 0"),
        ([1e308] * 10, {}, "the sum inf, wanted one that a float64 holds"),
        ([5e-324] * 3, {}, "the sum 1.48.*e-323, wanted one that a float64 holds"),
        ([0, 1], {"size": 2, "replacement": False}, "size is 2 without replacement, and 1 samples have a weight"),
        ([1, 1], {"size": -1}, "size is -1"),
    ],
)
def test_weights_that_cannot_be_drawn_by_are_refused(weights: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Weighted(weights, **settings)


@pytest.mark.parametrize("window", [7, 10, 64])
@pytest.mark.parametrize("weights", [[1, 1], [5, 3, 2], [0.2, 0.45, 0.35]])
def test_a_mixtures_shares_are_exact_to_one_sample_in_every_window(weights: list[float], window: int) -> None:
    sizes = [30, 17, 23][: len(weights)]
    order = Mixture(sizes, weights, seed=1, size=501, window=window)
    starts = np.cumsum([0, *sizes])
    wanted = np.array(weights) / np.sum(weights) * window
    windows = 0
    for epoch in range(3):
        drawn = order.indices(epoch, 0, 501)
        source = np.searchsorted(starts, drawn, side="right") - 1
        for begin in range(0, 501 - window + 1, window):
            shares = np.bincount(source[begin : begin + window], minlength=len(sizes))
            assert abs(shares - wanted).max() < 1
            windows += 1
    assert windows == 3 * (501 // window)


@pytest.mark.parametrize(
    "weights", [[1, 1], [7, 1], [0.3, 0.7], [5, 3, 2], [1, 1, 1], [0.2, 0.45, 0.35], [8, 1, 1, 1, 5]]
)
@pytest.mark.parametrize("window", [20, 64])
def test_any_stretch_of_a_mixture_has_its_part_of_each_source(weights: list[float], window: int) -> None:
    """Of any length, from any position: to within one sample for two sources, and 2 - 1 / (S - 1) for S."""
    order = Mixture([5] * len(weights), weights, size=4 * window, window=window)
    source = order.indices(0, 0, 4 * window) // 5
    shares = np.bincount(source[:window], minlength=len(weights)) / window
    assert abs(shares - np.array(weights) / np.sum(weights)).max() * window < 1
    counts = np.cumsum(source[:, None] == np.arange(len(weights)), axis=0)
    owed = counts - shares * np.arange(1, 4 * window + 1)[:, None]
    owed = np.concatenate([np.zeros((1, len(weights))), owed])
    worst = (owed.max(axis=0) - owed.min(axis=0)).max()  # over all stretches
    assert 0.4 < worst <= 2 - 1 / (len(weights) - 1) + 1e-6


def test_a_mixture_says_how_often_each_source_was_read() -> None:
    sizes = [13, 8]
    order = Mixture(sizes, [2, 1], size=50, window=9)
    drawn = np.concatenate([order.indices(epoch, 0, 50) for epoch in range(3)])
    for place in range(150):
        counts = [int((drawn[:place] < 13).sum()), int((drawn[:place] >= 13).sum())]
        wanted = [count / size for count, size in zip(counts, sizes, strict=True)]
        assert order.source_epochs(place // 50, place % 50).tolist() == wanted


def test_a_mixture_of_sources_in_shards_reads_each_with_locality() -> None:
    """The samples of each source come in the order of its ShardOrder."""
    shards = [ShardOrder([50] * 8, window=16, lanes=2, block=4), ShardOrder([30] * 4, window=16, lanes=2, block=4)]
    order = Mixture(shards, [3, 1], size=480)
    drawn = order.indices(0, 0, 480)
    assert np.array_equal(drawn[drawn < 400], shards[0].indices(0, 0, 360))
    assert np.array_equal(drawn[drawn >= 400] - 400, shards[1].indices(0, 0, 120))


class InShards(list[int]):
    shard_sizes = (50,) * 8


def test_a_mixtures_sources_may_be_the_datasets() -> None:
    """A dataset in shards gets a ShardOrder; another batch size continues the same order."""
    sources = [InShards(range(400)), list(range(120))]
    order = Mixture(sources, [3, 1], seed=7, size=480)
    by_hand = [ShardOrder(InShards.shard_sizes, seed=7), Shuffled(120, seed=8)]
    assert order.key(0) == Mixture(by_hand, [3, 1], size=480).key(0)
    assert np.array_equal(order.indices(1, 0, 480), Mixture(by_hand, [3, 1], size=480).indices(1, 0, 480))
    first = Loader(range(520), 8, order=order)
    iterator = iter(first)
    head = [index for _ in range(5) for index in next(iterator).tolist()]
    resumed = Loader(range(520), 32, order=order)
    resumed.load_state_dict(first.state_dict())
    assert head + [index for batch in resumed for index in batch.tolist()] == order.indices(0, 0, 480).tolist()


def test_other_weights_are_refused_at_a_resume_with_both() -> None:
    first = Loader(range(20), 4, order=Mixture([10, 10], [3, 1]))
    next(iter(first))
    with pytest.raises(ValueError, match=r"0\.75 of .*0\.25 of .* this loader has .*0\.5 of .*0\.5 of"):
        Loader(range(20), 4, order=Mixture([10, 10], [1, 1])).load_state_dict(first.state_dict())


def test_a_mixtures_sources_come_in_full_passes_across_epochs() -> None:
    """Each pass over a source is complete, also across epochs."""
    sources = [Shuffled(13, seed=5), Sequential(8)]
    order = Mixture(sources, [2, 1], seed=3, size=50, window=9)
    drawn = np.concatenate([order.indices(epoch, 0, 50) for epoch in range(6)])
    for row, (start, size) in enumerate([(0, 13), (13, 8)]):
        mine = drawn[(drawn >= start) & (drawn < start + size)] - start
        passes = len(mine) // size
        assert passes >= 12
        for number in range(passes):
            wanted = sources[row].indices(number, 0, size)
            assert np.array_equal(mine[number * size : (number + 1) * size], wanted)


@pytest.mark.parametrize(
    ("sources", "weights", "settings", "message"),
    [
        ([3, 4], [1], {}, "2 sources and weights"),
        ([3, 4], [1, 0], {}, "one weight above 0 for each"),
        ([3, 0], [1, 1], {}, r"sizes \[3, 0\], wanted at least one sample in each"),
        ([], [], {}, "0 sources"),
        ([3, 4], [1000, 1], {"window": 10}, "gets no sample. Use a larger window"),
        ([3, 4], [1, 1], {"window": 0}, "window of 0 positions"),
        ([3, Subset([0, 5])], [1, 1], {}, "source 1 is an order of 2 samples with indices below 6, wanted as many"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(
    sources: Any, weights: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Mixture(sources, weights, **settings)


DATA = list(range(23))
SAMPLERS = {
    "random": lambda: torch_data.RandomSampler(DATA),
    "replacement": lambda: torch_data.RandomSampler(DATA, replacement=True, num_samples=23),
    "subset": lambda: torch_data.SubsetRandomSampler(range(0, 23, 2)),
    "weighted": lambda: torch_data.WeightedRandomSampler([0.1, 2, 3] * 7, 20),
    "sequential": lambda: torch_data.SequentialSampler(DATA),
    "list": lambda: [3, 5, 1, 1, 22],
    "one rank": lambda: torch_data.DistributedSampler(DATA, num_replicas=1, rank=0),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_that_draws_from_global_generators_resumes(name: str) -> None:
    assert_resumable(lambda: Loader(DATA, 4, order=SAMPLERS[name](), seed=5))
    loader = Loader(DATA, 4, order=SAMPLERS[name](), seed=5)
    epochs = [[index for batch in loader for index in batch.tolist()] for _ in range(2)]
    assert len(epochs[0]) == len(list(SAMPLERS[name]()))
    assert (epochs[0] == epochs[1]) == (name in ("sequential", "list"))


def test_a_sampler_with_a_generator_of_its_own_warns_and_its_resume_is_refused() -> None:
    generator = torch.Generator().manual_seed(1)

    def make() -> Loader:
        return Loader(DATA, 4, order=torch_data.RandomSampler(DATA, generator=generator))

    first = make()
    with pytest.warns(UserWarning, match="another order each time"):
        next(iter(first))
    with pytest.raises(ValueError, match="this loader has 'sampler-1"):
        make().load_state_dict(first.state_dict())


def test_a_sampler_that_deals_to_ranks_itself_is_refused() -> None:
    sampler = torch_data.DistributedSampler(DATA, num_replicas=2, rank=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="divides the samples over 2 ranks, and so does the Loader"):
        Loader(DATA, order=sampler)


def test_what_is_no_order_is_refused() -> None:
    with pytest.raises(TypeError, match="order is int, wanted a loaderkit order or a sampler"):
        as_order(3, seed=0)


def test_drawing_a_samplers_epoch_leaves_the_callers_generator_alone() -> None:
    torch.manual_seed(3)
    wanted = torch.rand(2).tolist()
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(Loader(DATA, 4, order=torch_data.RandomSampler(DATA)))) == 6
    assert torch.rand(2).tolist() == wanted


class Endless(torch_data.Sampler[int]):
    """Permutations without an end and without a length; counts what it gave."""

    def __init__(self, size: int, most: int | None = None) -> None:
        self.size, self.most, self.given = size, most, 0

    def __iter__(self) -> Any:
        self.given = 0
        while True:
            for index in torch.randperm(self.size).tolist():
                if self.given == self.most:
                    return
                self.given += 1
                yield index


class FailsAt:
    """The numbers up to 22; one of them cannot be read."""

    def __init__(self, bad: int) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> int:
        if index == self.bad:
            raise ValueError("cannot be read")
        return index


class Mistaken(Endless):
    def __len__(self) -> int:
        return 7


class Short(Mistaken):
    def __iter__(self) -> Any:
        return iter([4, 2, 0])


@pytest.mark.parametrize("workers", [0, 2])
def test_an_endless_sampler_resumes_anywhere_on_other_ranks(workers: int) -> None:
    """Also where it must be drawn for long before the position, and after a step back."""
    torch.manual_seed(3)
    wanted = torch.rand(2).tolist()
    torch.manual_seed(3)
    order = as_order(Endless(1000), seed=7)
    whole = order.indices(0, 0, 200_000)
    assert [sorted(each) for each in whole.reshape(200, 1000).tolist()] == [list(range(1000))] * 200
    for samples in (150_000, 60):
        for ranks in (1, 2):
            parts = []
            for rank in range(ranks):
                sampler = Endless(1000)
                loader = Loader(range(1000), 4, order=sampler, seed=7, num_workers=workers, world=World(rank, ranks))
                loader.seek(epoch=0, samples=samples)
                begun = itertools.islice(loader, 3)
                parts.append([batch.tolist() for batch in begun])
                state = loader.state_dict()
                again = Loader(range(1000), 4, order=Endless(1000), seed=7)
                again.load_state_dict(state)
                end = samples + 12 * ranks
                assert next(iter(again)).tolist() == whole[end : end + 4].tolist()
            steps = [index for step in zip(*parts, strict=True) for batch in step for index in batch]
            assert steps == whole[samples : samples + 12 * ranks].tolist()
    assert torch.rand(2).tolist() == wanted


def test_an_endless_sampler_is_drawn_step_by_step() -> None:
    """Neither the draws nor the memory grow ahead of the positions that are asked for."""
    given = itertools.count()
    order = as_order((number % 200 for number in given), seed=0)
    order.indices(0, 0, 1)
    tracemalloc.start()
    for start in range(0, 2_500_000, 1 << 15):
        order.indices(0, start, start + (1 << 15))
        assert next(given) < start + (1 << 18)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6  # all of them take 20 MB


def test_an_endless_sampler_has_no_number_of_batches() -> None:
    loader = Loader(DATA, 4, order=Endless(23))
    with pytest.raises(TypeError, match=r"the sampler Endless is endless.*max_steps"):
        len(loader)
    first = [batch.tolist() for batch in itertools.islice(loader, 3)]
    second = [batch.tolist() for batch in itertools.islice(loader, 3)]  # the next epoch
    assert loader.cursor.epoch == 1
    assert first != second
    with pytest.raises(ValueError, match=r"the state is for order .sampler-1.Endless"):
        Loader(DATA, 4, order=Endless(22)).load_state_dict(loader.state_dict())


def test_an_endless_sampler_may_have_bad_samples_replaced() -> None:
    loader = Loader(FailsAt(5), 4, order=Endless(23), bad_samples=BadSamples("replace"))
    batches = [batch.tolist() for batch in itertools.islice(loader, 20)]
    assert len({len(batch) for batch in batches}) == 1
    assert loader.bad_samples
    assert 5 not in itertools.chain(*batches)


def test_a_long_sampler_without_a_length_that_ends_after_all_is_an_error() -> None:
    loader = Loader(DATA, 4, order=Endless(23, most=100_000))
    with pytest.raises(
        RuntimeError, match=r"gave more than 65,536 indices, and ended after 100,000. Give it a __len__"
    ):
        for _ in loader:
            pass


def test_a_samplers_length_is_asked_first() -> None:
    """It gives no more; fewer are what the epoch has."""
    with pytest.raises(ValueError, match="Mistaken has the length 7 and gives more"):
        Loader(DATA, 4, order=Mistaken(23))
    loader = Loader(DATA, 2, order=Short(23))
    assert len(loader) == 2
    assert [batch.tolist() for batch in loader] == [[4, 2], [0]]


def test_a_batch_sampler_without_an_end_is_an_error() -> None:
    batches = ([index % 23] for index in itertools.count())
    with pytest.raises(ValueError, match="generator has no length and gives more than 262,144 batches, wanted an end"):
        Loader(DATA, batch_sampler=batches)
