"""How the shards of a stream are dealt to its lanes."""

import pickle

import pytest

from loaderkit.datasets.streams.deal import Deal, ShardShare


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize(("lanes", "share"), [(1, 1), (2, 1), (3, 2), (5, 5), (9, 4)])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_each_share_of_each_shard_is_in_one_lane(count: int, lanes: int, share: int, shuffled: bool) -> None:
    names = [f"shard {number}" for number in range(count)]
    deal = Deal(shards=names, lanes=lanes, window=4, shuffled=shuffled, seed=3, share=share, block=2)
    wanted = sorted(ShardShare(name, number, share) for name in names for number in range(share))
    assert len(wanted) == deal.shares
    for cycle in range(3):
        dealt = [deal.of(cycle, lane) for lane in range(lanes)]
        assert sorted(one for lane in dealt for one in lane) == wanted
        assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
        assert dealt == [pickle.loads(pickle.dumps(deal)).of(cycle, lane) for lane in range(lanes)]


def test_only_a_shuffled_deal_has_another_order_in_each_cycle_and_path() -> None:
    settings = {"shards": list(map(str, range(50))), "lanes": 1, "window": 4, "seed": 3, "share": 1, "block": 2}
    for shuffled in (False, True):
        deal = Deal(**settings, shuffled=shuffled)
        orders = [deal.of(cycle, 0, path) for cycle in range(3) for path in ((), (0,), (1,))]
        assert len(set(map(tuple, orders))) == (9 if shuffled else 1)
