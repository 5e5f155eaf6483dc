"""HybridEPBuffer: the training interface of branch hybrid-ep. Calls run on the current stream; there are no events."""

from __future__ import annotations

import os
import warnings
from typing import Any, NamedTuple

import heddle
import torch
from heddle import UsageError

from .checks import check_ids, check_weights, describe, device_of, positive
from .engine import Engine, telling_others
from .group import bootstrap_of, default_timeout, domains_of
from .hybrid_config import BufferConfig, Configurer, HybridEpConfigInstance, stored_tokens
from .routing_map import indices_to_map, map_to_indices

__all__ = ["HybridEPBuffer", "HybridEpConfigInstance", "indices_to_map"]

_DOMAIN = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"


class _Route(NamedTuple):
    """What combine and cached calls need; travels in the handle's configuration."""

    buffer: heddle.Buffer
    handle: heddle.Handle
    experts: int
    fixed: bool
    rows: int


class _Routing(NamedTuple):
    """The experts of a batch."""

    ids: torch.Tensor
    weights: torch.Tensor | None
    experts: int


class HybridEPBuffer:
    """One rank's end of dispatch and combine with expert-ordered rows. All ranks make the same calls in the same order;
    ranks may have different numbers of tokens. N tokens of this rank, H hidden, E experts, L of this rank.

    group         a torch process group of any backend
    num_local_experts  L, E / R
    use_fp8, num_sms_..., num_blocks_..., load_cached_kernels, use_shared_buffer, enable_custom_allgather  accepted
    num_of_hybrid_ep_ranks_per_nvlink_domain, use_mnnvl  deprecated, ignored; NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN
                  of the environment says how many ranks a domain has, for the attributes and the width of probs
    """

    def __init__(
        self,
        group: Any,
        hidden_dim: int,
        max_num_of_tokens_per_rank: int,
        num_local_experts: int,
        use_fp8: bool = False,
        num_sms_dispatch_api: int | None = None,
        num_sms_combine_api: int | None = None,
        num_sms_preprocessing_api: int | None = None,
        num_blocks_permute: int | None = None,
        num_blocks_unpermute: int | None = None,
        load_cached_kernels: bool = False,
        use_shared_buffer: bool = True,
        enable_custom_allgather: bool = False,
        num_of_hybrid_ep_ranks_per_nvlink_domain: int | None = None,
        use_mnnvl: bool | None = None,
    ) -> None:
        for name, value in (
            ("num_of_hybrid_ep_ranks_per_nvlink_domain", num_of_hybrid_ep_ranks_per_nvlink_domain),
            ("use_mnnvl", use_mnnvl),
        ):
            if value is not None:
                warnings.warn(f"{name} is deprecated and ignored", DeprecationWarning, stacklevel=2)
        bootstrap = bootstrap_of(group)
        self.group = group
        self.rank, self.group_size = bootstrap.rank, bootstrap.size
        domain = os.environ.get(_DOMAIN)
        self.num_of_nodes, per_node = domains_of(self.group_size, int(domain) if domain else None)
        self.num_of_hybrid_ep_ranks_per_nvlink_domain = per_node
        self.node_rank, self.local_rank = divmod(self.rank, per_node)
        sms = 24 if self.num_of_nodes == 1 else 8
        self.configurer = Configurer(
            BufferConfig(
                hidden_dim=positive("hidden_dim", hidden_dim),
                max_num_of_tokens_per_rank=stored_tokens(
                    positive("max_num_of_tokens_per_rank", max_num_of_tokens_per_rank)
                ),
                num_of_experts_per_rank=positive("num_local_experts", num_local_experts),
                num_of_ranks_per_node=per_node,
                num_of_nodes=self.num_of_nodes,
                token_data_type="uint8" if use_fp8 else "uint16",
                num_of_blocks_preprocessing_api=num_sms_preprocessing_api or 108,
                num_of_blocks_dispatch_api=num_sms_dispatch_api or sms,
                num_of_blocks_combine_api=num_sms_combine_api or sms,
            )
        )
        self.runtime = Engine(bootstrap, window_bytes=0, timeout=default_timeout())

    def empty_jit_cache(self) -> None:
        """Nothing is compiled at run time."""

    def update_template_config(
        self,
        hidden_dim: int | None = None,
        num_of_tokens_per_rank: int | None = None,
        num_local_experts: int | None = None,
        pad_multiple: int | None = None,
        use_fp8: bool | None = None,
        fuse_permute_dispatch: bool = False,
        **kwargs: Any,
    ) -> HybridEpConfigInstance:
        """The configuration of a call of these sizes, with `kwargs` as further attributes."""
        config = self.configurer.buffer_config
        tokens = -(-num_of_tokens_per_rank // 16) * 16 if num_of_tokens_per_rank else config.max_num_of_tokens_per_rank
        config.grow(hidden_dim or 0, tokens, num_local_experts or 0)
        fp8 = config.token_data_type == "uint8" if use_fp8 is None else use_fp8
        return HybridEpConfigInstance(
            hidden_dim=hidden_dim or config.hidden_dim,
            max_num_of_tokens_per_rank=tokens,
            num_of_experts_per_rank=num_local_experts or config.num_of_experts_per_rank,
            num_of_ranks_per_node=config.num_of_ranks_per_node,
            num_of_nodes=config.num_of_nodes,
            pad_multiple=pad_multiple or 0,
            token_data_type="uint8" if fp8 else "uint16",
            **kwargs,
        )

    # --- rows by (token, rank) ---

    def dispatch(
        self,
        hidden: torch.Tensor,
        scaling_factor: torch.Tensor | None = None,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        num_of_experts: int | None = None,
        probs: torch.Tensor | None = None,
        routing_map: torch.Tensor | None = None,
        num_dispatched_tokens_tensor: torch.Tensor | None = None,
        num_dispatched_tokens: int | None = None,
        handle: tuple[Any, ...] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, tuple[Any, ...]]:
        """Sends every token once to each rank that has one of its experts. Collective.

        hidden   [N, H] rows of a multiple of 16 bytes;  scaling_factor  float32 [N, H / 128]
        routing_map, probs  bool and float32 [N, E]; or topk_idx, topk_weights [N, K] with num_of_experts
        handle   of an earlier dispatch, to go the same way again

        Returns (tokens [T, H] by source rank, then token; probs float32 [T, L x ranks of a domain], 0 but for own
        experts, or None; scaling_factor; handle).
        """
        if handle is not None:
            route = _route_of(handle, 6)
            buffer = route.buffer
            with telling_others(buffer, "dispatch"):
                weights = self._weights_again(route, probs)
                _check_hidden(hidden)
            received = buffer.dispatch(route.handle, hidden, scales=scaling_factor, weights=weights)
            return received.x, self._domain_probs(received, probs), received.scales, handle
        buffer, routing = self._routed(hidden, topk_idx, topk_weights, num_of_experts, routing_map, probs)
        received = buffer.dispatch(buffer.plan(routing.ids), hidden, scales=scaling_factor, weights=routing.weights)
        config = self.update_template_config(hidden.shape[1], hidden.shape[0])
        config._route = _Route(buffer, received.handle, routing.experts, False, received.x.shape[0])
        full = self._handle(received, hidden.shape[0], config)
        return received.x, self._domain_probs(received, routing.weights), received.scales, (*full[:5], full[8], config)

    def combine(
        self, hidden: torch.Tensor, probs: torch.Tensor | None = None, handle: tuple[Any, ...] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Sums the rows of each token. Collective.

        hidden  [T, H] bfloat16;  probs  float32 [T, L x ranks of a domain], of which own experts' columns return

        Returns ([N, H], float32 [N, E] or None).
        """
        route = _route_of(handle, 6)
        with telling_others(route.buffer, "combine"):
            _check_hidden(hidden)
            rows = None
            if probs is not None:
                check_weights(probs, (route.rows, self._domain_columns(route.experts)), "probs")
                ids = route.handle.recv_ids
                local = probs[:, self._first_column(route.buffer) :]
                rows = torch.where(ids < 0, 0.0, local.gather(1, ids.clamp(min=0).to(torch.int64)))
        combined = route.buffer.combine(route.handle, hidden, row_weights=rows)
        return combined.x, _dense(route, combined.weights)

    # --- rows by (token, expert) ---

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
        config._route = _Route(buffer, received.handle, routing.experts, rows is not None, received.x.shape[0])
        real = received.num_per_expert
        made = self._handle(received, hidden.shape[0], config)
        counts = (-(-real.to(torch.int64) // alignment)) * alignment
        weights = None if routing.weights is None else _zeroed(received, received.weights)
        scales = None if received.scales is None else _zeroed(received, received.scales)
        if non_blocking:
            return received.x, weights, scales, counts, made
        if rows is not None and int(received.dropped) > 0:  # on the CPU, the dispatch has raised
            raise heddle.OverflowError_(f"num_permuted_tokens = {rows}, {int(received.dropped)} rows did not fit")
        return received.x, weights, scales, counts.cpu(), made

    def _permuted_again(
        self, hidden: Any, scales: Any, probs: Any, rows: int | None, handle: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, None, tuple[Any, ...]]:
        route = _route_of(handle, 9)
        with telling_others(route.buffer, "dispatch"):
            _check_hidden(hidden)
            if rows is None:
                raise UsageError(f"num_permuted_tokens is None, legal with a handle: {route.rows}, its rows")
            if rows != route.rows:
                raise UsageError(f"num_permuted_tokens = {rows}, legal with this handle: {route.rows}")
            weights = self._weights_again(route, probs)
        fixed: dict[str, Any] = {"fixed_size": True, "capacity": rows, "drop_overflow": True} if route.fixed else {}
        received = route.buffer.dispatch(
            route.handle, hidden, scales=scales, weights=weights, zero_padding=True, **fixed
        )
        values = None if probs is None else _zeroed(received, received.weights)
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
        route = _route_of(handle, 9)
        with telling_others(route.buffer, "combine"):
            _check_hidden(hidden)
            if probs is not None:
                check_weights(probs, (route.rows,), "probs")
        combined = route.buffer.combine(route.handle, hidden, row_weights=probs)
        return combined.x, _dense(route, combined.weights)

    # --- routing, handles ---

    def _routed(
        self,
        hidden: Any,
        topk_idx: Any,
        topk_weights: Any,
        num_of_experts: int | None,
        routing_map: Any,
        probs: Any,
        per_rank: int | None = None,
    ) -> tuple[heddle.Buffer, _Routing]:
        """The buffer for E experts, and the batch's experts. A wrong argument reaches the others once E is known."""
        experts = num_of_experts
        if isinstance(routing_map, torch.Tensor) and routing_map.dim() == 2:
            experts = routing_map.shape[1]
        if experts is None:
            local = per_rank or self.configurer.buffer_config.num_of_experts_per_rank
            experts = local * self.group_size
        buffer = self.runtime.buffer(positive("num_of_experts", experts), device_of(hidden))
        with telling_others(buffer, "dispatch"):
            _check_hidden(hidden)
            if experts % self.group_size:
                raise UsageError(f"num_of_experts = {experts}, legal: a multiple of the group's size {self.group_size}")
            if routing_map is not None:
                ids, weights = self._from_map(hidden, routing_map, probs, experts)
            else:
                check_ids(topk_idx)
                if topk_weights is not None:
                    check_weights(topk_weights, tuple(topk_idx.shape))
                ids, weights = topk_idx, topk_weights
            if ids.shape[0] != hidden.shape[0]:
                raise UsageError(f"topk_idx has {ids.shape[0]} rows, legal: {hidden.shape[0]}, as hidden")
        self.configurer.buffer_config.grow(hidden.shape[1], hidden.shape[0], experts // self.group_size)
        return buffer, _Routing(ids, weights, experts)

    @staticmethod
    def _from_map(hidden: torch.Tensor, routing_map: Any, probs: Any, experts: int) -> Any:
        shape = (hidden.shape[0], experts)
        if not isinstance(routing_map, torch.Tensor) or routing_map.dtype != torch.bool or routing_map.shape != shape:
            raise UsageError(f"routing_map is {describe(routing_map)}, legal: bool {list(shape)}")
        if probs is not None:
            check_weights(probs, shape, "probs")
        return map_to_indices(routing_map, probs)

    @staticmethod
    def _weights_again(route: _Route, probs: Any) -> torch.Tensor | None:
        if probs is None:
            return None
        ids = route.handle.plan.ids.to(torch.int64)
        check_weights(probs, (ids.shape[0], route.experts), "probs")
        return torch.where(ids < 0, 0.0, probs.gather(1, ids.clamp(min=0)))

    def _domain_columns(self, experts: int) -> int:
        return experts // self.num_of_nodes

    def _first_column(self, buffer: heddle.Buffer) -> int:
        """Of this rank's experts among its domain's."""
        return self.local_rank * len(buffer.local_experts)

    def _domain_probs(self, received: Any, given: Any) -> torch.Tensor | None:
        if given is None:
            return None
        local = received.num_per_expert.shape[0]
        ids = received.ids.to(torch.int64)
        wide = torch.zeros(ids.shape[0], local + 1, dtype=torch.float32, device=ids.device)
        wide.scatter_(1, torch.where(ids < 0, local, ids), received.weights)
        out = torch.zeros(
            ids.shape[0], local * self.num_of_hybrid_ep_ranks_per_nvlink_domain, dtype=torch.float32, device=ids.device
        )
        first = self.local_rank * local
        out[:, first : first + local] = wide[:, :local]
        return out

    def _handle(self, received: heddle.Received, tokens: int, config: HybridEpConfigInstance) -> tuple[Any, ...]:
        """The 11 entries, of which callers open the last. 4 to 6 describe received tokens: empty where their number is
        not known on the host."""
        route = received.handle
        plan, device = route.plan, received.x.device
        in_rank = plan.is_token_in_rank
        place = torch.cumsum(in_rank.to(torch.int32), dim=0, dtype=torch.int32) - 1
        anywhere = torch.nn.functional.pad(in_rank.any(dim=1, keepdim=True), (0, 0, 0, -tokens % 16))
        elsewhere = torch.zeros(tokens, 0, dtype=torch.bool, device=device)
        total = route.recv_offset[-1:].clone()
        local = chunks = rows = None
        if not received.x.is_cuda:
            local, chunks, rows = self._received_tables(route, tokens, received.num_per_expert.shape[0])
        overflow = (received.dropped > 0).to(torch.int32)
        return (
            torch.where(in_rank, place, -1),
            anywhere,
            elsewhere,
            total,
            local,
            chunks,
            rows,
            received.num_per_expert,
            tokens,
            config,
            overflow,
        )

    def _received_tables(
        self, route: heddle.Handle, tokens: int, local: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(Experts of received tokens bool [T, L]; running counts of 64-token source chunks; rows of each [T, L])."""
        ids, offset = route.recv_ids.to(torch.int64), route.recv_offset
        received = ids.shape[0]
        bucket = torch.where(ids < 0, local, ids)
        hits = torch.zeros(received, local + 1, dtype=torch.bool, device=ids.device).scatter_(1, bucket, True)
        rows = torch.full((received, local + 1), -1, dtype=torch.int32, device=ids.device)
        if route.row_of is not None:
            first = route.row_of.clamp(min=-1)
            rows.scatter_reduce_(1, bucket, first, "amax")
        source = torch.searchsorted(
            offset[1:].contiguous(), torch.arange(received, dtype=torch.int32, device=ids.device), right=True
        )
        per_rank = max(-(-max(int(route.source_tokens.max()), tokens) // 64), 1)
        chunk = source * per_rank + route.recv_token.to(torch.int64) // 64
        counts = torch.bincount(chunk, minlength=per_rank * self.group_size)
        return hits[:, :local], torch.cumsum(counts, 0).to(torch.int32), rows[:, :local]


def _zeroed(received: heddle.Received, values: Any) -> torch.Tensor:
    """0 in rows that hold nothing."""
    empty = received.row_token < 0
    return torch.where(empty if values.dim() == 1 else empty[:, None], torch.zeros_like(values), values)


def _check_hidden(hidden: Any) -> None:
    if not isinstance(hidden, torch.Tensor) or hidden.dim() != 2:
        raise UsageError(f"hidden is {describe(hidden)}, legal: [tokens, hidden]")


def _check_rows(rows: int | None, alignment: int, non_blocking: bool) -> None:
    if not non_blocking:
        return
    if rows is None:
        raise UsageError("num_permuted_tokens is None, legal with non_blocking: rows, a multiple of pad_multiple")
    if rows % alignment:
        raise UsageError(
            f"num_permuted_tokens = {rows}, legal with non_blocking: a multiple of pad_multiple {alignment}"
        )


def _route_of(handle: Any, config_at: int) -> _Route:
    legal = "legal: the handle of a dispatch of this package"
    if not isinstance(handle, (tuple, list)) or len(handle) <= config_at:
        raise UsageError(f"handle is {describe(handle)}, {legal}")
    route = getattr(handle[config_at], "_route", None)
    if not isinstance(route, _Route):
        raise UsageError(f"handle[{config_at}] is {describe(handle[config_at])}, {legal}")
    return route


def _dense(route: _Route, weights: torch.Tensor | None) -> torch.Tensor | None:
    """[N, E] of [N, K]."""
    if weights is None:
        return None
    ids = route.handle.plan.ids.to(torch.int64)
    wide = torch.zeros(ids.shape[0], route.experts + 1, dtype=torch.float32, device=weights.device)
    wide.scatter_(1, torch.where(ids < 0, route.experts, ids), weights)
    return wide[:, : route.experts].contiguous()
