"""dispatch and combine that autograd can go back through, and a buffer from a torch.distributed group.

    buffer = heddle.torch.buffer(group, experts=256)
    tokens = heddle.torch.dispatch(buffer, buffer.plan(ids), x, weights)
    y = experts(tokens.x, tokens.received.ids) * ...
    out = heddle.torch.combine(buffer, tokens.handle, y)

The way back of a dispatch is a combine with the same handle, that of a combine a dispatch along the same route. So the
backward pass is collective too: every rank must run it, in the same order. A rank without tokens has tensors of 0 rows,
whose sum is 0, and takes part by including it in its loss.

dispatch_rows() and combine_rows() are the same as operators of torch, for models that torch.compile sees.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from .bootstrap import from_group
from .buffer import Buffer
from .operators import Rows, combine_rows, dispatch_rows
from .results import Received
from .route import Handle, Plan

__all__ = ["Rows", "Tokens", "buffer", "combine", "combine_rows", "dispatch", "dispatch_rows"]


def buffer(group: Any = None, **settings: Any) -> Buffer:
    """heddle.Buffer for the ranks of a torch.distributed process group; None = the default group. Unless `device` is
    given, it works on torch's current GPU if the group is one for GPUs (nccl), else on the CPU."""
    if "device" not in settings and torch.cuda.is_available() and "nccl" in str(torch.distributed.get_backend(group)):
        settings["device"] = torch.device("cuda", torch.cuda.current_device())
    return Buffer(from_group(group), **settings)


class Tokens(NamedTuple):
    """Received tokens whose x and weights belong to the autograd graph."""

    x: torch.Tensor
    weights: torch.Tensor | None
    received: Received

    @property
    def handle(self) -> Handle:
        """For combine()."""
        return self.received.handle


def dispatch(
    buffer: Buffer,
    plan: Plan,
    x: torch.Tensor,
    weights: torch.Tensor | None = None,
    *,
    layout: str = "token_major",
    alignment: int = 1,
) -> Tokens:
    """Buffer.dispatch() with exact sizes, differentiable in x [T, H] and weights [T, K] float32.

    Rows between the groups of an expert-major layout are zero, here and in gradients.
    """
    options = {"layout": layout, "alignment": alignment, "zero_padding": layout == "expert_major"}
    received: list[Received] = []
    moved, moved_weights = _Dispatch.apply(x, weights, buffer, plan, options, received)
    return Tokens(moved, moved_weights if weights is not None else None, received[0])


def combine(buffer: Buffer, handle: Handle, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Buffer.combine(), differentiable in x (the experts' rows) and bias [T, H]: [T, H] sums.

    Weights are applied by the caller, to the rows: x * tokens.weights[:, None] in an expert-major layout.
    """
    return _Combine.apply(x, bias, buffer, handle)


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weights: torch.Tensor | None,
        buffer: Buffer,
        plan: Plan,
        options: dict[str, Any],
        out: list[Received],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        received = buffer.dispatch(plan, x, weights=weights, **options)
        out.append(received)
        ctx.buffer, ctx.handle, ctx.has_weights = buffer, received.handle, weights is not None
        if weights is None:
            ctx.mark_non_differentiable(received.weights)
        return received.x, received.weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_x: torch.Tensor, grad_weights: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # Whether row weights travel must not depend on what this rank happens to need.
        rows = grad_weights if ctx.has_weights else None
        combined = ctx.buffer.combine(ctx.handle, grad_x, row_weights=rows)
        return combined.x, combined.weights, None, None, None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor | None, buffer: Buffer, handle: Handle) -> torch.Tensor:
        ctx.buffer, ctx.handle, ctx.has_bias = buffer, handle, bias is not None
        return buffer.combine(handle, x, bias=bias).x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        received = ctx.buffer.dispatch(ctx.handle, grad, zero_padding=True)
        return received.x, grad if ctx.has_bias else None, None, None
