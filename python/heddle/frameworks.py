"""Which framework a caller's arrays belong to: results are of the same. torch is never imported here; a tensor of it
can only come from a program that has."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np

Array = Any
"""A NumPy array, or a torch tensor."""


def is_torch(array: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def readable(array: Array) -> Array:
    """The array as C++ takes it: without autograd's claim on it, which DLPack does not carry. C++ asks for this where
    torch has no table of functions (python/src/exchange.hpp)."""
    if not is_torch(array):
        return array
    return _described(array) if array.is_cuda or "float8" in name_of(array.dtype) else array.detach()


def _described(tensor: Any) -> tuple[Any, ...]:
    """What DLPack cannot hand over as it is; see array.cpp."""
    return (tensor, tensor.data_ptr(), name_of(tensor.dtype), tuple(tensor.shape), tensor.stride(), tensor.device.index)


@cache
def name_of(dtype: Any) -> str:
    """Of one of torch's types, as C++ knows it."""
    name = str(dtype).removeprefix("torch.")
    return {"bool": "uint8", "uint32": "int32"}.get(name, name)


def dense(array: Array, *, inner: bool = False) -> Array:
    """The array itself if C++ can read it, else a contiguous copy. `inner`: rows must be dense, and may lie apart."""
    if is_torch(array):
        array = array.detach()
        fits = array.is_contiguous() or (inner and array.dim() == 2 and array.stride(1) == 1)
        return readable(array if fits else array.contiguous())
    if isinstance(array, np.ndarray):
        if array.flags.c_contiguous or (inner and array.ndim == 2 and _has_dense_rows(array)):
            return array
        return np.ascontiguousarray(array)
    return array


def _has_dense_rows(array: np.ndarray) -> bool:
    rows_apart = array.strides[0] >= 0 and array.strides[0] % array.itemsize == 0
    return array.strides[1] == array.itemsize and rows_apart


def dtype_name(dtype: object | None) -> str | None:
    """ "bfloat16" for "bfloat16", torch.bfloat16, np.float32 or np.dtype("float32")."""
    if dtype is None or isinstance(dtype, str):
        return dtype
    if isinstance(dtype, (np.dtype, type)):
        return np.dtype(dtype).name
    return str(dtype)
