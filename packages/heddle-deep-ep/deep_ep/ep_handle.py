"""EPHandle: what a V2 dispatch leaves for its combine, and what callers read of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import heddle
import torch

from .sizes import align


class Settings(NamedTuple):
    """How a dispatch was made."""

    do_expand: bool
    experts: int
    alignment: int
    max_tokens: int
    num_sms: int
    fixed: bool


class once_but_in_graphs:  # noqa: N801 - reads as a decorator
    """A tensor that is made at its first use; of a dispatch in a graph's capture at each: every replay has another."""

    def __init__(self, make: Callable[[Any], torch.Tensor]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, of: Any, owner: type) -> Any:
        if of is None:
            return self
        value = self._make(of)
        if not of._is_captured:
            of.__dict__[self._name] = value
        return value


class EPHandle:
    """N tokens of this rank, n rows received, K columns, L local experts, R ranks. Its tensors are its own: none is an
    output. Made by dispatch."""

    def __init__(
        self,
        buffer: heddle.Buffer,
        received: heddle.Received,
        settings: Settings,
        topk_idx: torch.Tensor,
        first: EPHandle | None = None,
    ) -> None:
        self._buffer = buffer
        self._route = received.handle
        self._fixed = settings.fixed
        self._is_captured = received.x.is_cuda and torch.cuda.is_current_stream_capturing()
        self._rows = received.x.shape[0]
        self._counts = received.num_per_expert.clone()
        self.do_expand = settings.do_expand
        self.num_experts = settings.experts
        self.expert_alignment = settings.alignment
        self.num_max_tokens_per_rank = settings.max_tokens
        self.num_sms = settings.num_sms
        self.topk_idx = topk_idx
        self.num_recv_tokens_per_expert_list: list[int] = []
        self.num_recv_tokens = buffer.size * settings.max_tokens
        self.num_expanded_tokens = self._rows if settings.do_expand else 0
        if first is not None:
            self.num_recv_tokens_per_expert_list = first.num_recv_tokens_per_expert_list
            self.num_recv_tokens = first.num_recv_tokens
        elif not settings.fixed:
            self.num_recv_tokens_per_expert_list = [align(count, settings.alignment) for count in received.counts]
            self.num_recv_tokens = self._route.num_received

    @once_but_in_graphs
    def psum_num_recv_tokens_per_scaleup_rank(self) -> torch.Tensor:
        """[R] int32: tokens received from ranks 0 to i; the last is their number."""
        return self._route.recv_offset[1:].clone()

    @once_but_in_graphs
    def num_unaligned_recv_tokens_per_expert(self) -> torch.Tensor:
        """[L] int32 rows, or (token, column) pairs without do_expand."""
        return self._counts

    @once_but_in_graphs
    def psum_num_recv_tokens_per_expert(self) -> torch.Tensor:
        """[L] int32. Without do_expand the prefix sum of aligned counts, own included; with it the row after the
        expert's last: rounded up, where the next expert's rows begin."""
        aligned = (self._counts + self.expert_alignment - 1) // self.expert_alignment * self.expert_alignment
        ends = torch.cumsum(aligned, dim=0, dtype=torch.int32)
        return ends if not self.do_expand else ends - aligned + self._counts

    @once_but_in_graphs
    def recv_src_metadata(self) -> torch.Tensor:
        """[n, K + 2] int32 of each received token: source rank x M + token; source rank x K + its first column here;
        rows of its columns with do_expand, else -1."""
        route = self._route
        offset, token, ids = route.recv_offset, route.recv_token, route.recv_ids
        received, topk = ids.shape
        rows = torch.arange(received, dtype=torch.int32, device=offset.device)
        source = torch.searchsorted(offset[1:].contiguous(), rows, right=True).to(torch.int32)
        first = (ids >= 0).to(torch.int32).argmax(dim=1).to(torch.int32) if received else source
        rows = self._rows_of_columns() if self.do_expand else torch.full_like(ids, -1)
        columns = [source * self.num_max_tokens_per_rank + token, source * topk + first]
        return torch.cat([torch.stack(columns, dim=1), rows], dim=1)

    def _rows_of_columns(self) -> torch.Tensor:
        """[n, K]: of a column that repeats an expert, the row of its first."""
        ids, rows = self._route.recv_ids, self._route.row_of
        assert rows is not None  # an expanded layout has them
        same = (ids[:, :, None] == ids[:, None, :]) & (ids >= 0)[:, :, None]
        return torch.where(same, rows[:, None, :], -1).amax(dim=2) if ids.numel() else rows

    @once_but_in_graphs
    def dst_buffer_slot_idx(self) -> torch.Tensor:
        """[N, K] int32: own rank x M + the token's place among those that go to the column's owner; -1 for none."""
        plan = self._route.plan
        in_rank = plan.is_token_in_rank.to(torch.int32)
        place = torch.cumsum(in_rank, dim=0, dtype=torch.int32) - in_rank
        ids = plan.ids.to(torch.int64)
        owner = ((ids + 1) * self._buffer.size - 1) // self.num_experts
        slot = place.gather(1, owner.clamp(min=0)) + self._buffer.rank * self.num_max_tokens_per_rank
        return torch.where(ids < 0, -1, slot).to(torch.int32)

    # Of scale-out domains, which Heddle's one host does not have.
    token_metadata_at_forward: torch.Tensor | None = None
    channel_linked_list: torch.Tensor | None = None

    def __repr__(self) -> str:
        return (
            f"EPHandle(num_recv_tokens={self.num_recv_tokens}, do_expand={self.do_expand}, "
            f"num_experts={self.num_experts})"
        )

    def __reduce__(self) -> Any:
        raise heddle.UsageError("an EPHandle cannot be pickled: it belongs to a buffer of this process")
