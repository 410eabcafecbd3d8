"""Values that libraries read, as JSON that tells their types apart. It needs nothing but what the values themselves come from."""

import decimal
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Return a value as JSON: with the types, dtypes, shapes and modes, and every number and byte."""
    name = type(value).__name__
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, dict):
        return {"dict": [[plain(key), plain(each)] for key, each in value.items()]}
    if type(value) is list:
        return [plain(each) for each in value]
    if type(value) is tuple:
        return {"tuple": [plain(each) for each in value]}
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, decimal.Decimal):
        return {"decimal": str(value)}
    if name == "Tensor":
        as_numbers = value if value.dtype.itemsize > 2 or not value.dtype.is_floating_point else value.float()
        return {"tensor": str(value.dtype), "shape": list(value.shape), "values": _numbers(as_numbers.numpy())}
    if isinstance(value, np.ndarray):
        return {"array": str(value.dtype), "shape": list(value.shape), "values": _numbers(value)}
    if isinstance(value, np.generic):
        return {"number": str(value.dtype), "value": value.item()}
    if hasattr(value, "getbands"):
        return {"picture": value.mode, "size": list(value.size), "pixels": value.tobytes().hex()}
    raise TypeError(f"{name} has no plain form")


def _numbers(values: np.ndarray[Any, Any]) -> list[Any]:
    if values.dtype.kind == "c":
        return [[each.real, each.imag] for each in values.reshape(-1).tolist()]
    if values.dtype.kind in "SUV":
        return [each.tobytes().hex() for each in values.reshape(-1)]
    return list(values.reshape(-1).tolist())
