"""Tensors as rows that dispatches carry: any bytes, in rows of one size."""

from __future__ import annotations

import torch

ROW_BYTES = 1 << 14


def row_bytes_of(num_bytes: int) -> int:
    """Bytes of a row: a multiple of 16, at most ROW_BYTES."""
    return min(max(-(-num_bytes // 16) * 16, 16), ROW_BYTES)


def num_rows(num_bytes: int) -> int:
    return -(-num_bytes // row_bytes_of(num_bytes))


def to_rows(tensor: torch.Tensor) -> torch.Tensor:
    """[rows, row bytes] uint8 of the tensor's bytes, the last row filled up with zeros."""
    flat = tensor.detach().contiguous().flatten().view(torch.uint8)
    width, rows = row_bytes_of(flat.numel()), num_rows(flat.numel())
    missing = rows * width - flat.numel()
    return torch.nn.functional.pad(flat, (0, missing)).view(rows, width)


def from_rows(rows: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """The tensor again."""
    num_bytes = shape.numel() * dtype.itemsize
    return rows.flatten()[:num_bytes].clone().view(dtype).view(shape)
