"""A dataset's own state as a JSON text, which checkpoints and other processes keep unchanged."""

import base64
import json
from typing import Any

import numpy as np
import torch


def encode(value: object) -> str:
    """Return a state as JSON.

    It may contain None, booleans, numbers, strings, bytes, lists, tuples, dicts, tensors on the CPU and numpy arrays of
    numbers.

    Raises:
        TypeError: If it contains anything else.
    """
    return json.dumps(_pack(value))


def decode(text: str) -> Any:
    """Return the state from which `encode` made a text."""
    return _unpack(json.loads(text))


def _pack(value: Any) -> object:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [_pack(part) for part in value]
    if kind is dict:
        if all(type(key) is str and not key.startswith("!") for key in value):
            return {key: _pack(part) for key, part in value.items()}
        return {"!dict": [[_pack(key), _pack(part)] for key, part in value.items()]}
    if kind is tuple:
        return {"!tuple": [_pack(part) for part in value]}
    if kind is bytes:
        return {"!bytes": _text(value)}
    if kind is torch.Tensor and value.device.type == "cpu" and value.layout is torch.strided:
        content = value.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return {"!tensor": [str(value.dtype).removeprefix("torch."), list(value.shape), _text(content)]}
    if isinstance(value, np.ndarray | np.number | np.bool_) and value.dtype.kind in "biufc":
        return {"!array": [value.dtype.str, list(value.shape), _text(value.tobytes()), isinstance(value, np.ndarray)]}
    raise TypeError(
        f"a value of type {kind.__name__}, wanted numbers, strings, bytes, None, tensors on the CPU, numpy arrays of numbers, or "
        "lists, tuples and dicts of them"
    )


def _unpack(value: object) -> object:
    if isinstance(value, list):
        return [_unpack(part) for part in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"!dict": pairs}:
            return {_unpack(key): _unpack(part) for key, part in pairs}
        case {"!tuple": parts}:
            return tuple(_unpack(part) for part in parts)
        case {"!bytes": text}:
            return base64.b64decode(text)
        case {"!tensor": [name, shape, text]}:
            content = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8) if text else torch.empty(0)
            dtype = getattr(torch, name)
            return content.view(dtype).reshape(shape) if text else torch.empty(shape, dtype=dtype)
        case {"!array": [name, shape, text, whole]}:
            array = np.frombuffer(base64.b64decode(text), np.dtype(name)).reshape(shape)
            return array.copy() if whole else array[()]
    return {key: _unpack(part) for key, part in value.items()}


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
