"""What travels for the rows of a low-latency dispatch, and how its results are made of what arrives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from heddle import UsageError

from . import nvfp4


class Form(NamedTuple):
    """What travels for x, and how the results are made of the rows and scales that arrive."""

    rows: torch.Tensor
    scales: torch.Tensor | None
    options: dict[str, Any]
    """Of the dispatch."""
    outputs: Callable[[torch.Tensor, Any], Any]
    finish: Callable[[Any, Any], None] | None = None
    """Once they have arrived, with their scales and the results."""
    global_scale: torch.Tensor | None = None


class Choices(NamedTuple):
    """Arguments of low_latency_dispatch()."""

    use_fp8: bool
    round_scale: bool
    use_ue8m0: bool
    use_nvfp4: bool
    use_ue8m0_for_sf: bool
    x_global_scale: Any
    pertoken_quant: bool


def form_of(x: torch.Tensor, choices: Choices) -> Form:
    use_fp8, round_scale, use_ue8m0, use_nvfp4, powers, scale, per_token = choices
    if use_ue8m0 and not round_scale:
        raise UsageError("use_ue8m0 is True with round_scale False, legal: both")
    if use_nvfp4:
        if use_fp8:
            raise UsageError("use_fp8 is True with use_nvfp4, legal: False")
        return _fp4_by_powers(x) if powers else _nvfp4_form(x, scale)
    if powers:
        raise UsageError("use_ue8m0_for_sf is True with use_nvfp4 False, legal: both")
    if per_token and (round_scale or use_ue8m0):
        return _per_token_power_of_two(x, use_ue8m0)
    if not use_fp8 and not per_token:
        return Form(x, None, {}, _rows)
    if x.dtype != torch.bfloat16:
        raise UsageError(f"x is {x.dtype}, legal with {'pertoken_quant' if per_token else 'use_fp8'}: bfloat16")
    how = "fp8_row" if per_token else "fp8_ue8m0" if use_ue8m0 else "fp8_pow2" if round_scale else "fp8"
    return Form(x, None, {"quantise": how}, _rows_and_scales)


def _rows(x: torch.Tensor, scales: Any) -> Any:
    return x


def _rows_and_scales(x: torch.Tensor, scales: Any) -> Any:
    return x, scales


def _nvfp4_form(x: torch.Tensor, global_scale: Any) -> Form:
    nvfp4.check(x)
    nvfp4.check_scale(global_scale)
    one = global_scale.flatten()[:1].to(torch.float32)
    return Form(x, None, {"quantise": "nvfp4", "scale_layout": "tiles"}, nvfp4.as_gemms_read_it, global_scale=one)


def _fp4_by_powers(x: torch.Tensor) -> Form:
    nvfp4.check(x)
    rows, exponents = nvfp4.by_powers(x)
    outputs = partial(nvfp4.as_gemms_read_it, scale_type=torch.uint8)
    return Form(rows, exponents, {"scale_layout": "tiles"}, outputs)


def ready_fp4(x: torch.Tensor, scales: torch.Tensor) -> Form:
    """Rows of 4-bit elements with a scale byte for each 16, as they are."""

    def outputs(rows: torch.Tensor, arriving: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return rows, torch.zeros((*rows.shape[:2], scales.shape[1]), dtype=scales.dtype, device=x.device)

    def finish(arrived: Any, made: Any) -> None:
        dense = arrived.clone(memory_format=torch.contiguous_format)
        made[1].view(torch.uint8).copy_(dense.view(torch.uint8))

    return Form(x.contiguous(), scales.contiguous().view(torch.int32), {}, outputs, finish)


def _per_token_power_of_two(x: torch.Tensor, use_ue8m0: bool) -> Form:
    """One power of two a row; as its exponent, in an int32, if `use_ue8m0`."""
    if x.dtype != torch.bfloat16:
        raise UsageError(f"x is {x.dtype}, legal with pertoken_quant: bfloat16")
    wide = x.to(torch.float32)
    largest = wide.abs().amax(dim=1, keepdim=True).clamp(min=1e-4)
    scale = torch.exp2(torch.ceil(torch.log2(largest / 448.0)))
    rows = (wide / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    scales = scale.view(torch.int32) >> 23 if use_ue8m0 else scale
    return Form(rows, scales, {}, _rows_and_scales)
