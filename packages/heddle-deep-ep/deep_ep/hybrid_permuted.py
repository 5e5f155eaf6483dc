"""HybridEPBuffer's calls whose rows are ordered by expert."""

from __future__ import annotations

import warnings
from typing import Any

import heddle
import torch
from heddle import UsageError

from .checks import check_weights, positive
from .engine import telling_others
from .hybrid_handle import Route, make, route_of
from .hybrid_probs import dense, weights_again, zeroed
from .hybrid_routing import Routed, check_hidden


class Permuted(Routed):
    """Mixed into HybridEPBuffer."""

    update_template_config: Any

    def dispatch_with_permute(
        self,
        *,
        hidden: torch.Tensor,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        num_of_experts_per_rank: int | None = None,
        num_of_experts: int | None = None,
        use_fp8: bool | None = None,
        routing_map: torch.Tensor | None = None,
        probs: torch.Tensor | None = None,
        scaling_factor: torch.Tensor | None = None,
        num_permuted_tokens: int | torch.Tensor | None = None,
        pad_multiple: int | None = None,
        handle: tuple[Any, ...] | None = None,
        non_blocking: bool = False,
        fuse_permute_dispatch: bool = False,
        num_dispatched_tokens: int | None = None,
        use_host_meta: bool | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, tuple[Any, ...]]:
        """Sends tokens to their experts; rows come by expert, then source rank, then token. Collective.

        hidden, scaling_factor, routing_map, probs, topk_idx, topk_weights, num_of_experts  as in dispatch()
        num_permuted_tokens  P, rows of the outputs; None = as many as come (blocking only)
        pad_multiple  each expert's rows begin at a multiple of it; rows between are zero
        non_blocking  outputs have P rows, a multiple of pad_multiple; pairs past them are dropped, and handle[-1] is 1
        handle        of an earlier dispatch, to go the same way again: num_permuted_tokens is needed, no routing

        Returns (tokens [P, H], probs float32 [P] or None, scaling_factor [P, H / 128] or None, tokens_per_expert int64
        [L] rounded up to pad_multiple, None with a handle; handle of 11 entries).
        """
        for name, value in (("num_dispatched_tokens", num_dispatched_tokens), ("use_host_meta", use_host_meta)):
            if value is not None:
                warnings.warn(f"{name} is deprecated", DeprecationWarning, stacklevel=2)
        if use_host_meta is not None:
            non_blocking = not use_host_meta
        rows = None if num_permuted_tokens is None else positive("num_permuted_tokens", int(num_permuted_tokens), 0)
        if handle is not None:
            return self._permuted_again(hidden, scaling_factor, probs, rows, handle)
        buffer, routing = self._routed(
            hidden, topk_idx, topk_weights, num_of_experts, routing_map, probs, num_of_experts_per_rank
        )
        alignment = max(int(pad_multiple or 1), 1)
        with telling_others(buffer, "dispatch"):
            _check_rows(rows, alignment, non_blocking)
            plan = buffer.plan(routing.ids)
        config = self.update_template_config(
            hidden.shape[1], hidden.shape[0], pad_multiple=pad_multiple, use_fp8=use_fp8
        )
        most = self.configurer.buffer_config.max_num_of_tokens_per_rank
        fixed: dict[str, Any] = {}
        if rows is not None:
            fixed = {"fixed_size": True, "capacity": rows, "max_tokens": most, "drop_overflow": non_blocking}
        received = buffer.dispatch(
            plan,
            hidden,
            scales=scaling_factor,
            weights=routing.weights,
            layout="expert_major",
            alignment=alignment,
            zero_padding=True,
            **fixed,
        )
        config._route = Route(buffer, received.handle, routing.experts, rows is not None, received.x.shape[0])
        real = received.num_per_expert
        made = make(received, self.group_size, hidden.shape[0], config)
        counts = (-(-real.to(torch.int64) // alignment)) * alignment
        weights = None if routing.weights is None else zeroed(received, received.weights)
        scales = None if received.scales is None else zeroed(received, received.scales)
        if non_blocking:
            return received.x, weights, scales, counts, made
        if rows is not None and int(received.dropped) > 0:  # on the CPU, the dispatch has raised
            raise heddle.OverflowError_(f"num_permuted_tokens = {rows}, {int(received.dropped)} rows did not fit")
        return received.x, weights, scales, counts.cpu(), made

    def _permuted_again(
        self, hidden: Any, scales: Any, probs: Any, rows: int | None, handle: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, None, tuple[Any, ...]]:
        route = route_of(handle, 9)
        with telling_others(route.buffer, "dispatch"):
            check_hidden(hidden)
            if rows is None:
                raise UsageError(f"num_permuted_tokens is None, legal with a handle: {route.rows}, its rows")
            if rows != route.rows:
                raise UsageError(f"num_permuted_tokens = {rows}, legal with this handle: {route.rows}")
            weights = weights_again(route, probs)
        fixed: dict[str, Any] = {"fixed_size": True, "capacity": rows, "drop_overflow": True} if route.fixed else {}
        received = route.buffer.dispatch(
            route.handle, hidden, scales=scales, weights=weights, zero_padding=True, **fixed
        )
        values = None if probs is None else zeroed(received, received.weights)
        return received.x, values, received.scales, None, handle

    def combine_with_unpermute(
        self,
        *,
        hidden: torch.Tensor,
        probs: torch.Tensor | None = None,
        handle: tuple[Any, ...] | None = None,
        pad_multiple: int | None = None,
        fuse_unpermute_combine: bool = False,
        num_dispatched_tokens: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Sums the rows of each token's pairs, without weights. Collective.

        hidden  [P, H] bfloat16 in the layout of the dispatch;  probs  float32 [P]

        Returns ([N, H], float32 [N, E], 0 for experts that a token does not have, or None).
        """
        route = route_of(handle, 9)
        with telling_others(route.buffer, "combine"):
            check_hidden(hidden)
            if probs is not None:
                check_weights(probs, (route.rows,), "probs")
        combined = route.buffer.combine(route.handle, hidden, row_weights=probs)
        return combined.x, dense(route, combined.weights)


def _check_rows(rows: int | None, alignment: int, non_blocking: bool) -> None:
    if not non_blocking:
        return
    if rows is None:
        raise UsageError("num_permuted_tokens is None, legal with non_blocking: rows, a multiple of pad_multiple")
    if rows % alignment:
        raise UsageError(
            f"num_permuted_tokens = {rows}, legal with non_blocking: a multiple of pad_multiple {alignment}"
        )
