"""HybridEPBuffer: the training interface of branch hybrid-ep. Calls run on the current stream; there are no events."""

from __future__ import annotations

import os
import warnings
from typing import Any

import heddle
import torch

from .checks import positive
from .engine import Engine, telling_others
from .group import bootstrap_of, default_timeout, domains_of
from .hybrid_config import BufferConfig, Configurer, HybridEpConfigInstance, stored_tokens
from .hybrid_handle import Route, make, route_of
from .hybrid_permuted import Permuted
from .hybrid_probs import dense, of_domain, of_own_experts, weights_again
from .hybrid_routing import check_hidden
from .routing_map import indices_to_map

__all__ = ["HybridEPBuffer", "HybridEpConfigInstance", "indices_to_map"]

_DOMAIN = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"


class HybridEPBuffer(Permuted):
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
            route = route_of(handle, 6)
            buffer = route.buffer
            with telling_others(buffer, "dispatch"):
                weights = weights_again(route, probs)
                check_hidden(hidden)
            received = buffer.dispatch(route.handle, hidden, scales=scaling_factor, weights=weights)
            return received.x, of_domain(received, probs, *self._domain(buffer)), received.scales, handle
        buffer, routing = self._routed(hidden, topk_idx, topk_weights, num_of_experts, routing_map, probs)
        received = buffer.dispatch(buffer.plan(routing.ids), hidden, scales=scaling_factor, weights=routing.weights)
        config = self.update_template_config(hidden.shape[1], hidden.shape[0])
        config._route = Route(buffer, received.handle, routing.experts, False, received.x.shape[0])
        full = make(received, self.group_size, hidden.shape[0], config)
        return (
            received.x,
            of_domain(received, routing.weights, *self._domain(buffer)),
            received.scales,
            (*full[:5], full[8], config),
        )

    def combine(
        self, hidden: torch.Tensor, probs: torch.Tensor | None = None, handle: tuple[Any, ...] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Sums the rows of each token. Collective.

        hidden  [T, H] bfloat16;  probs  float32 [T, L x ranks of a domain], of which own experts' columns return

        Returns ([N, H], float32 [N, E] or None).
        """
        route = route_of(handle, 6)
        with telling_others(route.buffer, "combine"):
            check_hidden(hidden)
            rows = None if probs is None else of_own_experts(route, probs, *self._domain(route.buffer))
        combined = route.buffer.combine(route.handle, hidden, row_weights=rows)
        return combined.x, dense(route, combined.weights)

    def _domain(self, buffer: heddle.Buffer) -> tuple[int, int]:
        """(the place of this rank's first expert among those of its domain, their number)"""
        local = len(buffer.local_experts)
        return self.local_rank * local, self.num_of_hybrid_ep_ranks_per_nvlink_domain * local
