"""Ranks that are left out of low-latency calls."""

from __future__ import annotations

import torch
from heddle import UsageError

from .checks import check_int32
from .engine import Engine


class Masks:
    """Mixed into Buffer."""

    rank: int
    group_size: int
    enable_shrink: bool
    runtime: Engine

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Leaves a rank out (mask=True) until low_latency_clean_mask_buffer(). False for one rank is not possible: the
        ranks must agree on who is in."""
        self._check_shrink("low_latency_update_mask_buffer")
        if not 0 <= rank_to_mask < self.group_size:
            raise UsageError(f"rank_to_mask = {rank_to_mask}, legal: 0 to {self.group_size - 1}")
        if rank_to_mask == self.rank:
            raise UsageError(f"rank_to_mask = {rank_to_mask}, legal: another rank than the own")
        if mask:
            self.runtime.mask(rank_to_mask)
        elif rank_to_mask in self.runtime.masked():
            raise UsageError("mask is False for a masked rank, legal: low_latency_clean_mask_buffer() on every rank")

    def low_latency_query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """Writes 1 to mask_status [R] int32 for each rank that is left out, else 0."""
        self._check_shrink("low_latency_query_mask_buffer")
        check_int32(mask_status, (self.group_size,), "mask_status")
        masked = self.runtime.masked()
        mask_status.copy_(
            torch.tensor(
                [int(rank in masked) for rank in range(self.group_size)], dtype=torch.int32, device=mask_status.device
            )
        )

    def low_latency_clean_mask_buffer(self) -> None:
        """Takes all ranks in again. Collective, with the deadline of a call; handles of before are stale."""
        self._check_shrink("low_latency_clean_mask_buffer")
        self.runtime.unmask()

    def _check_shrink(self, method: str) -> None:
        if not self.enable_shrink:
            raise UsageError(f"enable_shrink is False, legal for {method}(): True, as the buffer was made")
