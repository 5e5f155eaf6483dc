"""Memory that a caller writes experts' rows to, for combines that copy nothing."""

from __future__ import annotations

import torch


class CombineBuffers:
    """One for each shape (L, R M, H)."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int, int], torch.Tensor] = {}

    def __contains__(self, shape: tuple[int, int, int]) -> bool:
        return shape in self._made

    def of(self, shape: tuple[int, int, int], device: torch.device) -> torch.Tensor:
        """bfloat16 of the shape; rows lie H + H / 64 apart."""
        experts, rows, hidden = shape
        pitch = hidden + hidden // 64
        if shape not in self._made:
            self._made[shape] = torch.zeros(experts * rows * pitch, dtype=torch.bfloat16, device=device)
        return self._made[shape].as_strided(shape, (rows * pitch, pitch, 1))
