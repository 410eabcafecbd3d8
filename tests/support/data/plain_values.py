"""Values as JSON has them: what the formats' own readers give is kept so, next to the files that their writers made."""

import base64
import datetime
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import torch


def plain(value: Any) -> Any:
    """Return a value as JSON has it: arrays and tensors with dtype and shape, bytes in base 64, tuples as lists."""
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return list(map(plain, value))
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return {type(value).__name__: value.isoformat()}
    if isinstance(value, Decimal | uuid.UUID):
        return {type(value).__name__: str(value)}
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return {"tensor": dtype, "shape": list(value.shape), "values": value.flatten().tolist()}
    if isinstance(value, np.ndarray | np.generic):
        return {"array": str(value.dtype), "shape": list(value.shape), "values": plain(value.flatten().tolist())}
    return value
