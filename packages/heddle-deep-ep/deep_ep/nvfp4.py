"""NVFP4: 4-bit elements e2m1, a scale e4m3 for each 16, one FP32 factor for all. Heddle casts rows to it."""

from __future__ import annotations

import torch
from heddle import UsageError


def check(x: torch.Tensor, x_global_scale: torch.Tensor | None) -> None:
    """Raises UsageError for what cannot be quantised."""
    if x.dtype != torch.bfloat16 or x.shape[1] % 64:
        raise UsageError(f"x is {x.dtype} {list(x.shape)}, legal with use_nvfp4: bfloat16 with hidden a multiple of 64")
    if not isinstance(x_global_scale, torch.Tensor) or x_global_scale.numel() < 1:
        raise UsageError("x_global_scale is not a tensor of one float32, legal with use_nvfp4: one")


def as_gemms_read_it(q: torch.Tensor, tiles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of q [L, rows, H / 2] and tiles [L, rows / 128, H / 64, 32, 4] int32 as grouped GEMMs take them: q
    [rows, H / 2, L], scales float8_e4m3fn [32, 4, rows / 128, 4, H / 64, L]."""
    scales = tiles.view(torch.float8_e4m3fn).unflatten(4, (4, 4))
    return q.permute(1, 2, 0), scales.permute(3, 4, 1, 5, 2, 0)
