"""Ranks that are left out of low-latency calls."""

import oracle
import pytest
import torch
from oracle import same
from slabs import EXPERTS, MOST, back, close, everyone, make
from test_v1_errors import raises

pytestmark = pytest.mark.ll


def mask_body(rank):
    buffer = make(rank, enable_shrink=True)
    every = everyone(rank)
    batch = every[rank.rank]
    status = torch.full((rank.size,), 9, dtype=torch.int32)
    gone = rank.size - 1
    buffer.low_latency_query_mask_buffer(status)
    assert status.tolist() == [0] * rank.size
    plain, _, handle, _, _ = buffer.low_latency_dispatch(batch.x, batch.ids, MOST, EXPERTS, use_fp8=False)
    close(buffer.low_latency_combine(plain, batch.ids, batch.weights, handle)[0], back(batch))
    torch.distributed.barrier(rank.group)
    if rank.rank != gone:
        buffer.low_latency_update_mask_buffer(gone, True)
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [int(r == gone) for r in range(rank.size)]
        recv_x, count, handle, _, _ = buffer.low_latency_dispatch(batch.x, batch.ids, MOST, EXPERTS, use_fp8=False)
        left = [
            one if r != gone else oracle.Batch(one.x[:0], one.ids[:0], one.weights[:0]) for r, one in enumerate(every)
        ]
        mine = oracle.owned(rank.rank, rank.size, EXPERTS)
        assert count.tolist() == [len(oracle.expert_rows(left, e)) for e in mine]
        combined = buffer.low_latency_combine(recv_x, batch.ids, batch.weights, handle)[0]
        here = batch.ids < oracle.first_expert(gone, rank.size, EXPERTS)
        kept = torch.where(here & (batch.ids >= 0), batch.weights, 0.0).sum(dim=1, keepdim=True)
        close(combined, batch.x.float() * kept)
    torch.distributed.barrier(rank.group)
    buffer.low_latency_clean_mask_buffer()
    buffer.low_latency_query_mask_buffer(status)
    assert status.tolist() == [0] * rank.size
    recv_x, _, handle, _, _ = buffer.low_latency_dispatch(batch.x, batch.ids, MOST, EXPERTS, use_fp8=False)
    close(buffer.low_latency_combine(recv_x, batch.ids, batch.weights, handle)[0], back(batch))


def test_masked_ranks_are_left_out_and_taken_in_again(world):
    world.run(mask_body)


def old_handle_body(rank):
    """A handle of normal mode outlives the reset that takes ranks in again: callers keep it for the backward pass."""
    buffer = make(rank, enable_shrink=True)
    batch = everyone(rank)[rank.rank]
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(batch.ids, EXPERTS)
    recv_x, *_, handle, _ = buffer.dispatch(
        batch.x,
        num_tokens_per_rank=per_rank,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
        topk_idx=batch.ids,
        topk_weights=batch.weights,
    )
    before = buffer.combine(recv_x, handle)[0]
    buffer.low_latency_clean_mask_buffer()
    same(buffer.combine(recv_x, handle)[0], before, "combined_x after the reset")


def test_a_handle_of_before_combines(world):
    world.run(old_handle_body)


def unshrunk_body(rank):
    buffer = make(rank)
    for call in (
        lambda: buffer.low_latency_update_mask_buffer(0, True),
        lambda: buffer.low_latency_query_mask_buffer(torch.zeros(1, dtype=torch.int32)),
        buffer.low_latency_clean_mask_buffer,
    ):
        raises(call, "enable_shrink")


def test_masks_need_enable_shrink(world):
    world.run(unshrunk_body, ranks=1)
