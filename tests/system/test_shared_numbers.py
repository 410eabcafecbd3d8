"""A process gets its own copy of the shared numbers that something writes or tells, and of no others."""

from typing import Any

import pytest
import torch

from loaderkit.system.shared_numbers import own_numbers


class Holder:
    def __init__(self, start: Any) -> None:
        self.written = {"here": [torch.tensor(start).share_memory_()]}
        self.told: Any = (torch.tensor(start).share_memory_(),)
        self.other = torch.tensor(start).share_memory_()
        self.large = torch.zeros(2).share_memory_()


@pytest.mark.parametrize("start", [0, 7, 2.5])
@pytest.mark.parametrize("number", [0, 1, 7, 8, 83, 84, 90])
@pytest.mark.parametrize("adds", [False, True])
def test_what_is_written_or_told_is_own_and_the_rest_stays_shared(start: Any, number: int, adds: bool) -> None:
    """Whatever is written, also what the number is already."""
    holder = Holder(start)
    (written,), (told,), other = holder.written["here"], holder.told, holder.other
    views = [part.view(1) for part in (written, told, other)]  # of the shared memory

    def write() -> None:
        if adds:
            written.add_(number - written)
        else:
            written.fill_(number)

    own_numbers(holder, write, lambda: (float(written), float(told)))
    assert [float(part) for part in (written, told, other)] == [start, start, start]
    for part in (written, told, other):
        part.fill_(99)
    assert [float(view) for view in views] == [start, start, 99]
    assert not written.is_shared()
    assert not told.is_shared()
    assert other.is_shared()
    assert holder.large.is_shared()


def test_a_value_that_holds_itself_is_searched_once() -> None:
    holder = Holder(1)
    holder.told = [holder, holder.told, list(range(100_000))]
    own_numbers(holder, lambda: None, lambda: None)
    assert holder.other.is_shared()
