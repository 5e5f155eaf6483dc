"""4-bit elements e2m1 with a scale for each 16. NVFP4: scales e4m3 and one FP32 factor for all; Heddle casts rows to
it. Or scales that are powers of two, a byte of exponent each; those rows are cast here, before they travel."""

from __future__ import annotations

import torch
from heddle import UsageError

_BLOCK = 16


def check(x: torch.Tensor) -> None:
    """Raises UsageError for rows that cannot be quantised."""
    if x.dtype != torch.bfloat16 or x.shape[1] % 64:
        raise UsageError(f"x is {x.dtype} {list(x.shape)}, legal with use_nvfp4: bfloat16 with hidden a multiple of 64")


def check_scale(x_global_scale: torch.Tensor | None) -> None:
    if not isinstance(x_global_scale, torch.Tensor) or x_global_scale.numel() < 1:
        raise UsageError("x_global_scale is not a tensor of one float32, legal with use_nvfp4: one")


def by_powers(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(elements [N, H / 2] uint8, the even one in the low half; exponents, four to an int32, [N, H / 64]): the least
    power of two that keeps the largest of 16 within 6; byte 127 is 1, and 0 where all are 0."""
    blocks = x.to(torch.float32).unflatten(1, (-1, _BLOCK))
    mantissa, exponent = torch.frexp(blocks.abs().amax(dim=2) / 6.0)
    byte = torch.where(mantissa == 0, 0, exponent + 127 - (mantissa == 0.5).to(exponent.dtype)).clamp(0, 254)
    codes = _e2m1(torch.ldexp(blocks, torch.where(byte == 0, 0, 127 - byte)[:, :, None])).flatten(1)
    rows = codes[:, 0::2] | codes[:, 1::2] << 4
    return rows, byte.to(torch.uint8).contiguous().view(torch.int32)


def _e2m1(values: torch.Tensor) -> torch.Tensor:
    """The nearest of 0, .5, 1, 1.5, 2, 3, 4, 6 with its sign; of two as near the even code."""
    size = values.abs()
    over = (size > 0.25, size >= 0.75, size > 1.25, size >= 1.75, size > 2.5, size >= 3.5, size > 5.0)
    code = torch.stack(over).sum(dim=0, dtype=torch.uint8)
    return code | torch.signbit(values).to(torch.uint8) << 3


def as_gemms_read_it(
    q: torch.Tensor, tiles: torch.Tensor, scale_type: torch.dtype = torch.float8_e4m3fn
) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of q [L, rows, H / 2] and tiles [L, rows / 128, H / 64, 32, 4] int32 as grouped GEMMs take them: q
    [rows, H / 2, L], scales [32, 4, rows / 128, 4, H / 64, L] of a type of one byte."""
    scales = tiles.view(scale_type).unflatten(4, (4, 4))
    return q.permute(1, 2, 0), scales.permute(3, 4, 1, 5, 2, 0)
