"""Numbers in memory that processes share, and how a process gets its own copy."""

from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from loaderkit.system.object_graph import parts_of

_PARTS = 2_000  # of a value that are searched, those near its root first
_OFFSETS = (83, 1)  # two, because what is written may equal the number with one of them


def own_numbers(value: object, write: Callable[[], object], tell: Callable[[], object]) -> None:
    """Give this process its own copy of each shared number in a value that `write` writes or that `tell` tells.

    A dataset may keep its epoch in a tensor in shared memory, which reaches workers that persist. What one process writes
    there, others read. A number that neither concerns stays shared: a trainer may tell its workers something by it.

    Args:
        value: A dataset. Its attributes and entries are searched for tensors of one number.
        write: It may be called several times.
        tell: Its results are compared.
    """
    numbers = list(_shared_numbers(value))
    shared = [number.data for number in numbers]
    for number in numbers:  # all at first: no call may write what is shared
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
