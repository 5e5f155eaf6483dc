"""Arguments that clients pass, as tensors that Heddle takes. Errors begin with the argument's name."""

from __future__ import annotations

from typing import Any

import torch
from heddle import UsageError

topk_idx_t = torch.int64


def check_ids(topk_idx: Any, name: str = "topk_idx") -> None:
    """[N, K] of an integer type."""
    _check_tensor(name, topk_idx)
    if topk_idx.dim() != 2 or topk_idx.dtype not in (torch.int32, torch.int64):
        raise UsageError(f"{name} is {_describe(topk_idx)}, legal: int64 or int32 [tokens, topk]")


def check_weights(topk_weights: Any, shape: tuple[int, ...], name: str = "topk_weights") -> None:
    """float32 of the shape."""
    _check_tensor(name, topk_weights)
    if topk_weights.dtype != torch.float32 or topk_weights.shape != shape:
        raise UsageError(f"{name} is {_describe(topk_weights)}, legal: float32 {list(shape)}")


def check_int32(tensor: Any, shape: tuple[int, ...], name: str, dtype: torch.dtype = torch.int32) -> None:
    """A contiguous integer tensor that a call adds to."""
    _check_tensor(name, tensor)
    if tensor.dtype != dtype or tuple(tensor.shape) != shape or not tensor.is_contiguous():
        raise UsageError(f"{name} is {_describe(tensor)}, legal: contiguous {_word(dtype)} {list(shape)}")


def rows_and_scales(x: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The two of `x`: a tensor, (rows, scales), or (rows, scales, scales), whose scales become one tensor."""
    if isinstance(x, (tuple, list)):
        if len(x) not in (2, 3):
            raise UsageError(f"x has {len(x)} tensors, legal: one, (rows, scales) or (rows, scales, scales)")
        if len(x) == 3:
            return _three(x)
        _check_tensor("x[0]", x[0])
        _check_tensor("x[1]", x[1])
        return _rows("x[0]", x[0]), _scales(x[1])
    _check_tensor("x", x)
    return _rows("x", x), None


def _three(x: Any) -> tuple[torch.Tensor, torch.Tensor]:
    for i, part in enumerate(x):
        _check_tensor(f"x[{i}]", part)
        if part.dim() != 2 or part.element_size() != 4:
            raise UsageError(f"x[{i}] is {_describe(part)}, legal in three parts: [tokens, any] of a 4-byte type")
    return x[0], torch.cat([part.contiguous().view(torch.int32) for part in x[1:]], dim=1)


def parts_like(x: Any, rows: torch.Tensor, scales: torch.Tensor | None) -> Any:
    """Received rows and scales in the form that `x` had."""
    if not isinstance(x, (tuple, list)):
        return rows
    if len(x) == 2:
        return rows, scales
    assert scales is not None  # three parts travel with scales
    first, second = scales.split([x[1].shape[1], x[2].shape[1]], dim=1)
    return rows, first.contiguous().view(x[1].dtype), second.contiguous().view(x[2].dtype)


def _rows(name: str, x: torch.Tensor) -> torch.Tensor:
    if x.dim() != 2:
        raise UsageError(f"{name} is {_describe(x)}, legal: [tokens, hidden]")
    return x


def _scales(scales: torch.Tensor) -> torch.Tensor:
    if scales.dim() != 2 or scales.element_size() != 4:
        raise UsageError(f"x[1] (scales) is {_describe(scales)}, legal: [tokens, scales] of a 4-byte type")
    return scales


def device_of(*values: Any) -> torch.device:
    """Of the first tensor among them, or in them; the CPU's if there is none."""
    for value in values:
        if isinstance(value, torch.Tensor):
            return value.device
        if isinstance(value, (tuple, list)) and value and isinstance(value[0], torch.Tensor):
            return value[0].device
    return torch.device("cpu")


def biases(bias: Any) -> tuple[torch.Tensor, ...]:
    """0 to 2 tensors."""
    if bias is None:
        return ()
    all_of = tuple(bias) if isinstance(bias, (tuple, list)) else (bias,)
    if len(all_of) > 2:
        raise UsageError(f"bias has {len(all_of)} tensors, legal: 0 to 2")
    for one in all_of:
        _check_tensor("bias", one)
    return all_of


def positive(name: str, value: Any, least: int = 1) -> int:
    """An int; callers pass floats such as experts / ranks, too."""
    if type(value) is int and value >= least:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or value < least:
        raise UsageError(f"{name} is {value!r}, legal: a whole number, {least} or more")
    return int(value)


def _check_tensor(name: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        raise UsageError(f"{name} is a {type(value).__name__}, legal: a tensor")


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def describe(value: Any) -> str:
    """What an error says of an argument."""
    return _describe(value) if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def _describe(tensor: torch.Tensor) -> str:
    return f"{_word(tensor.dtype)} {list(tensor.shape)}"
