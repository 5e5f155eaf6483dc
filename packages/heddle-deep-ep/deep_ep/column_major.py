"""Scales as TMA reads them: column by column, each beginning at a multiple of 16 bytes."""

from __future__ import annotations

import torch

from .sizes import align


def column_major(scales: torch.Tensor) -> torch.Tensor:
    """A copy of [..., columns] of a 4-byte type whose rows lie side by side: strides (..., 1, rows rounded up to 4)."""
    *outer, columns = scales.shape
    rows = torch.Size(outer).numel()
    pitch = align(rows, 4)
    view = scales.new_zeros(columns * pitch).as_strided((rows, columns), (1, pitch))
    view.copy_(scales.reshape(rows, columns))
    return view.unflatten(0, outer) if len(outer) != 1 else view
