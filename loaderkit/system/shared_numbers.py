"""Numbers in memory that processes share, and how a process gets its own copy."""

from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from loaderkit.system.object_graph import parts_of

_PARTS = 2_000  # the most parts of a value to search, those near its root first
# Added to a number, to see whether `write` changes it. Two, because `write` may write just one of the sums.
_OFFSETS = (83, 1)


def own_numbers(value: object, write: Callable[[], object], tell: Callable[[], object]) -> None:
    """Give this process its own copy of each shared number in a value that `write` changes, or that changes `tell`'s result.

    A dataset may keep its epoch in a tensor in shared memory, so that persistent workers see it. What one process writes
    there, others read. All other numbers stay shared: a trainer may use them to tell its workers something.

    Args:
        value: A dataset. Its attributes and entries are searched for tensors of one number in shared memory.
        write: Writes numbers of the value, such as its epoch. It may be called several times.
        tell: Returns what may depend on the numbers. Its results are compared.
    """
    numbers = list(_shared_numbers(value))
    shared = [number.data for number in numbers]
    for number in numbers:  # all of them first: no call of `write` may change shared memory
        number.data = number.data.clone()
    own = [_concerns(number, write, tell) for number in numbers]
    for number, memory, is_own in zip(numbers, shared, own, strict=True):
        number.data = memory.clone() if is_own else memory


def _concerns(number: Tensor, write: Callable[[], object], tell: Callable[[], object]) -> bool:
    before, found = number.data.clone(), False
    for offset in _OFFSETS:
        told = tell()
        number.data = before + offset
        found = found or tell() != told
        write()
        found = found or not torch.equal(number.data, before + offset)
        number.data = before.clone()
    return found


def _shared_numbers(value: object) -> Iterator[Tensor]:
    seen, left = {id(value)}, deque([value])
    for _ in range(_PARTS):
        if not left:
            return
        for _, part in list(parts_of("", left.popleft())):
            if id(part) in seen or isinstance(part, type | ModuleType):
                continue
            seen.add(id(part))
            if not isinstance(part, Tensor):
                left.append(part)
            elif _is_shared_number(part):
                yield part


def _is_shared_number(tensor: Any) -> bool:
    is_number = tensor.device.type == "cpu" and tensor.numel() == 1 and tensor.dtype != torch.bool
    return is_number and bool(tensor.is_shared())
