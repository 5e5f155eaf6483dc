"""NVFP4: 4-bit elements e2m1, a scale e4m3 for each 16, one FP32 factor for all."""

from __future__ import annotations

import torch
from heddle import UsageError

BLOCK = 16
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Half-way between neighbours; a tie goes to the even code.
_TIES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def check(x: torch.Tensor, x_global_scale: torch.Tensor | None) -> None:
    """Raises UsageError for what cannot be quantised."""
    if x.dtype != torch.bfloat16 or x.shape[1] % 64:
        raise UsageError(f"x is {x.dtype} {list(x.shape)}, legal with use_nvfp4: bfloat16 with hidden a multiple of 64")
    if not isinstance(x_global_scale, torch.Tensor) or x_global_scale.numel() < 1:
        raise UsageError("x_global_scale is not a tensor of one float32, legal with use_nvfp4: one")


def quantise(x: torch.Tensor, global_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """([N, H / 2] uint8, first channel in the low nibble; [N, H / 16] float8_e4m3fn) of [N, H]: x ~ q * scale / G."""
    tokens, hidden = x.shape
    g = global_scale.flatten()[0].to(torch.float32)
    blocks = x.to(torch.float32).unflatten(1, (hidden // BLOCK, BLOCK))
    largest = blocks.abs().amax(dim=2)
    scale = (g * (largest * (1.0 / 6.0))).clamp(max=448.0).to(torch.float8_e4m3fn)
    wide = scale.to(torch.float32)
    factor = torch.where(wide > 0, g / wide, torch.zeros_like(wide))
    codes = encode(blocks * factor[:, :, None]).reshape(tokens, hidden // 2, 2)
    return codes[:, :, 0] | (codes[:, :, 1] << 4), scale


def encode(values: torch.Tensor) -> torch.Tensor:
    """e2m1 codes as uint8: nearest, ties to even, at most 6."""
    size = values.abs()
    above = torch.tensor(_TIES, device=values.device)
    # Where a tie's lower code is odd the upper one is even, and takes it.
    code = torch.bucketize(size, above, right=False)
    tie_up = torch.tensor([i % 2 == 1 for i in range(len(_TIES))] + [False], device=values.device)
    is_tie = torch.zeros_like(size, dtype=torch.bool)
    for tie in _TIES:
        is_tie |= size == tie
    code = code + (is_tie & tie_up[code]).to(code.dtype)
    return (code | (torch.signbit(values).to(code.dtype) << 3)).to(torch.uint8)


def decode(packed: torch.Tensor) -> torch.Tensor:
    """[..., H] float32 of [..., H / 2] bytes."""
    table = torch.tensor([*_MAGNITUDES, *(-m for m in _MAGNITUDES)], device=packed.device)
    both = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)
    return table[both.to(torch.int64)]


def empty_outputs(experts: int, rows: int, hidden: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(q [rows, H / 2, L], scales [32, 4, ceil(rows / 128), 4, H / 64, L]) as grouped GEMMs read them."""
    q = torch.zeros(experts, rows, hidden // 2, dtype=torch.uint8, device=device)
    tiles, columns = -(-rows // 128), -(-hidden // 64)
    sf = torch.zeros(experts, tiles, columns, 32, 4, 4, dtype=torch.uint8, device=device)
    return q.permute(1, 2, 0), sf.view(torch.float8_e4m3fn).permute(3, 4, 1, 5, 2, 0)


def place_scales(sf: torch.Tensor, linear: torch.Tensor) -> None:
    """Writes [L, rows, H / 16] scale bytes to where `empty_outputs` has them: the 128x4 swizzle of row t, block j."""
    experts, rows, blocks = linear.shape
    tiles, columns = -(-rows // 128), -(-blocks // 4)
    padded = linear.new_zeros(experts, tiles * 128, columns * 4)
    padded[:, :rows, :blocks] = linear
    swizzled = padded.view(experts, tiles, 4, 32, columns, 4).permute(0, 1, 4, 3, 2, 5)
    sf.view(torch.uint8).permute(5, 2, 4, 0, 1, 3).copy_(swizzled)
