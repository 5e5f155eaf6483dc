"""What travels for the rows of a low-latency dispatch, and how its results are made of what arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import heddle
import torch
from heddle import UsageError

from . import nvfp4


class Form(NamedTuple):
    """What travels for x, and how the results are made of what arrives."""

    rows: torch.Tensor
    scales: torch.Tensor | None
    quantise: str
    outputs: Callable[[heddle.Received], Any]
    finish: Callable[[heddle.Received, Any], None]


def form_of(
    x: torch.Tensor, use_fp8: bool, round_scale: bool, use_ue8m0: bool, use_nvfp4: bool, scale: Any, per_token: bool
) -> Form:
    if use_ue8m0 and not round_scale:
        raise UsageError("use_ue8m0 is True with round_scale False, legal: both")
    if use_nvfp4:
        if use_fp8:
            raise UsageError("use_fp8 is True with use_nvfp4, legal: False")
        return _nvfp4_form(x, scale)
    if per_token:
        return _per_token_form(x, use_ue8m0, round_scale)
    if not use_fp8:
        return Form(x, None, "none", lambda got: got.x, _nothing)
    if x.dtype != torch.bfloat16:
        raise UsageError(f"x is {x.dtype}, legal with use_fp8: bfloat16")
    how = "fp8_ue8m0" if use_ue8m0 else "fp8_pow2" if round_scale else "fp8"
    return Form(x, None, how, lambda got: (got.x, got.scales), _nothing)


def _nothing(received: heddle.Received, outputs: Any) -> None:
    pass


def _nvfp4_form(x: torch.Tensor, global_scale: Any) -> Form:
    nvfp4.check(x, global_scale)
    packed, scales = nvfp4.quantise(x, global_scale)
    hidden = x.shape[1]

    def outputs(received: heddle.Received) -> tuple[torch.Tensor, torch.Tensor]:
        experts, rows, _ = received.x.shape
        _, sf = nvfp4.empty_outputs(experts, rows, hidden, x.device)
        return received.x.permute(1, 2, 0), sf

    def finish(received: Any, made: Any) -> None:
        nvfp4.place_scales(made[1], received.scales.clone(memory_format=torch.contiguous_format).view(torch.uint8))

    return Form(packed.contiguous(), scales.contiguous().view(torch.int32), "none", outputs, finish)


def ready_fp4(x: torch.Tensor, scales: torch.Tensor) -> Form:
    """Rows of 4-bit elements with a scale byte for each 16, as they are."""

    def outputs(received: heddle.Received) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (*received.x.shape[:2], scales.shape[1])
        return received.x, torch.zeros(shape, dtype=scales.dtype, device=x.device)

    def finish(received: Any, made: Any) -> None:
        dense = received.scales.clone(memory_format=torch.contiguous_format)
        made[1].view(torch.uint8).copy_(dense.view(torch.uint8))

    return Form(x.contiguous(), scales.contiguous().view(torch.int32), "none", outputs, finish)


def _per_token_form(x: torch.Tensor, use_ue8m0: bool, round_scale: bool) -> Form:
    if x.dtype != torch.bfloat16:
        raise UsageError(f"x is {x.dtype}, legal with pertoken_quant: bfloat16")
    wide = x.to(torch.float32)
    largest = wide.abs().amax(dim=1, keepdim=True).clamp(min=1e-4)
    scale = largest / 448.0
    if round_scale:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    rows = (wide / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    scales = scale.view(torch.int32) >> 23 if use_ue8m0 else scale
    return Form(rows, scales, "none", lambda got: (got.x, got.scales), _nothing)
