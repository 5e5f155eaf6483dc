"""The operations as operators of torch, tensors and numbers in, tensors out: what torch.compile can look through.

    rows = heddle.torch.dispatch_rows(buffer, ids, x, weights, layout="expert_major")
    out = heddle.torch.combine_rows(buffer, rows, experts(rows.x) * rows.weights[:, None])

Each has a fake kernel (the number of received rows is a size that only running tells) and a backward, which is
collective too. All ranks must compile the same model: the order of calls in the graph is their order on every rank.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, NamedTuple

import torch

from .buffer import Buffer, buffer_of
from .errors import UsageError
from .route import Handle


class Rows(NamedTuple):
    """Received rows, n of them, on a rank of L local experts. K columns of ids a token."""

    x: torch.Tensor  # [n, H]
    weights: torch.Tensor  # token-major [n, K], else [n]; float32
    ids: torch.Tensor | None  # token-major [n, K] int32 local expert ids, -1 = not of this rank
    num_per_expert: torch.Tensor  # [L] int32
    expert_offsets: torch.Tensor | None  # expert-major [L + 1] int64, first row of each expert's group
    route: torch.Tensor  # int64, on the CPU: stands for the handle, and keeps it


def dispatch_rows(
    buffer: Buffer,
    ids: torch.Tensor,
    x: torch.Tensor,
    weights: torch.Tensor | None = None,
    *,
    layout: str = "token_major",
    alignment: int = 1,
) -> Rows:
    """Plans the batch and dispatches it, in exact sizes; differentiable in x [T, H] and weights [T, K] float32.

    ids        [T, K] int32 or int64 global expert ids, -1 = none
    layout     "token_major" or "expert_major"
    alignment  expert-major: groups begin at multiples of it; rows between groups are zero
    """
    if layout not in ("token_major", "expert_major"):
        raise UsageError(f"layout = {layout!r}, legal: 'token_major', 'expert_major'")
    rows = Rows(*torch.ops.heddle.dispatch(x, ids, weights, buffer.key, layout, alignment))
    if layout == "token_major":
        return rows._replace(expert_offsets=None)
    return rows._replace(ids=None)


def combine_rows(
    buffer: Buffer, rows: Rows, x: torch.Tensor, *, tokens: int, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Sums the experts' rows into [T, H]; differentiable in x [n, H] and bias [T, H].

    tokens  T, of the batch that was dispatched
    """
    return torch.ops.heddle.combine(x, rows.route, None, bias, buffer.key, tokens, 0)[0]


class _Kept(bytearray):
    """Memory of a route tensor. It lives as long as the tensor's storage, and the handle with it."""

    handle: Handle


_kept: weakref.WeakValueDictionary[int, _Kept] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def _route_of(handle: Handle) -> torch.Tensor:
    number = next(_numbers)
    kept = _Kept(number.to_bytes(8, "little"))
    kept.handle = handle
    _kept[number] = kept
    return torch.frombuffer(kept, dtype=torch.int64)


def _handle_of(route: torch.Tensor) -> Handle:
    kept = _kept.get(int(route))
    if kept is None:
        raise UsageError(
            "route stands for no dispatch that is alive, legal: the route of Rows, not a copy that outlived it"
        )
    return kept.handle


def _or_empty(tensor: torch.Tensor | None, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An operator's outputs are all there, so what a layout lacks is empty."""
    return like.new_empty((0,), dtype=dtype) if tensor is None else tensor


@torch.library.custom_op("heddle::dispatch", mutates_args=())
def _dispatch(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor | None, buffer: int, layout: str, alignment: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    own = buffer_of(buffer)
    received = own.dispatch(
        own.plan(ids), x, weights=weights, layout=layout, alignment=alignment, zero_padding=layout == "expert_major"
    )
    return (
        received.x,
        received.weights,
        _or_empty(received.ids, x, torch.int32),
        received.num_per_expert,
        _or_empty(received.expert_offsets, x, torch.int64),
        _route_of(received.handle),
    )


@_dispatch.register_fake
def _(x: Any, ids: Any, weights: Any, buffer: int, layout: str, alignment: int) -> Any:
    rows = torch.library.get_ctx().new_dynamic_size()
    experts = len(buffer_of(buffer).local_experts)
    topk = ids.shape[1]
    by_token = layout == "token_major"
    return (
        x.new_empty((rows, x.shape[1])),
        x.new_empty((rows, topk) if by_token else (rows,), dtype=torch.float32),
        x.new_empty((rows, topk) if by_token else (0,), dtype=torch.int32),
        x.new_empty((experts,), dtype=torch.int32),
        x.new_empty((0,) if by_token else (experts + 1,), dtype=torch.int64),
        torch.empty((1,), dtype=torch.int64),
    )


@torch.library.custom_op("heddle::combine", mutates_args=())
def _combine(
    x: torch.Tensor,
    route: torch.Tensor,
    row_weights: torch.Tensor | None,
    bias: torch.Tensor | None,
    buffer: int,
    tokens: int,
    topk: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    handle = _handle_of(route)
    if handle.plan.tokens != tokens:
        raise UsageError(f"tokens = {tokens}, legal: {handle.plan.tokens}, which the dispatch had")
    combined = buffer_of(buffer).combine(handle, x, bias=bias, row_weights=row_weights)
    return combined.x, _or_empty(combined.weights, x, torch.float32)


@_combine.register_fake
def _(x: Any, route: Any, row_weights: Any, bias: Any, buffer: int, tokens: int, topk: int) -> Any:
    weights = (0,) if row_weights is None else (tokens, topk)
    return x.new_empty((tokens, x.shape[1])), x.new_empty(weights, dtype=torch.float32)


@torch.library.custom_op("heddle::dispatch_again", mutates_args=())
def _dispatch_again(x: torch.Tensor, route: torch.Tensor, buffer: int, rows: int) -> torch.Tensor:
    received = buffer_of(buffer).dispatch(_handle_of(route), x, zero_padding=True).x
    if received.shape[0] != rows:
        raise UsageError(f"rows = {rows}, legal: {received.shape[0]}, which the dispatch brought")
    return received


@_dispatch_again.register_fake
def _(x: Any, route: Any, buffer: int, rows: int) -> Any:
    return x.new_empty((rows, x.shape[1]))


def _keep_dispatch(ctx: Any, inputs: Any, output: Any) -> None:
    x, ids, weights, buffer, _, _ = inputs
    ctx.save_for_backward(output[5])
    ctx.buffer, ctx.tokens, ctx.topk, ctx.has_weights = buffer, x.shape[0], ids.shape[1], weights is not None


def _dispatch_backward(ctx: Any, grad_x: Any, grad_weights: Any, *_: Any) -> Any:
    # Whether row weights travel must not depend on what this rank happens to need.
    rows = grad_weights if ctx.has_weights else None
    (route,) = ctx.saved_tensors
    grads, weights = torch.ops.heddle.combine(grad_x, route, rows, None, ctx.buffer, ctx.tokens, ctx.topk)
    return grads, None, weights if ctx.has_weights else None, None, None, None


def _keep_combine(ctx: Any, inputs: Any, output: Any) -> None:
    x, route, _, bias, buffer, _, _ = inputs
    ctx.save_for_backward(route)
    ctx.buffer, ctx.rows, ctx.has_bias = buffer, x.shape[0], bias is not None


def _combine_backward(ctx: Any, grad: Any, _: Any) -> Any:
    (route,) = ctx.saved_tensors
    grad_x = torch.ops.heddle.dispatch_again(grad, route, ctx.buffer, ctx.rows)
    return grad_x, None, None, grad if ctx.has_bias else None, None, None, None


_dispatch.register_autograd(_dispatch_backward, setup_context=_keep_dispatch)
_combine.register_autograd(_combine_backward, setup_context=_keep_combine)
