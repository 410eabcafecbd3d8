"""Tensors pickled by value, with their memory in buffers of their own: fast, and without torch's shared memory."""

import pickle
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.storage import TypedStorage, UntypedStorage

_SPARSE = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}

T = TypeVar("T")


class TensorsByValue:
    """A base class for picklers of protocol 5. It gives the memory of CPU tensors and storages to the buffer callback.

    A view is pickled without the rest of its storage. Tensors that share memory become separate ones.
    """

    def reducer_override(self, value: Any) -> Any:
        # All by value: torch's own reductions use its own shared memory.
        if isinstance(value, Tensor) and value.is_cpu:
            dense = value.layout == torch.strided and not value.is_quantized and not value.is_nested
            if type(value) is Tensor and dense:
                return self._tensor(value)
            if type(value) is Tensor and value.layout in _SPARSE:
                return _make_sparse, _sparse_parts(value)
            if dense and value.untyped_storage().nbytes() > value.nbytes:
                value = value.detach().clone().requires_grad_(value.requires_grad)  # a storage travels as a whole
            return value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        if isinstance(value, UntypedStorage) and value.device.type == "cpu":
            content = torch.empty(0, dtype=torch.uint8, device="cpu").set_(value).numpy()
            return _make_storage, (self._buffer(content, value.data_ptr()),)
        if isinstance(value, TypedStorage):
            return _make_typed_storage, (value._untyped_storage, value.dtype)
        return NotImplemented

    def _tensor(self, value: Tensor) -> object:
        plain, stride = value, None
        if value.requires_grad or value.is_conj() or value.is_neg():
            plain = value.detach().resolve_conj().resolve_neg()
        if not plain.is_contiguous():
            dense = plain.permute(sorted(range(plain.dim()), key=plain.stride, reverse=True))
            plain, stride = (dense, plain.stride()) if dense.is_contiguous() else (plain.contiguous(), None)
        try:
            content = plain.numpy()
        except TypeError:  # numpy lacks the dtype
            content = plain.reshape(-1).view(torch.uint8).numpy()
        more = (stride, value.requires_grad, vars(value)) if stride or value.requires_grad or vars(value) else ()
        return _make_tensor, (self._buffer(content, plain.data_ptr()), value.dtype, tuple(value.shape), *more)

    def _buffer(self, content: Any, address: int) -> pickle.PickleBuffer:
        """Return a buffer over `content`, whose memory starts at `address`. A pickler can send it outside the pickle."""
        return pickle.PickleBuffer(content)


def lazy_parts(value: Tensor) -> object:
    """Reduce a tensor whose conjugation or negation is only marked, not computed; NotImplemented for other tensors.

    torch's own reduction forgets the mark: another process would get other numbers.
    """
    if value.is_conj():
        return torch.conj, (value.conj(),)
    return (torch._neg_view, (torch._neg_view(value),)) if value.is_neg() else NotImplemented


def same(value: T) -> T:
    """Return the value. A reduction calls this function to pickle another object in place of the original."""
    return value


def _make_tensor(
    memory: Any,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    stride: tuple[int, ...] | None = None,
    requires_grad: bool = False,
    attributes: dict[str, object] | None = None,
) -> Tensor:
    """Return a tensor over memory. Its storage has only this tensor, so `torch.save` writes nothing else."""
    tensor: Tensor = torch.frombuffer(memory, dtype=dtype) if len(memory) else torch.empty(0, dtype=dtype, device="cpu")
    tensor = tensor.view(shape) if stride is None else tensor.as_strided(shape, stride)
    if requires_grad:
        tensor.requires_grad_()
    if attributes:
        vars(tensor).update(attributes)
    return tensor


def _make_storage(memory: Any) -> UntypedStorage:
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage() if len(memory) else UntypedStorage(0)  # type: ignore[no-untyped-call]  # torch has no types for it


def _make_typed_storage(untyped: UntypedStorage, dtype: torch.dtype) -> TypedStorage:
    return TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]  # torch has no types for it


def _sparse_parts(tensor: Tensor) -> tuple[object, ...]:
    # Not by torch's own reduction: it keeps what it rebuilds until the next `torch.load`.
    parts: tuple[Tensor, ...]
    if tensor.layout == torch.sparse_coo:
        parts = (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    else:
        parts = (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    coalesced = tensor.layout == torch.sparse_coo and tensor.is_coalesced()
    return tensor.layout, tuple(tensor.shape), coalesced, tensor.requires_grad, *(part.detach() for part in parts)


def _make_sparse(
    layout: torch.layout, shape: tuple[int, ...], coalesced: bool, requires_grad: bool, *parts: Tensor
) -> Tensor:
    if layout == torch.sparse_coo:
        make: Any = partial(torch.sparse_coo_tensor, is_coalesced=coalesced)
    else:
        make = partial(torch.sparse_compressed_tensor, layout=layout)
    # The parts were checked when the tensor was made. Torch 2.11 warns if only the call says so.
    with torch.sparse.check_sparse_tensor_invariants(enable=False):  # type: ignore[no-untyped-call]  # torch has no types for it
        made: Tensor = make(*parts, shape, device=parts[0].device, requires_grad=requires_grad, check_invariants=False)
    return made
