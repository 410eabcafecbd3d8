"""A dataset may change its length between epochs, and at no other time."""

from typing import Any

import pytest

import loaderkit as lk


def numbers(loader: Any) -> list[int]:
    return [i for batch in loader for i in batch.tolist()]


@pytest.mark.parametrize("settings", [{}, {"shuffle": True}, {"num_workers": 2, "persistent_workers": True}])
def test_each_epoch_reads_the_length_at_its_start(settings: dict[str, Any]) -> None:
    data = list(range(10))
    loader = lk.Loader(data, 3, **settings)
    assert len(loader) == 4
    assert sorted(numbers(loader)) == list(range(10))
    data += range(10, 16)
    assert len(loader) == 6
    assert sorted(numbers(loader)) == list(range(16))
    del data[5:]
    assert sorted(numbers(loader)) == list(range(5))
    loader.close()


@pytest.mark.parametrize("change", [lambda data: data.append(10), lambda data: data.pop()])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_change_within_an_epoch_is_an_error(change: Any, num_workers: int) -> None:
    data = list(range(10))
    batches = iter(lk.Loader(data, 3, num_workers=num_workers))
    next(batches)
    change(data)
    with pytest.raises(RuntimeError, match="samples, and had 10 when the epoch began"):
        list(batches)


def test_a_change_between_a_state_and_its_resume_is_an_error() -> None:
    data = list(range(10))
    loader = lk.Loader(data, 3)
    next(iter(loader))
    state = loader.state_dict()
    again = lk.Loader(data, 3)
    data.append(10)
    with pytest.raises(ValueError, match=r"10 samples.*11 samples"):
        again.load_state_dict(state)
    again = lk.Loader(data, 3)
    data.pop()
    again.load_state_dict(state)
    assert numbers(again) == list(range(3, 10))


def test_a_plan_for_another_length_is_an_error() -> None:
    data = [[0] * n for n in range(1, 9)]
    loader = lk.Loader(data, plan=lk.LengthBuckets([len(row) for row in data], batch_size=2), collate_fn=list)
    list(loader)
    data.append([0])
    with pytest.raises(ValueError, match="lengths of 8 samples, the dataset has 9"):
        list(loader)


class WithState(list[int]):
    """A dataset that counts its reads and saves the count."""

    def state_dict(self) -> dict[str, int]:
        return {"reads": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


def test_a_datasets_own_state_is_not_ignored_in_silence() -> None:
    loader = lk.Loader(WithState(range(4)), 2)
    with pytest.warns(UserWarning, match="WithState has its own state_dict, which a Loader's state does not include"):
        list(loader)
